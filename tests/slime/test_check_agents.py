"""`agentrl check slime` of an Env that is an agent."""

from __future__ import annotations

import pytest

from tests.slime.checking import configure, findings, serious
from tests.slime.checking import folder as folder  # a fixture that each test uses

AGENT = """
from agentrl import AgentEnv


class Agent(AgentEnv):
    async def run(self, task, endpoint):
        return 1

    def score(self, trajectory) -> float:
        return 1.0


class Unscored(AgentEnv):
    async def run(self, task, endpoint):
        return 1
"""


@pytest.fixture(autouse=True)
def agent(folder) -> None:
    (folder / "my_agent.py").write_text(AGENT)
    configure(env="my_agent.py:Agent")


def test_an_agent_is_a_good_configuration():
    assert serious() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partial_rollout": True}, "to train its sub-agents, too, remove --partial-rollout"),
        ({"custom_reward_post_process_path": None}, "add --custom-reward-post-process-path agentrl.slime"),
    ],
)
def test_flags_under_which_only_the_main_line_is_trained(changes, message):
    found = [(level, text) for level, text in findings(**changes) if "of Agent only the main line is trained" in text]
    assert [level for level, _ in found] == ["warning"]
    assert message in found[0][1]


def test_a_client_must_wait_as_long_as_its_episode():
    found = [text for _, text in findings(partial_rollout=True) if "is an agent: aborted" in text]
    assert len(found) == 1
    assert "parking.keep_s = 1800 s" in found[0]
    configure(env="my_agent.py:Agent", parking={"keep_s": 0})
    found = [(level, text) for level, text in findings(partial_rollout=True) if "parking.keep_s is 0" in text]
    assert [level for level, _ in found] == ["warning"]
    assert "snapshot" not in found[0][1], "an agent cannot write one"


def test_prompts_that_slime_renders():
    assert any("remove --apply-chat-template" in text for _, text in serious(apply_chat_template=True))


def test_an_agent_without_a_score():
    configure(env="my_agent.py:Unscored")
    found = [text for _, text in findings() if text.startswith("Unscored writes no score")]
    assert found == ["Unscored writes no score: every episode has the reward 0; write score(trajectory)"]
