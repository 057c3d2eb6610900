from __future__ import annotations

import json
import pickle
import time
from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.engine.sglang import encoding
from agentrl.engine.sglang.client import _body
from agentrl.engine.sglang.encoding import HistoryEncoder
from agentrl.trajectory.arrays import TokenIds

tokens = st.integers(0, 200_000)
KINDS = [list, tuple, TokenIds, lambda ids: array("i", ids), lambda ids: array("q", ids)]


@pytest.mark.thorough
@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(
    turns=st.lists(
        st.tuples(
            st.sampled_from(["", "a", "b"]), st.integers(0, 12), st.lists(tokens, max_size=6), st.sampled_from(KINDS)
        ),
        max_size=12,
    )
)
def test_bodies_equal_json_dumps_whatever_a_session_does(turns):
    """Append, cut back, rewrite, repeat, interleave: `keep` tokens of the session's last ids, then new ones."""
    encoder = HistoryEncoder(max_tokens=20)
    last: dict[str, list[int]] = {"": [], "a": [], "b": []}
    for session_id, keep, new, kind in turns:
        ids = last[session_id] = last[session_id][:keep] + new
        fields = {"sampling_params": {"stop": ["é"]}, "stream": False}
        body = _body(encoder.encode(session_id, kind(ids)), fields)
        assert body.startswith(f'{{"input_ids": {json.dumps(ids, separators=(",", ":"))}, '.encode())
        assert json.loads(body) == {"input_ids": ids, **fields}


def test_a_list_changed_in_place_is_noticed():
    encoder = HistoryEncoder()
    ids = [1, 2, 3]
    encoder.encode("s", ids)
    ids[1] = 9
    assert b"".join(encoder.encode("s", ids)) == b"1,9,3"
    assert b"".join(encoder.encode("s", (*ids, 4))) == b"1,9,3,4"
    ids.append(5)
    assert b"".join(encoder.encode("s", ids)) == b"1,9,3,5"


def test_pieces_in_the_hands_of_a_request_do_not_change():
    encoder = HistoryEncoder()
    before = encoder.encode("s", [1])
    encoder.encode("s", [1, 2])
    assert before == [b"1"]


@pytest.mark.parametrize("kind", KINDS)
def test_only_new_tokens_are_encoded(monkeypatch, kind):
    encoder = HistoryEncoder()
    encoder.encode("s", kind(range(1000)))
    encoded = []
    written = encoding._json
    monkeypatch.setattr(encoding, "_json", lambda ids: encoded.append(len(ids)) or written(ids))
    encoder.encode("s", kind(range(1003)))
    encoder.encode("s", kind(range(1003)))
    assert encoded == [3]


def test_memory_is_bounded_and_the_least_recently_used_goes_first():
    encoder = HistoryEncoder(max_tokens=10)
    for session_id in ("a", "b"):
        encoder.encode(session_id, [1] * 4)
    encoder.encode("a", [1] * 5)
    encoder.encode("c", [1] * 4)
    assert list(encoder.sent) == ["a", "c"]
    encoder.encode("huge", [1] * 11)
    assert len(encoder) == 0
    assert encoder.tokens == 0


def test_idle_sessions_are_dropped(monkeypatch):
    encoder = HistoryEncoder(idle_s=60)
    encoder.encode("old", [1])
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    encoder.encode("new", [1])
    assert list(encoder.sent) == ["new"]


def test_an_array_that_grows_is_not_held():
    """The caller's own: it goes on growing it while the request is encoded."""
    encoder, ids = HistoryEncoder(), array("i", [1, 2])
    assert b"".join(encoder.encode("s", ids)) == b"1,2"
    ids.append(3)
    assert b"".join(encoder.encode("s", ids)) == b"1,2,3"
    ids[0] = 9
    assert b"".join(encoder.encode("s", ids)) == b"9,2,3"


def test_a_trajectorys_own_array_is_not_copied():
    encoder, ids = HistoryEncoder(), TokenIds([1, 2])
    encoder.encode("s", ids)
    ids.extend([3])
    assert b"".join(encoder.encode("s", ids)) == b"1,2,3"
    assert encoder.sent["s"].ids is ids
    assert b"".join(encoder.encode("s", TokenIds([1, 7]))) == b"1,7"


@pytest.mark.parametrize(
    "change",
    [
        lambda ids: ids.__setitem__(0, 9),
        lambda ids: ids.__setitem__(slice(0, 1), array("i", [9])),
        lambda ids: ids.__delitem__(0),
        lambda ids: ids.__imul__(0),
        lambda ids: ids.insert(0, 9),
        lambda ids: ids.pop(),
        lambda ids: ids.remove(1),
        lambda ids: ids.reverse(),
        lambda ids: ids.byteswap(),
    ],
)
def test_ids_that_were_sent_cannot_be_changed(change):
    ids = TokenIds([1, 2, 3])
    with pytest.raises(TypeError, match="append"):
        change(ids)
    assert list(pickle.loads(pickle.dumps(ids))) == [1, 2, 3]


def test_a_session_that_ended_is_forgotten():
    encoder = HistoryEncoder()
    encoder.encode("s", [1, 2])
    encoder.encode("t", [1])
    encoder.forget("s")
    encoder.forget("never begun")
    assert (list(encoder.sent), encoder.tokens) == (["t"], 1)
