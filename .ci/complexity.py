"""Functions whose cyclomatic complexity, by radon, is above the limit. Exits with 1 if there are any.

    python .ci/complexity.py

Unlike ruff's C901, radon counts `and`, `or`, conditional expressions and comprehensions.
"""

from __future__ import annotations

import sys
from pathlib import Path

from radon.complexity import cc_visit

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("agentrl", "envs", "sandbox")
LIMIT = 15


def main() -> int:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    blocks = [(block, file) for file in files for block in cc_visit(file.read_text(encoding="utf-8"))]
    complex_blocks = [(block, file) for block, file in blocks if block.complexity > LIMIT and block.letter != "C"]
    for block, file in complex_blocks:
        print(f"{file.relative_to(ROOT)}:{block.lineno}: {block.name} has a complexity of {block.complexity}")
    return bool(complex_blocks)


if __name__ == "__main__":
    sys.exit(main())
