from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from agentrl import Env, Generation, StepResult, Task, Trajectory
from agentrl.cli.show import load_trajectory, render_trajectory
from agentrl.errors import ConfigError, Failure
from agentrl.testing import call, rollout
from agentrl.types import Action, Rendered, RenderedSpan

GREEN, YELLOW, BLUE, RED = 32, 33, 34, 31


def encode(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def decode(tokens) -> str:
    """One token a byte, so that a character is often made of several tokens."""
    return bytes(tokens).decode("utf-8", "replace")


def say(trajectory: Trajectory, text: str, *, aborted_at: int = 0) -> None:
    """One turn; with `aborted_at`, sampled in two generations, the first of so many tokens."""
    tokens = encode(text)
    for part in filter(None, (tokens[:aborted_at], tokens[aborted_at:])):
        trajectory.append_model(Generation(part, [-1.0] * len(part), "stop"))
    trajectory.append_action(Action(text=text, content=text))


def observe(trajectory: Trajectory, close: str, observation: str, prompt: str) -> None:
    tokens, spans = (), []
    for kind, text in (("close", close), ("observation", observation), ("prompt", prompt)):
        start, tokens = len(tokens), tokens + encode(text)
        spans.append(RenderedSpan(kind, start, len(tokens)))
    trajectory.append_observation(Rendered(tokens, tuple(spans)))


@pytest.fixture
def trajectory() -> Trajectory:
    t = Trajectory(Task(id="peru"), session_id="s")
    t.append_prompt(Rendered(encode("<user>Where?\n<model>"), ()))
    say(t, "search(Perú)", aborted_at=len("search(Per") + 1)  # within the ú
    observe(t, "\n", "<tool>Lima\nis in Perú\n", "<model>")
    say(t, "Lima")
    t.reward = 1.0
    return t


def lines(trajectory: Trajectory, width: int = 80, **kwargs) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, **kwargs).print(render_trajectory(trajectory, decode))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_without_a_terminal_each_line_is_marked(trajectory):
    assert lines(trajectory)[1:-6] == [
        "prompt   | <user>Where?",
        "prompt   | <model>",
        "model*   | search(Perú)",
        "template | ↵",
        "env      | <tool>Lima",
        "env      | is in Perú↵",
        "template | <model>",
        "model*   | Lima",
    ]


def test_the_legend_is_the_ledger(trajectory):
    trajectory.mask("malformed", turn=0)
    text = "\n".join(lines(trajectory))
    ledger = trajectory.ledger
    counts = {mark: int(n) for mark, n in re.findall(r"^(\S+) +(\d+) tokens", text, re.MULTILINE)}
    assert counts == {
        "prompt": trajectory.prompt_length,
        "model*": ledger.trained,
        "model-": 13,
        "env": ledger.observation,
        "template": ledger.scaffold,
    }
    assert f"ledger: sampled {ledger.sampled} = trained {ledger.trained} + masked 13 (13 malformed)" in text
    assert "model-   | search(Perú)" in text
    assert "model*   | Lima" in text


def test_a_terminal_gets_colours_and_no_marks(trajectory):
    trajectory.mask("overlong", turn=0)
    text = "\n".join(lines(trajectory, force_terminal=True, color_system="standard", no_color=False))
    assert f"\x1b[9;{RED}msearch(Perú)" in text  # struck out
    assert f"\x1b[{YELLOW}m<tool>Lima" in text
    assert f"\x1b[2;{BLUE}m<model>" in text
    assert f"\x1b[1;{GREEN}mLima" in text
    assert "|" not in text


