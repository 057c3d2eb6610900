"""The trajectory's invariants, on hand-made cases and on any sequence of appends that hypothesis can think of."""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl import Action, Generation, Ledger, LedgerError, Raw, StopReason, Task, ToolCall, Trajectory
from agentrl.errors import Failure
from agentrl.trajectory.arrays import TokenIds
from agentrl.trajectory.spans import Spans
from agentrl.trajectory.trajectory import total_ledger
from agentrl.types import CheckCounts, Rendered, RenderedSpan


def rendered(close: int = 0, observation: int = 0, prompt: int = 0, **kwargs) -> Rendered:
    spans, at = [], 0
    for kind, length in (("close", close), ("observation", observation), ("prompt", prompt)):
        if length:
            spans.append(RenderedSpan(kind, at, at + length))
            at += length
    return Rendered(tuple(range(100, 100 + at)), tuple(spans), **kwargs)


def generation(n: int, **kwargs) -> Generation:
    kwargs.setdefault("finish_reason", "stop")
    return Generation(list(range(n)), [-0.5] * n, **kwargs)


def started(**kwargs) -> Trajectory:
    trajectory = Trajectory(session_id="s1", **kwargs)
    trajectory.append_prompt(rendered(prompt=5), [{"role": "user", "content": "hi"}])
    return trajectory


def action(*calls: ToolCall, content: str = "") -> Action:
    return Action(text=content, content=content, calls=calls)


def two_turns() -> Trajectory:
    trajectory = started()
    trajectory.append_model(generation(4, weight_version="0", cached_tokens=3), prompt_tokens=5, seconds=0.5)
    trajectory.append_action(action(ToolCall("c1", "search", {"query": "x"})))
    trajectory.append_observation(rendered(1, 6, 2), [{"role": "tool", "content": "found"}])
    trajectory.append_model(generation(3, weight_version="1"))
    trajectory.append_action(action(content="Paris"))
    return trajectory


def test_masks_sources_and_lengths_of_two_turns():
    t = two_turns()
    assert t.prompt_length == 5
    assert t.segment.response_length == 16 == len(t.response)
    assert t.loss_mask == [1] * 4 + [0] * 9 + [1] * 3
    assert (
        t.segment.sources == ["sampled"] * 4 + ["scaffold"] + ["observation"] * 6 + ["scaffold"] * 2 + ["sampled"] * 3
    )
    assert t.log_probs == [-0.5] * 4 + [0.0] * 9 + [-0.5] * 3
    assert [(s.turn, s.author) for s in t.segment.spans] == [
        (0, "model"),
        (0, "template"),
        (0, "env"),
        (0, "template"),
        (1, "model"),
    ]
    assert t.ledger == Ledger(sampled=7, trained=7, observation=6, scaffold=3)
    assert t.weight_versions == ["0", "1"]
    assert t.turns[0].calls == ["search"]
    assert t.turns[0].cached_tokens == 3
    assert t.turns[0].generate_s == 0.5
    assert t.answer == "Paris"
    assert [m["role"] for m in t.messages] == ["user", "assistant", "tool", "assistant"]
    t.verify()


def test_an_aborted_generation_goes_on_in_the_same_turn():
    t = started()
    t.append_model(generation(2, finish_reason="abort", weight_version="0"))
    assert t.segment.open
    t.append_model(Generation([7, 8, 9], [-1.0] * 3, "stop", weight_version="1"), prompt_tokens=7)
    assert t.segment.turn_tokens == [0, 1, 7, 8, 9]
    assert len(t.turns) == 1
    assert t.turns[0].weight_versions == ["0", "1"]
    assert [s.weight_version for s in t.segment.spans] == ["0", "1"]
    t.append_action(action(content="done"))
    assert not t.segment.open


def test_weights_that_change_in_the_middle_of_a_generation_have_spans_of_their_own():
    t = started()
    t.append_model(Generation(list(range(5)), [-0.5] * 5, "stop", weight_version="2", earlier_versions=[("1", 3)]))
    assert [(s.start, s.stop, s.weight_version) for s in t.segment.spans] == [(0, 3, "1"), (3, 5, "2")]
    assert (t.segment.turn_tokens, t.turns[0].weight_versions) == ([0, 1, 2, 3, 4], ["1", "2"])
    t.append_action(action(content="done"))
    assert t.prefix_breaks == 0
    t.verify()
    assert Trajectory.from_json(t.to_json()).segment.spans == t.segment.spans


