"""Count sampled tokens that are lost on their way into training, in the records of any framework.

A fact that a record leaves out is reported as "not told", never as correct.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise

from agentrl._util.findings import Finding, Level, Place
from agentrl.types import JSON
from agentrl.view.model import NOT_TOLD, EpisodeRecord, Severity, TokenProblem, TokenSequence

Decode = Callable[[Sequence[int]], str]


_LEVELS = {"lost": Level.ERROR, "not told": Level.UNCHECKED, "note": Level.NOTE}


@dataclass(slots=True)
class TokenAccount:
    """How many tokens of a file were sampled, trained and masked, and the problems of the file."""

    name: str
    formats: list[str] = field(default_factory=list)
    episodes: int = 0
    without_tokens: int = 0
    sequences: int = 0
    sampled: int = 0
    trained: int = 0
    masked: dict[str, int] = field(default_factory=dict)
    untold: int = 0
    """The number of sampled tokens for which the file does not tell whether they are trained."""
    conversations: int = 0
    """The number of conversations that only grow, so that each could be a single sample."""
    split: int = 0
    """How many of these conversations are several samples."""
    findings: list[Finding] = field(default_factory=list)
    """A finding for each kind of problem, with the place of its first occurrence."""

    def __str__(self) -> str:
        reasons = ", ".join(f"{tokens} {reason}" for reason, tokens in sorted(self.masked.items()))
        return (
            f"{', '.join(self.formats)}: {self.episodes} episodes, {self.sequences} samples; sampled {self.sampled} = "
            f"trained {self.trained} + masked {sum(self.masked.values())}{f' ({reasons})' if reasons else ''} + "
            f"not told {self.untold}; {self.split} of {self.conversations} conversations are several samples"
        )

    def to_json(self) -> dict[str, JSON]:
        return {**asdict(self), "findings": [finding.to_json() for finding in self.findings]}


class _Problems:
    """Problems, counted by kind."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, Severity], tuple[TokenProblem, str]] = {}
        self._counts = Counter[tuple[str, Severity]]()
        self._tokens = Counter[tuple[str, Severity]]()

    def add(self, problem: TokenProblem, place: str) -> None:
        key = problem.kind, problem.severity
        self._first.setdefault(key, (problem, place))
        self._counts[key] += 1
        self._tokens[key] += problem.tokens

    def findings(self) -> Iterator[Finding]:
        for key, (problem, place) in self._first.items():
            count, tokens = self._counts[key], self._tokens[key]
            times = f"{count} times" if count > 1 else "once"
            message = f"{times}{f', {tokens} tokens' if tokens else ''}; the first: {problem.detail}"
            details = {"count": count, "tokens": tokens}
            yield Finding(_LEVELS[problem.severity], message, "", problem.kind, Place(place), details)


def audit(name: str, episodes: Iterable[tuple[str, EpisodeRecord]], decode: Decode | None = None) -> TokenAccount:
    """Audit the episodes of a file. `episodes` has pairs of place and episode.

    `decode` turns token ids into text: equal text in different tokens was encoded again.
    """
    report, problems = TokenAccount(name), _Problems()
    siblings: dict[str, list[tuple[str, EpisodeRecord]]] = {}
    for where, episode in episodes:
        if episode.format not in report.formats:
            report.formats.append(episode.format)
        _count(report, episode)
        for problem in _problems(episode, decode):
            problems.add(problem, where)
        if episode.linked:
            siblings.setdefault(episode.linked, []).append((where, episode))
    for group in siblings.values():
        for problem in _of_siblings([episode for _, episode in group], decode):
            problems.add(problem, group[0][0])
        report.split += len(group) > 1
        report.conversations += 1
    report.findings = sorted(problems.findings(), key=lambda finding: [*Level].index(finding.level))
    return report


def _count(report: TokenAccount, episode: EpisodeRecord) -> None:
    report.episodes += 1
    report.without_tokens += not episode.sequences
    report.sequences += len(episode.sequences)
    for sequence in episode.sequences:
        report.sampled += sequence.sampled
        report.trained += sequence.trained
        report.untold += sequence.untold
        for reason, tokens in sequence.masked.items():
            report.masked[reason] = report.masked.get(reason, 0) + tokens
    if episode.linear and episode.sequences:
        report.conversations += 1
        report.split += len(episode.sequences) > 1


