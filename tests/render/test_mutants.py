"""A certificate that accepts everything proves nothing: templates that cannot be continued exactly are not `exact`."""

from __future__ import annotations

import pytest

from agentrl.errors import TemplateError
from agentrl.render import load_renderer
from tests.render.checker import Difference, Judge
from tests.render.markers import small_tokenizer
from tests.render.mutants import CHATML, HARMFUL, HARMLESS, LLAMA, Mutant
from tests.render.probes import PROBES, TOOLS


def judged(judge: Judge) -> list[Difference]:
    """Every difference on the conversations that the certificate allows and the template carries."""
    capabilities = judge.renderer.certificate.capabilities
    allowed = [probe for probe in PROBES if all(capabilities.get(name, True) for name in probe.needs)]
    carried = [probe for probe in allowed if judge.carries(probe)]
    return [d for probe in carried for as_in_history in (False, True) for d in judge.differences(probe, as_in_history)]


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
    assert denied or (certificate.level == "keeps-history" and certificate.departures)
    assert [str(d) for d in judged(Judge(renderer, tokenizer, TOOLS)) if d.kind != "history"] == []


@pytest.mark.parametrize("mutant", HARMFUL, ids=ids)
def test_the_checker_sees_every_harmful_change(mutant: Mutant) -> None:
    """Else it could not judge: the sound template's renderer does not fit the changed template."""
    base = load_renderer(small_tokenizer(mutant.base), tools=TOOLS)
    judge = Judge(base, small_tokenizer(mutant.source), TOOLS)
    assert judged(judge) or not all(judge.carries(probe) for probe in PROBES if "tool_results" in probe.needs)


@pytest.mark.parametrize("mutant", HARMLESS, ids=ids)
def test_a_harmless_change_stays_exact(mutant: Mutant) -> None:
    tokenizer = small_tokenizer(mutant.source)
    renderer = load_renderer(tokenizer, tools=TOOLS)
    assert renderer.certificate.level == "exact"
    assert judged(Judge(renderer, tokenizer, TOOLS)) == []


@pytest.mark.parametrize("source", [CHATML, LLAMA], ids=["chatml", "llama"])
def test_the_sound_templates_are_exact(source: str) -> None:
    tokenizer = small_tokenizer(source)
    renderer = load_renderer(tokenizer, tools=TOOLS)
    assert renderer.certificate.level == "exact"
    assert judged(Judge(renderer, tokenizer, TOOLS)) == []
