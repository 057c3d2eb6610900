"""Arguments written as a JSON object, or as a JSON string that contains the object."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from agentrl.render.formats import spelled
from agentrl.render.formats.arguments import Learned, Regions
from agentrl.render.formats.spelled import Spelled
from agentrl.render.read.json_value import ParseFailure, json_at
from agentrl.render.read.lexer import Lexed
from agentrl.render.read.schema import Schema

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class AsJson:
    """The format of arguments that are a JSON object."""

    as_text: bool = False
    """Whether the object is inside a JSON string."""

    @property
    def markers(self) -> tuple[str, ...]:
        return ()

    def read(self, lexed: Lexed, offset: int, close: str, schema: Schema) -> tuple[Any, int]:
        space = _SPACE.match(lexed.text, offset)
        value, end = json_at(lexed.text, space.end() if space else offset)
        if self.as_text and isinstance(value, str):
            value, _ = json_at(value, 0)
        return (
            ParseFailure(f"the call is not valid JSON: {value.reason}") if isinstance(value, ParseFailure) else value
        ), end


def learn(probes: Spelled) -> Learned | None:
    """Learn the format from calls in the template's text. None if their arguments are not written as JSON."""
    regions, as_text = Regions(), False
    for n, text in enumerate(probes.texts):
        regions.append([])
        for i in range(n + 1):
            offset = regions[-1][-1][1] if regions[-1] else 0
            region = next((span for span in _values(text, offset) if _read(text, span) == spelled.arguments(i)), None)
            if region is None:
                return None
            as_text = text[region[0]] == '"'
            regions[-1].append(region)
    return AsJson(as_text), regions


def _values(text: str, offset: int) -> list[tuple[int, int]]:
    starts = [match.start() for match in re.finditer(r'[{"]', text) if match.start() >= offset]
    return [(start, json_at(text, start)[1]) for start in starts]


def _read(text: str, span: tuple[int, int]) -> Any:
    value, _ = json_at(text, span[0])
    return json_at(value, 0)[0] if isinstance(value, str) else value
