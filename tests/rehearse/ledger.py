"""Where did each sampled token go? The answer for a whole run, from the engines' logs and slime's own dumps alone.

    python -m tests.rehearse.ledger ENGINE_LOGS ROLLOUTS TRAINED [--json]

ENGINE_LOGS is a folder of PID.jsonl, a line of JSON for each generation: input_ids, output_ids, log_probs,
weight_version. ROLLOUTS and TRAINED are the folders of slime's --save-debug-rollout-data FOLDER/{rollout_id}.pt and
--save-debug-train-data FOLDER/{rollout_id}.pt. The program reads nothing that agentrl counts.

A generation belongs to the sample whose tokens begin with its input and output. So each sampled token has a place in a
sample, or belongs to no sample that slime kept (a dropped or repeated episode). In the other direction, each token that
slime trained must have been sampled at its place, with the log-prob that slime trained with, once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TOLERANCE = 1e-5
"""The largest difference of a log-prob on its way through JSON and float32."""
_BASE, _PRIME = 1_000_003, (1 << 61) - 1


@dataclass(frozen=True, slots=True)
class Generation:
    prompt: int
    """The number of tokens of the input."""
    outputs: tuple[int, ...]
    log_probs: tuple[float, ...]
    version: str


@dataclass(slots=True)
class Sample:
    """A sample of slime's dump of rollouts, and the loss mask with which it was trained."""

    name: str
    tokens: list[int]
    response: int
    log_probs: list[float]
    evaluation: bool
    removed: bool
    status: str
    trained_mask: list[int] | None = None
    """None: slime trained no such sample."""


@dataclass(slots=True)
class Account:
    """Sampled tokens by their fate, and everything that does not fit."""

    tokens: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    versions: Counter[str] = field(default_factory=Counter)
    """Trained tokens by the weight version that sampled them."""
    largest: float = 0.0
    """The largest difference between a log-prob of the engine and of slime's sample."""

    @property
    def sampled(self) -> int:
        return sum(self.tokens.values())


def read_generations(folder: Path) -> dict[int, list[Generation]]:
    """The generations by the hash of their input and output."""
    generations: dict[int, list[Generation]] = defaultdict(list)
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            generation = Generation(
                len(entry["input_ids"]),
                tuple(entry["output_ids"]),
                tuple(entry["log_probs"]),
                str(entry.get("weight_version")),
            )
            if generation.outputs:
                key = _last(prefix_hashes([*entry["input_ids"], *entry["output_ids"]]))
                generations[key].append(generation)
    return generations


def prefix_hashes(tokens: Iterable[int]) -> Iterator[int]:
    """A hash of each prefix."""
    value = 7
    for token in tokens:
        value = (value * _BASE + token + 1) % _PRIME
        yield value


def _last(values: Iterable[int]) -> int:
    return deque(values, maxlen=1).pop()


def read_samples(rollouts: Path, trained: Path) -> list[Sample]:
    """All samples of the dumps. slime's dump of training names the place of each sample in the dump of its rollout."""
    samples: list[Sample] = []
    for file in sorted(rollouts.glob("*.pt")):
        evaluation = file.stem.startswith("eval_")
        rollout = [_sample(f"{file.stem}/{number}", entry, evaluation) for number, entry in _entries(file)]
        if not evaluation and (dump := trained / file.name).exists():
            _add_masks(rollout, dump)
        samples += rollout
    return samples