def _problems(episode: EpisodeRecord, decode: Decode | None) -> Iterator[TokenProblem]:
    yield from episode.problems
    if not episode.sequences:
        yield TokenProblem(
            "no tokens", "text alone: which tokens were sampled and trained is not in it", severity="not told"
        )
        return
    for sequence in episode.sequences:
        yield from sequence.problems
        yield from _untold(sequence)
    yield from _missing(episode)
    if episode.linear and len(episode.sequences) > 1:
        is_reported = any(problem.kind == "encoded again" for problem in episode.problems)
        for before, after in pairwise(episode.sequences):
            if not is_reported and episode.format != "agentrl":
                yield from _break(before, after, decode)
        if episode.format == "agentrl":
            yield TokenProblem("several sequences", "thoughts were stripped; each token is in one", severity="note")


def _untold(sequence: TokenSequence) -> Iterator[TokenProblem]:
    if tokens := sequence.masked.get(NOT_TOLD, 0):
        yield TokenProblem("masked, reason not told", "loss_mask is 0 at sampled tokens", tokens, "not told")
    if tokens := sequence.untold:
        yield TokenProblem("training not told", "whether these tokens are trained is not recorded", tokens, "not told")
    trained = [run for run in sequence.runs if run.author == "model" and run.trained is not False]
    if not trained:
        return
    if sequence.engine is None:
        tokens = sum(run.length for run in trained)
        yield TokenProblem("no log-probs", "sampled tokens without the engine's log-probs", tokens, "not told")
        return
    bare = sum(value != value for run in trained for value in sequence.engine[run.start : run.stop])
    if bare:
        yield TokenProblem("no log-prob", "trained tokens without the engine's log-prob", bare)


def _missing(episode: EpisodeRecord) -> Iterator[TokenProblem]:
    """Turns of which the engine returned more tokens, by the record's count, than the sequences hold."""
    if episode.format != "agentrl":
        return
    recorded: dict[int, int] = {}
    for sequence in episode.sequences:
        for run in sequence.runs:
            if run.author == "model":
                recorded[run.turn] = recorded.get(run.turn, 0) + run.length
    for number, turn in enumerate(episode.turns):
        if turn.sampled is not None and recorded.get(number, 0) < turn.sampled:
            lost = turn.sampled - recorded.get(number, 0)
            yield TokenProblem("sampled, in no sequence", f"turn {number}: {lost} of {turn.sampled} tokens", lost)


def _break(before: TokenSequence, after: TokenSequence, decode: Decode | None) -> Iterator[TokenProblem]:
    """Why a conversation became a second sequence."""
    shared = common(before.ids, after.ids)
    lost = sum(max(0, run.stop - max(run.start, shared)) for run in before.runs if run.author == "model")
    if not lost:
        yield TokenProblem("begins anew", f"another prompt from token {shared} on", severity="note")
    elif decode is None:
        detail = f"the next prompt differs from token {shared} on: encoded again or rewritten? Give --model"
        yield TokenProblem("several samples", detail, lost, "not told")
    elif decode(after.ids).startswith(decode(before.ids)):
        yield TokenProblem("encoded again", f"the same text in other tokens from token {shared} on", lost)
    else:
        yield TokenProblem("rewritten", f"the history was changed from token {shared} on", lost, "note")


def _of_siblings(samples: Sequence[EpisodeRecord], decode: Decode | None) -> Iterator[TokenProblem]:
    """Problems of the samples of a rollout: a missing sample, tokens that are trained twice, text that was encoded
    again."""
    about = [(episode.facts.get("metadata") or {}).get("agentrl") or {} for episode in samples]
    expected = max((metadata.get("segments", 0) for metadata in about), default=0)
    if expected > len(samples):
        yield TokenProblem("sample missing", f"{len(samples)} of the {expected} samples of {samples[0].linked}")
    for before, after in pairwise(samples):
        first, second = before.sequences[0], after.sequences[0]
        shared = common(first.ids, second.ids)
        twice = _trained_in(first, shared) & _trained_in(second, shared)
        if twice:
            yield TokenProblem("trained twice", f"two samples of {before.linked} train the same tokens", len(twice))
        if shared < len(first.ids) and not twice and not any(about):
            yield from _same_text(before, after) or _break(first, second, decode)


def _same_text(before: EpisodeRecord, after: EpisodeRecord) -> list[TokenProblem]:
    """Text that was encoded again, by the texts that slime stores of samples: the same text in other tokens."""
    text, longer = before.facts.get("text"), after.facts.get("text")
    if not text or not longer or not longer.startswith(text):
        return []
    shared = common(before.sequences[0].ids, after.sequences[0].ids)
    runs = before.sequences[0].runs
    lost = sum(max(0, run.stop - max(run.start, shared)) for run in runs if run.author == "model")
    return [TokenProblem("encoded again", f"the same text in other tokens from token {shared} on", lost)]


def _trained_in(sequence: TokenSequence, end: int) -> set[int]:
    return {i for run in sequence.runs if run.trained for i in range(run.start, min(run.stop, end))}


def common(first: array[int], second: array[int]) -> int:
    """The length of the common beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
