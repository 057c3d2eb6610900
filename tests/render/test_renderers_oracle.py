"""The hand-written bridges of `renderers` beside the derived ones, with the template's own render as the judge.

Which family speaks a template is found by proof: its full render equals the template's own. Where both bridge the same
turn and differ, the derived bridge must be the one that stands in the template's render.
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import TemplateError
from agentrl.render import Renderer, load_renderer
from tests.render.checker import Conversation, Judge, answered, turns
from tests.render.markers import REAL, data_folder, small_tokenizer, template_files, tokenizer_of
from tests.render.probes import PROBES, TOOLS, asks

pytest.importorskip("renderers")
WANTED = re.compile(r"(?:Special token|Expected single token for) '([^']+)'")
NOT_A_FAMILY = ("auto", "default", "custom", "gpt-oss")
"""Not written for one template; and one that downloads a vocabulary when it is made."""
KNOWN = {"place", "seats"}
TOKENS_AT_MOST = 24
CHATS = (PROBES[0], PROBES[2])
"""Conversations whose full renders decide whether a family speaks a template."""


@functools.cache
def families() -> list[Any]:
    import renderers.configs as configs

    kinds = [
        kind
        for kind in vars(configs).values()
        if isinstance(kind, type) and "name" in getattr(kind, "model_fields", ())
    ]
    names = {kind.model_fields["name"].default: kind for kind in kinds}
    return [kind() for name, kind in names.items() if name not in NOT_A_FAMILY]


def create(config: Any, tokenizer: Any) -> Any:
    """The family's renderer, its tokens added to a small tokenizer as it asks for them; None if it asks for more."""
    from renderers import create_renderer

    for _ in range(TOKENS_AT_MOST):
        try:
            return create_renderer(tokenizer, config)
        except AssertionError as exc:
            wanted = WANTED.search(str(exc))
            if wanted is None:
                return None
            tokenizer.add_tokens([wanted[1]], special_tokens="|" in wanted[1] or "bos" in wanted[1])
            if re.search(r"begin.of|bos", wanted[1]):
                tokenizer.bos_token = wanted[1]
        except Exception:  # noqa: BLE001 - a library's own troubles with a tokenizer that is not its family's
            return None
    return None


def speaks(family: Any, judge: Judge) -> bool:
    """Whether the family's full renders are the template's own."""
    chats = [chat for chat in CHATS if judge.carries(chat)]
    try:
        ours = [family.render_ids(list(c.messages), tools=TOOLS, add_generation_prompt=True) for c in chats]
    except Exception:  # noqa: BLE001 - it does not speak it
        return False
    return bool(chats) and [list(o) for o in ours] == [judge.render(c.messages) for c in chats]