def _entries(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import torch

    yield from enumerate(torch.load(file, weights_only=False)["samples"])


def _sample(name: str, entry: dict[str, Any], evaluation: bool) -> Sample:
    return Sample(
        name,
        [int(token) for token in entry["tokens"]],
        int(entry["response_length"]),
        [float(value) for value in entry.get("rollout_log_probs") or ()],
        evaluation,
        bool(entry.get("remove_sample")),
        str(entry.get("status")),
    )


def _add_masks(rollout: Sequence[Sample], dump: Path) -> None:
    """Raises ValueError for a trained sample that does not fit the sample of the rollout."""
    for _, entry in _entries(dump):
        sample = rollout[entry["rollout_position"]]
        if sample.trained_mask is not None:
            raise ValueError(f"{dump.name}: sample {sample.name} was trained twice in one rollout")
        if [int(token) for token in entry["tokens"]] != sample.tokens:
            raise ValueError(f"{dump.name}: sample {sample.name} was trained with other tokens than it was played with")
        sample.trained_mask = [int(bit) for bit in entry["loss_masks"]]
        if len(sample.trained_mask) != sample.response:
            raise ValueError(
                f"{dump.name}: {len(sample.trained_mask)} bits of loss mask for the response of {sample.name}"
            )


def account(generations: dict[int, list[Generation]], samples: Iterable[Sample]) -> Account:
    """Give each generation to a sample, and each of its tokens a fate. `generations` is used up."""
    result = Account()
    for sample in samples:
        _account_sample(result, sample, _take(generations, sample))
    for remainder in generations.values():
        for generation in remainder:
            result.tokens["in no sample"] += len(generation.outputs)
    return result


def _take(generations: dict[int, list[Generation]], sample: Sample) -> list[Generation]:
    """The sample's generations, in order. Episodes with equal tokens are told apart by their log-probs."""
    turns: list[Generation] = []
    start = len(sample.tokens) - sample.response
    for length, key in enumerate(prefix_hashes(sample.tokens), 1):
        candidates = generations.get(key)
        if length <= start or not candidates:
            continue
        best = min(candidates, key=lambda candidate: _difference(sample, candidate, start))
        if best.prompt + len(best.outputs) == length and best.prompt >= start:
            candidates.remove(best)
            turns.append(best)
    return turns


def _difference(sample: Sample, generation: Generation, start: int) -> float:
    """The largest difference of the generation's log-probs from the sample's."""
    first = generation.prompt - start
    theirs = sample.log_probs[first : first + len(generation.outputs)]
    pairs = zip(generation.log_probs, theirs, strict=False)
    return max((abs(ours - slimes) for ours, slimes in pairs), default=0.0)


def _account_sample(result: Account, sample: Sample, turns: Sequence[Generation]) -> None:
    start = len(sample.tokens) - sample.response
    sampled: dict[int, str] = {}
    for generation in turns:
        if sample.log_probs:
            difference = _difference(sample, generation, start)
            result.largest = max(result.largest, difference)
            if difference > _TOLERANCE:
                result.problems.append(f"{sample.name}: log-probs differ from the engine's by {difference:.6f}")
        for position in range(generation.prompt - start, generation.prompt - start + len(generation.outputs)):
            if position in sampled:
                result.problems.append(f"{sample.name}: token {position} was sampled twice")
            sampled[position] = generation.version
    for position, version in sampled.items():
        fate = _fate(sample, position)
        result.tokens[fate] += 1
        if fate == "trained":
            result.versions[version] += 1
    trained = {position for position, bit in enumerate(sample.trained_mask or ()) if bit}
    for position in sorted(trained - sampled.keys())[:1]:
        result.problems.append(f"{sample.name}: token {position} was trained, and no engine sampled it there")


def _fate(sample: Sample, position: int) -> str:
    if sample.evaluation:
        return "evaluation"
    if sample.trained_mask is None:
        return "played, not trained"
    if sample.trained_mask[position]:
        return "trained"
    if sample.removed:
        return f"masked: removed sample, {sample.status}"
    return f"masked: {sample.status}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("engine_logs", "rollouts", "trained"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = account(read_generations(options.engine_logs), read_samples(options.rollouts, options.trained))
    if options.json:
        print(json.dumps({"tokens": result.tokens, "versions": result.versions, "problems": result.problems}))
    else:
        for fate, count in result.tokens.most_common():
            print(f"{count:12,}  {fate}")
        print(f"{result.sampled:12,}  sampled, by {len(result.versions)} weight versions that were trained on")
        print(f"largest difference of a log-prob: {result.largest:.2e}")
        print("\n".join(f"problem: {problem}" for problem in result.problems[:20]) or "no problem")
    sys.exit(bool(result.problems))


if __name__ == "__main__":
    main()
