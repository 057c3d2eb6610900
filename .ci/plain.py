"""How many names hide what they hold, and how much prose must be read twice.

    python .ci/plain.py                        a row for each room, and their sum
    python .ci/plain.py --list names ROOM      each empty name with its line
    python .ci/plain.py --list pronouns ROOM   each docstring sentence with two or more words that replace a noun

Empty names: variables, parameters and attributes whose name fits any value (`found`, `one`). Pronouns: words in
docstrings that replace a noun. Riddles: docstring sentences of 9 to 40 words of which 35 % are such words or empty.
Exits with 1 above a limit. Well-kept libraries have 0 to .2 % empty names, 1.2 to 3.9 % pronouns, 0 to .6 % riddles.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("agentrl", "envs", "sandbox")
LIMITS = {"names": 0.5, "pronouns": 3.5, "riddles": 2.0}
"""Percent, of all rooms together."""


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


EMPTY = words("""
    found given said one each own made kept told known at what held asked played noted written left shown those there
    behind begun wanted
""")
PRONOUNS = words("""
    what one ones it its that those them they such others another which whose whatever nothing something
""")
EMPTY_WORDS = PRONOUNS | words("""
    other there so this these whether all each own is of anything none beside again once by their then else too
""")
WORD = re.compile(r"[A-Za-z']+")
SENTENCE = re.compile(r"(?<=[.!?:])\s+")


@dataclass(slots=True)
class Room:
    names: int = 0
    empty: list[str] = field(default_factory=list)
    words: int = 0
    pronouns: int = 0
    sentences: int = 0
    riddles: int = 0
    unclear: list[str] = field(default_factory=list)

    def shares(self) -> dict[str, float]:
        """Percent of names, of words and of sentences."""
        return {
            "names": 100 * len(self.empty) / max(self.names, 1),
            "pronouns": 100 * self.pronouns / max(self.words, 1),
            "riddles": 100 * self.riddles / max(self.sentences, 1),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", nargs=2, metavar=("names|pronouns", "ROOM"))
    arguments = parser.parse_args()
    rooms = measured()
    if arguments.list:
        kind, name = arguments.list
        print("\n".join(rooms[name].empty if kind == "names" else rooms[name].unclear))
        return 0
    for name, room in sorted(rooms.items()):
        print(f"{name:28}" + "  ".join(f"{kind} {share:5.2f} %" for kind, share in room.shares().items()))
    too_many = {kind: share for kind, share in rooms["all"].shares().items() if share > LIMITS[kind]}
    for kind, share in too_many.items():
        print(f"{kind}: {share:.2f} % is above the limit of {LIMITS[kind]} %", file=sys.stderr)
    return int(bool(too_many))


def measured() -> dict[str, Room]:
    """The counts of each room, and under "all" those of all rooms together."""
    rooms: dict[str, Room] = defaultdict(Room)
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if "templates" not in file.parts:
                path = file.relative_to(ROOT)
                for name in ("/".join(path.parts[:2]) if len(path.parts) > 2 else package, "all"):
                    count(rooms[name], path, ast.parse(file.read_text(encoding="utf-8")))
    return rooms


def count(room: Room, path: Path, tree: ast.Module) -> None:
    """Add a file's names and docstrings to its room."""
    for name, line in bound_names(tree):
        room.names += 1
        if name in EMPTY:
            room.empty.append(f"{path}:{line} {name}")
    for text, line in docstrings(tree):
        for sentence in SENTENCE.split(" ".join(text.split())):
            words = [word.lower() for word in WORD.findall(sentence)]
            pronouns = sum(word in PRONOUNS for word in words)
            room.words += len(words)
            room.pronouns += pronouns
            if 9 <= len(words) <= 40:
                room.sentences += 1
                room.riddles += sum(word in EMPTY_WORDS for word in words) >= 0.35 * len(words)
            if pronouns > 1:
                room.unclear.append(f"{path}:{line} {sentence}")


def bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Variables, parameters and assigned attributes, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr.lstrip("_"), node.lineno
        elif isinstance(node, ast.arg) and node.arg != "self":
            yield node.arg, node.lineno


def docstrings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Texts that stand alone: of modules, classes, functions, attributes and constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value, node.lineno


if __name__ == "__main__":
    sys.exit(main())
