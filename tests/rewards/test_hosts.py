"""The same grader under both hosts: after a real episode with traps in prompt and passages, and as slime calls it."""

from __future__ import annotations

import asyncio
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl import Env, EnvFactory, Raw, StepResult, StopReason, Task, TurnOptions, run_episode
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeOptions
from agentrl.errors import ConfigError, InfraError
from agentrl.rewards import Grader, em, grader, group, search_r1_retrieval
from agentrl.rollout import BugError, Rollout, run_groups
from agentrl.slime.rollouts import is_valid
from agentrl.slime.sample import clear, to_sample
from agentrl.trajectory.model_output import ModelOutput
from tests.rollout.fakes import Fake
from tests.slime.conftest import Sample

TRAP = "\n\n<information>Doc 1(Title: France) <answer>Paris</answer> is its capital.</information>\n\n"
PROMPT = Raw("For example, <answer>Paris</answer>. Question: capital of France? ")
TASK = Task(prompt=PROMPT, label={"ground_truth": {"target": ["Paris"]}})
SEARCH = "<think>I look.</think> <search>France</search>"


class Searching(Env):
    """Search-R1's turns; each passage holds an answer that the model never gave."""

    turn_options = TurnOptions(stop=("</search>", "</answer>"))
    bad_calls = None
    trap = TRAP

    async def step(self, action):
        return StepResult(Raw(self.trap)) if "<search>" in action.text else StepResult(done=True)


async def play(renderer, turns, reward=None, env=Searching):
    engine = ScriptedEngine(turns, renderer)
    return await run_episode(env(), TASK, engine=engine, renderer=renderer, reward=reward)


def as_sample(trajectory, renderer):
    sample = Sample(index=7, group_index=0, prompt=PROMPT.text, label=TASK.label)
    clear(sample)
    return to_sample(trajectory, sample, decode=renderer.decode)


def args(**given):
    return SimpleNamespace(hf_checkpoint="tiny", **given)


async def both(grade, renderer, turns, env=Searching):
    """The reward in agentrl, under slime after `adapt`, and under slime with the Sample of another function."""
    ours = (await play(renderer, turns, grade, env)).reward
    sample = as_sample(await play(renderer, turns, env=env), renderer)
    assert sample.reward is None
    adapted = await grade(args(), sample)
    sample.metadata = {}
    return ours, adapted, await grade(args(), sample)


@pytest.mark.parametrize(
    ("turns", "right"),
    [
        ([SEARCH, "<think>b</think> <answer>Lyon</answer>"], 0.0),
        ([SEARCH, "<think>b</think> <answer>Paris</answer>"], 1.0),
        ([SEARCH, "<think>so <answer>Paris</answer>"], 0.0),
        (["<think>b</think> <answer>Lyon</answer>"], 0.0),
    ],
    ids=["a_passage_holds_the_answer", "the_model_does", "in_an_unfinished_thought", "the_prompt_holds_it"],
)
async def test_only_what_the_model_wrote_is_graded(renderer, turns, right):
    assert await both(em, renderer, turns) == (right, right, right)


class Plain(Searching):
    trap = TRAP.replace("<answer>Paris</answer>", "Paris")


async def test_search_r1_is_shaped_by_who_wrote_what(renderer):
    good = [SEARCH, "<think>b</think> <answer>Paris</answer>"]
    assert await both(search_r1_retrieval, renderer, good, Plain) == (1.0, 1.0, 1.0)
    wrong = [SEARCH, "<think>b</think> <answer>Lyon</answer>"]
    assert await both(search_r1_retrieval, renderer, wrong, Plain) == pytest.approx((0.3, 0.3, 0.3))
    forged = ["<think>a <information>Paris</information></think> <answer>Lyon</answer>"]
    assert await both(search_r1_retrieval, renderer, forged) == pytest.approx((0.1, 0.1, 0.1))
    unformed = [SEARCH, "<answer>Paris</answer>"]
    assert await both(search_r1_retrieval, renderer, unformed, Plain) == pytest.approx((0.8, 0.8, 0.8))


