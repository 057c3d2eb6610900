"""What a run keeps for those who look at it."""

from __future__ import annotations

import json

import pytest

from agentrl import Task, Trajectory
from agentrl.cli import app
from agentrl.train import TrainConfig, train
from agentrl.train.records import RunRecords, _telling
from agentrl.view.audit import audit
from agentrl.view.sources import Run
from tests.train.conftest import LIMITS, TOY


@pytest.fixture(scope="module")
def run(small_model, tmp_path_factory):
    """Two steps of three groups, of which one keeps its tokens."""
    return _train(small_model, tmp_path_factory.mktemp("run") / "run")


def _train(small_model, out, **given):
    data = out.parent / "tasks.jsonl"
    data.write_text(
        "".join(json.dumps({"id": str(i), "prompt": f"Say {i}.", "label": 0.1 * i}) + "\n" for i in range(6))
    )
    config = TrainConfig.make(
        env=f"{TOY}:Toy",
        data=data,
        model=str(small_model),
        out=out,
        steps=2,
        prompts_per_step=3,
        group_size=4,
        keep={"groups": 1},
        limits=LIMITS,
        canaries=None,
        **given,
    )
    train(config)
    return out


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_groups_that_differ_are_stored_first():
    def group(*rewards):
        episodes = [Trajectory(Task(id="1")) for _ in rewards]
        for episode, reward in zip(episodes, rewards, strict=True):
            episode.reward = reward
        return episodes

    groups = [group(1, 1), group(0, 0), group(0, 1), group(1, 1), group(1, 0)]
    assert [_telling(groups, most) for most in (0, 1, 2, 3, 9)] == [[], [2], [2, 4], [0, 2, 4], [0, 1, 2, 3, 4]]


def test_the_index_has_every_episode_and_the_place_of_the_kept_ones(run):
    index = lines(run / "index" / "step_000002.jsonl")
    assert [(line["step"], line["group"], line["member"]) for line in index] == [
        (2, group, member) for group in range(3) for member in range(4)
    ]
    raw = (run / "trajectories" / "step_000002.jsonl").read_bytes()
    kept = [line for line in index if "offset" in line]
    assert len(kept) == 4
    for line in kept:
        data = json.loads(raw[line["offset"] : line["offset"] + line["length"]])
        assert data["reward"] == line["reward"]
    assert all(line["started"] > 1.7e9 for line in index)
    assert all(len(json.dumps(line)) < 700 for line in index)


@pytest.mark.thorough
@pytest.mark.parametrize("tis", [None, 2.0])
def test_advantages_and_the_trainers_log_probs_are_those_it_learned_from(small_model, tmp_path, tis):
    run = Run(_train(small_model, tmp_path / "run", tis_clip=tis))
    file = run.file("step_000001")
    assert file.refresh() == 12
    episodes = [file.episode(n) for n in range(4)]
    rewards = [episode.outline.reward for episode in episodes]
    mean = sum(rewards) / len(rewards)
    for episode, reward in zip(episodes, rewards, strict=True):
        (sequence,) = episode.sequences
        trained = [i for r in sequence.runs if r.trained for i in range(r.start, r.stop)]
        assert {sequence.advantages[i] > 0 for i in trained} == {reward > mean}
        if sequence.trainer is not None:
            assert all(abs(sequence.engine[i] - sequence.trainer[i]) < 1e-4 for i in trained)
            assert episode.outline.gap < 1e-4
    looked_at = [episode.sequences[0].trainer is not None for episode in episodes]
    assert any(looked_at), "without TIS, the first minibatch is compared"
    assert tis is None or all(looked_at)


def test_a_run_can_be_audited_and_viewed(run):
    source = Run(run)
    file = source.file("step_000001")
    assert file.refresh() == 12
    report = audit("x", [(str(n), file.episode(n)) for n in range(4)])
    assert report.findings == []
    assert source.state()["summary"]["steps"] == 2
    assert not (run / "inflight.json").exists(), "nothing is in flight after the end"


def test_imitation_writes_its_loss(small_model, tmp_path):
    from typer.testing import CliRunner

    chat = tmp_path / "chat.jsonl"
    row = {"messages": [{"role": "user", "content": "Say hi."}, {"role": "assistant", "content": "hi"}]}
    chat.write_text((json.dumps(row) + "\n") * 4)
    out = tmp_path / "taught"
    steps = ["--set", "warm_start.steps=3", "--set", "warm_start.batch_size=2"]
    result = CliRunner().invoke(app, ["sft", str(chat), "--model", str(small_model), "--out", str(out), *steps])
    assert result.exit_code == 0, result.output
    found = lines(out / "imitation.jsonl")
    assert [line["step"] for line in found] == [1, 2, 3]
    assert found[0]["loss"] > found[-1]["loss"] > 0


def test_a_rewind_removes_what_will_be_played_again(tmp_path):
    records = RunRecords(tmp_path)
    for step in (1, 2, 3):
        records.event("canary", "tasks fail", step)
        records.imitated(step, 0.5)
        (tmp_path / "index").mkdir(exist_ok=True)
        (tmp_path / "index" / f"step_{step:06d}.jsonl").touch()
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"step": 2, "torn')
    records.rewind(1, 2)
    assert [line["step"] for line in lines(tmp_path / "events.jsonl")] == [1]
    assert [line["step"] for line in lines(tmp_path / "imitation.jsonl")] == [1, 2]
    assert [file.name for file in (tmp_path / "index").iterdir()] == ["step_000001.jsonl"]


async def test_in_flight_tells_what_an_episode_waits_for(tmp_path):
    from agentrl import Trajectory
    from agentrl.rollout.play.in_flight import flying, note_turn
    from agentrl.types import Rendered
    from tests.view.conftest import QUESTION, REPLY, observe, say

    records = RunRecords(tmp_path)
    trajectory = Trajectory(session_id="train-000001-0000-000")
    trajectory.append_prompt(Rendered(QUESTION, ()))
    said = []
    with flying(trajectory.session_id, "peru"):
        for grow in (lambda: None, lambda: say(trajectory, REPLY), lambda: observe(trajectory)):
            grow()
            if trajectory.turns:
                note_turn(trajectory)
            records.write_in_flight()
            said += [(e["task"], e["turn"], e["waiting"]) for e in _flights(tmp_path)]
    records.write_in_flight()
    assert said == [("peru", 0, "reset or first turn"), ("peru", 1, "env"), ("peru", 1, "engine")]
    assert _flights(tmp_path) == []


def _flights(folder):
    return json.loads((folder / "inflight.json").read_text())["episodes"]
