"""Signatures and fields of the public API: a change of any is a decision, and has its line in CHANGELOG.md.

python -m tests.test_public_api      (writes public_api.txt anew)
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import is_typeddict

import agentrl

PINNED = Path(__file__).with_name("public_api.txt")


def described() -> Iterator[str]:
    """A line for each public name, and one for each public member of a class of ours."""
    for name in agentrl.__all__:
        found = getattr(agentrl, name)
        if not inspect.isclass(found):
            yield f"{name}{inspect.signature(found) if inspect.isfunction(found) else f' = {found}'}"
        elif issubclass(found, Enum):
            yield f"{name}: {', '.join(f'{member.name}={member.value}' for member in found)}"
        else:
            yield name if issubclass(found, BaseException) else f"{name}{_signature(found)}"
            yield from (f"    {member}" for member in _members(found))


def _signature(cls: type) -> str:
    """How one is made; of a dataclass these are its fields."""
    if getattr(cls, "_is_protocol", False) or is_typeddict(cls):
        return ""
    return str(inspect.signature(cls.__init__))


def _members(cls: type) -> Iterator[str]:
    if not dataclasses.is_dataclass(cls):
        yield from (name for name in vars(cls).get("__annotations__", {}) if not name.startswith("_"))
    for name, member in sorted(vars(cls).items()):
        if name.startswith("_"):
            continue
        plain = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if inspect.isfunction(plain):
            yield f"{name}{inspect.signature(plain)}"
        elif isinstance(member, property):
            yield f"{name}: {inspect.signature(member.fget).return_annotation}"


def test_the_public_api_is_what_it_was() -> None:
    assert list(described()) == PINNED.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    PINNED.write_text("\n".join(described()) + "\n", encoding="utf-8")
