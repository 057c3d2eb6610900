"""Reads sampling parameters with SGLang's names, strictly, and draws tokens with these parameters."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.errors import RequestError

if TYPE_CHECKING:
    import torch

_GREEDY_BELOW = 1e-6
"""The temperature below which SGLang samples greedily (sampling_params.py, _SAMPLING_EPS)."""

_MAX_TEMPERATURE = 1e6
"""The highest temperature. Far below it, all tokens are practically equally likely. JSON has no infinity."""

_BLOCK = 256
"""The number of tokens in a block of the vocabulary. The search for a token adds up the probabilities of blocks
first."""
_BELOW_ONE = 1 - 2**-52

_NEVER = -1e4
"""The logit bias from which a token is forbidden: no logit outweighs this bias."""

_HARMLESS = frozenset(
    {"skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "stream_interval", "custom_params"}
)
"""The parameters that change how SGLang displays text, and not the sampling."""

_NEUTRAL: Mapping[str, Any] = {
    "n": 1,
    "min_p": 0,
    "min_new_tokens": 0,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
}
"""Parameter -> its only allowed value. Any other value would change the distribution."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The checked sampling parameters of a request."""

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int | None = None
    """The most new tokens. None: the response may fill the context."""
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    forbidden: frozenset[int] = frozenset()
    """The ids of tokens that logit_bias forbids."""
    structural_tag: str | None = None
    """A structural tag of xgrammar as JSON: the grammar of the response."""

    @property
    def greedy(self) -> bool:
        return self.temperature < _GREEDY_BELOW

    @property
    def truncated(self) -> bool:
        """Whether top-k or top-p excludes tokens from the draw."""
        return not self.greedy and (self.top_p < 1.0 or self.top_k > 0)

    @classmethod
    def read(cls, params: Mapping[str, Any]) -> Sampling:
        """Check `params`. A parameter that is None counts as absent. Without `sampling_seed` a random seed is drawn.

        Raises RequestError with the name of the parameter. An unknown parameter could change the distribution, and then
        the trainer would silently assume a wrong distribution.
        """
        if not isinstance(params, Mapping):
            raise RequestError(f"sampling parameters must be a mapping of names to values, not {params!r:.200}")
        values = {name: value for name, value in params.items() if value is not None and name not in _HARMLESS}
        for name, neutral in _NEUTRAL.items():
            if values.pop(name, neutral) != neutral:
                raise RequestError(
                    f"sampling parameter {name} is not supported by LocalEngine: leave it at {neutral!r}"
                )
        reader = _Reader(values)
        sampling = cls(
            seed=reader.integer("sampling_seed", secrets.randbits(63), at_least=0, at_most=2**63 - 1),
            temperature=reader.number("temperature", 1.0, 0.0, _MAX_TEMPERATURE),
            top_p=reader.number("top_p", 1.0, 0.0, 1.0),
            top_k=reader.integer("top_k", -1, at_least=-1),
            max_new_tokens=reader.integer("max_new_tokens", -1, at_least=0) if "max_new_tokens" in values else None,
            stop=reader.strings("stop"),
            stop_token_ids=reader.token_ids("stop_token_ids"),
            ignore_eos=reader.boolean("ignore_eos"),
            forbidden=reader.forbidden("logit_bias"),
            structural_tag=reader.text("structural_tag"),
        )
        if values:
            names = ", ".join(sorted(map(str, values)))
            raise RequestError(f"unknown sampling parameter {names}: LocalEngine cannot honour it")
        return sampling


class _Reader:
    """Reads parameters from a mapping, and checks each."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self._values.pop(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise _refused(name, f"a number from {low:g} to {high:g}", value)
        return float(value)

    def integer(self, name: str, default: int, *, at_least: int, at_most: int = 2**31 - 1) -> int:
        value = self._values.pop(name, default)
        if not _is_integer(value, at_least, at_most):
            raise _refused(name, f"an integer from {at_least} to {at_most}", value)
        return int(value)

    def boolean(self, name: str) -> bool:
        value = self._values.pop(name, False)
        if not isinstance(value, bool):
            raise _refused(name, "true or false", value)
        return value

    def text(self, name: str) -> str | None:
        value = self._values.pop(name, None)
        if not isinstance(value, str | None):
            raise _refused(name, "text", value)
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        value = self._values.pop(name, ())
        items = (value,) if isinstance(value, str) else value
        if not isinstance(items, Sequence) or not all(isinstance(item, str) and item for item in items):
            raise _refused(name, "a list of non-empty strings", value)
        if any("\ud800" <= character <= "\udfff" for item in items for character in item):
            raise _refused(name, "text without lone surrogates, which no token spells", value)
        return tuple(items)

    def token_ids(self, name: str) -> frozenset[int]:
        value = self._values.pop(name, ())
        if not isinstance(value, Sequence | set | frozenset) or not all(_is_integer(v, 0, 2**31 - 1) for v in value):
            raise _refused(name, "a list of token ids", value)
        return frozenset(value)

    def forbidden(self, name: str) -> frozenset[int]:
        """The ids of the tokens that a logit_bias forbids. A logit_bias may only forbid tokens."""
        value = self._values.pop(name, {})
        try:
            biases = {int(token): float(bias) for token, bias in value.items()}
        except (AttributeError, TypeError, ValueError) as exc:
            raise _refused(name, "a mapping of token ids to numbers", value) from exc
        if not all(bias <= _NEVER for bias in biases.values()):
            raise RequestError(
                f"sampling parameter {name} is not supported by LocalEngine, but to forbid tokens, with {_NEVER:g} or "
                "less: leave it out"
            )
        return frozenset(biases)


def _is_integer(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _refused(name: str, expected: str, value: object) -> RequestError:
    try:
        text = f"{value!r:.100}"
    except ValueError:  # Python prints no integer of more than 4,300 digits
        text = "a very large integer"
    return RequestError(f"sampling parameter {name} must be {expected}, not {text}")


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1 - 2**-48] for the token at `position` of a sequence: a hash of seed and position.

    SplitMix64's finaliser (Steele, Lea and Flood, 2014), applied to the seed and again with the position.
    """
    return _mix(_mix(seed) + position * 0x9E3779B97F4A7C15) / 2.0**48


