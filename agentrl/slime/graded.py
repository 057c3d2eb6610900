"""A grader of `agentrl.rewards` as slime's reward model: reads the model's output from a Sample, and handles
failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any, Protocol

from agentrl.errors import ConfigError, Failure
from agentrl.plain import number, to_json_lossy
from agentrl.slime.host import HostArgs
from agentrl.slime.sample import SPANS_KEY, WRITTEN_KEY, episode_metadata, write_account
from agentrl.slime.task import without_arrays
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import JSON, Reward

log = logging.getLogger("agentrl")


class Grades(Protocol):
    """The interface of a grader of episodes."""

    async def grade(self, output: ModelOutput) -> float | Reward: ...


class GradesGroups(Protocol):
    """The interface of a grader of whole groups, which slime calls under --group-rm."""

    async def grade_group(self, group: Sequence[ModelOutput]) -> Sequence[float | Reward]: ...


async def graded(grader: Any, args: Any, samples: Any) -> JSON:
    """The reward of a Sample, or the rewards of a list of Samples.

    A failure is recorded in the sample. The sample is masked and has the reward 0, because slime would end the run or
    drop the group after an exception. Raises ConfigError only.
    """
    if not isinstance(samples, list):
        return (await _each(grader, args, [samples]))[0]
    if any(isinstance(sample, list) for sample in samples):
        return [await graded(grader, args, sample if isinstance(sample, list) else [sample]) for sample in samples]
    if hasattr(grader, "grade_group"):
        return await _group(grader, args, samples)
    return await _each(grader, args, samples)


async def _each(grader: Grades, args: Any, samples: Sequence[Any]) -> list[JSON]:
    async def one(sample: Any) -> JSON:
        try:
            output = await read(args, sample)
            return _shown(args, sample, await grader.grade(output) if output.turns else 0.0)
        except ConfigError:
            raise
        except Exception as exc:  # noqa: BLE001 - the boundary of a grader: slime's rollout would die of it
            return _failed(args, sample, exc)

    return await asyncio.gather(*map(one, samples))


async def _group(grader: GradesGroups, args: Any, samples: Sequence[Any]) -> list[JSON]:
    """Grade the finished episodes of a group together. All other episodes, and episodes without a turn, get 0."""
    try:
        outputs = {id(sample): await read(args, sample) for sample in samples if _finished(sample)}
        outputs = {name: output for name, output in outputs.items() if output.turns}
        grades = await grader.grade_group(list(outputs.values())) if outputs else []
        rewards = dict(zip(outputs, grades, strict=True))
        return [_shown(args, sample, rewards.get(id(sample), 0.0)) for sample in samples]
    except ConfigError:
        raise
    except Exception as exc:  # noqa: BLE001 - the boundary of a grader: slime's rollout would die of it
        return [_failed(args, sample, exc) for sample in samples]


def _finished(sample: Any) -> bool:
    return sample.status not in (type(sample).Status.ABORTED, type(sample).Status.FAILED)


async def read(args: Any, sample: Any) -> ModelOutput:
    """The model's output: as `adapt` has stored it in the metadata, else decoded from the sampled tokens."""
    metadata = sample.metadata if isinstance(sample.metadata, Mapping) else {}
    task = {"prompt": sample.prompt, "label": without_arrays(sample.label), "metadata": metadata}
    if record := episode_metadata(sample).get(WRITTEN_KEY):
        return ModelOutput.from_json(record, **task)
    opened = isinstance(sample.prompt, str) and sample.prompt.rstrip().endswith("<think>")
    if not sample.loss_mask or all(sample.loss_mask):
        return ModelOutput.of_turns([sample.response or ""], thinking=opened, **task)
    decode = await asyncio.to_thread(_decoder, HostArgs.of(args).hf_checkpoint)
    mine, others = list[str](), list[str]()
    response = sample.tokens[-len(sample.loss_mask) :]
    for sampled, run in groupby(zip(response, _sampled(sample), strict=True), key=lambda pair: pair[1]):
        text = decode([token for token, _ in run])
        if sampled:
            mine.append(text)
        elif mine:
            others.append(text)
    return ModelOutput.of_turns(mine, thinking=opened and len(mine) < 2, observed=tuple(others), **task)


def _sampled(sample: Any) -> list[bool]:
    """For each response token, whether the model sampled the token. The log-prob of a sampled token is not 0, even if
    it is masked."""
    log_probs = sample.rollout_log_probs or [0.0] * len(sample.loss_mask)
    return [bool(mask or log_prob) for mask, log_prob in zip(sample.loss_mask, log_probs, strict=True)]


@cache
def _decoder(checkpoint: str) -> Any:
    from agentrl.models import load_tokenizer

    return load_tokenizer(checkpoint, trust_remote_code=True).decode  # slime runs the tokenizer's own code, too


def _shown(args: Any, sample: Any, grade: float | Reward) -> JSON:
    """A grade in the form for slime: a number, or a mapping with the number and the parts if the flags name a key."""
    reward = grade if isinstance(grade, Reward) else Reward(grade)
    value = number(reward.value, "the reward")
    key = HostArgs.of(args).reward_name(evaluation=sample.group_index is None)
    return {**to_json_lossy(reward.parts), key: value} if key else value


def _failed(args: Any, sample: Any, exc: Exception) -> JSON:
    failure = Failure.of(exc, "score")
    log.warning("sample %s is masked, its reward failed: %s", sample.index, failure.error)
    cause = {"kind": failure.kind, "boundary": "score", "error": to_json_lossy(failure.error)}
    about = {"stop": "failed", "failure": cause}
    write_account(sample, {**episode_metadata(sample), **about, **_masked(sample)})
    sample.status = type(sample).Status.FAILED
    sample.remove_sample = True
    sample.loss_mask = [0] * sample.response_length
    return _shown(args, sample, 0.0)


def _masked(sample: Any) -> dict[str, JSON]:
    """The entries of metadata["agentrl"] about tokens, after all tokens are masked. Empty for a sample of another
    generate function."""
    account = episode_metadata(sample)
    if (ledger := account.get("ledger")) is None:
        return {}
    failed = ledger["trained"] + ledger["masked"].get("env_failure", 0)
    spans = [
        [start, stop, kind, "env_failure" if kind == "sampled" and reason is None else reason, turn]
        for start, stop, kind, reason, turn in account.get(SPANS_KEY, ())
    ]
    masked = {**ledger["masked"], "env_failure": failed}
    return {"ledger": {**ledger, "trained": 0, "masked": masked}, SPANS_KEY: spans}