@pytest.mark.parametrize(("kept", "versions"), [(2, ["1"]), (3, ["1"]), (4, ["1", "2"]), (0, ["2"])])
def test_versions_of_tokens_that_were_cut_off_do_not_count(kept, versions):
    whole = Generation([7] * 5, [-0.5] * 5, "stop", weight_version="2", earlier_versions=[("1", 3)])
    t = started()
    t.append_model(replace(whole, tokens=whole.tokens[:kept], log_probs=whole.log_probs[:kept]))
    assert t.turns[0].weight_versions == versions
    assert sum(s.stop - s.start for s in t.segment.spans) == kept


def test_masking_keeps_log_probs_and_balances_the_ledger():
    t = two_turns()
    t.mask("malformed", turn=0)
    assert t.loss_mask == [0] * 13 + [1] * 3
    assert t.log_probs[:4] == [-0.5] * 4
    assert t.ledger == Ledger(sampled=7, trained=3, masked={"malformed": 4}, observation=6, scaffold=3)
    t.mask("env_failure")  # the first reason stays
    assert t.ledger.masked == {"malformed": 4, "env_failure": 3}
    assert sum(t.loss_mask) == 0
    t.verify()
    assert total_ledger([t, two_turns()]) == Ledger(14, 7, {"malformed": 4, "env_failure": 3}, 12, 6)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Generation([1, 2], [-0.5], "stop"), "2 sampled tokens but 1 log_probs"),
        (Generation([1], [math.nan], "stop"), "a log_prob is nan"),
        (Generation([1], [-math.inf], "stop"), "a log_prob is -inf"),
        (Generation([1], [0.5], "stop"), "a log_prob is 0.5"),
    ],
)
def test_an_engine_that_lies_is_refused_and_nothing_changes(broken, message):
    t = started()
    with pytest.raises(LedgerError, match=message):
        t.append_model(broken)
    assert (t.segment.response_length, t.turns) == (0, [])


def test_wrong_order_is_refused():
    t = Trajectory()
    with pytest.raises(LedgerError, match="prompt"):
        t.append_model(generation(1))
    t = started()
    with pytest.raises(LedgerError, match="first"):
        t.append_prompt(rendered(prompt=1))
    with pytest.raises(LedgerError, match="none is open"):
        t.append_action(action())
    with pytest.raises(LedgerError, match="follows a turn"):
        t.append_observation(rendered(1, 1, 1))
    t.append_model(generation(1))
    with pytest.raises(LedgerError, match="follows a turn"):
        t.append_observation(rendered(1, 1, 1))
    with pytest.raises(LedgerError, match="sent 3 tokens of 6"):
        t.append_model(generation(1), prompt_tokens=3)


def test_rendered_spans_must_partition_their_tokens():
    t = two_turns()
    with pytest.raises(LedgerError, match="gap at token 0"):
        t.append_observation(Rendered((1, 2, 3), (RenderedSpan("observation", 1, 3),)))
    t = two_turns()
    with pytest.raises(LedgerError, match="end at 2 of 3"):
        t.append_observation(Rendered((1, 2, 3), (RenderedSpan("observation", 0, 2),)))


def test_unknown_mask_reason():
    with pytest.raises(LedgerError, match="'because' is not a reason"):
        two_turns().mask("because")  # type: ignore[arg-type]


def test_json_round_trip_keeps_everything_but_engine_metadata():
    task = Task(prompt=Raw("Once"), label=["a"], metadata={"k": 1}, id="t1", seed=3, split="eval")
    t = Trajectory(task, session_id="s", tools=[{"type": "function", "function": {"name": "f"}}])
    t.append_prompt(rendered(prompt=2, thinking=True))
    t.append_model(Generation([1], [-0.25], "stop", matched=1, meta={"routed": object()}))
    t.append_action(Action("x", "x", "why", (ToolCall("c", "f", {"a": 1}, raw="{}", error="bad"),), "stop", 1, (1,)))
    t.append_observation(replace(rendered(0, 3, 1, cut=7), checks=CheckCounts(1, 1)))
    t.turns[0].reward, t.reward, t.reward_parts = 0.5, 1.0, {"em": 1.0}
    t.stop, t.failure = StopReason.FAILED, Failure("bug", "score", "ValueError: x", "tb")
    t.mask("env_failure")
    again = Trajectory.from_json(json.loads(json.dumps(t.to_json())))
    assert again.to_json() == t.to_json()
    assert (again.task, again.ledger, again.segment.spans, again.stop) == (task, t.ledger, t.segment.spans, t.stop)
    assert again.actions == t.actions
    assert again.failure == t.failure
    assert again.info == {"observation_tokens_cut": 7}
    assert again.checks == CheckCounts(1, 1)
    older = Trajectory.from_json({name: value for name, value in t.to_json().items() if name != "checks"})
    assert older.checks == CheckCounts()


