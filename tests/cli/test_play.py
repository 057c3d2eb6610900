from __future__ import annotations

import json
import re
import time

import pytest

from agentrl import StopReason, Trajectory
from agentrl.cli.episodes import progress

PLAY = ("--data", "tasks.jsonl", "--player")


def read(file) -> list[Trajectory]:
    return [Trajectory.from_json(json.loads(line)) for line in file.read_text().splitlines()]


def figures(stdout: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+(?: \w+)?) {2,}(.*)$", stdout, re.MULTILINE))


def test_a_gold_player_wins_and_is_recorded(folder, agentrl):
    out = folder / "new" / "demos.jsonl"
    assert agentrl("play", "my_env.py:Capitals", *PLAY, "my_env.py:gold", "--out", out) == 0
    assert figures(agentrl.stdout) == {"episodes": "2", "failed": "0", "mean reward": "1.000", "mean turns": "2.00"}
    assert f"agentrl show {out}" in agentrl.stdout
    demos = read(out)
    assert [(t.task.label, t.reward, t.stop, t.task.split) for t in demos] == [
        ("Paris", 1.0, StopReason.DONE, "train"),
        ("Lima", 1.0, StopReason.DONE, "train"),
    ]
    assert all(t.ledger.trained == t.ledger.sampled > 0 for t in demos)
    assert agentrl("show", out) == 0


def test_a_player_that_does_nothing_wins_nothing(folder, agentrl):
    assert agentrl("play", "my_env.py:Capitals", *PLAY, "my_env.py:noop", "--limit", "1") == 0
    told = figures(agentrl.stdout)
    episode = told.pop("an episode")
    assert told == {
        "episodes": "1",
        "failed": "0",
        "mean reward": "0.000",
        "mean turns": "1.00",
        "stops": "done 1",
        "bad calls": "none",
    }
    assert episode.endswith(", 1 turns; it ends so:")
    assert "\n  assistant: " in agentrl.stdout


def test_a_broken_world_is_counted_and_not_imitated(folder, agentrl):
    assert agentrl("play", "my_env.py:Unreliable", *PLAY, "my_env.py:gold", "--out", "demos.jsonl") == 0
    assert figures(agentrl.stdout)["failed"] == "1"
    assert figures(agentrl.stdout)["mean reward"] == "1.000"
    played, failed = (t.ledger for t in read(folder / "demos.jsonl"))
    assert (played.trained, played.masked) == (played.sampled, {})
    assert (failed.trained, failed.masked) == (0, {"env_failure": failed.sampled})
    assert failed.sampled > 0


def test_settings_reach_the_episode(folder, agentrl):
    assert agentrl("play", "my_env.py:Capitals", *PLAY, "my_env.py:gold", "--set", "limits.turns=1") == 0
    assert figures(agentrl.stdout)["mean turns"] == "1.00"
    assert figures(agentrl.stdout)["mean reward"] == "0.000"


@pytest.mark.parametrize(
    ("player", "line"),
    [
        (
            "brief",
            "error: --player my_env.py:brief ended after turn 1, but the episode is not over (task tasks-1); "
            "yield another",
        ),
        ("failing", "error: --player my_env.py:failing failed on task tasks-1: my_env.py:"),
        ("broken", "error: --player my_env.py:broken failed on task tasks-1: my_env.py:"),
    ],
)
def test_a_player_with_a_bug_is_one_line_and_nothing_is_written(folder, agentrl, player, line):
    assert agentrl("play", "my_env.py:Capitals", *PLAY, f"my_env.py:{player}", "--out", "demos.jsonl") == 2
    assert agentrl.stderr.startswith(line)
    assert agentrl.stderr.count("\n") == 1
    assert not (folder / "demos.jsonl").exists()


def test_a_bug_in_the_env_shows_the_users_frames_alone(folder, agentrl):
    assert agentrl("play", "my_env.py:Buggy", *PLAY, "my_env.py:gold") == 1
    *frames, last = agentrl.stderr.splitlines()
    assert last.startswith("error: KeyError: 'oops' (in score, episode ")
    assert last.endswith("); fix it; nothing was written; run the command again")
    assert [line.strip() for line in frames if not line.lstrip().startswith("File")] == ['raise KeyError("oops")']
    assert len(frames) == 2