def _mix(value: int) -> int:
    """A hash with 48 bits. A double has more bits, so `uniform * total` stays below `total`."""
    z = (value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (z ^ (z >> 31)) >> 16


def draw(
    logits: torch.Tensor, samplings: Sequence[Sampling], positions: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Draw a token for each row of `logits` [rows, vocabulary]. Returns the tokens and their natural log-probs.

    The log-prob is defined as in SGLang (srt/layers/sampler.py): under softmax(logits / temperature), before top-k and
    top-p exclude tokens. At temperature 0 the log-prob is under softmax(logits). A row's token depends only on the
    row's logits, parameters and `uniform(seed, position)`: inverse transform sampling over the tokens in order of their
    ids.
    """
    import torch

    logits = logits.cpu() if logits.device.type == "mps" else logits  # which has no doubles
    log_probs = torch.log_softmax(_scaled(logits, samplings), dim=-1)
    points = [[uniform(sampling.seed, position)] for sampling, position in zip(samplings, positions, strict=True)]
    tokens = _search(log_probs, samplings, torch.tensor(points, dtype=torch.float64, device=logits.device))
    greedy = [row for row, sampling in enumerate(samplings) if sampling.greedy]
    if greedy:
        tokens[greedy, 0] = logits[greedy].argmax(dim=-1)
    # A double holds every token and every float32, so one transfer from the device is enough.
    drawn = torch.cat([tokens.double(), log_probs.gather(1, tokens).double()], dim=1).tolist()
    return [int(token) for token, _ in drawn], [log_prob for _, log_prob in drawn]


def _scaled(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """The logits divided by the temperatures, in float32."""
    import torch

    scaled = logits.float()
    if any(sampling.temperature != 1.0 and not sampling.greedy for sampling in samplings):
        heat = [[1.0 if sampling.greedy else sampling.temperature] for sampling in samplings]
        scaled = scaled / torch.tensor(heat, device=logits.device)
    return scaled


def exclude(
    logits: torch.Tensor, rows: Sequence[int], allowed: torch.Tensor, samplings: Sequence[Sampling]
) -> list[float]:
    """Set the logits of tokens that are not `allowed` [rows, vocabulary] to -inf in these rows of `logits`, in place.

    Returns for each of the rows the rise of the remaining tokens' log-probs; infinite without remaining tokens.
    `samplings` covers all rows.
    """
    row_logits, chosen = logits[rows], [samplings[row] for row in rows]
    logits[rows] = masked = row_logits.masked_fill(~allowed, -math.inf)
    rise = _scaled(row_logits, chosen).logsumexp(dim=-1) - _scaled(masked, chosen).logsumexp(dim=-1)
    return [float(number) for number in rise.tolist()]


def _search(log_probs: torch.Tensor, samplings: Sequence[Sampling], points: torch.Tensor) -> torch.Tensor:
    """The token of each row, [rows, 1], at which the cumulative probability exceeds `points` (of the row's total).

    First the block of tokens is searched, by the blocks' sums, then the token inside. Cumulative sums in float64 over a
    whole vocabulary would take most of the time of drawing (benchmarks/bench_local_engine.py).
    """
    import torch

    rows, vocabulary = log_probs.shape
    probs = log_probs.new_empty(rows, -(-vocabulary // _BLOCK) * _BLOCK)
    probs[:, vocabulary:] = 0
    torch.exp(log_probs, out=probs[:, :vocabulary])
    _truncate(probs, samplings)
    blocks = probs.view(rows, -1, _BLOCK)
    upto = blocks.sum(dim=-1).double().cumsum(dim=-1)
    targets = points * upto[:, -1:]
    # With NaN both searches end after the last token. The row's log-prob is then NaN, too.
    block = torch.searchsorted(upto, targets, right=True).clamp_(max=upto.shape[1] - 1)
    end, before = upto.gather(1, block), torch.where(block > 0, upto.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0].double().cumsum(dim=-1)
    share = ((targets - before) / (end - before)).clamp_(max=_BELOW_ONE)  # of this block, with a rounded sum
    token = torch.searchsorted(inside, share * inside[:, -1:], right=True)
    return (block * _BLOCK + token).clamp_(max=vocabulary - 1)


def _truncate(probs: torch.Tensor, samplings: Sequence[Sampling]) -> None:
    """Set the probabilities of tokens that top-k or top-p exclude to zero. Both use the whole distribution, as in
    SGLang's torch sampler."""
    import torch

    rows = [row for row, sampling in enumerate(samplings) if sampling.truncated]
    if not rows:
        return
    columns, device = probs.shape[-1], probs.device
    top_p = torch.tensor([[samplings[row].top_p] for row in rows], dtype=torch.float64, device=device)
    top_k = torch.tensor([[k if (k := samplings[row].top_k) > 0 else columns] for row in rows], device=device)
    ordered, order = probs[rows].sort(dim=-1, descending=True, stable=True)
    before = ordered.double().cumsum(dim=-1) - ordered
    keep = (before <= top_p) & (torch.arange(columns, device=device) < top_k)
    probs[rows] = torch.zeros_like(ordered).scatter(-1, order, ordered * keep)
