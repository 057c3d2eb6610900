"""Arrays of token ids and of log-probs, and the checks of their values."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import isnan
from typing import TYPE_CHECKING, NoReturn, Self

from agentrl.errors import LedgerError
from agentrl.types import Generation

if TYPE_CHECKING:
    _Ints = array[int]
else:  # Python before 3.12 cannot subscript the class
    _Ints = array

_ROUNDING = 1e-4
"""The highest log-prob that counts as a rounding error above 0: engines compute log-probs in float32."""
_LARGEST = 3.4e38
"""About the largest number of a float32."""


class TokenIds(_Ints):
    """An array of token ids that only grows. A reader need not compare earlier ids twice."""

    __slots__ = ()

    def __new__(cls, ids: Iterable[int] = ()) -> Self:
        return super().__new__(cls, "i", ids)  # type: ignore[return-value]

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("token ids that an engine may have been sent cannot be changed; append new ones")

    __setitem__ = __delitem__ = __imul__ = insert = pop = remove = reverse = byteswap = clear = _refuse


def require(condition: bool, message: str) -> None:
    """Raises LedgerError unless the condition holds."""
    if not condition:
        raise LedgerError(message)


def checked(generation: Generation) -> tuple[array[int], array[float]]:
    """The tokens and log-probs of a generation. Raises LedgerError for an invalid value, or if the lengths differ."""
    tokens, log_probs = id_array(generation.tokens), log_prob_array(generation.log_probs)
    require(len(tokens) == len(log_probs), f"{len(tokens)} sampled tokens but {len(log_probs)} log_probs")
    require(len(generation.constrained) in (0, len(tokens)), f"not one flag of a grammar for {len(tokens)} tokens")
    return tokens, log_probs


def id_array(tokens: Iterable[int]) -> array[int]:
    """Token ids as an array. Raises LedgerError for an invalid id."""
    try:
        ids = array("i", tokens)
    except (TypeError, OverflowError) as exc:
        raise LedgerError(f"token ids are whole numbers from 0 to 2**31 - 1: {exc}") from exc
    require(not ids or min(ids) >= 0, "a token id is negative")
    return ids


def log_prob_array(log_probs: Iterable[float]) -> array[float]:
    """Log-probs as an array. Raises LedgerError for an invalid log-prob."""
    values = list(log_probs)
    try:
        # A NaN makes the sum NaN. The smallest and the largest number do not show a NaN.
        valid = not values or (min(values) >= -_LARGEST and max(values) <= _ROUNDING and not isnan(sum(values)))
    except TypeError as exc:
        raise LedgerError(f"log_probs are numbers: {exc}") from exc
    if not valid:
        bad = next(x for x in values if not -_LARGEST <= x <= _ROUNDING)
        raise LedgerError(f"a log_prob is {bad}; it must be finite and at most 0")
    return array("f", values)