def test_what_was_compared_is_counted_for_prompts_observations_and_segments():
    t, compared = Trajectory(), CheckCounts(bridges_checked=1)
    t.append_prompt(replace(rendered(prompt=2), checks=compared))
    t.append_model(generation(1))
    t.append_action(action())
    t.append_observation(replace(rendered(0, 3, 1), checks=compared))
    t.append_model(generation(1))
    t.append_action(action())
    t.begin_segment(replace(rendered(prompt=2), checks=compared))
    assert t.checks == CheckCounts(bridges_checked=3)


def test_json_from_a_newer_version_or_a_forger_is_refused():
    data = two_turns().to_json()
    with pytest.raises(ValueError, match="version 99"):
        Trajectory.from_json({**data, "version": 99})
    with pytest.raises(ValueError, match="version None"):
        Trajectory.from_json([])
    with pytest.raises(LedgerError):
        Trajectory.from_json({**data, "loss_mask": [1] * 16})
    with pytest.raises(LedgerError):
        Trajectory.from_json({**data, "log_probs": [-0.5] * 16})


TURN = st.tuples(
    st.lists(st.integers(0, 5), min_size=1, max_size=3),  # generations of the turn, all but the last aborted
    st.integers(0, 3),  # close
    st.integers(0, 5),  # observation
    st.integers(0, 3),  # prompt
    st.sampled_from([None, "malformed", "off_policy"]),
)


