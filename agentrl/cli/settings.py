"""`--set key=value`: how a flag becomes part of a configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import yaml

from agentrl.errors import ConfigError

# YAML 1.1 reads 1e-4 as a string, because it has no dot.
_FLOAT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """`["limits.turns=4"]` becomes `{"limits": {"turns": 4}}`; values are read as YAML. Raises ConfigError."""
    return reduce(merge, (_parse(pair) for pair in pairs), {})


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` updated by `over`. If both have a mapping at a key, the mappings are merged recursively."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def _parse(pair: str) -> dict[str, Any]:
    key, equals, text = pair.partition("=")
    *outer, last = key.split(".")
    if not equals or not all((*outer, last)):
        raise ConfigError(f"--set {pair}: write key=value, such as --set limits.turns=4")
    setting = {last: _value(pair, text)}
    for name in reversed(outer):
        setting = {name: setting}
    return setting


def _value(pair: str, text: str) -> Any:
    if _FLOAT.fullmatch(text):
        return float(text)
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as exc:
        raise ConfigError(f"--set {pair}: the value is not valid YAML; quote it, as in 'key=\"a: b\"'") from exc
