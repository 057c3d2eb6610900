"""`agentrl play ENV` in a terminal: you are the model."""

from __future__ import annotations

import json
import os
import re
import select
import sys
import threading
import time
from collections.abc import Sequence

import pytest

from agentrl import Trajectory
from agentrl.cli import app

pty = pytest.importorskip("pty", reason="a terminal is played by a pty")

ENV = '''
from agentrl import Env, tool


class Shop(Env):
    @tool
    async def price(self, item: str, pieces: int, coupon: bool = False) -> str:
        """What so many pieces of an item cost."""
        return f"{pieces} {item}: {pieces * (1 if coupon else 2)} euros"

    async def score(self, trajectory) -> float:
        return float(trajectory.answer == self.task.label)
'''
STEPS = """
from agentrl import Env, StepResult


class Shop(Env):
    async def step(self, action):
        return StepResult("go on", reward=0.25) if action.text == "a" else StepResult(reward=0.5, done=True)
"""
TASKS = """\
{"prompt": "What are 3 pears?", "label": "6\\neuros"}
{"prompt": "What are 4 pears?", "label": "8"}
"""
SEATS = """
from agentrl import Env, StepResult


class Shop(Env):
    seats = ("buyer", "seller")

    def reset(self, task):
        self.said = "nothing yet"
        return task.prompt

    def observe(self, seat):
        return f"heard: {self.said}"

    def step(self, action):
        self.said = action.content
        if self.said == "deal":
            return StepResult(done=True, rewards={"buyer": 1.0, "seller": 0.5})
        return StepResult(next_seat="seller" if self.seat == "buyer" else "buyer")


def agrees(messages, tools):
    return "deal" if "please" in messages[-1]["content"] else "no"
"""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """The other end of a pty: types a line whenever the last prompt is shown, and keeps what was shown."""

    def __init__(self, lines: Sequence[tuple[str, str]]):
        self.master, self.slave = pty.openpty()
        self.lines, self.shown = lines, ""
        self.done = False
        self.thread = threading.Thread(target=self._type, daemon=True)
        self.thread.start()

    def _type(self):
        seen, left, end = 0, list(self.lines), time.monotonic() + 60
        while time.monotonic() < end:
            if select.select([self.master], [], [], 0.02)[0]:
                self.shown += COLOURS.sub("", os.read(self.master, 1 << 16).decode().replace("\r\n", "\n"))
            elif self.done:  # and all output is read
                return
            if left and (at := self.shown.find(left[0][0], seen)) >= 0:
                seen = at + len(left[0][0])
                os.write(self.master, f"{left.pop(0)[1]}\n".encode())

    def close(self):
        self.done = True
        self.thread.join()
        os.close(self.master)


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Play in a pty with what is typed at each prompt; return the exit code and what was shown."""
    (tmp_path / "shop.py").write_text(ENV)
    (tmp_path / "tasks.jsonl").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "120")

    def run(*lines: tuple[str, str], more: Sequence[str] = ()):
        terminal = Terminal(lines)
        with os.fdopen(terminal.slave, "r+b", buffering=0) as slave:
            with open(slave.fileno(), closefd=False) as stdin, open(slave.fileno(), "w", closefd=False) as stdout:
                monkeypatch.setattr(sys, "stdin", stdin)
                monkeypatch.setattr(sys, "stdout", stdout)
                code = 0
                try:
                    asked = ["play", "shop.py:Shop", "--data", "tasks.jsonl", "--out", "out.jsonl", *more]
                    app(asked, standalone_mode=False)
                except SystemExit as exc:
                    code = exc.code
                stdout.flush()
            terminal.close()
        return code, terminal.shown

    return run


def played(tmp_path):
    return [Trajectory.from_json(json.loads(line)) for line in (tmp_path / "out.jsonl").read_text().splitlines()]


YOU = "you > "


def test_you_read_what_the_model_would_call_tools_and_are_recorded(play, tmp_path):
    code, shown = play(
        (YOU, ":tools"),
        (YOU, ":call price"),
        ("item (string) > ", "pear"),
        ("pieces (integer) > ", ""),
        ("pieces (integer) > ", "three"),
        ("pieces (integer) > ", "3"),
        ("coupon (boolean, optional) > ", ""),
        (YOU, ":tokens"),
        (YOU, '"""'),
        ("... > ", "6"),
        ("... > ", 'euros"""'),
        (":quit: end > ", ""),
        (YOU, ':call price {"item": "pear", "pieces": 4, "coupon": true}'),
        (YOU, "8"),
    )
    assert code == 0
    assert "user: What are 3 pears?" in shown
    assert "price(item, pieces, coupon?)  What so many pieces of an item cost." in shown
    assert "no integer: three" in shown
    assert "tool price: 3 pear: 6 euros" in shown
    assert '{"name": "price", "arguments": {"item": "pear", "pieces": 3}}' in shown
    assert re.search(r"model\*\s+\d+ tokens  sampled by the model, trained", shown)
    assert "tool price: 4 pear: 4 euros" in shown
    assert "2 written to out.jsonl" in shown
    first, second = played(tmp_path)
    assert [first.reward, second.reward] == [1.0, 1.0]
    assert first.answer == "6\neuros"
    assert first.ledger.trained == first.ledger.sampled, "a demonstration like any other"
    assert first.info["player"] == {"model": "you", "requests": 2}


