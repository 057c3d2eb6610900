"""What a wrong name in a configuration is answered with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean group_size?`, or "" if no known name is close."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def unknown_key(name: str, known: Iterable[str]) -> str:
    """`unknown key group_sise; did you mean group_size?`. All known keys are listed only if none is close."""
    names = list(known)
    guess = did_you_mean(name.rpartition(".")[2], names)
    return f"unknown key {name}{guess or '; the keys are ' + ', '.join(names)}"
