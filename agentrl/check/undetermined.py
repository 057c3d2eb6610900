"""Calls in an Env's source whose results do not depend on a seed."""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
import uuid
from datetime import date, datetime
from types import ModuleType
from typing import Any

from agentrl._util.findings import Place
from agentrl.check.places import AuthorCode

_CLOCKS = (time.time, time.monotonic, time.perf_counter, time.time_ns, time.monotonic_ns, time.perf_counter_ns)
_NAMED = (
    uuid.uuid4,
    uuid.uuid1,
    os.urandom,
    secrets.choice,
    secrets.token_hex,
    secrets.randbelow,
    secrets.token_urlsafe,
)
_NOW = ("now", "utcnow", "today")


def undetermined_calls(author: AuthorCode) -> list[tuple[Place, str]]:
    """The calls with their names in the source, sorted by kind: global random numbers, random names, clocks, hashes."""
    ranked = [
        (rank, place, name)
        for place, name in author.calls(bool)
        for module in author.modules
        if module.__file__ == place.file and (rank := _rank(_value(name, module)))
    ]
    return [(place, name) for _, place, name in sorted(ranked)]


def _rank(value: Any) -> int:
    """The kind of a called function: 1 random numbers, 2 random names, 3 clocks, 4 hashes. 0 if a seed determines its
    results."""
    owner = getattr(value, "__self__", None)
    if owner is getattr(random, "_inst", None) or (owner is not None and owner is _numpys()):
        return 1
    if value in _NAMED or value is random.SystemRandom:
        return 2
    if value in _CLOCKS or (owner in (datetime, date) and getattr(value, "__name__", "") in _NOW):
        return 3
    return 4 if value in (hash, id) else 0


def _numpys() -> Any:
    numpy = sys.modules.get("numpy")
    return getattr(numpy.random.mtrand, "_rand", None) if numpy is not None else None


def _value(name: str, module: ModuleType) -> Any:
    """The object of a dotted name in a module; None for a name that is not a global of the module."""
    first, *others = name.split(".")
    value = vars(module).get(first, {"hash": hash, "id": id}.get(first))
    for other in others:
        value = getattr(value, other, None) if isinstance(value, ModuleType | type) else None
    return value