@functools.cache
def spoken(path: Path) -> list[tuple[str, Any, Renderer, Any]]:
    """Families that speak this template, with our renderer and the tokenizer of both."""
    found = []
    for config in families():
        real = path.stem in REAL and data_folder() is not None
        tokenizer = tokenizer_of(path) if real else small_tokenizer(path.read_text(encoding="utf-8"))
        family = create(config, tokenizer)
        if family is None or not speaks(family, Judge(family, tokenizer, TOOLS)):
            continue
        try:
            found.append((config.name, family, load_renderer(tokenizer, tools=TOOLS), tokenizer))
        except TemplateError:
            continue  # test_checker.py has a word on those
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("path", template_files(), ids=lambda path: path.stem)
def test_where_bridges_differ_the_template_writes_ours(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, family, renderer, tokenizer in spoken(path):
        judge, counts = Judge(renderer, tokenizer, TOOLS), Counter[str]()
        capabilities = renderer.certificate.capabilities
        for probe in PROBES:
            if all(capabilities.get(need, True) for need in probe.needs) and judge.carries(probe):
                counts += compare(judge, family, probe)
        with capsys.disabled():
            print(f"\n{path.stem} as {name}: {dict(counts)}", end="")
        assert counts["same"] > 0
        assert counts["theirs is the template's"] == 0


def compare(judge: Judge, family: Any, probe: Conversation) -> Counter[str]:
    """How the two bridges of every turn compare; the sampled turns are kept as they are."""
    counts: Counter[str] = Counter()
    messages = probe.messages
    starts = turns(messages)
    prompt = judge.renderer.prompt(messages[: starts[0]])
    kept, thinking = list(prompt.tokens), prompt.thinking
    for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        sampled, _ = judge.sample(kept, messages, start, end, as_in_history=False)
        action = judge.renderer.parse(sampled, "stop", sampled[-1], thinking=thinking)
        new = answered(messages[start:end], action)
        bridge = judge.renderer.bridge(messages[: start + 1], action, new)
        ours, thinking = [*kept, *sampled, *bridge.tokens], bridge.thinking
        theirs = family.bridge_to_next_turn(kept, sampled, [dict(message) for message in new], tools=TOOLS)
        full = judge.render(messages[:end])
        if theirs is None:
            counts["they refuse"] += 1
        elif list(theirs.token_ids) == ours:
            counts["same"] += 1
        elif list(theirs.token_ids) == full:
            counts["theirs is the template's"] += 1
        elif ours == full or full[-len(bridge.tokens) :] == list(bridge.tokens):
            counts["ours is the template's"] += 1
        else:
            counts["neither"] += 1
        kept = ours
    return counts


def spoilt(rng: random.Random, tokens: list[int]) -> list[int]:
    """The turn with up to two tokens lost, doubled or swapped for others of it; its stop token stays."""
    for _ in range(rng.randint(0, 2)):
        place, other = rng.randrange(len(tokens) - 1), rng.choice(tokens[:-1])
        tokens = [*tokens[:place], *([], [tokens[place], other], [other])[rng.randrange(3)], *tokens[place + 1 :]]
    return tokens


def written(renderer: Renderer) -> list[list[int]]:
    """Turns of one call, of two, and of text beside one."""
    parallel = renderer.certificate.capabilities["parallel_calls"]
    turns = [asks("oslo1aaaa", seats=2), *([asks("oslo1aaaa", "moss3cccc")] if parallel else [])]
    return [renderer.encode(turn) for turn in (*turns, asks("voss4dddd", text="Let me see <b> {x}."))]


def stripped(call: tuple[Any, Any]) -> tuple[Any, Any]:
    """A call whose strings have no space at their edges: they strip what we keep."""
    given = call[1] if isinstance(call[1], dict) else {}
    return call[0], {key: value.strip() if isinstance(value, str) else value for key, value in given.items()}


@pytest.mark.parametrize("path", template_files(), ids=lambda path: path.stem)
def test_spoilt_calls_are_read_alike_or_not_at_all(path: Path) -> None:
    """Whatever call we read of a spoilt turn, they read too, and as the same.

    They read some that we refuse: a marker that stands twice, a call in a thought that nothing ended (to us a thought).
    They refuse some that we read: an argument that the tool does not have, which the Env answers.
    """
    for _, family, renderer, _tokenizer in spoken(path):
        rng = random.Random(11)
        for tokens in (spoilt(rng, list(turn)) for turn in written(renderer) for _ in range(25)):
            ours = [(call.name, dict(call.arguments)) for call in renderer.parse(tokens, "stop", tokens[-1]).calls]
            read = family.parse_response(tokens, tools=TOOLS).tool_calls or []
            theirs = [(call.name, call.arguments) for call in read]
            if any(name not in ("book", "cancel") for name, _ in theirs):
                continue  # a marker that was lost has become a part of a name
            known = [(name, given) for name, given in ours if name == "book" and {"place"} <= set(given) <= KNOWN]
            assert all(stripped(call) in map(stripped, theirs) for call in known), renderer.decode(tokens)
