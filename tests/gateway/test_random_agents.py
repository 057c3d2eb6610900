"""Random agents that trim, summarise, fork and repeat over HTTP. The oracle is the agent: it knows what it did and why.

AGENTRL_RANDOM_AGENTS is the number of agents: 30 unless set, 200 for a release.

What nobody can decide from outside is left out, or is not judged:
- A fork that the agent neither goes on with nor asks again at: it may be the answer, a dropped try or a summary. So
  the agent always asks once more after the alternative that it chose, and the mask of the others is not judged.
- A summary that is asked for inside the main conversation, with its system prompt and tools, is one more turn of it.
  Its mask is not judged. One without tools, or under a system prompt of its own, is another conversation by agents.md.
- A main conversation without tools, or one whose last request has none: agents.md makes tools its mark.
- A sub-agent with the main agent's system prompt, or with its history: it looks like the main agent that goes on.
- Two requests under way at once have no order. The test only asks that a reply which was read before another one was
  asked for comes before it.
- A dropped reply of a side conversation, which `side` and `dropped` may treat differently: sub-agents drop none.
- A reply that the agent only ever told in a transcript, before it began again with its task and a summary: it looks
  dropped. Under dropped="mask" the agent puts both into one text.
- Under echo="as_sent", whether a reply that the agent rewrote counts as dropped: dropped="mask" goes without it.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest

from agentrl import EpisodeOptions, Limits, SessionOptions, Task, Trajectory, run_episode
from agentrl.testing import tiny_renderer
from agentrl.trajectory.model_output import ModelOutput
from agentrl.trajectory.trajectory import total_ledger
from tests.gateway.agents import doing
from tests.gateway.random_agent import MARK, TOKENIZER, Agent, Model

AGENTS = int(os.environ.get("AGENTRL_RANDOM_AGENTS", "30"))


def own_mark(text: str) -> str:
    return MARK.search(text).group()


def check_answer(agent: Agent, trajectory: Trajectory) -> None:
    """The answer is the agent's last on its main conversation, for graders and in the file, too."""
    again = Trajectory.from_json(trajectory.to_json())
    for answer in (trajectory.answer, ModelOutput.of(trajectory).answer, again.answer, ModelOutput.of(again).answer):
        assert answer.strip() == agent.answer.strip()


def check_order(agent: Agent, trajectory: Trajectory) -> None:
    in_order(agent, [own_mark(text) for text in ModelOutput.of(trajectory).turns])
    for each in (trajectory, Trajectory.from_json(trajectory.to_json())):
        in_order(agent, [own_mark(action.text) for action in each.actions])
        called = [[call.name for call in action.calls] for action in each.actions]
        assert [turn.calls for turn in each.turns] == called, "turns and actions have one order"


def in_order(agent: Agent, found: list[str]) -> None:
    """Each reply stands there once, and none after a reply that was asked for when it had been read."""
    by_mark = {one.said.mark: one for one in agent.sampled}
    assert Counter(found) == Counter(by_mark.keys()), "each reply is there once"
    latest = 0
    for one in (by_mark[mark] for mark in found):
        assert one.ended >= latest, f"{one.said.mark} comes after a reply that was asked for when it had been read"
        latest = max(latest, one.began)


def check_prompts(agent: Agent, trajectory: Trajectory) -> None:
    """What a request tells stands in its prompt: no reply is lost because it quotes an id, or was edited."""
    for one in agent.sampled:
        prompt = agent.model.prompts[one.said.mark]
        lost = [mark for mark in one.told if mark not in prompt]
        assert not lost, f"the prompt of {one.said.mark} ({one.kind}) lacks {lost}"


def check_tokens(agent: Agent, trajectory: Trajectory) -> None:
    """Each sampled token stands in one segment's response, trained or masked, as the ledger says."""
    segments = trajectory.segments
    found = [segment.tokens_of(turn) for segment in segments for turn in range(len(segment.turns))]
    assert sorted(found) == sorted(agent.model.sampled)
    ledger = total_ledger(segments)
    assert ledger.sampled == sum(map(len, agent.model.sampled)) == ledger.trained + sum(ledger.masked.values())
    assert ledger.trained == sum(sum(segment.loss_mask) for segment in segments)
    trajectory.verify()


def check_masks(agent: Agent, trajectory: Trajectory) -> None:
    """Each reply is trained, or masked for the reason that its conversation and the options give."""
    options, side = agent.options, agent.options.side == "mask"
    masked = {"sub": "side", "title": "side", "summary": "side"} if side else {}
    masked |= {"dropped": "dropped"} if options.dropped == "mask" else {}
    kinds = {one.said.mark: one.kind for one in agent.sampled}
    for segment in trajectory.segments:
        for turn in range(len(segment.turns)):
            spans = [span for span in segment.spans if span.turn == turn and span.kind == "sampled"]
            mark = own_mark(TOKENIZER.decode(segment.tokens_of(turn)))
            if kinds[mark] not in ("inline", "alternative"):
                wanted, reasons = masked.get(kinds[mark]), {span.masked for span in spans}
                assert reasons == {wanted}, f"{mark} ({kinds[mark]}) is masked for {reasons}, not for {wanted}"


def options_of(seed: int) -> SessionOptions:
    pick = random.Random(f"options {seed}")
    side = "mask" if pick.random() < 0.7 else "train"
    if pick.random() < 0.25:
        return SessionOptions(side=side, echo="as_sent")  # whether an edited reply is then dropped is not judged
    return SessionOptions(side=side, dropped="mask" if pick.random() < 0.35 else "train")


async def played(seed: int) -> tuple[Agent, Trajectory]:
    renderer = tiny_renderer()
    agent = Agent(seed, Model(renderer, seed), options_of(seed))

    async def run(env: Any, task: Task, endpoint: Any) -> None:
        await agent.run(endpoint)

    env = doing(run)
    env.session = agent.options
    options = EpisodeOptions(limits=Limits(turns=1000))
    trajectory = await run_episode(env(), Task(prompt="x"), engine=agent.model, renderer=renderer, options=options)
    assert trajectory.failure is None, trajectory.failure
    return agent, trajectory


@pytest.mark.parametrize("seed", range(AGENTS))
async def test_a_random_agents_answer_order_prompts_and_masks_are_its_own(seed):
    agent, trajectory = await played(seed)
    assert len(agent.model.prompts) == len(agent.sampled), "nothing is sampled twice for a retry"
    wrong = []
    for check in (check_answer, check_order, check_prompts, check_tokens, check_masks):
        try:
            check(agent, trajectory)
        except AssertionError as exc:  # one agent shows all that is wrong with it
            wrong.append(f"{check.__name__}: {str(exc).splitlines()[0]}")
    about = f"{type(agent.wire).__name__}, {sorted(agent.traits)}, {agent.options}"
    assert not wrong, "\n".join([about, *wrong])