def test_interrupting_says_how_to_go_on(folder, agentrl, monkeypatch):
    def interrupt(coroutine):
        coroutine.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("asyncio.run", interrupt)
    assert agentrl("play", "my_env.py:Capitals", *PLAY, "my_env.py:gold", "--out", "demos.jsonl") == 130
    assert agentrl.stderr == "interrupted: nothing was written; run the command again\n"
    assert not (folder / "demos.jsonl").exists()


def test_the_bar_shows_the_mean_reward(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal shows no bar
    monkeypatch.setenv("COLUMNS", "100")
    with progress("playing", 2) as on_episode:
        for reward in (1.0, 0.0):
            trajectory = Trajectory(session_id="s")
            trajectory.reward = reward
            on_episode(trajectory)
    assert "2/2" in capsys.readouterr().err


def test_a_scripted_player_says_how_many_episodes_it_replaced(folder, agentrl):
    args = ("play", "my_env.py:Capitals", *PLAY, "my_env.py:gold", "--out", "demos.jsonl")
    assert agentrl(*args) == 0
    assert "replaced" not in agentrl.stdout
    assert agentrl(*args) == 0
    assert "written to demos.jsonl (replaced 2 episodes); look" in agentrl.stdout


def test_you_are_not_asked_to_play_what_is_in_the_file_already(folder, agentrl):
    (folder / "demos.jsonl").write_text("{}\n{}\n\n")
    assert agentrl("play", "my_env.py:Capitals", "--data", "tasks.jsonl", "--out", "demos.jsonl") == 2
    assert agentrl.stderr == "error: demos.jsonl holds 2 episodes; name another file, or remove it\n"


@pytest.mark.parametrize("player", ["speaker", "later"])
def test_a_function_of_messages_and_tools_plays(folder, agentrl, player):
    assert agentrl("play", "my_env.py:Capitals", *PLAY, f"my_env.py:{player}", "--out", "demos.jsonl") == 0
    assert figures(agentrl.stdout) == {"episodes": "2", "failed": "0", "mean reward": "1.000", "mean turns": "2.00"}
    demos = read(folder / "demos.jsonl")
    assert all(t.ledger.trained == t.ledger.sampled > 0 for t in demos), "demonstrations like any other"
    assert {t.info["player"]["model"] for t in demos} == {f"my_env.py:{player}"}


@pytest.mark.thorough
def test_a_reward_function_replaces_the_envs_score(folder, agentrl):
    args = ("play", "my_env.py:Capitals", *PLAY)
    for player in ("noop", "shrug"):
        assert agentrl(*args, f"my_env.py:{player}", "--set", "reward=my_env.py:always_one") == 0
        assert figures(agentrl.stdout)["mean reward"] == "1.000"
        assert agentrl(*args, f"my_env.py:{player}") == 0
        assert figures(agentrl.stdout)["mean reward"] == "0.000"
    assert agentrl(*args, "my_env.py:noop", "--set", "reward=3") == 2
    assert agentrl.stderr == "error: --set reward=3: name a function, as in --set reward=my_reward.py:function\n"


@pytest.mark.parametrize("command", ["play", "eval"])
def test_labels_that_the_grader_can_never_pay_are_refused_with_their_lines(folder, agentrl, command):
    (folder / "bad.jsonl").write_text('{"prompt": "a", "label": "b"}\n{"prompt": "a", "label": " "}\n{"prompt": "a"}\n')
    args = {"play": ("--player", "my_env.py:gold"), "eval": ("--model", "tiny")}[command]
    assert (
        agentrl(command, "my_env.py:Capitals", "--data", "bad.jsonl", *args, "--set", "reward=agentrl.rewards:em") == 2
    )
    assert agentrl.stderr.startswith("error: bad.jsonl:2: no answer can match the label ' ': it is empty")
    assert agentrl.stderr.endswith("; other refused lines: 3\n")


def test_a_reward_of_whole_groups_is_refused_where_each_episode_is_scored_alone(folder, agentrl):
    (folder / "ranks.py").write_text(
        "from agentrl.rewards import group\n\n\n@group\ndef ranked(episodes):\n    return [0.0 for _ in episodes]\n"
    )
    args = ("play", "my_env.py:Capitals", *PLAY, "my_env.py:gold")
    assert agentrl(*args, "--set", "reward=ranks.py:ranked") == 2
    assert agentrl.stderr.startswith("error: --set reward=ranks.py:ranked scores groups together; here each episode")


def test_without_a_terminal_lines_tell_of_the_progress(monkeypatch, capsys):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr("agentrl.cli.episodes._EVERY_S", 0.01)
    shown, end = "", time.monotonic() + 10
    with progress("playing", 2) as on_episode:
        trajectory = Trajectory(session_id="s")
        trajectory.reward = 0.5
        on_episode(trajectory)
        while "1/2" not in shown and time.monotonic() < end:
            shown += capsys.readouterr().err
    assert "1/2 episodes, reward 0.500\n" in shown


def test_no_bar_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with progress("playing", 1) as on_episode:
        on_episode(Trajectory(session_id="s"))
    assert capsys.readouterr().err == ""


def test_a_player_changes_its_own_copy_of_the_task_alone(folder, agentrl):
    (folder / "pops.py").write_text(
        "from agentrl.testing import call\n\n\n"
        "def player(task):\n"
        "    yield call('search', query=task.metadata['names'].pop())\n"
        "    yield task.label\n"
    )
    row = {"prompt": "Capital of Peru?", "label": "Lima", "metadata": {"names": ["Peru"]}}
    (folder / "popped.jsonl").write_text(json.dumps(row) + "\n")
    command = ("play", "my_env.py:Capitals", "--data", "popped.jsonl", "--player", "pops.py:player", "--samples", "3")
    assert agentrl(*command) == 0
    assert figures(agentrl.stdout)["mean reward"] == "1.000"


GAME = """
from agentrl import Env, StepResult


class Game(Env):
    async def step(self, action):
        return StepResult(done=True, reward=1.0 if action.text == self.task.label else None)


def even(task):
    yield task.label if int(task.id) % 2 else "no"


def never(task):
    yield "no"
"""


@pytest.fixture
def game(folder):
    (folder / "game.py").write_text(GAME)
    rows = [json.dumps({"prompt": "?", "label": "yes", "id": n}) for n in range(5)]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    return ("game.py:Game", "--data", "rows.jsonl")


def test_a_game_that_is_lost_counts_as_nothing_in_play_and_eval_alike(game, agentrl, folder):
    assert agentrl("play", *game, "--player", "game.py:even", "--out", "all.jsonl") == 0
    assert figures(agentrl.stdout)["mean reward"] == "0.400"
    assert sorted(t.reward for t in read(folder / "all.jsonl")) == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert agentrl("play", *game, "--player", "game.py:even", "--min-reward", "0", "--out", "kept.jsonl") == 0
    assert "kept         5 of 5 episodes" in agentrl.stdout
    for first, mean in (("yes", 0.2), ("no", None)):
        (folder / f"{first}.py").write_text(
            f"said = iter(['{first}', *['no'] * 4])\n\n\ndef say(ids):\n    return next(said)\n"
        )
        args = ("--model", "tiny", "--engine", "scripted", "--set", f"engine_config.turns={first}.py:say")
        assert agentrl("eval", *game, *args, "--json") == 0, agentrl.stderr
        found = json.loads(agentrl.stdout)
        assert (found["reward_mean"], found["unscored"]) == (mean, 0 if mean else 5)


def test_a_game_that_nobody_wins_is_unscored(game, agentrl):
    assert agentrl("play", *game, "--player", "game.py:never") == 0
    assert figures(agentrl.stdout)["mean reward"] == "unscored 5"
    assert "warning: none of 5 episodes was rewarded; write score(trajectory), or give a" in agentrl.stderr


def test_the_bar_counts_as_the_report_does(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal shows no bar
    monkeypatch.setenv("COLUMNS", "100")
    with progress("playing", 4) as on_episode:
        for reward, stop in ((1.0, "done"), (None, "done"), (None, "failed"), (0.5, "done")):
            trajectory = Trajectory(session_id="s")
            trajectory.reward, trajectory.stop = reward, StopReason(stop)
            on_episode(trajectory)
    assert "reward 0.500, 1 failed" in capsys.readouterr().err


def test_wrong_calls_of_a_player_that_wins_nothing_are_told(folder, agentrl):
    (folder / "wrong.py").write_text(
        'from agentrl.testing import call\n\n\ndef player(task):\n    yield call("search")\n    yield "Rome"\n'
    )
    assert agentrl("play", "my_env.py:Capitals", *PLAY, "wrong.py:player") == 0, agentrl.stderr
    assert figures(agentrl.stdout)["bad calls"] == "content 2"
