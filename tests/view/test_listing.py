from __future__ import annotations

import json

import pytest
import yaml
from typer.testing import CliRunner

from agentrl import StopReason
from agentrl.cli import app
from agentrl.view.answers import PageAnswers
from agentrl.view.sources import Run, open_source
from tests.view.conftest import made


@pytest.fixture
def file(write):
    masked = made(session_id="train-000001-0000-001", reward=0.25, stop=StopReason.MAX_TURNS)
    masked.mask("overlong")
    unscored = made(session_id="train-000001-0000-002", reward=None)
    return write(made(reward=0.5).to_json(), masked.to_json(), unscored.to_json())


def listed(*arguments):
    result = CliRunner().invoke(app, ["show", "--json", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return [json.loads(line)["index"] for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((), [0, 1, 2]),
        (("--stop", "max_turns"), [1]),
        (("--reason", "overlong"), [1]),
        (("--reason", "any"), [1]),
        (("--reason", "host"), []),
        (("--reward", "0.5"), [0]),
        (("--reward", "<0.5"), [1]),
        (("--reward", ">=0.25"), [0, 1]),
        (("--reward", "none"), [2]),
        (("--sort", "reward"), [1, 0, 2]),
        (("--sort", "-reward"), [0, 1, 2]),
        (("--sort", "-masked"), [1, 0, 2]),
        (("--worst", 1), [1]),
    ],
)
def test_lists(file, options, found):
    assert listed(file, *options) == found


def test_a_list_is_a_table_and_names_the_reasons(file):
    result = CliRunner().invoke(app, ["show", "--list", str(file)])
    assert "5 overlong" in result.stdout
    assert "3 episodes" in result.stdout


@pytest.mark.parametrize("options", [("--sort", "rewards"), ("--reward", "high")])
def test_a_wrong_query_is_one_line(file, options):
    result = CliRunner().invoke(app, ["show", "--list", str(file), *options])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


def a_run(folder, *, rate, rewards):
    (folder / "trajectories").mkdir(parents=True)
    config = {"model": "tiny", "learning_rate": rate, "limits": {"turns": 4}, "out": str(folder)}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [{"step": i + 1, "reward_mean": reward} for i, reward in enumerate(rewards)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    episodes = [made(reward=reward).to_json() for reward in rewards]
    (folder / "trajectories" / "eval_final.jsonl").write_text("".join(json.dumps(e) + "\n" for e in episodes))
    return folder


def test_compare(tmp_path):
    one = a_run(tmp_path / "one", rate=0.1, rewards=[0.0, 0.5, 1.0])
    other = a_run(tmp_path / "other", rate=0.2, rewards=[0.0, 0.0, 0.25])
    found = json.loads(CliRunner().invoke(app, ["compare", "--json", str(one), str(other)]).stdout)
    assert found["config"] == {"learning_rate": [0.1, 0.2]}
    assert [score["mean"] for score in found["held_out"]["final"]] == [0.5, pytest.approx(1 / 12)]
    low, high = found["held_out"]["final"][0]["interval"]
    assert low <= 0.5 <= high
    assert found["metrics"]["reward_mean"][0] == [0.5, 0.5]
    printed = CliRunner().invoke(app, ["compare", str(one), str(other)]).stdout
    assert "1 keys differ" in printed
    assert "▁▄█" in printed.replace("▅", "▄")


@pytest.mark.parametrize(
    ("changed", "reason"), [("env", "other Env than one: other"), ("eval_tasks", "other tasks than one: other")]
)
def test_runs_of_other_tasks_are_not_paired(tmp_path, changed, reason):
    runs = [a_run(tmp_path / name, rate=0.1, rewards=[0.0, 0.5, 1.0]) for name in ("one", "other")]
    for number, run in enumerate(runs):
        line = {"name": "final", "step": 3, "mean": 0.5, "rewards": [0.0, 0.5, 0.5 + number / 2]}
        (run / "evaluations.jsonl").write_text(json.dumps(line) + "\n")

    def found():
        return json.loads(CliRunner().invoke(app, ["compare", "--json", *map(str, runs)]).stdout)

    assert (found()["unlike"], found()["paired"][0]["mean"]) == ([], pytest.approx(1 / 6))
    assert "+0.167 (+0.000 to" in CliRunner().invoke(app, ["compare", *map(str, runs)]).stdout
    for run in runs:
        digests = {"env": "a", "eval_tasks": "b"}
        (run / "fingerprint.json").write_text(json.dumps(digests | ({changed: "c"} if run is runs[1] else {})))
    assert (found()["unlike"], found()["paired"]) == ([reason], [])
    assert f"not paired: {reason}" in CliRunner().invoke(app, ["compare", *map(str, runs)]).stdout
    answer = PageAnswers([open_source(run) for run in runs], None).compare({})
    assert (answer["unlike"], answer["shared"]) == ([reason], [])


def test_compare_needs_runs(tmp_path, file):
    assert CliRunner().invoke(app, ["compare", str(file), str(file)]).exit_code == 2
    one = a_run(tmp_path / "one", rate=0.1, rewards=[0.0])
    assert CliRunner().invoke(app, ["compare", str(one)]).exit_code == 2


def test_the_columns_of_a_list_are_aligned(file):
    lines = CliRunner().invoke(app, ["show", "--list", str(file)]).stdout.splitlines()
    rewards = [line[: lines[0].index("reward") + len("reward")].split()[-1] for line in lines[:-1]]
    assert rewards == ["reward", "0.5", "0.25", "none"]


def test_a_run_is_listed_once_for_all_of_its_files(tmp_path, monkeypatch):
    (tmp_path / "trajectories").mkdir()
    for step in range(30):
        (tmp_path / "trajectories" / f"step_{step:06d}.jsonl").write_text(json.dumps(made(reward=0.5).to_json()))
    listings, listing = [], Run.listing
    monkeypatch.setattr(Run, "listing", lambda run: listings.append(run) or listing(run))
    assert listed(tmp_path) == [0] * 30
    assert len(listings) < 4
