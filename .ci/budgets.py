"""The lines of each room beside its budget in budgets.toml. Exits with 1 if a room is larger, or has no budget.

    python .ci/budgets.py            rooms, lines, budgets
    python .ci/budgets.py --write    budgets.toml anew: the lines of today and 5 %

To raise one budget, change its line in budgets.toml and give the reason in the commit's message.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from math import ceil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / ".ci" / "budgets.toml"
SUFFIXES = {".py", ".sh", ".js", ".css", ".html"}
WHOLE = ("envs/agentrl_envs", "sandbox/agentrl_sandbox", "examples", "benchmarks", ".ci", "tests")
"""Folders with one budget. Each folder of agentrl/ is a room, and the files beside these folders are one room."""


def counted() -> Counter[str]:
    """Room -> lines."""
    lines: Counter[str] = Counter()
    for folder in ("agentrl", *WHOLE):
        for file in (ROOT / folder).rglob("*"):
            path = file.relative_to(ROOT)
            if file.suffix in SUFFIXES and not any(part.startswith(".") for part in path.parts[1:]):
                in_room = folder == "agentrl" and len(path.parts) > 2
                lines["/".join(path.parts[:2]) if in_room else folder] += len(file.read_bytes().splitlines())
    return lines


def main() -> int:
    lines = counted()
    if sys.argv[1:] == ["--write"]:
        rows = [f'"{room}" = {ceil(count * 1.05 / 10) * 10}\n' for room, count in sorted(lines.items())]
        TABLE.write_text("# Room = the most lines it may have. `python .ci/budgets.py` counts them.\n" + "".join(rows))
    budgets = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    over = {room for room in lines if lines[room] > budgets.get(room, 0)}
    for room, count in sorted(lines.items()):
        note = "  over its budget: remove lines, or raise it in .ci/budgets.toml with a reason" if room in over else ""
        print(f"{room:<25} {count:>7} of {budgets.get(room, 0):>7}{note}")
    for room in sorted(budgets.keys() - lines.keys()):
        print(f"{room:<25} is gone: remove it from .ci/budgets.toml")
    return 1 if over or budgets.keys() - lines.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
