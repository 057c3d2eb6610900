"""Labels that no answer can match. A grader refuses such a label before a run, instead of giving every answer 0."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from agentrl.errors import ConfigError
from agentrl.rewards.answers import LONGEST, targets
from agentrl.types import JSON

_PUBLISHED = {"reward_model", "ground_truth", "target", "targets", "answer", "answers"}


def check_label(label: JSON, read: Callable[[JSON], list[str]] = targets, *, one_line: bool = False) -> None:
    """Raises ConfigError unless an answer can match the label.

    `read` returns the right answers of a label. `one_line`: answers are short, such as the content of a box.
    """
    if label is None:
        raise ConfigError("the task has no label to grade by; name the label's column in `columns`, or remove the row")
    rights = read(label)
    problems = [_problem(right, one_line=one_line) for right in rights] or ["it is empty; remove the row"]
    if all(problems):
        raise ConfigError(f"no answer can match the label {_short(label)}: {problems[0]}")


def _problem(right: str, *, one_line: bool) -> str:
    """The reason why no answer can match, with the remedy; "" if an answer can match."""
    if not right.strip():
        return r"its \boxed{} is empty or never ends; remove the row"
    if len(right) > LONGEST:
        return f"it has {len(right)} characters, and longer answers than {LONGEST} do not count; shorten it"
    if _is_json(right, one_line=one_line):
        return "it is JSON text; give the value itself, such as 5 or a list of answers"
    if one_line and "\n" in right.strip():
        return r"it has several lines and no \boxed{}; give the final answer alone, in a box, or after ####"
    return ""


def _is_json(text: str, *, one_line: bool) -> bool:
    """Whether a text has the syntax of JSON or of Python for an object, or for a list with more than numbers.

    Unless answers have a single line, an answer may be JSON. So without `one_line` only objects with a known key count.
    """
    if text.strip()[:1] not in ("{", "["):
        return False
    value = _value(text.strip())
    if isinstance(value, Mapping):
        return bool(one_line or _PUBLISHED & {str(key) for key in value})
    return isinstance(value, list) and any(isinstance(entry, str | Mapping) for entry in value)


def _value(text: str) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return ast.literal_eval(text)
    return None


def _short(label: JSON) -> str:
    text = repr(label)
    return text if len(text) <= 80 else f"{text[:60]} ... {text[-16:]}"