def test_no_color_gets_marks_on_a_terminal(trajectory, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = "\n".join(lines(trajectory, force_terminal=True, color_system="standard"))
    assert "model*   | Lima" in text
    assert f"{GREEN}m" not in text


def test_long_lines_keep_their_mark(trajectory):
    t = Trajectory(session_id="s")
    t.append_prompt(Rendered(encode("x" * 100), ()))
    say(t, "word " * 30)
    body = [line for line in lines(t, width=40) if "|" in line]
    assert all(len(line) <= 40 for line in body)
    assert sum(line.startswith("prompt   | ") for line in body) == 4
    assert "".join(line[11:] for line in body if line.startswith("prompt")) == "x" * 100
    assert "".join(line[11:] for line in body if line.startswith("model*")).count("word") == 30


def test_control_characters_never_reach_the_terminal():
    t = Trajectory(session_id="s")
    t.append_prompt(Rendered(encode("\x1b[2Jcleared\r\x07\x9b31m\x7f"), ()))
    say(t, "[bold]no markup[/bold]")
    for options in ({}, {"force_terminal": True, "color_system": "standard", "no_color": False}):
        text = "\n".join(lines(t, **options))
        assert "␛[2Jcleared␍␇" in text
        assert "\x1b[2J" not in text
        assert not {"\r", "\x07", "\x9b", "\x7f"} & set(text)
        assert "[bold]no markup[/bold]" in text


def test_a_failure_and_an_empty_episode_are_shown():
    t = Trajectory(Task(id="t"), session_id="s")
    t.failure = Failure("environment", "reset", "InfraError: down")
    shown = lines(t)
    assert shown[0].startswith("task t, reward none, stop none, 0 turns, reset: InfraError: down")
    assert shown[-1] == "ledger: sampled 0 = trained 0 + masked 0"


def test_the_rewards_of_branches_are_shown():
    t = Trajectory(Task(id="t"), session_id="s")
    t.reward, t.branch_rewards = 1.0, {"solver/1": 1.2, "solver/2": 0.0}
    assert lines(t)[0].startswith("task t, reward 1, stop none, 0 turns, solver/1 1.2, solver/2 0")


@pytest.fixture
async def recorded(folder):
    from agentrl import EnvFactory

    envs = EnvFactory("my_env.py:Capitals")
    found = [
        await rollout(envs.make(), Task(prompt="?", label=label), [call("search", query=about), label])
        for about, label in (("France", "Paris"), ("Peru", "Lima"))
    ]
    file = folder / "demos.jsonl"
    file.write_text("".join(json.dumps(t.to_json()) + "\n" for t in found))
    return file


def test_show_prints_the_one_asked_for(recorded, agentrl):
    assert agentrl("show", recorded) == 0
    assert "model*   | Paris<|im_end|>" in agentrl.stdout
    assert agentrl("show", recorded, "--index", "-1") == 0
    assert "model*   | Lima<|im_end|>" in agentrl.stdout
    assert agentrl("show", recorded, "--index", "2") == 2
    assert agentrl.stderr == f"error: --index 2: {recorded} holds 2 trajectories, counted from 0\n"


def test_show_takes_the_newest_file_of_a_run(recorded, agentrl):
    run = recorded.parent / "run"
    assert agentrl("show", recorded.parent) == 2
    assert "no trajectories/*.jsonl in this folder" in agentrl.stderr
    (run / "trajectories").mkdir(parents=True)
    recorded.rename(run / "trajectories" / "eval_final.jsonl")
    assert agentrl("show", run) == 0
    assert "Paris<|im_end|>" in agentrl.stdout


def test_another_tokenizer_is_noticed(recorded, agentrl):
    row = json.loads(recorded.read_text().splitlines()[0])
    row["actions"][-1]["text"] = "Rome"
    recorded.write_text(json.dumps(row))
    assert agentrl("show", recorded) == 2
    assert agentrl.stderr == f"error: {recorded}: recorded with another tokenizer; name its model with --model\n"


def test_a_row_of_chat_is_shown_as_it_would_be_learned(folder, agentrl):
    said = [{"role": "user", "content": "Rome?"}, {"role": "assistant", "content": "Foggy."}]
    rows = [{"messages": said}, {"messages": said[:1]}, {"messages": "hi"}, {"conversations": said}]
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert agentrl("show", "chat.jsonl") == 0
    assert "model*   | Foggy.<|im_end|>" in agentrl.stdout
    for index, told in enumerate(
        [
            "agentrl sft would skip this row: no assistant message",
            '"messages" must be a list',
            'rename "conversations" to',
        ],
        1,
    ):
        assert agentrl("show", "chat.jsonl", "--index", str(index)) == 2
        assert agentrl.stderr.startswith(f"error: chat.jsonl:{index + 1}: ")
        assert told in agentrl.stderr


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": 99}', '{"version": 1}'])
def test_a_broken_line_is_named(tmp_path, text):
    file = tmp_path / "t.jsonl"
    file.write_text(f"\n{text}\n")
    with pytest.raises(ConfigError, match=r"t.jsonl:2: not a trajectory"):
        load_trajectory(file)


def test_what_is_no_text_is_named(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load_trajectory(file)
    with pytest.raises(ConfigError, match="no such file"):
        load_trajectory(tmp_path / "missing.jsonl")


def test_a_session_of_another_form_is_named(tmp_path):
    trajectory = {**Trajectory().to_json(), "session": {"nodes": [{"id": 0}]}}
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(trajectory))
    with pytest.raises(ConfigError, match=r"t.jsonl:1: not a trajectory \(KeyError: 'parent'\)"):
        load_trajectory(file)


async def test_what_an_episode_ended_with_is_shown_though_no_model_read_it(renderer):
    class Judge(Env):
        def step(self, action):
            return StepResult("Right!", done=True)

    t = await rollout(Judge(), Task(prompt="?"), ["Paris"], renderer=renderer)
    assert t.messages[-1] == {"role": "user", "content": "Right!"}
    assert "Right!" not in renderer.decode(t.tokens)
    for color in ({}, {"force_terminal": True, "color_system": "truecolor"}):
        out = io.StringIO()
        Console(file=out, width=80, **color).print(render_trajectory(t, renderer.decode))
        assert "user: Right!" in out.getvalue()
        assert "1 messages  what the environment answered last; no tokens" in out.getvalue()
    again = Trajectory.from_json(json.loads(json.dumps(t.to_json())))
    assert (again.messages, again.unread) == (t.messages, 1)


def test_turns_show_their_rewards_and_advantages(renderer):
    from agentrl.trajectory.trajectory import Turn

    trajectory = Trajectory()
    trajectory.segment.turns = [Turn(reward=0.5), Turn(reward=None), Turn(reward=1.0)]
    console = Console(file=io.StringIO(), width=80)
    trajectory.segment.ids.extend([1, 2])
    trajectory.segment.prompt_length = 2
    console.print(render_trajectory(trajectory, renderer.decode, [[0.25, None, -1.5]]))
    text = console.file.getvalue()
    assert "turn 0: reward 0.5, advantage 0.25" in text
    assert "turn 1" not in text
    assert "turn 2: reward 1, advantage -1.5" in text
