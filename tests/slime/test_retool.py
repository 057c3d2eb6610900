"""examples/retool under slime: rows of dapo-math as they are, through adapt; and slime's own reward beside ours."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import yaml

from agentrl import adapt
from agentrl.engine import ScriptedEngine
from agentrl.testing import call

HERE = Path(__file__).parents[2] / "examples" / "retool"
SLIME = os.environ.get("SLIME_SRC")
PARAMS = {"temperature": 1.0, "max_new_tokens": 600, "stop": None, "stop_token_ids": None, "skip_special_tokens": False}
ASKED = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is 6 times 7?"
)
PRINTED = [call("code_interpreter", code=r"print('Answer: \\boxed{42}')"), "There it stands."]
RIGHT = [call("code_interpreter", code="print(6 * 7)"), r"It is. Answer: \boxed{42}"]


@pytest.fixture
def play(Sample, serve, make_args, renderer):
    given = yaml.safe_load((HERE / "slime.yaml").read_text())["agentrl"]
    config = {**given, "env": str(HERE / "retool.py") + ":ReTool", "env_config": {"backend": "local", "size": 1}}

    async def episode(turns, prompt=ASKED):
        async with serve(ScriptedEngine(turns, renderer)) as (_, url):
            return await adapt(make_args(url, **config), Sample(prompt=prompt, label="42"), PARAMS)

    return episode


@pytest.mark.thorough
@pytest.mark.parametrize("prompt", [ASKED, [{"role": "user", "content": ASKED}]])
async def test_a_row_of_dapo_math_is_played_and_graded(play, prompt):
    sample = await play(RIGHT, prompt)
    assert (sample.reward, sample.remove_sample) == (1.0, False)
    assert sample.metadata["agentrl"]["reward_parts"] == {"acc": 1.0, "calls": 1.0}
    assert "<tool_response>\n42\n" in sample.response


async def test_what_the_interpreter_printed_earns_nothing_here_and_the_full_reward_there(play):
    sample = await play(PRINTED)
    assert sample.reward == pytest.approx(-1.05)
    if not SLIME:
        pytest.skip("SLIME_SRC does not name slime's source folder")
    spec = importlib.util.spec_from_file_location("math_dapo", Path(SLIME, "slime/rollout/rm_hub/math_dapo_utils.py"))
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    found = theirs.compute_score(f"{ASKED}{sample.response}", "42", strict_box_verify=True)
    assert found["score"] == 1.0
