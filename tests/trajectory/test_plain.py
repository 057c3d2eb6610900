"""Whatever an Env answers or a model samples, a trajectory can be written: or the episode says what could not be."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest

from agentrl import ConfigError, Env, Limits, Raw, Reward, StepResult, StopReason, Task, Trajectory, TurnOptions, tool
from agentrl.plain import MAX_DEPTH, number, to_json, to_json_lossy
from agentrl.testing import call, rollout

HALF = os.fsdecode(b"a\xff")
"""Text with half a character, as file names bring it."""


def deep(levels: int) -> list:
    found: list = []
    for _ in range(levels):
        found = [found]
    return found


def written(trajectory: Trajectory) -> Trajectory:
    """As a run folder does it: UTF-8 JSON, and back."""
    line = json.dumps(trajectory.to_json(), ensure_ascii=False, allow_nan=False).encode("utf-8")
    return Trajectory.from_json(json.loads(line))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([[1, 2]]), [[1, 2]]),
        ((1, "a"), [1, "a"]),
        (HALF, "a\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        (b"a\xff", "a\ufffd"),
        (OrderedDict({1: None, HALF: StopReason.DONE}), {"1": None, "a\ufffd": "done"}),
    ],
)
def test_what_becomes_json(value, expected):
    assert to_json(value, "x") == to_json_lossy(value) == expected
    assert type(to_json(value, "x")) is type(expected)


@pytest.mark.parametrize(
    ("value", "said", "instead"),
    [
        (float("nan"), r"^x\['k'\] is nan", "nan"),
        (float("inf"), r"^x\['k'\] is inf", "inf"),
        pytest.param(10**5000, r"^x\['k'\] is a number of 16610 bits", "...", id="long"),
        ({1}, r"^x\['k'\] is a set, which JSON cannot hold", "{1}"),
        ({(1,): 2}, r"^x\['k'\] has the key \(1,\), a tuple", {"(1,)": 2}),
        ([{7: ({1},)}], r"^x\['k'\]\[0\]\[7\]\[0\] is a set", [{"7": ["{1}"]}]),
    ],
)
def test_what_json_cannot_hold_is_named_or_shown(value, said, instead):
    with pytest.raises((TypeError, ValueError), match=said):
        to_json({"k": value}, "x")
    assert to_json_lossy({"k": value}) == {"k": instead}


def test_depth_is_bounded_and_rings_end():
    to_json(deep(MAX_DEPTH - 1), "x")
    ring: list[object] = []
    ring += [ring, ring]
    for endless in (range(10**15), ring):
        to_json_lossy({"k": endless})
        with pytest.raises(ValueError, match=r"more than 100000 values|holds itself"):
            to_json(endless, "x")
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        to_json(deep(50_000), "x")
    ring: list = []
    ring.append(ring)
    json.dumps(to_json_lossy(ring))


def test_nothing_that_is_shown_can_raise():
    class Broken:
        def __repr__(self):
            raise RuntimeError

    assert to_json_lossy([Broken()]) == ["a Broken"]
    assert to_json_lossy({Broken(): {Broken()}}) == {"a Broken": "a set"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e39, "x", "0.5", b"1", None, [1]])
def test_what_is_no_reward(value):
    with pytest.raises(ValueError, match=r"the reward is .* must be a finite number"):
        number(value, "the reward")


class Answers(Env):
    """Its one step answers as the test says; then it ends."""

    result = StepResult("so")
    scored: object = 1.0

    @tool
    async def find(self, what: str) -> str:
        """Find."""
        return what

    def step(self, action):
        return self.result if len(action.content) < 3 else StepResult(done=True)

    def score(self, trajectory):
        return self.scored


def answering(**values) -> Env:
    env = Answers()
    for name, value in values.items():
        setattr(type(env), name, value)
    return env


@pytest.fixture(autouse=True)
def _as_it_was():
    before = {name: vars(Answers)[name] for name in ("result", "scored")}
    yield
    for name, value in before.items():
        setattr(Answers, name, value)


@pytest.mark.parametrize(
    "result",
    [
        StepResult("so", reward=np.float32(1)),
        StepResult("so", info={"n": np.int64(3), "s": {1}, "nan": np.nan, "deep": deep(5000), HALF: HALF}),
        StepResult(HALF),
        StepResult(Raw(HALF)),
        StepResult([{"role": "user", "content": HALF, "n": np.arange(2)}]),
        StepResult(({"role": "user", "content": "so"},), turn_options=TurnOptions(stop="x", max_tokens=np.int64(9))),
        StepResult([{"role": "user", "content": HALF}], done=True),
    ],
)
async def test_what_a_step_answers_is_written(renderer, result):
    task = Task(prompt="?", label=np.float32(1), metadata={"a": np.arange(2), "s": {1}, HALF: deep(5000)})
    t = await rollout(
        answering(result=result, scored=Reward(np.float32(0.5), {HALF: np.int64(1)})), task, ["ok", "end"]
    )
    assert (t.failure, t.stop, t.reward) == (None, StopReason.DONE, 0.5)
    assert written(t).messages == t.messages
    assert written(t).to_json()["info"] == json.loads(json.dumps(to_json_lossy(t.info)))


@pytest.mark.parametrize(
    ("values", "boundary", "said"),
    [
        ({"result": StepResult("so", reward=float("nan"))}, "step", "the reward of Answers.step is nan"),
        ({"result": StepResult("so", reward=1e39)}, "step", "the reward of Answers.step is 1e+39"),
        ({"result": StepResult([{"role": "user", "content": {1}}])}, "step", "Answers.step[0]['content'] is a set"),
        ({"result": StepResult([{"content": "x"}])}, "step", "a list of messages with a role each"),
        ({"result": StepResult(7)}, "step", "Answers.step gave 7; return text"),
        ({"scored": 1e39}, "score", "the reward is 1e+39"),
        ({"scored": Reward(1.0, {"a": np.nan})}, "score", "part 'a' of the reward is nan"),
    ],
)
async def test_what_cannot_be_written_is_the_hooks_bug(renderer, values, boundary, said):
    t = await rollout(answering(**values), Task(prompt="?"), ["ok", "end"])
    assert (t.failure.kind, t.failure.boundary) == ("bug", boundary)
    assert said in t.failure.error
    written(t)


@pytest.mark.parametrize("first", [None, 7, [], "text", [{"content": "x"}]])
async def test_what_reset_gives(renderer, first):
    class Resets(Answers):
        def reset(self, task):
            return first

    t = await rollout(Resets(), Task(prompt="?"), ["end"])
    if first == "text":
        assert t.failure is None
    else:
        assert t.failure.boundary in ("reset", "render")
    written(t)


async def test_errors_with_half_characters_are_written(renderer):
    class Fails(Answers):
        def step(self, action):
            raise OSError(HALF)

    t = await rollout(Fails(), Task(prompt="?"), ["ok"])
    assert t.failure.error == "OSError: a\ufffd"
    written(t)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"what": ["\\ud83d"]}',
        '{"what": "\\ud83d"}',
        '{"what": 1e400}',
        '{"what": NaN}',
        '{"what": ' + "[" * 150 + "]" * 150 + "}",
        '{"what": ' + "[" * 700 + "]" * 700 + "}",
        '{"what": ' + "1" * 5000 + "}",
    ],
)
async def test_arguments_that_no_json_holds_are_a_bad_call(renderer, arguments):
    said = f'<tool_call>\n{{"name": "find", "arguments": {arguments}}}\n</tool_call>'

    class Plain(Answers):
        step = Env.step

    t = await rollout(Plain(), Task(prompt="?"), [said, "end"])
    assert t.failure is None, t.failure
    assert t.turns[0].bad_call == "structural"
    assert written(t).actions == t.actions


async def test_a_good_call_is_as_it_was(renderer):
    class Plain(Answers):
        step = Env.step

    t = await rollout(Plain(), Task(prompt="?"), [call("find", what="x"), "end"])
    assert (t.actions[0].calls[0].arguments, t.turns[0].bad_call) == ({"what": "x"}, None)
    assert replace(t.actions[0], tokens=()) == t.said[0]


@pytest.mark.parametrize("stop", [("a", 1), ("",), 7])
def test_stop_strings_are_text(stop):
    with pytest.raises((ConfigError, TypeError)):
        TurnOptions(stop=stop)
    assert TurnOptions(stop="end").stop == ("end",)


@pytest.mark.parametrize(
    ("limits", "stop"),
    [({}, "done"), ({"turns": 1}, "max_turns"), ({"context": 60}, "context_full"), ({"tokens": 24}, "max_tokens")],
)
async def test_the_last_answer_of_the_env_is_kept_but_not_as_tokens(limits, stop):
    class Says(Env):
        def step(self, action):
            return StepResult(Raw(" and so on" * 20) if limits else Raw("The end."), done=not limits)

    t = await rollout(Says(), Task(prompt="?"), ["Paris"], limits=Limits(**limits))
    assert (t.stop, t.unread, t.messages[-1]["role"]) == (stop, 1, "user")
    assert t.ledger.observation == 0


@pytest.mark.parametrize("number", ["1e400", "-1e999", "NaN", "Infinity"])
def test_no_reader_of_json_makes_infinity(number):
    from agentrl.chat.completions import _arguments
    from agentrl.chat.request import RefusedError
    from agentrl.chat.wires.reading import arguments, read_body
    from agentrl.render.formats.arguments import by_schema, literal
    from agentrl.render.read.json_value import ParseFailure, json_at
    from agentrl.render.read.schema import Schema

    text = f'{{"x": {number}}}'
    assert isinstance(json_at(text, 0)[0], ParseFailure)
    assert isinstance(literal(number), ParseFailure)
    assert by_schema(number, Schema({"type": "number"})) == number
    assert arguments(text) == _arguments({"arguments": text}) == text, "kept as it came, not as infinity"
    with pytest.raises(RefusedError, match="not JSON"):
        read_body(text.encode())
