"""Turns as models write them, read as SGLang 0.5.23 and vLLM 0.33.0 read them.

`held_out_calls/*.json` has one file for each format of calls. A case is the text of a sampled turn, how it ended, and
its right reading: `read`. What `read` leaves out is not compared. `unreadable` is a call with an error; a turn of which
`calls` is "unreadable" has such calls only. `or` has other readings that are accepted.

Both engines' parsers were run on every text (a file's `note` says where not). `sglang` and `vllm` have their readings
where these differ from `read`, and `why` says why `read` is right. An engine has no calls with errors: where it reads
no call at all, it agrees with "unreadable".
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.render import Renderer, load_renderer
from agentrl.types import Action
from tests.render.conftest import llama_tokenizer
from tests.render.markers import HERE, tokenizer_of

DATA = Path(__file__).parent / "held_out_calls"
TOOLS: list[Any] = json.loads((DATA / "tools.json").read_text(encoding="utf-8"))
FAMILIES: dict[str, Any] = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(DATA.glob("*.json"))
    if path.stem != "tools"
}
CASES = [pytest.param(name, case, id=f"{name}: {case['id']}") for name in FAMILIES for case in FAMILIES[name]["cases"]]
UNREADABLE = "unreadable"


@functools.cache
def opened(name: str) -> tuple[Renderer, Any, bool]:
    """A family's renderer and tokenizer, and whether its prompt opens a thought."""
    template = FAMILIES[name]["template"]
    if template == "LLAMA":
        tokenizer = llama_tokenizer()
    else:
        (path,) = HERE.glob(f"*/{template}.jinja")
        tokenizer = tokenizer_of(path)
    renderer = load_renderer(tokenizer, tools=TOOLS)
    return renderer, tokenizer, renderer.prompt("Hello.").thinking


def reading(action: Action) -> dict[str, Any]:
    calls = [UNREADABLE if call.error else {"name": call.name, "arguments": call.arguments} for call in action.calls]
    return {"content": action.content, "reasoning": action.reasoning or "", "calls": calls}


def fits(found: dict[str, Any], right: dict[str, Any]) -> bool:
    """Numbers, booleans and strings are told apart; blank space around content and thoughts is not."""
    for key in ("content", "reasoning"):
        if key in right and found[key].strip() != (right[key] or "").strip():
            return False
    if right["calls"] == UNREADABLE:
        return bool(found["calls"]) and all(call == UNREADABLE for call in found["calls"])
    return json.dumps(found["calls"], sort_keys=True) == json.dumps(right["calls"], sort_keys=True)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_turn_is_read_right(name: str, case: dict[str, Any]) -> None:
    renderer, tokenizer, thinking = opened(name)
    tokens = tokenizer.encode(case["text"], add_special_tokens=False)
    matched = tokens[-1] if case["finish"] == "stop" else None
    found = reading(renderer.parse(tokens, case["finish"], matched, thinking=thinking))
    right = [case["read"], *case.get("or", ())]
    assert any(fits(found, one) for one in right), f"{case['text']!r} is read as {found}, not as {right}"


def test_the_cases_are_what_was_asked_for() -> None:
    """Forty turns in each of thirteen formats, and a reason for every difference."""
    assert len(FAMILIES) >= 13
    for name, family in FAMILIES.items():
        cases = family["cases"]
        assert len({case["id"] for case in cases}) == len(cases) >= 40, name
        differ = [case["id"] for case in cases if {"sglang", "vllm", "or"} & case.keys() and not case.get("why")]
        assert not differ, name


@pytest.mark.thorough
def test_a_turn_ends_with_a_stop_token() -> None:
    """A mistake in the data would pass for one in the reading."""
    for name, family in FAMILIES.items():
        renderer, tokenizer, _ = opened(name)
        for case in family["cases"]:
            tokens = tokenizer.encode(case["text"], add_special_tokens=False)
            at = [i for i, token in enumerate(tokens) if token in renderer.stop_token_ids]
            expected = [len(tokens) - 1] if case["finish"] == "stop" else []
            assert at == expected or case["id"] == "an answer that ends as a message", (name, case["id"])
