"""A certificate that accepts everything proves nothing: templates that cannot be continued exactly are not `exact`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.errors import TemplateError
from agentrl.render import Renderer, load_renderer
from tests.render.checker import Difference, Judge
from tests.render.markers import small_tokenizer
from tests.render.mutants import CHATML, HARMFUL, HARMLESS, LLAMA, Mutant
from tests.render.probes import PROBES, TOOLS


def judged(judge: Judge) -> Iterator[Difference]:
    """Every difference on the conversations that the certificate allows and the template carries."""
    capabilities = judge.renderer.certificate.capabilities
    allowed = [probe for probe in PROBES if all(capabilities.get(name, True) for name in probe.needs)]
    for probe in (probe for probe in allowed if judge.carries(probe)):
        for as_in_history in (False, True):
            yield from judge.differences(probe, as_in_history)


@functools.cache
def sound(source: str) -> tuple[Renderer, Any]:
    tokenizer = small_tokenizer(source)
    return load_renderer(tokenizer, tools=TOOLS), tokenizer


def ids(mutant: Mutant) -> str:
    return mutant.name.replace(" ", "_")


@pytest.mark.parametrize("mutant", HARMFUL, ids=ids)
def test_a_harmful_change_is_refused_or_downgraded(mutant: Mutant) -> None:
    tokenizer = small_tokenizer(mutant.source)
    try:
        renderer = load_renderer(tokenizer, tools=TOOLS)
    except TemplateError:
        return
    certificate = renderer.certificate
    denied = bool(mutant.denies) and not certificate.capabilities[mutant.denies]
    whole = bool(certificate.depends)  # each bridge is made from the whole conversation
    assert denied or whole or (certificate.level == "keeps-history" and certificate.departures)
    assert [str(d) for d in judged(Judge(renderer, tokenizer, TOOLS)) if d.kind != "history"] == []


@pytest.mark.parametrize("mutant", HARMFUL, ids=ids)
def test_the_checker_sees_every_harmful_change(mutant: Mutant) -> None:
    """Else it could not judge: the sound template's renderer does not fit the changed template."""
    base, _ = sound(mutant.base)
    judge = Judge(base, small_tokenizer(mutant.source), TOOLS)
    assert any(judged(judge)) or not all(judge.carries(probe) for probe in PROBES if "tool_results" in probe.needs)


@pytest.mark.parametrize("mutant", HARMLESS, ids=ids)
def test_a_harmless_change_stays_exact(mutant: Mutant) -> None:
    tokenizer = small_tokenizer(mutant.source)
    renderer = load_renderer(tokenizer, tools=TOOLS)
    assert renderer.certificate.level == "exact"
    assert list(judged(Judge(renderer, tokenizer, TOOLS))) == []


@pytest.mark.parametrize("source", [CHATML, LLAMA], ids=["chatml", "llama"])
def test_the_sound_templates_are_exact(source: str) -> None:
    renderer, tokenizer = sound(source)
    assert renderer.certificate.level == "exact"
    assert list(judged(Judge(renderer, tokenizer, TOOLS))) == []