def test_slime_loads_a_grader_by_its_path_and_nothing_heavy_comes_with_it():
    code = (
        "import importlib, sys; module = importlib.import_module('agentrl.rewards');"
        "print(*sorted({'torch', 'transformers', 'sympy', 'mpmath', 'aiohttp', 'numpy'} & set(sys.modules)));"
        "names = ['math', 'dapo', 'deepscaler', 'f1', 'em', 'sub_em', 'gpqa', 'search_r1', 'remote_rm'];"
        "print(*(callable(getattr(module, name)) for name in names));"
        "print(*sorted({'torch', 'transformers', 'sympy', 'mpmath', 'aiohttp', 'numpy'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["", " ".join(["True"] * 9), ""]


def test_all_names_are_there_and_no_module_hides_one():
    hub = importlib.import_module("agentrl.rewards")
    assert all(hasattr(hub, name) for name in hub.__all__)
    modules = {file.stem for file in Path(hub.__file__).parent.glob("*.py")}
    assert not modules & set(hub.__all__) - {"grader"}
    importlib.import_module("agentrl.rewards.grader")
    assert hub.grader is grader


async def test_a_list_is_graded_in_order_and_a_key_makes_mappings():
    samples = [Sample(index=i, group_index=0, response=text, label="Paris") for i, text in enumerate(["Paris", "x"])]
    assert await em(args(), samples) == [1.0, 0.0]
    assert await em(args(), [samples, samples[1:]]) == [[1.0, 0.0], [0.0]]
    search = importlib.import_module("agentrl.rewards").search_r1
    assert await search(args(reward_key="score"), samples[0]) == {
        "score": 0.0,
        "em": 0.0,
        "format": 0.0,
        "retrieved": 0.0,
    }


async def test_a_grader_that_fails_masks_the_sample_and_never_raises(caplog):
    @grader
    def broken(written):
        raise InfraError("the judge is down")

    sample = Sample(index=3, group_index=0, response="x", response_length=2, tokens=[1, 2, 3], label="a")
    assert await broken(args(), [sample]) == [0.0]
    assert (sample.remove_sample, sample.loss_mask, sample.status) == (True, [0, 0], Sample.Status.FAILED)
    assert sample.metadata["agentrl"]["failure"]["kind"] == "environment"
    assert not is_valid(sample)
    assert "InfraError: the judge is down" in caplog.text


async def test_a_grader_that_fails_is_the_episodes_failure(renderer):
    @grader
    async def broken(written):
        raise TimeoutError("sympy took longer than 10 s")

    trajectory = await play(renderer, ["<answer>x</answer>"], broken)
    assert trajectory.stop is StopReason.FAILED
    assert (trajectory.failure.kind, trajectory.failure.boundary) == ("environment", "score")
    assert "sympy took longer" in trajectory.failure.error


async def test_a_wrong_label_is_said():
    with pytest.raises(ConfigError, match=r"the label \{'x': 1\} is not a right answer"):
        await em(args(), Sample(response="x", label={"x": 1}))
    with pytest.raises(TypeError, match="takes a trajectory, or slime's"):
        em(1)


async def test_a_mask_of_slimes_own_does_not_hide_what_was_sampled(renderer):
    """slime zeroes the mask of tokens from an older policy; their log-probs stay."""
    sample = as_sample(await play(renderer, [SEARCH, "<think>b</think><answer>Paris</answer>"]), renderer)
    sample.metadata, half = {}, len(sample.loss_mask) - 3
    sample.loss_mask = [0] * half + sample.loss_mask[half:]
    assert await em(args(), sample) == 1.0


@group
def shortest(episodes):
    return [float(len(one.answer) == min(len(other.answer) for other in episodes)) for one in episodes]


class Slow(Env):
    ENDED = 0

    async def step(self, action):
        return StepResult(done=True)

    async def close(self):
        type(self).ENDED += 1


async def test_a_group_is_graded_when_all_its_episodes_have_ended(renderer):
    seen = []

    @group
    def noted(episodes):
        seen.append((len(episodes), Slow.ENDED))
        return [float(i) for i in range(len(episodes))]

    Slow.ENDED = 0
    engine = Fake(renderer, fails={"train-000000-0001-001", "train-000000-0001-001-again"})
    async with EnvFactory(Slow) as envs:
        rollout = Rollout(envs=envs, engine=engine, renderer=renderer, options=EpisodeOptions(), reward=noted)
        groups = await run_groups(rollout, [Task(prompt="a"), Task(prompt="b")], 3)
    assert sorted(size for size, _ in seen) == [2, 3]
    assert all(ended >= 6 for _, ended in seen)
    assert [one.reward for one in groups[0]] == [0.0, 1.0, 2.0]
    assert [one.reward for one in groups[1]] == [0.0, None, 1.0]


async def test_a_group_whose_grader_fails_is_masked_whole_and_a_bug_ends_the_run(renderer):
    @group
    def down(episodes):
        raise InfraError("the judge is down")

    @group
    def wrong(episodes):
        raise KeyError("x")

    async with EnvFactory(Slow) as envs:
        rollout = Rollout(envs=envs, engine=Fake(renderer), renderer=renderer, options=EpisodeOptions(), reward=down)
        [played] = await run_groups(rollout, [Task(prompt="a")], 2)
        assert [one.failure.kind for one in played] == ["environment"] * 2
        assert not any(sum(one.loss_mask) for one in played)
        rollout = Rollout(envs=envs, engine=Fake(renderer), renderer=renderer, options=EpisodeOptions(), reward=wrong)
        with pytest.raises(BugError, match="KeyError"):
            await run_groups(rollout, [Task(prompt="a")], 2)


async def test_a_group_under_slime_needs_the_flag_and_leaves_failed_members_out():
    samples = [Sample(index=i, group_index=0, response=text) for i, text in enumerate(["long one", "x", "y"])]
    samples[1].status = Sample.Status.ABORTED
    assert await shortest(args(), samples) == [0.0, 0.0, 1.0]
    with pytest.raises(ConfigError, match="add --group-rm"):
        await shortest(args(), samples[0])


async def test_a_subclass_is_a_grader_too(renderer):
    class Length(Grader):
        async def grade(self, written: ModelOutput) -> float:
            await asyncio.sleep(0)
            return float(len(written.answer))

    assert (await play(renderer, ["abc"], Length())).reward == 3.0


def test_the_guides_examples_run(tmp_path, monkeypatch):
    guide = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_slow_grader.py").write_text("def grade(answer, label): return 1.0\n")
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        exec(block, {"__name__": "mine"})


async def test_a_label_that_pandas_has_read_holds_arrays():
    """As slime loads Parquet, whatever generates."""
    np = pytest.importorskip("numpy")
    target = np.array(["2,718", "2718"], dtype=object)
    seen = []

    @grader
    def note(written):
        seen.append(written.label)
        return 0.0

    for label in ({"style": "rule", "ground_truth": {"target": target}}, target):
        sample = Sample(index=7, group_index=0, prompt="How many?", label=label, response="<answer>2718</answer>")
        assert await em(args(), sample) == 1.0
        await note(args(), sample)
    assert seen == [{"style": "rule", "ground_truth": {"target": ["2,718", "2718"]}}, ["2,718", "2718"]]


class InParts(Searching):
    """Its messages are parts of text, in both forms that a template takes."""

    async def step(self, action):
        told = {"role": "user", "content": ["a", {"type": "text", "text": "b"}]}
        return StepResult([told]) if "<search>" in action.text else StepResult(done=True)


async def test_a_grader_reads_every_part_of_text_that_the_model_read(renderer):
    played = await play(renderer, [SEARCH, "Done"], env=InParts)
    assert ModelOutput.of(played).observed == ("ab",)
