"""The code blocks of README.md and docs/: each is run, loaded or parsed, or its page gives the reason why not.

    python -m tests.docs.blocks        what is checked, page by page

A comment above a block, which the reader of a page does not see, changes what is done with it:

    <!-- given: from agentrl.testing import call -->     Python that comes before a fragment
    <!-- more of: shop.py -->                            Python that follows the earlier blocks of a file
    <!-- config: agentrl_envs.adapters.mcp:MCP -->       the class that reads a YAML block
    <!-- not run: it needs a model -->                   Python that is compiled only; its imports must exist
    <!-- not checked: a picture -->                      nothing is looked at

Files of Python, whose first line is `# name.py`, are modules of one folder, in which the page's other blocks run. Lines
of a shell are not run (.ci/first_hour.py runs some): the commands, options and settings of `agentrl` must exist, and so
must make's targets, extras of pip, modules and paths of objects.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import importlib
import importlib.util
import inspect
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

import agentrl
from agentrl._util.loading import load_object
from agentrl.env.config import validated_config
from agentrl.slime.config import SlimeConfig
from agentrl.train.config import TrainConfig
from tests.docs.shell import check_line, is_command

ROOT = Path(__file__).parents[2]
SKILLS = sorted((ROOT / "skills").glob("*/SKILL.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *SKILLS]
COMMENT = re.compile(r"<!-- (given|more of|config|not run|not checked): (.*?) -->")
NAMED = re.compile(r"# ([\w/]+\.py)\b")
AUTHOR = re.compile(r"(model[*?-]?|not model|env|template)( t\d+)? +\| ")
READERS = ("my_", "weather")
"""How modules begin that a reader has, and that do not lie here."""
SHELLS = ("bash", "sh", "console")


@dataclass(frozen=True)
class Block:
    line: int
    kind: str
    """The word after the fence. Empty: no word, or an indented block."""
    text: str
    given: str = ""
    more_of: str = ""
    config: str = ""
    not_run: str = ""
    not_checked: str = ""


def blocks(text: str) -> Iterator[Block]:
    """A page's fenced and indented blocks, in order."""
    lines = text.split("\n")
    said: dict[str, str] = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        if found := COMMENT.fullmatch(line.strip()):
            said[found[1].replace(" ", "_")] = found[2]
        elif fence := re.fullmatch(r"( *)```(\w*).*", line):
            end = next(at for at in range(number + 1, len(lines)) if lines[at].strip() == "```")
            body = [inner.removeprefix(fence[1]) for inner in lines[number + 1 : end]]
            yield Block(number + 1, fence[2], "\n".join(body) + "\n", **said)
            number, said = end, {}
        elif line.startswith("    ") and not lines[number - 1].strip() and not _in_a_list(lines, number):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield Block(number + 1, "", "\n".join(inner[4:] for inner in lines[number:end]).strip() + "\n", **said)
            number, said = end - 1, {}
        elif line.strip():
            said = {}
        number += 1


def _in_a_list(lines: list[str], number: int) -> bool:
    before = next((line for line in reversed(lines[:number]) if line.strip() and not line.startswith("    ")), "")
    return re.match(r" *([-*]|\d+\.) ", before) is not None


