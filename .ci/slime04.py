"""Compares a folder with the files in slime04.txt: `python .ci/slime04.py FOLDER`. Exit code 1: they differ."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path


def main(folder: str) -> int:
    lines = Path(__file__).with_suffix(".txt").read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    wrong = [f"{path}: {why}" for _, path, _, digest in rows if (why := _difference(Path(folder, path), digest))]
    print(*wrong, f"{len(rows) - len(wrong)} of {len(rows)} files of slime 0.4 are the listed ones", sep="\n")
    return 1 if wrong else 0


def _difference(file: Path, digest: str) -> str:
    if not file.is_file():
        return "missing"
    return "" if hashlib.sha256(file.read_bytes()).hexdigest() == digest else "another version"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
