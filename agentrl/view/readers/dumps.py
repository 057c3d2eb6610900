"""Reads slime's dumps: `--save-debug-rollout-data` writes `{"rollout_id", "samples"}` with `torch.save`.

A pickle can run any code. So torch reads the file with `weights_only`, which takes plain values and tensors.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.trajectory.outline import Outline, answer_of
from agentrl.types import JSON
from agentrl.view.model import (
    NOT_TOLD,
    Author,
    EpisodeRecord,
    TokenProblem,
    TokenRun,
    TokenSequence,
    contradictions,
    count,
    merged,
    of_response,
    of_sampled,
)

_AUTHORS: Mapping[str, Author] = {"sampled": "model", "observation": "env", "close": "template", "prompt": "template"}
_BRIDGED = 4
"""In a masked turn, up to so many neighbouring tokens with a log-prob of exactly 0 count as sampled."""


def load(path: Path) -> list[dict[str, JSON]]:
    """The samples of a dump. Raises ConfigError for a file that torch cannot read, or that holds other objects."""
    try:
        import torch
    except ModuleNotFoundError as exc:
        raise ConfigError(f"{path}: torch reads slime's dumps; pip install torch") from exc
    try:
        dump = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as exc:  # torch raises anything for a damaged or hostile file
        raise ConfigError(
            f"{path}: not a dump of plain values and tensors, and nothing else is unpickled "
            f"({' '.join(str(exc).split()):.120}); dump it again with --save-debug-rollout-data"
        ) from exc
    samples = dump.get("samples") if isinstance(dump, dict) else None
    if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
        raise ConfigError(f'{path}: a dump has "samples"; this has none. Give a file of --save-debug-rollout-data')
    return [{**sample, "_rollout": dump.get("rollout_id")} for sample in samples]


def read(sample: Mapping[str, JSON]) -> EpisodeRecord:
    """The episode of a sample. Raises KeyError, TypeError or ValueError for other data."""
    about = (sample.get("metadata") or {}).get("agentrl") or {}
    sequence = _sequence(sample, about)
    prompt = sample.get("prompt")
    return EpisodeRecord(
        count(_outline(sample, about, sequence), [sequence]),
        "slime dump",
        [sequence],
        messages=prompt if isinstance(prompt, list) else (),
        facts={
            **{name: sample[name] for name in ("label", "status", "reward", "metadata") if sample.get(name)},
            "text": f"{prompt}{sample.get('response') or ''}" if isinstance(prompt, str) else None,
        },
        linear=None,
        linked=None if sample.get("rollout_id") is None else f"rollout {sample['rollout_id']}",
    )


def _outline(sample: Mapping[str, JSON], about: Mapping[str, JSON], sequence: TokenSequence) -> Outline:
    return Outline(
        name=str(sample.get("session_id") or about.get("session_id") or f"sample {sample.get('index')}"),
        task=str(sample.get("group_index", "")),
        step=_whole(sample.get("_rollout")),
        group=_whole(sample.get("group_index")),
        member=_whole(sample.get("index")),
        reward=_reward(sample.get("reward")),
        reward_parts=about.get("reward_parts") or {},
        stop=about.get("stop") or sample.get("status"),
        failure=_failure(about.get("failure")),
        turns=about.get("turns", len({run.turn for run in sequence.runs if run.author == "model"})),
        bad_calls=about.get("bad_calls", 0),
        tool_errors=(about.get("info") or {}).get("tool_errors") or {},
        calls={"(all tools)": calls} if (calls := about.get("tool_calls", 0)) else {},
        env_s=float(sample.get("non_generation_time") or 0.0),
        answer=answer_of([{"role": "assistant", "content": sample.get("response") or ""}]),
    )


def _sequence(sample: Mapping[str, JSON], about: Mapping[str, JSON]) -> TokenSequence:
    ids, length = array("i", _plain(sample["tokens"])), int(sample["response_length"] or 0)
    sequence = TokenSequence(ids, prompt_length=max(len(ids) - length, 0))
    if length > len(ids):
        detail = f"response_length {length} of {len(ids)} tokens"
        sequence.problems.append(TokenProblem("broken", detail, length - len(ids)))
        length = len(ids)
    mask = _column(sequence, sample, "loss_mask") or [1] * length  # slime's own default
    log_probs = _column(sequence, sample, "rollout_log_probs")
    spans = about.get("spans")
    response = list(_told(spans, length) if spans else _guessed(mask, log_probs))
    start = sequence.prompt_length
    prompt = [TokenRun(0, start, "prompt")] if start else []
    sequence.runs = [*prompt, *(replace(run, start=run.start + start, stop=run.stop + start) for run in response)]
    if spans:
        sequence.problems += contradictions(sequence, mask)
    if sample.get("remove_sample"):
        sequence.runs = [_removed(run, "removed") for run in sequence.runs]
    sequence.runs = merged(sequence.runs)
    sequence.engine = of_sampled(sequence, log_probs)
    return sequence


def _told(spans: Sequence[Sequence[JSON]], length: int) -> Iterator[TokenRun]:
    """The runs of a sample that agentrl wrote: each span is [start, stop, kind, reason, turn]."""
    end = 0
    for start, stop, kind, reason, turn in spans:
        author = _AUTHORS[kind]
        yield TokenRun(start, stop, author, turn, author == "model" and reason is None, reason)
        end = stop
    if end < length:  # slime's loss needs one token of a response that is empty
        yield TokenRun(end, length, "unknown", trained=False)


def _guessed(mask: Sequence[int], log_probs: Sequence[float]) -> Iterator[TokenRun]:
    """The runs of a sample without spans. Tokens with a mask of 1 or a log-prob other than 0 count as sampled."""
    kinds = [
        "trained" if trained else "masked" if i < len(log_probs) and log_probs[i] else ""
        for i, trained in enumerate(mask)
    ]
    runs, start_of_run = list[list[JSON]](), 0
    for kind, group in groupby(kinds):
        length = len(list(group))
        runs.append([kind, start_of_run, start_of_run + length])
        start_of_run += length
    for before, run, after in zip(runs, runs[1:], runs[2:], strict=False):
        if not run[0] and run[2] - run[1] <= _BRIDGED and before[0] == after[0] == "masked":
            run[0] = "masked"
    turn, inside = -1, False
    for kind, start, stop in runs:
        if kind and not inside:
            turn += 1
        inside = bool(kind)
        if kind:
            yield TokenRun(start, stop, "model", turn, kind == "trained", None if kind == "trained" else NOT_TOLD)
        else:
            yield TokenRun(start, stop, "unknown", turn)


def _removed(run: TokenRun, reason: str) -> TokenRun:
    if run.author != "model" or run.reason not in (None, NOT_TOLD):
        return run
    return TokenRun(run.start, run.stop, "model", run.turn, False, reason)


def _column(sequence: TokenSequence, sample: Mapping[str, JSON], name: str) -> Sequence[JSON]:
    """The values of a field, one for each response token. Empty without the field, which slime does not demand."""
    values = _plain(sample.get(name))
    return of_response(sequence, name, values) if values else ()


def _plain(values: JSON) -> list[JSON]:
    """Numbers as a list, from a list or a tensor."""
    if values is None:
        return []
    numbers: list[JSON] = values.tolist() if hasattr(values, "tolist") else list(values)
    return numbers


def _reward(value: JSON) -> float | None:
    """The reward of a sample. If slime's reward model returned a mapping, this is the only number in the mapping, or
    None."""
    if isinstance(value, Mapping):
        numbers = [number for number in value.values() if isinstance(number, int | float)]
        return float(numbers[0]) if len(numbers) == 1 else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _whole(value: JSON) -> int | None:
    return value if isinstance(value, int) else None


def _failure(failure: Mapping[str, JSON] | None) -> str | None:
    return f"{failure.get('kind')}/{failure.get('boundary')}: {failure.get('error')}" if failure else None


def linked(episodes: Sequence[EpisodeRecord]) -> Counter[str]:
    """Name of a rollout -> the number of its samples."""
    return Counter(episode.linked for episode in episodes if episode.linked)