@pytest.mark.thorough
@given(st.lists(TURN, max_size=8), st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_sequence_of_appends_balances(turns, mask_all):
    t = started()
    sampled = 0
    for i, (pieces, close, observation, prompt, reason) in enumerate(turns):
        for j, n in enumerate(pieces):
            t.append_model(generation(n, finish_reason="stop" if j == len(pieces) - 1 else "abort"))
            sampled += n
        assert len(t.segment.turn_tokens) == sum(pieces)
        t.append_action(action())
        t.append_observation(rendered(close, observation, prompt))
        if reason:
            t.mask(reason, turn=i)
    if mask_all:
        t.mask("host")
    t.verify()
    ledger = t.ledger
    assert ledger.sampled == sampled == t.segment.sources.count("sampled")
    assert ledger.trained == sum(t.loss_mask) == sampled - sum(ledger.masked.values())
    assert len(t.loss_mask) == len(t.log_probs) == t.segment.response_length == len(t.tokens) - t.prompt_length
    assert all(source == "sampled" for source, mask in zip(t.segment.sources, t.loss_mask, strict=True) if mask)
    assert Trajectory.from_json(t.to_json()).to_json() == t.to_json()


class OnlyGrows(array):
    """An array that lets nobody read what it held at first, so that any cost beyond the new tokens is an error."""

    def __new__(cls, typecode, held):
        made = super().__new__(cls, typecode, held)
        made.held = len(made)
        return made

    def _refuse(self, *args):
        raise AssertionError("the history was read")

    __iter__ = __eq__ = tolist = index = count = _refuse

    def __getitem__(self, at):
        return super().__getitem__(at) if isinstance(at, slice) and at.start >= self.held else self._refuse()


def test_spans_are_the_same_read_one_by_one_or_all_together():
    """A masked turn, an aborted one, and one without an observation after it."""
    t = Trajectory()
    t.append_prompt(Rendered((1, 2), ()))
    for turn in range(3):
        t.append_model(Generation((10 + turn, 20 + turn), (-0.5, -0.5), "abort", weight_version="1"))
        t.append_model(Generation((30 + turn,), (-0.5,), "stop", weight_version="2"))
        t.append_action(Action("", ""))
        if turn < 2:
            t.append_observation(Rendered((3, 4), (RenderedSpan("close", 0, 1), RenderedSpan("observation", 1, 2))))
    t.mask("off_policy", turn=1)
    spans = t.segment.spans
    assert list(spans) == [spans[i] for i in range(len(spans))]
    assert list(spans)[-1].stop == t.segment.response_length
    assert [t.segment.tokens_of(turn) for turn in range(3)] == [[10, 20, 30], [11, 21, 31], [12, 22, 32]]
    assert t.segment.turn_tokens == [12, 22, 32]
    assert t.segment.tokens_of(3) == []


def test_an_append_touches_only_the_new_tokens():
    t = two_turns()
    t.append_observation(rendered(1, 2, 1))
    t.segment.ids, t.segment._log_probs = OnlyGrows("i", t.segment.ids), OnlyGrows("f", t.segment._log_probs)
    t.append_model(generation(50))
    t.append_action(action())
    t.append_observation(rendered(1, 200, 3))
    assert t.ledger.sampled == 57
    with pytest.raises(AssertionError, match="the history was read"):
        t.verify()


def rewrite(t, place):
    """What no method does: other tokens in the place of some that were sent."""
    ids = t.tokens
    ids[place] += 1
    t.segment.ids = TokenIds(ids)


def test_a_prompt_that_is_rewritten_after_it_was_sent_is_a_prefix_break():
    t = two_turns()
    t.mask("malformed", turn=0)
    assert t.prefix_breaks == 0
    rewrite(t, 7)  # of the first turn's sampled tokens, so in the second prompt only
    assert t.prefix_breaks == 1
    rewrite(t, 0)
    assert t.prefix_breaks == 2


def test_a_trajectory_that_goes_on_from_json_goes_on_counting():
    t = Trajectory.from_json(json.loads(json.dumps(two_turns().to_json())))
    t.append_observation(rendered(1, 2, 3))
    t.append_model(generation(2))
    assert t.prefix_breaks == 0
    rewrite(t, 0)
    assert t.prefix_breaks == 1


@pytest.mark.parametrize("stop", StopReason)
def test_what_counts_as_truncated(stop):
    t = two_turns()
    t.stop = stop
    assert t.truncated == (stop in {"turn_max_tokens", "max_tokens", "context_full", "max_images", "deadline"})


def test_bad_calls_in_a_row_and_what_counts_as_a_call():
    broken = ToolCall("c1", "", {}, error="not JSON")
    t = Trajectory(tools=[{"type": "function", "function": {"name": "f"}}])
    t.append_prompt(rendered(prompt=5))
    rows = []
    for calls in [(broken,), (ToolCall("c2", "f", {}), broken), (), (broken,)]:
        t.append_model(generation(1))
        t.append_action(action(*calls))
        rows.append((t.bad_calls_in_a_row, t.turns[-1].calls))
        t.append_observation(rendered(observation=1))
    assert rows == [(1, []), (2, ["f"]), (0, []), (1, [])]
    again = Trajectory.from_json(json.loads(json.dumps(t.to_json())))
    assert [turn.bad_call for turn in again.turns] == ["structural", "structural", None, "structural"]


def a_long_one(turns: int) -> Trajectory:
    made = Trajectory()
    made.append_prompt(Rendered((1, 2, 3), ()), [{"role": "user", "content": "Go."}])
    for number in range(turns):
        if number:
            made.append_observation(Rendered((4, 5), (RenderedSpan("observation", 0, 2),)), [])
        made.append_model(Generation([number, number], [-0.5, -0.5], "stop"))
        made.append_action(Action(str(number), str(number)))
    return made


def test_reading_and_masking_a_turn_looks_at_no_other_turn(monkeypatch):
    """Long episodes would take a time that grows with the square of their turns."""
    looks = Counter()
    mark = Spans._mark
    monkeypatch.setattr(Spans, "_mark", lambda self, at: looks.update(marks=1) or mark(self, at))
    for turns in (50, 400):
        looks.clear()
        made = a_long_one(turns)
        assert [action.tokens for action in made.actions] == [(n, n) for n in range(turns)]
        assert looks["marks"] == len(made.segment.spans) == 2 * turns - 1
        made.mask("malformed", turn=turns // 2)
        assert made.segment.tokens_of(3) == [3, 3]
        assert looks["marks"] <= 2 * turns - 1 + 4
        assert made.ledger.masked == {"malformed": 2}
        made.mask("malformed", turn=turns // 2)
        made.mask("malformed", turn=turns)
        made.verify()
        assert made.ledger.masked == {"malformed": 2}
        assert [span.turn for span in made.segment.spans if span.masked] == [turns // 2]
