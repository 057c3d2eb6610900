"""Calls that a template has opened."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from agentrl.render import Renderer, load_renderer
from tests.render.markers import GIVEN, made_files, template_files, tokenizer_of

NULL, NUMBER, STRING = {"type": "null"}, {"type": "number"}, {"type": "string"}


DEFS = {"Code": STRING, "Level": {"enum": ["low", "high"]}, "Point": {"type": "object", "properties": {"x": NUMBER}}}


@functools.cache
def opened(name: str) -> tuple[Renderer, Any]:
    path = next((path for path in [*template_files(), *made_files()] if path.stem == name), None)
    if path is None:
        pytest.skip(f"{name} is not in the repository; {GIVEN} names no folder that has it")
    return load_renderer(tokenizer_of(path)), tokenizer_of(path)


def tool(schema: Any, **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"code": schema, **more}, "$defs": DEFS}
    return {"type": "function", "function": {"name": "find", "description": "Find.", "parameters": parameters}}