def test_rewards_of_steps_the_turns_that_are_left_and_what_is_not_read(play, tmp_path):
    (tmp_path / "shop.py").write_text(STEPS)
    code, shown = play(
        (YOU, "a"),
        (YOU, "b"),
        (":quit: end > ", "4 euros"),
        (":quit: end > ", ":tokens"),
        (":quit: end > ", ":help"),
        (":quit: end > ", ":quit"),
    )
    assert code == 0
    after = shown.partition("over: ")[2]
    assert re.search(r"model\*\s+\d+ tokens  sampled by the model, trained", after)
    assert "only :tokens, :help and :quit still work" in after
    assert re.findall(r"turns left: \d+", shown) == ["turns left: 16", "turns left: 15"]
    assert re.findall(r"reward of this step: \S+", shown) == ["reward of this step: 0.25", "reward of this step: 0.5"]
    assert "this episode is over: '4 euros' was not sent" in shown
    assert len(played(tmp_path)) == 1


def test_what_is_said_to_be_kept_has_been_played(folder, agentrl, monkeypatch):
    def interrupt(*given):
        if finished:
            given[-1].append(Trajectory())
        raise KeyboardInterrupt

    monkeypatch.setattr("agentrl.cli.human.play_yourself", interrupt)
    args = ("play", "my_env.py:Capitals", "--data", "tasks.jsonl", "--out", "out.jsonl")
    finished = False
    assert agentrl(*args) == 130
    assert agentrl.stderr == "interrupted: nothing was written; run the command again\n"
    finished = True
    assert agentrl(*args) == 130
    assert agentrl.stderr == "interrupted: the episodes that you finished are in out.jsonl\n"


def test_you_have_every_seat_or_one_against_an_opponent(play, tmp_path):
    (tmp_path / "shop.py").write_text(SEATS)
    code, shown = play((YOU, "tea?"), (YOU, "deal"), (":quit: end > ", ":quit"))
    assert code == 0
    assert "you are buyer" in shown
    assert "you are seller" in shown
    assert "heard: tea?" in shown
    assert [(t.seat, t.reward) for t in played(tmp_path)] == [("buyer", 1.0), ("seller", 0.5)]
    (tmp_path / "out.jsonl").unlink()
    opponents = ["--set", "opponents=[shop.py:agrees]"]
    code, shown = play((YOU, "tea?"), (YOU, "please"), (":quit: end > ", ":quit"), more=opponents)
    assert code == 0
    assert "you are seller" not in shown
    (own,) = played(tmp_path)
    assert (own.seat, own.answer, own.ledger.trained) == ("buyer", "please", own.ledger.sampled)


def test_quitting_keeps_what_is_finished_and_mistakes_are_told(play, tmp_path):
    code, shown = play(
        (YOU, ":help"),
        (YOU, ":nonsense"),
        (YOU, ":call buy"),
        (YOU, ":call price [1]"),
        (YOU, ""),
        (YOU, "7"),
        (":quit: end > ", ""),
        (YOU, ":quit"),
    )
    assert code == 0
    assert ":call TOOL {...}" in shown
    assert ":nonsense is not a command; :help lists them" in shown
    assert "there is no tool 'buy'; the tools are: price" in shown
    assert "no JSON object: [1]" in shown
    assert "over: done, reward 0" in shown
    assert "Traceback" not in shown
    (only,) = played(tmp_path)
    assert (only.answer, only.reward) == ("7", 0.0)


def test_the_end_of_the_input_is_a_quit(play, tmp_path):
    code, _ = play((YOU, "\x04"))
    assert code == 0
    assert not (tmp_path / "out.jsonl").exists()


def test_where_there_is_no_terminal_it_says_so(folder, agentrl):
    assert agentrl("play", "my_env.py:Capitals", "--data", "tasks.jsonl") == 2
    assert agentrl.stderr == (
        "error: playing yourself needs a terminal; name a player (--player file.py:function), or use agentrl eval\n"
    )
