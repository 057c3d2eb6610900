"""docs/report-card.md, written from the rows of all passes and from the confirmed defects."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report_card.confirmed import Defect, defects, held_out, listed
from benchmarks.report_card.environment import rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "report-card.md"
RESULTS = ROOT / "benchmarks" / "results" / "report_card.jsonl"
"""A line for each environment of the page."""
HEAD = Path(__file__).with_name("head.md")
"""The page's first lines, with names for the figures."""


@dataclass(slots=True)
class Card:
    """An environment with the findings of all passes."""

    suite: str
    name: str
    excluded: str = ""
    findings: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    checked: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    cpu_s: float = 0.0


def cards(folder: Path) -> list[Card]:
    """The environments of all suites in a folder, in the order of the suites' registries."""
    read: list[Card] = []
    for path in sorted(folder.glob("*.probe.jsonl")):
        suite = path.name.partition(".")[0]
        others = {which: rows(folder / f"{suite}.{which}.jsonl") for which in ("hashed", "check")}
        for name, row in rows(path).items():
            card = Card(suite, name, row.get("excluded", ""), row.get("findings", {}), row.get("figures", {}))
            card.versions, card.cpu_s = row["versions"], row["cpu_s"]
            if not card.excluded:
                _merge(card, others["hashed"].get(name, {}), others["check"].get(name, {}))
            read.append(card)
    return read


def _merge(card: Card, hashed: Mapping[str, Any], checked: Mapping[str, Any]) -> None:
    first, second = card.figures.get("digest"), hashed.get("digest")
    if first and second and first != second and "not deterministic" not in card.findings:
        card.findings["hash order"] = "the same seed gives another episode with another PYTHONHASHSEED"
    card.checked = "check" in checked
    mistakes = [text for text in checked.get("check", ()) if "doing nothing scored" not in text]  # the probe has a mean
    for mistake in mistakes:
        card.findings.setdefault(f"check {mistake.partition(':')[0]}", mistake)
    card.findings |= {kind: text for kind, text in checked.get("findings", {}).items() if kind not in card.findings}
    card.cpu_s += hashed.get("cpu_s", 0.0) + checked.get("cpu_s", 0.0)


def explained(card: Card, known: Iterable[Defect]) -> tuple[list[Defect], dict[str, str]]:
    """The defects of an environment, and the findings that no defect explains."""
    causes, rest = list[Defect](), dict[str, str]()
    others = {(suite, name, kind) for suite, name, kind, _ in (*listed("by_design"), *listed("false_alarms"))}
    findings = {**card.findings, **({"excluded": card.excluded} if card.excluded else {})}
    known = list(known)
    for kind, text in findings.items():
        cause = next((each for each in known if each.explains(card.suite, card.name, kind)), None)
        if cause is not None and cause not in causes:
            causes.append(cause)
        elif cause is None and not any((card.suite, name, kind) in others for name in (card.name, "*")):
            rest[kind] = text
    return causes, rest


def write_page(folder: Path) -> None:
    """Store the rows of a folder as results, in place of those of the same suites, and write the page. Prints the
    findings without a cause: somebody has to look at them before they are on the page."""
    read = cards(folder)
    suites = {card.suite for card in read}
    read = sorted([*read, *(card for card in stored() if card.suite not in suites)], key=lambda card: card.suite)
    lines = [json.dumps({name: value for name, value in asdict(card).items() if value}) for card in read]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for card in read:
        for kind, text in explained(card, defects())[1].items():
            if kind != "excluded":
                print(f"unconfirmed: {card.suite} {card.name}: {kind}: {text}")
    PAGE.write_text(page(), encoding="utf-8")


def stored() -> list[Card]:
    return [Card(**json.loads(line)) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def page() -> str:
    """The page, from the stored results and the confirmed defects."""
    read = stored()
    known, of_defect = defects(), defaultdict[str, list[Card]](list)
    for card in read:
        for cause in explained(card, known)[0]:
            of_defect[cause.id].append(card)
    return _page(read, known, of_defect)


def _page(read: list[Card], known: list[Defect], of_defect: Mapping[str, list[Card]]) -> str:
    played = [card for card in read if not card.excluded]
    shown = [defect for defect in known if of_defect[defect.id] or defect.environments]
    hit = {(card.suite, card.name) for cards_of in of_defect.values() for card in cards_of}
    versions = dict(sorted({pair for card in read for pair in card.versions.items()}))
    alarms = listed("false_alarms")
    wrong = sum(_count(name) for _, name, *_ in alarms)
    suites, times = held_out()
    others = wrong - sum(alarms_of for _, _, alarms_of in times)
    head = HEAD.read_text(encoding="utf-8").format(
        played=len(played),
        tried=len(read),
        checked=sum(card.checked for card in played),
        defects=len(shown),
        hit=len(hit),
        held="\n".join(f"  - {of} of {number} ({100 * of / number:.1f} %) {what}" for what, number, of in times),
        others=others,
        share=100 * others / sum(card.suite not in suites for card in played),
        minutes=sum(card.cpu_s for card in read) / 60,
        versions=", ".join(f"{name} {number}" for name, number in versions.items()),
    )
    serious = [defect for defect in shown if not defect.minor]
    minor = [defect for defect in shown if defect.minor]
    parts = [head, "\n## Defects\n", *(_entry(defect, of_defect[defect.id]) for defect in serious)]
    parts += ["\n## Unlikely texts\n", *(_entry(defect, of_defect[defect.id]) for defect in minor)] if minor else []
    parts += [_NOTES, *(f"- {suite}, {name}: {why}\n" for suite, name, _, why in listed("by_design"))]
    parts += ["\n## False alarms\n", *(f"- {suite}, {name}: {why}\n" for suite, name, _, why in alarms)]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n\n" + _table(read, of_defect)


def _count(names: str) -> int:
    return len(names.replace(" and ", ", ").split(", "))


def _entry(defect: Defect, of: list[Card]) -> str:
    names = defect.environments or [card.name for card in of]
    few = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    script = defect.script.rstrip("\n")
    return f"""
### {defect.suite}: {few}

{defect.what} {defect.fix}

<!-- not checked: the suite is installed in an environment of its own -->
```python
{script}
# {defect.shows.strip()}
```
"""


def _table(read: list[Card], of_defect: Mapping[str, list[Card]]) -> str:
    """A row for each environment: those with defects first."""
    numbers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, cards_of in of_defect.items():
        for card in cards_of:
            numbers[card.suite, card.name].append(name)
    lines = ["## All environments", "", "| suite | environment | result |", "|---|---|---|"]
    order = sorted(read, key=lambda card: (not numbers[card.suite, card.name], bool(card.excluded)))
    for card in order:
        reason = " ".join(card.excluded.partition(" (")[0].replace("|", "/").replace("`", "'").split())[:80]
        result = " ".join(numbers[card.suite, card.name]) or (f"not played: `{reason}`" if card.excluded else "ok")
        lines.append(f"| {card.suite} | {card.name} | {result} |")
    return "\n".join(lines) + "\n"


_NOTES = """
## By design

Findings that are true and may surprise, but are no defects:
"""
