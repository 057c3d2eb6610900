"""Sampling parameters are read strictly, and the randomness of a token is a hash of its seed and position."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.engine.local.sampling import Sampling, uniform
from agentrl.errors import EngineError


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty is not supported by LocalEngine: leave it at 0"),
        ({"min_p": 0.1}, "min_p is not supported"),
        ({"json_schema": "{}"}, "unknown sampling parameter json_schema"),
        ({"temperature": -1}, "temperature must be a number from 0"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": "0.5"}, "top_p must be a number from 0 to 1"),
        ({"top_k": 1.5}, "top_k must be an integer from -1 to 2147483647, not 1.5"),
        ({"max_new_tokens": -1}, "max_new_tokens must be an integer from 0"),
        ({"stop": [""]}, "stop must be a list of non-empty strings"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must be a list of token ids"),
        ({"stop_token_ids": [True]}, "stop_token_ids must be a list of token ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids must be a list of token ids"),
        ({"top_k": 2**63}, "top_k must be an integer from -1 to 2147483647, not 9223372036854775808"),
        ({"top_k": 10**5000}, "top_k must be .* not a very large integer"),
        ({"max_new_tokens": 2**70}, "max_new_tokens must be an integer"),
        ({"sampling_seed": 2**64}, "sampling_seed must be an integer from 0"),
        ({"temperature": 10**400}, "temperature must be a number from 0"),
        ({"temperature": float("inf")}, "temperature must be a number from 0 to 1e\\+06, not inf"),
        ({"top_p": float("nan")}, "top_p must be a number from 0 to 1, not nan"),
        ({"stop": ["a", "\ud83d"]}, "stop must be text without lone surrogates"),
        ({"ignore_eos": "false"}, "ignore_eos must be true or false, not 'false'"),
        ({3: 4}, "unknown sampling parameter 3"),
        ([("temperature", 1)], "sampling parameters must be a mapping"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(params: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineError, match=says):
        Sampling.read(params)


def test_none_neutral_and_harmless_parameters_are_absent() -> None:
    names = ("temperature", "top_k", "top_p", "stop", "stop_token_ids", "max_new_tokens", "regex", "anything")
    params = {**dict.fromkeys(names), "frequency_penalty": 0.0, "min_p": 0.0, "repetition_penalty": 1.0, "n": 1}
    shown = {"skip_special_tokens": False, "spaces_between_special_tokens": False, "no_stop_trim": True}
    assert Sampling.read({**params, **shown, "sampling_seed": 7}) == Sampling(seed=7)


def test_parameters_are_read() -> None:
    params = {
        "temperature": 0,
        "top_k": 5,
        "stop": "x",
        "stop_token_ids": [1, 2],
        "max_new_tokens": 3,
        "ignore_eos": True,
    }
    read = Sampling.read({**params, "ignore_eos": True, "sampling_seed": 1})
    assert (read.greedy, read.truncated, read.top_k, read.max_new_tokens, read.ignore_eos) == (True, False, 5, 3, True)
    assert (read.stop, read.stop_token_ids) == (("x",), {1, 2})


def test_a_seed_not_given_is_drawn_afresh() -> None:
    assert Sampling.read({}).seed != Sampling.read({}).seed


def test_uniform_is_fixed_spread_evenly_and_below_one() -> None:
    assert uniform(7, 3) == uniform(7, 3)
    values = [uniform(seed, position) for seed in range(100) for position in range(100)]
    assert len(set(values)) == len(values)
    assert 0 <= min(values) <= max(values) <= 1 - 2**-48
    tenths = [sum(int(value * 10) == tenth for value in values) for tenth in range(10)]
    assert all(850 < count < 1150 for count in tenths)  # five standard deviations of 10,000 / 10
