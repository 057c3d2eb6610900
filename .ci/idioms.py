"""How often words occur that make our prose hard to read, per 10,000 words.

    python .ci/idioms.py              a table: docstrings and comments of the code, and docs
    python .ci/idioms.py --by-room    the same for each room of the code
    python .ci/idioms.py --list WORD  where a row's words stand, such as `--list behind`

Exits with 1 if a row is above the limit. Well-kept libraries are below 3 in each row (httpx, anyio, inspect_ai).
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

LIMIT = 3.0
ROOT = Path(__file__).resolve().parent.parent
ROWS = {
    "behind": r"\bbehind\b",
    "stand(s)": r"\bstands?\b",
    "tell(s), told": r"\b(tells?|told)\b",
    "say(s), said": r"\b(says?|said)\b",
    "go on, gone on": r"\b(go|goes|going|went|gone) on\b",
    "of its/their own": r"\bof (its|their) own\b",
    "nobody, somebody, whoever": r"\b(nobody|somebody|whoever)\b",
    "of which, by which": r"\b(of|by|behind) which\b",
}
CODE = ("agentrl", "envs", "sandbox")
DOCS = ("docs", "README.md", "AGENTS.md", "CONTRIBUTING.md", "SECURITY.md", "examples")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by-room", action="store_true")
    parser.add_argument("--list", metavar="WORD", help="a word of a row")
    given = parser.parse_args()
    texts = {file: prose(file) for file in tracked()}
    if given.list:
        pattern = next(pattern for name, pattern in ROWS.items() if given.list in name)
        show(texts, pattern)
        return
    columns: dict[str, list[str]] = defaultdict(list)
    for file, lines in texts.items():
        kind = "code" if file.suffix == ".py" else "docs"
        columns[kind].extend(text for _, text in lines)
        if given.by_room and kind == "code":
            columns["/".join(file.parts[:2])].extend(text for _, text in lines)
    counted = {column: counts("\n".join(lines)) for column, lines in columns.items()}
    for column, rates in counted.items():
        print(f"{column:24} " + "  ".join(f"{name} {rate:.1f}" for name, rate in rates.items()))
    high = [f"{c}: {name} {rate:.1f}" for c in ("code", "docs") for name, rate in counted[c].items() if rate > LIMIT]
    if high:
        sys.exit(f"above {LIMIT:g} per 10,000 words: {'; '.join(high)}")


def tracked() -> list[Path]:
    """Files of the repository whose prose counts, relative to its root."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [Path(line) for line in listed.splitlines()]
    code = [file for file in files if file.suffix == ".py" and file.parts[0] in CODE]
    return code + [file for file in files if file.suffix == ".md" and file.parts[0] in DOCS]


def prose(file: Path) -> list[tuple[int, str]]:
    """The lines of docstrings and comments of a module, or of a page without its code blocks."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if file.suffix == ".md":
        without = re.sub(r"```.*?```", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
        return list(enumerate(re.sub(r"`[^`\n]*`", "", without).splitlines(), 1))
    found = [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    for node in ast.walk(ast.parse(text)):
        alone = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if alone:
            found += enumerate(node.value.value.splitlines(), node.lineno)
    return found


def counts(text: str) -> dict[str, float]:
    """Row -> occurrences per 10,000 words."""
    words = max(1, len(re.findall(r"[A-Za-z']+", text)))
    return {name: 10_000 * len(re.findall(p, text, re.IGNORECASE)) / words for name, p in ROWS.items()}


def show(texts: dict[Path, list[tuple[int, str]]], pattern: str) -> None:
    for file, lines in texts.items():
        for number, line in lines:
            if re.search(pattern, line, re.IGNORECASE):
                print(f"{file}:{number}: {line.strip()}")


if __name__ == "__main__":
    main()
