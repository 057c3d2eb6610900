"""How often words occur that make our prose hard to read, per 10,000 words.

    python .ci/idioms.py              a table of code (docstrings and comments), messages and docs
    python .ci/idioms.py --by-room    the same for each room of the code
    python .ci/idioms.py --list WORD  the lines with a row's words, such as `--list behind`

A message is any other string of three words or more on one line: errors, warnings, log lines, help of the commands.
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
from collections.abc import Iterator
from pathlib import Path

LIMIT = 3.0
ROOT = Path(__file__).resolve().parent.parent
WORD = re.compile(r"[A-Za-z']+")
ROWS = {
    "behind": r"\bbehind\b",
    "stand(s), stood": r"\b(stands?(?!-)|stood|standing)\b",
    "tell(s), told": r"\b(tells?|told|telling)\b",
    "say(s), said": r"\b(says?|said|saying)\b",
    "go on, gone on": r"\b(go|goes|going|went|gone)\s+on\b",
    "of its/their own": r"\bof\s+(its|their|his|her|our|one's)\s+own\b",
    "nobody, somebody, whoever": r"\b(nobody|somebody|anybody|everybody|whoever|whomever)\b",
    "of which, by which": r"\b(of|by|behind|beside|after|without)\s+which\b",
    "mend, mended": r"\b(mend|mends|mended|mending)\b",
}
PROSE = ("code", "messages", "docs")
CODE = ("agentrl", "envs", "sandbox")
DOCS = ("docs", "README.md", "AGENTS.md", "CONTRIBUTING.md", "SECURITY.md", "examples")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by-room", action="store_true")
    parser.add_argument("--list", metavar="WORD", help="a word of a row")
    given = parser.parse_args()
    texts = {(file, kind): lines for file in tracked() for kind, lines in prose(file).items()}
    if given.list:
        pattern = next(pattern for name, pattern in ROWS.items() if given.list in name)
        show(texts, pattern)
        return
    columns: dict[str, list[str]] = defaultdict(list)
    for (file, kind), lines in texts.items():
        columns[kind].extend(text for _, text in lines)
        if given.by_room and kind != "docs":
            columns[f"{'/'.join(file.parts[:2])} {kind}"].extend(text for _, text in lines)
    counted = {column: counts("\n".join(lines)) for column, lines in columns.items()}
    for column, rates in counted.items():
        print(f"{column:32} " + "  ".join(f"{name} {rate:.1f}" for name, rate in rates.items()))
    high = [f"{c}: {name} {rate:.1f}" for c in PROSE for name, rate in counted[c].items() if rate > LIMIT]
    if high:
        sys.exit(f"above {LIMIT:g} per 10,000 words: {'; '.join(high)}")


def tracked() -> list[Path]:
    """Files of the repository whose prose counts, relative to its root."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [Path(line) for line in listed.splitlines()]
    code = [file for file in files if file.suffix == ".py" and file.parts[0] in CODE]
    return code + [file for file in files if file.suffix == ".md" and file.parts[0] in (*DOCS, *CODE)]


def prose(file: Path) -> dict[str, list[tuple[int, str]]]:
    """The numbered lines of a module's docstrings, comments and messages, or of a page without its code."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if file.suffix == ".md":
        without = re.sub(r"```.*?```", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
        return {"docs": list(enumerate(re.sub(r"`[^`\n]*`", "", without).splitlines(), 1))}
    found = [
        (token.start[0], token.string.lstrip("#"))
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if _docstring(node):
            found += enumerate(node.value.value.splitlines(), node.lineno)
    return {"code": found, "messages": list(messages(tree))}


def messages(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Each string of a module that is neither a docstring nor a text of several lines, with its line."""
    if _docstring(node):
        return
    if isinstance(node, ast.JoinedStr):
        text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    else:
        text = ""
    if len(WORD.findall(text)) >= 3 and " " in text and "\n" not in text.strip():
        yield node.lineno, text
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
            yield from messages(child)


def _docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def counts(text: str) -> dict[str, float]:
    """Row -> occurrences per 10,000 words."""
    words = max(1, len(WORD.findall(text)))
    return {name: 10_000 * len(re.findall(p, text, re.IGNORECASE)) / words for name, p in ROWS.items()}


def show(texts: dict[tuple[Path, str], list[tuple[int, str]]], pattern: str) -> None:
    for (file, kind), lines in texts.items():
        for number, line in lines:
            if re.search(pattern, line, re.IGNORECASE):
                print(f"{file}:{number}: {kind}: {line.strip()}")


if __name__ == "__main__":
    main()
