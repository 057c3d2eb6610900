"""List the benchmarks, or run the named benchmarks one after the other: python -m benchmarks [NAME ...].

`python -m benchmarks.NAME --help` shows the options of a benchmark.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def first_lines() -> dict[str, str]:
    """Name of a benchmark -> first line of its docstring, for each module here that can be run."""
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("[a-z]*.py"))}
    runnable = {name: source for name, source in sources.items() if "__main__" in source}
    return {name: (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0] for name, source in runnable.items()}


def main(names: list[str]) -> int:
    """Run the benchmarks of these names, or list all. Returns the first exit code that is not 0."""
    known = first_lines()
    if unknown := [name for name in names if name not in known]:
        print(f"no benchmark {', '.join(unknown)}; python -m benchmarks lists them", file=sys.stderr)
        return 2
    if not names:
        print("\n".join(f"{name:20} {line}" for name, line in known.items()))
    for name in names:
        print(f"\n== {name}", flush=True)
        if code := subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
