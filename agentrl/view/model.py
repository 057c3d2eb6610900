"""The result of every reader: an episode, its token sequences, and the author of each token.

A fact that a format leaves out is None, and is shown as "not told".
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from agentrl.trajectory.outline import Outline
from agentrl.types import JSON, RenderedImage

Author: TypeAlias = Literal["model", "env", "template", "prompt", "unknown"]
"""The author of tokens. `model`: sampled. `env`: written by the environment. `template`: written by the chat template.
`prompt`: before the first sampled token. `unknown`: written by the environment or the template."""

NOT_TOLD = "not told"
"""The reason of sampled tokens that are not trained, in a format without reasons."""


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Neighbouring tokens `ids[start:stop]` of a sequence, with the same author, and trained or masked alike."""

    start: int
    stop: int
    author: Author
    turn: int = -1
    trained: bool | None = False
    """Whether the tokens are trained. None if the format does not tell."""
    reason: str | None = None
    """Why sampled tokens are not trained."""
    version: str | None = None
    """The version of the weights that sampled the tokens."""

    @property
    def length(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of an episode in a format without tokens."""

    author: Author
    text: str
    turn: int = -1
    trained: bool | None = None


Severity: TypeAlias = Literal["lost", "not told", "note"]
"""How bad a problem is. `lost`: tokens are certainly lost or wrong. `not told`: the format does not tell whether tokens
are lost. `note`: nothing is wrong."""


@dataclass(frozen=True, slots=True)
class TokenProblem:
    """A problem of an episode, for the audit."""

    kind: str
    detail: str
    tokens: int = 0
    severity: Severity = "lost"


@dataclass(slots=True)
class TokenSequence:
    """A token sequence that is trained as a unit. `runs` divides the sequence without gaps. A column such as `engine`
    has a value for each token; NaN means no value."""

    ids: array[int] = field(default_factory=lambda: array("i"))
    runs: list[TokenRun] = field(default_factory=list)
    prompt_length: int = 0
    engine: array[float] | None = None
    """Column of log-probs from the engine, when the tokens were sampled."""
    trainer: array[float] | None = None
    """Column of log-probs from the trainer, before the update of the weights."""
    advantages: array[float] | None = None
    name: str = ""
    images: list[RenderedImage] = field(default_factory=list)
    """The images among the tokens, in order."""
    problems: list[TokenProblem] = field(default_factory=list)
    """The problems that the reader noticed."""

    def counted(self, author: Author) -> int:
        return sum(run.length for run in self.runs if run.author == author)

    @property
    def sampled(self) -> int:
        return self.counted("model")

    @property
    def trained(self) -> int:
        return sum(run.length for run in self.runs if run.trained)

    @property
    def untold(self) -> int:
        """The number of sampled tokens for which the format does not tell whether they are trained."""
        return sum(run.length for run in self.runs if run.author == "model" and run.trained is None)

    @property
    def masked(self) -> dict[str, int]:
        by_reason: dict[str, int] = {}
        for run in self.runs:
            if run.author == "model" and run.trained is False:
                reason = run.reason or NOT_TOLD
                by_reason[reason] = by_reason.get(reason, 0) + run.length
        return by_reason

    def gap(self) -> float | None:
        """The largest difference between engine and trainer."""
        if self.engine is None or self.trainer is None:
            return None
        pairs = zip(self.engine, self.trainer, strict=True)
        gaps = [abs(engine - trainer) for engine, trainer in pairs if engine == engine and trainer == trainer]
        return max(gaps, default=None)


@dataclass(slots=True)
class TurnFacts:
    """Data on a turn of the model, other than the tokens."""

    finish: str | None = None
    calls: Sequence[str] = ()
    bad_call: str | None = None
    reward: float | None = None
    generate_s: float | None = None
    env_s: float | None = None
    sampled: int | None = None


@dataclass(slots=True)
class EpisodeRecord:
    """An episode, recorded by any program."""

    outline: Outline
    format: str
    sequences: list[TokenSequence] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    """Texts that replace tokens, for a format without tokens."""
    turns: list[TurnFacts] = field(default_factory=list)
    messages: Sequence[Mapping[str, JSON]] = ()
    facts: Mapping[str, JSON] = field(default_factory=dict)
    """Other fields of the format, such as the label, `info` and the failure's traceback."""
    session: Mapping[str, JSON] | None = None
    linear: bool | None = None
    """Whether the episode is a conversation that only grows, so that it should be a single sequence. None: not told."""
    problems: list[TokenProblem] = field(default_factory=list)
    linked: str | None = None
    """The name of the rollout to which several records belong: slime writes a sample for each segment."""


def count(outline: Outline, sequences: Sequence[TokenSequence]) -> Outline:
    """The summary `outline`, with the counts of sampled, trained and masked tokens of the sequences."""
    masked: dict[str, int] = {}
    for sequence in sequences:
        for reason, tokens in sequence.masked.items():
            masked[reason] = masked.get(reason, 0) + tokens
    outline.sequences, outline.masked = len(sequences), masked
    outline.tokens = sum(len(sequence.ids) for sequence in sequences)
    outline.sampled = sum(sequence.sampled for sequence in sequences)
    outline.trained = sum(sequence.trained for sequence in sequences)
    outline.observation = sum(sequence.counted("env") for sequence in sequences)
    outline.scaffold = sum(sequence.counted("template") for sequence in sequences)
    gaps = [gap for sequence in sequences if (gap := sequence.gap()) is not None]
    outline.gap = max(gaps, default=None)
    return outline


def column(length: int) -> array[float]:
    """A column of NaN for `length` tokens."""
    return array("f", [math.nan]) * length


def of_response(sequence: TokenSequence, name: str, values: Sequence[JSON]) -> Sequence[JSON]:
    """`values`, if there is a value for each response token. Else an empty result, and a problem of the sequence."""
    length = len(sequence.ids) - sequence.prompt_length
    if len(values) == length:
        return values
    sequence.problems.append(TokenProblem("broken", f"{len(values)} values of {name} for {length} tokens", length))
    return ()


def of_sampled(sequence: TokenSequence, log_probs: Sequence[float]) -> array[float] | None:
    """A column with the log-probs of sampled tokens. `log_probs` has a value for each response token, or none."""
    if not log_probs:
        return None
    values, response, start = column(len(sequence.ids)), array("f", log_probs), sequence.prompt_length
    for run in sequence.runs:
        if run.author == "model":
            values[run.start : run.stop] = response[run.start - start : run.stop - start]
    return values


def contradictions(sequence: TokenSequence, loss_mask: Sequence[int]) -> Iterator[TokenProblem]:
    """Where the runs of a response and its mask disagree."""
    for run in sequence.runs:
        if run.author == "prompt" or not loss_mask:
            continue
        ones = sum(loss_mask[run.start - sequence.prompt_length : run.stop - sequence.prompt_length])
        if run.trained and ones < run.length:
            yield TokenProblem("masked without a reason", f"from token {run.start}", run.length - ones)
        elif not run.trained and ones:
            kind = "trained although masked" if run.author == "model" else "trained, but not sampled"
            yield TokenProblem(kind, f"from token {run.start}", ones)


def fill(target: array[float], runs: Iterable[TokenRun], values: Sequence[float]) -> bool:
    """Write the values of sampled tokens into the column `target`, at the places of `runs`. Returns False if the
    numbers of values and tokens differ."""
    sampled = [run for run in runs if run.author == "model"]
    if sum(run.length for run in sampled) != len(values):
        return False
    offset, column_values = 0, array("f", values)
    for run in sampled:
        target[run.start : run.stop] = column_values[offset : offset + run.length]
        offset += run.length
    return True


def merged(runs: Iterable[TokenRun]) -> list[TokenRun]:
    """The runs, with equal neighbours joined and empty runs left out."""
    joined: list[TokenRun] = []
    for run in runs:
        if run.start == run.stop:
            continue
        last = joined[-1] if joined else None
        if last and _fate(last) == _fate(run):
            joined[-1] = TokenRun(last.start, run.stop, *_fate(run))
        else:
            joined.append(run)
    return joined


def _fate(run: TokenRun) -> tuple[Author, int, bool | None, str | None, str | None]:
    return run.author, run.turn, run.trained, run.reason, run.version