class Page:
    """Checks one page's blocks in order, in the current folder. Each check raises, or returns what was done."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {name: getattr(agentrl, name) for name in agentrl.__all__}
        self.files: dict[str, str] = {}
        """The blocks so far of each file of the page."""

    def check(self, block: Block) -> str:
        if block.not_checked:
            return "not checked"
        if block.kind == "python":
            return self._python(block)
        if block.kind == "yaml":
            return self._yaml(block)
        if block.kind == "toml":
            tomllib.loads(block.text)
            return "loaded"
        if block.kind in SHELLS or is_command(_joined(block.text)[0]):
            return self._shell(block.text)
        if block.kind == "json" or block.text.startswith(("{", "[")):
            _json(block.text)
            return "loaded"
        if all(AUTHOR.match(line) for line in block.text.strip().split("\n")):
            return "marks of an episode"
        raise ValueError("neither code nor a command: write <!-- not checked: REASON --> above it")

    def _python(self, block: Block) -> str:
        block = self._with_the_blocks_before(block)
        tree = ast.parse(block.text)
        code = compile(tree, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        for module, name in _imports(tree):
            _must_import(module, name, own_too=bool(block.not_run))
        if block.not_run:
            return "compiled"
        if named := NAMED.match(block.text):
            self.names.update(_as_module(named[1], block.text))
        else:
            names = {} if _imports(tree) else dict(self.names)
            exec(block.given, names)
            running = eval(code, names)
            if inspect.iscoroutine(running):
                asyncio.run(running)
            self.names.update(names)
        if unknown := _unknown_names(tree, self.names):
            raise NameError(f"{', '.join(unknown)}: not defined on this page; import it, or give it")
        return "run"

    def _with_the_blocks_before(self, block: Block) -> Block:
        """A block that begins or continues a file becomes all of the file so far; each beginning must run, too."""
        named = NAMED.match(block.text)
        name = named[1] if named else block.more_of
        if not name:
            return block
        before = f"{self.files[name]}\n" if block.more_of else ""
        self.files[name] = before + block.text
        return replace(block, text=self.files[name])

    def _yaml(self, block: Block) -> str:
        values = yaml.safe_load(block.text)
        if block.config:
            validated_config(load_object(block.config), values.get("env_config", values))
        elif "agentrl" in values:
            SlimeConfig.parse("the block", values["agentrl"])
        else:
            TrainConfig.make(**{"env": "my_env.py:MyEnv", "out": "runs/first", **values})
        return "loaded"

    def _shell(self, text: str) -> str:
        lines, prompted, output = _joined(text), text.startswith("$ "), False
        for line in lines:
            if is_command(line) and (line.startswith("$ ") or not prompted):
                check_line(line)
            elif line.strip() and not (output or prompted or line.startswith("#")):
                raise ValueError(f"no command that is known here: {line!r}")
            output = output or not line.strip()  # after an empty line
        return "parsed"


def _joined(text: str) -> list[str]:
    """Lines, where a backslash at the end of one joins it with the next."""
    return text.replace("\\\n", " ").split("\n")


def _json(text: str) -> None:
    """One value, or one a line."""
    try:
        json.loads(text)
    except ValueError:
        for line in text.strip().split("\n"):
            json.loads(line)


def _imports(tree: ast.AST) -> list[tuple[str, str]]:
    """Module and name of each import; no name if the module itself is imported."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            found += [(node.module or "", alias.name) for alias in node.names]
    return found


def _must_import(module: str, name: str, *, own_too: bool) -> None:
    """Raises ImportError for a module or a name that does not exist. `own_too`: a reader's own are taken on trust."""
    if own_too and module.startswith(READERS):
        return
    found = importlib.import_module(module)
    if name and not hasattr(found, name):
        importlib.import_module(f"{module}.{name}")


def _as_module(path: str, text: str) -> dict[str, Any]:
    """The names of a page's file, imported where a reader would have it."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    importlib.invalidate_caches()
    module = ".".join(file.with_suffix("").parts)
    sys.modules.pop(module, None)
    return vars(importlib.import_module(module))


def _unknown_names(tree: ast.AST, known: dict[str, Any]) -> list[str]:
    """Names that a block reads, and that neither it nor the page defines."""
    nodes = list(ast.walk(tree))
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return sorted(read - own - known.keys() - set(dir(builtins)))


def main() -> None:
    """What would be done with each block, without doing it where it runs code: counts, and each reason."""
    total: Counter[str] = Counter()
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8")):
            reason = block.not_checked or block.not_run
            kind = "not checked" if block.not_checked else "compiled only" if block.not_run else "checked"
            total[kind] += 1
            if reason:
                print(f"{page.relative_to(ROOT)}:{block.line}: {kind}: {reason}")
    print(", ".join(f"{count} blocks {kind}" for kind, count in sorted(total.items())))


if __name__ == "__main__":
    main()
