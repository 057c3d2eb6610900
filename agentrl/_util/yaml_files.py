"""Read a configuration from a YAML file. An error message is one line with the file, the line and the remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import yaml

from agentrl._util.config_errors import check_file
from agentrl.errors import ConfigError

_REMEDIES = {
    "written twice": "leave one of them out",
    "'\\t'": "indent with spaces, not with tabs",
    "<stream end>": "close each bracket and each quotation mark",
    "": "fix that line, or put its value in quotes",
}
"""Part of the parser's message -> the remedy."""
_CHANGED = {
    "tag:yaml.org,2002:bool": (r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    "tag:yaml.org,2002:int": (r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    "tag:yaml.org,2002:float": (r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
    "tag:yaml.org,2002:timestamp": (r"^$", []),
}
"""Type of a value that is not text -> the pattern in YAML 1.2, and the first characters that such values can have.
Hexadecimal and octal numbers are left out."""


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses a repeated key. The base class silently takes the last value."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value} is written twice", problem_mark=key.start_mark)
            seen.add((key.tag, str(key.value)))
        return node


class _NewLoader(_Loader):
    """A loader for YAML 1.2, in which `yes`, `on` and 22:10 are texts."""


_NewLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _CHANGED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for tag, (pattern, beginnings) in _CHANGED.items():
    _NewLoader.add_implicit_resolver(tag, re.compile(pattern), beginnings)


def read_yaml(
    file: str | Path,
    named_by: str = "",
    such_as: str = "env: my_env.py:MyEnv",
    *,
    version: Literal["1.1", "1.2"] = "1.1",
) -> dict[str, Any]:
    """The mapping in a YAML file. `named_by` is the option with the path. Raises ConfigError."""
    path, where = Path(file), f"{named_by} {file}".strip()
    try:
        content = yaml.load(path.read_bytes().decode("utf-8-sig"), _Loader if version == "1.1" else _NewLoader)
    except OSError as exc:
        check_file(path, f"give its path from here, {Path.cwd()}", named_by=named_by)
        raise ConfigError(f"{where}: {exc.strerror}; name a YAML file that you may read") from exc
    except UnicodeDecodeError as exc:
        line = exc.object.count(b"\n", 0, exc.start) + 1
        raise ConfigError(f"{where}:{line}: not UTF-8 text; save it as UTF-8") from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{where}{_not_yaml(exc)}") from exc
    if not isinstance(content, dict):
        problem = "the file is empty" if content is None else "not a mapping of keys to values"
        raise ConfigError(f"{where}: {problem}; write `{such_as}`")
    if odd := [key for key in content if not isinstance(key, str)]:
        raise ConfigError(f"{where}: the key {odd[0]!r} is not text; put it in quotes")
    return content


def _not_yaml(exc: Exception) -> str:
    problem = " ".join((getattr(exc, "problem", None) or str(exc)).split())
    begins = "context_mark" if "<stream end>" in problem else "problem_mark"
    mark = getattr(exc, begins, None) or getattr(exc, "problem_mark", None)
    remedy = next(remedy for part, remedy in _REMEDIES.items() if part in problem)
    return f"{f':{mark.line + 1}' if mark else ''}: not YAML: {problem}; {remedy}"
