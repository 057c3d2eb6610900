"""The import picture of agentrl: its rooms, how they lie above each other, and whether a circle is left.

    python .ci/house.py                  boxes, storeys, arrows, circles
    python .ci/house.py --root FOLDER    the same of another checkout, such as one of an older commit
    python .ci/house.py --episode        the rooms and files that one episode under slime enters, and its calls

A box is a folder or a module directly below agentrl/. A storey is one step of the longest chain of imports between
boxes. Imports at module level and in functions count as imports; those under TYPE_CHECKING count for circles, too.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

PACKAGE = "agentrl"


class Import(NamedTuple):
    """One module imports another."""

    importer: str
    imported: str
    typing_only: bool


def modules(root: Path) -> dict[str, Path]:
    """Dotted name -> file, templates of `agentrl init` left out."""
    found = {}
    for file in (root / PACKAGE).rglob("*.py"):
        if "templates" not in file.parts:
            found[".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")] = file
    return found


def imports(root: Path) -> list[Import]:
    """All imports of agentrl's modules by each other."""
    known = modules(root)
    return [found for name, file in known.items() for found in _imports_of(name, file, known)]


def _imports_of(name: str, file: Path, known: dict[str, Path]) -> Iterator[Import]:
    for node, typing_only in _nodes(ast.parse(file.read_text(encoding="utf-8")), False):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        else:
            named = [each if (each := f"{node.module}.{a.name}") in known else str(node.module) for a in node.names]
        for imported in named:
            if imported in known and imported != name:
                yield Import(name, imported, typing_only)


def _nodes(node: ast.AST, typing_only: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, typing_only
        checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        yield from _nodes(child, typing_only or checking)


def box(module: str) -> str:
    """The room, or the loose module, that a module belongs to."""
    return module.split(".")[1] if "." in module else "__init__"


def _heights(below: dict[str, set[str]]) -> dict[str, int]:
    """Box -> storeys below and with it. Boxes of one circle have the height of the highest of them."""
    order, groups = circles_first(below)
    heights: dict[int, int] = {}
    for group in order:
        lower = {groups[each] for member in group for each in below.get(member, ())} - {groups[group[0]]}
        heights[groups[group[0]]] = 1 + max((heights[each] for each in lower), default=0)
    return {member: heights[groups[member]] for group in order for member in group}


def circles_first(below: dict[str, set[str]]) -> tuple[list[list[str]], dict[str, int]]:
    """Strongly connected components, lowest first (Tarjan, 1972), and the number of each node's component."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    order: list[list[str]] = []
    groups: dict[str, int] = {}

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(below.get(node, ())):
            if other not in index:
                visit(other)
            if other not in groups:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            groups.update(dict.fromkeys(group, len(order)))
            order.append(group)

    sys.setrecursionlimit(10_000)
    for node in sorted({*below, *(each for lower in below.values() for each in lower)}):
        if node not in index:
            visit(node)
    return order, groups


def circles(found: list[Import]) -> list[list[str]]:
    """Groups of modules that import each other, imports for type checkers included."""
    below: dict[str, set[str]] = defaultdict(set)
    for one in found:
        below[one.importer].add(one.imported)
    return [sorted(group) for group in circles_first(below)[0] if len(group) > 1]


async def calls_of_an_episode(root: Path) -> list[str]:
    """The file, below agentrl/, of each call of a function, while `agentrl.adapt` plays two turns.

    A scripted engine behind SGLang's HTTP protocol answers. The engine's calls count, too: the engine is in this
    process. Coroutines and generators count each time they continue. An episode played before has filled the caches.
    """
    from agentrl import adapt
    from agentrl.engine.sglang.server import running_server
    from agentrl.testing import tiny_renderer
    from tests.slime.conftest import Sample, slime_args
    from tests.slime.player import Player

    prefix, files = f"{root / PACKAGE}/", list[str]()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(prefix):
            files.append(name.removeprefix(prefix))

    renderer = tiny_renderer()
    async with running_server(Player(renderer), decode=renderer.decode) as url:
        args = slime_args(url)
        await adapt(args, Sample(prompt="the capital of France?", label="Paris"), {})
        sys.setprofile(note)
        try:
            sample = await adapt(args, Sample(prompt="the capital of France?", label="Paris"), {})
        finally:
            sys.setprofile(None)
    if sample.reward != 1.0:
        raise SystemExit(f"the episode failed: {sample.metadata}")
    return [file for file in files if not file.startswith("testing/")]


def _show_episode(root: Path) -> None:
    sys.path[0] = str(root)  # it was this folder, whose packaging.py hides the library of that name
    files = asyncio.run(calls_of_an_episode(root))
    rooms = [file.split("/")[0].removesuffix(".py") for file in files]
    calls = Counter(rooms)
    print(f"rooms entered {len(calls)}: {', '.join(f'{room} {calls[room]}' for room in sorted(calls))} (calls)")
    print(f"files entered {len(set(files))}, calls {len(files)}")
    print(f"changes of room {_changes(rooms)}, of file {_changes(files)}")


def _changes(places: list[str]) -> int:
    return sum(a != b for a, b in pairwise(places))


def _show_house(root: Path) -> None:
    found = imports(root)
    names = {box(module) for module in modules(root)} - {"__init__", "__main__"}
    arrows = {(box(i.importer), box(i.imported)) for i in found if not i.typing_only}
    arrows = {(a, b) for a, b in arrows if a != b and {a, b} <= names}
    print(f"boxes {len(names)}: {', '.join(sorted(names))}")
    below: dict[str, set[str]] = defaultdict(set)
    for upper, lower in arrows:
        below[upper].add(lower)
    heights = _heights(below)
    print(f"arrows between boxes {len(arrows)}; storeys {max(heights.values())}")
    for height in sorted(set(heights.values()), reverse=True):
        print(f"  {height:2}  {', '.join(sorted(name for name in heights if heights[name] == height))}")
    rooms_in_circles = [group for group in circles_first(below)[0] if len(group) > 1]
    print(f"circles of boxes {len(rooms_in_circles)}: {rooms_in_circles}")
    print(f"circles of modules, TYPE_CHECKING included {len(circles(found))}: {circles(found)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--episode", action="store_true")
    given = parser.parse_args()
    show = _show_episode if given.episode else _show_house
    show(given.root.resolve())


if __name__ == "__main__":
    main()
