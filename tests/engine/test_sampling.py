"""Sampling parameters are read strictly, and the randomness of a token is a hash of its seed and position."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentrl.engine.local.sampling import Sampling, draw, uniform
from agentrl.errors import EngineError

torch = pytest.importorskip("torch", reason="tokens are drawn with torch")


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


def plainly(logits: Any, sampling: Sampling, position: int) -> int:
    """Inverse transform sampling of one row as it is defined: cumulative sums over the whole vocabulary, in float64."""
    probs = torch.log_softmax(logits.double() / sampling.temperature, dim=-1).exp()
    order = probs.sort(descending=True, stable=True)
    excluded = order.values.cumsum(0) - order.values > sampling.top_p
    if sampling.top_k > 0:
        excluded[sampling.top_k :] = True
    probs[order.indices[excluded]] = 0
    upto = probs.cumsum(0)
    return int(torch.searchsorted(upto, uniform(sampling.seed, position) * upto[-1], right=True))


@pytest.mark.parametrize("vocabulary", [5, 256, 257, 5000])
def test_tokens_are_those_of_cumulative_sums_over_the_vocabulary(vocabulary: int) -> None:
    torch.manual_seed(0)
    kinds = [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.6}, {"top_k": 40, "top_p": 0.9, "temperature": 1.3}]
    samplings = [Sampling(seed=seed, **kinds[seed % len(kinds)]) for seed in range(400)]
    logits = 3 * torch.randn(400, vocabulary)
    tokens, log_probs = draw(logits, samplings, list(range(400)))
    wanted = [plainly(row, one, at) for at, (row, one) in enumerate(zip(logits, samplings, strict=True))]
    assert sum(token != other for token, other in zip(tokens, wanted, strict=True)) <= 1  # float32 against float64
    heat = torch.tensor([[one.temperature] for one in samplings])
    exact = torch.log_softmax(logits / heat, dim=-1)[range(400), tokens]
    assert log_probs == exact.tolist()


def test_a_row_does_not_depend_on_the_others() -> None:
    torch.manual_seed(0)
    logits, samplings = 3 * torch.randn(64, 3000), [Sampling(seed=seed) for seed in range(64)]
    tokens, log_probs = draw(logits, samplings, [9] * 64)
    for row in range(0, 64, 7):
        assert draw(logits[row : row + 1], samplings[row : row + 1], [9]) == ([tokens[row]], [log_probs[row]])


@pytest.mark.parametrize("point", [0.0, 0.25, 0.5, 1 - 2**-48])
def test_a_token_that_is_excluded_is_never_drawn(point: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the edges, too: the first and the last tokens have no probability, and one block has none at all."""
    monkeypatch.setattr("agentrl.engine.local.sampling.uniform", lambda *_: point)
    logits = torch.full((1, 1000), float("-inf"))
    logits[0, [3, 255, 700]] = torch.tensor([1.0, 2.0, 1.0])
    (token,), _ = draw(logits, [Sampling(seed=0)], [1])
    assert token == {0.0: 3, 0.25: 255, 0.5: 255}.get(point, 700)


def test_greedy_and_nan() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [0.0, float("nan"), 0.0, 0.0]])
    tokens, log_probs = draw(logits, [Sampling(seed=0, temperature=0.0), Sampling(seed=0)], [1, 1])
    assert tokens[0] == 1
    assert 0 <= tokens[1] < 4
    assert math.isnan(log_probs[1])


def test_uniform_is_fixed_spread_evenly_and_below_one() -> None:
    assert uniform(7, 3) == uniform(7, 3)
    values = [uniform(seed, position) for seed in range(100) for position in range(100)]
    assert len(set(values)) == len(values)
    assert 0 <= min(values) <= max(values) <= 1 - 2**-48
    tenths = [sum(int(value * 10) == tenth for value in values) for tenth in range(10)]
    assert all(850 < count < 1150 for count in tenths)  # five standard deviations of 10,000 / 10
