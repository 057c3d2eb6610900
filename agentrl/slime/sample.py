"""slime's Sample to a Task, and a Trajectory to a Sample that every path of slime accepts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agentrl.errors import ConfigError
from agentrl.trajectory import Trajectory
from agentrl.types import JSON, Observation, Raw, StopReason, Task

METADATA_KEY = "agentrl"
"""The one key that is written into `sample.metadata`; all others are the user's."""

_STATUS: Mapping[StopReason, str] = {
    StopReason.DONE: "COMPLETED",
    StopReason.TURNS: "COMPLETED",
    StopReason.PARSE_ERRORS: "COMPLETED",
    StopReason.TURN_CUT: "TRUNCATED",
    StopReason.TOKENS: "TRUNCATED",
    StopReason.CONTEXT: "TRUNCATED",
    StopReason.DEADLINE: "TRUNCATED",
    StopReason.ABORTED: "ABORTED",
    StopReason.FAILED: "FAILED",
}
"""Names of slime's Sample.Status. Out of turns, or too often unreadable, is the policy's doing; a cut is not."""


def from_sample(args: Any, sample: Any, *, evaluation: bool = False) -> Task:
    """The Task in a Sample; nothing in it is shared with the sample. Raises ConfigError for a prompt it cannot read.

    A prompt that slime's --apply-chat-template has rendered becomes Raw. The seed is the prompt's, so that a group
    faces one world; in evaluation, where slime numbers no groups, each sample has its own, the same in every run.
    """
    metadata = copy.deepcopy(sample.metadata or {})
    group, index = getattr(sample, "group_index", None), getattr(sample, "index", None)
    return Task(
        prompt=_prompt(sample.prompt, rendered=_is_rendered(args, evaluation)),
        label=copy.deepcopy(sample.label),
        metadata=metadata,
        tools=metadata.get("tools") or (),
        id="" if index is None else str(index),
        seed=group if group is not None else index or 0,
        split="eval" if evaluation else "train",
    )


def _prompt(prompt: Any, *, rendered: bool) -> Observation:
    if isinstance(prompt, str):
        return Raw(prompt) if rendered else prompt
    if isinstance(prompt, Sequence) and prompt and all(isinstance(m, Mapping) and "role" in m for m in prompt):
        return copy.deepcopy(list(prompt))
    raise ConfigError(f"sample.prompt is neither text nor messages: {prompt!r:.200}; check --input-key")


def _is_rendered(args: Any, evaluation: bool) -> bool:
    default = bool(getattr(args, "apply_chat_template", False))
    if not evaluation:
        return default
    datasets = getattr(args, "eval_datasets", None) or ()
    chosen = {default if (own := getattr(d, "apply_chat_template", None)) is None else bool(own) for d in datasets}
    if len(chosen) > 1:
        raise ConfigError(
            "some eval datasets set apply_chat_template and some do not, and a sample does not tell which one it is "
            "from; set it to false for all of them: agentrl renders prompts itself"
        )
    return chosen.pop() if chosen else default


def clear(sample: Any) -> None:
    """Forget an earlier attempt: the episode of a resumed sample starts anew.

    Also the reward, since slime asks its reward model only where there is none, and the loss_mask, whose zeros spoke of
    tokens that are no longer there.
    """
    _write(
        sample,
        tokens=[],
        response="",
        response_length=0,
        reward=None,
        loss_mask=None,
        rollout_log_probs=None,
        weight_versions=[],
        remove_sample=False,
        non_generation_time=0.0,
        status=type(sample).Status.PENDING,
    )
    for name, kind in (("spec_info", "SpecInfo"), ("prefix_cache_info", "PrefixCacheInfo")):
        if hasattr(sample, name):
            setattr(sample, name, getattr(type(sample), kind)())


def to_sample(trajectory: Trajectory, sample: Any, *, decode: Callable[[Sequence[int]], str]) -> Any:
    """Write a trajectory into a cleared Sample, and return it. Total: any trajectory becomes a valid Sample.

    A failed episode is masked and removed, its reward 0.0; so is an aborted one's, for slime does arithmetic with it.
    Otherwise the reward is the trajectory's, None included: then slime's own reward model decides.
    """
    failed = trajectory.stop in (None, StopReason.FAILED)
    if failed:
        trajectory.mask("env_failure")
    tokens = list(trajectory.tokens) or [0]
    response, loss_mask, log_probs = trajectory.response, list(trajectory.loss_mask), list(trajectory.log_probs)
    if not response:
        # slime's loss reads tokens[-response_length:], which at 0 is everything: a masked dummy stands in.
        tokens, loss_mask, log_probs = [*tokens, tokens[-1]], [0], [0.0]
    _write(
        sample,
        tokens=tokens,
        response=decode(response) if response else "",
        response_length=len(loss_mask),
        loss_mask=loss_mask,
        rollout_log_probs=log_probs,
        reward=0.0 if failed or trajectory.stop is StopReason.ABORTED else trajectory.reward,
        remove_sample=failed,
        status=type(sample).Status[_STATUS[trajectory.stop or StopReason.FAILED]],
        weight_versions=list(trajectory.weight_versions),
        non_generation_time=sum(turn.env_s for turn in trajectory.turns),
        metadata={**(sample.metadata or {}), METADATA_KEY: _account(trajectory, sample.metadata or {})},
    )
    _count_requests(trajectory, sample)
    return sample


def _account(trajectory: Trajectory, metadata: Mapping[str, JSON]) -> dict[str, JSON]:
    """What slime has no field for."""
    account: dict[str, JSON] = {
        "stop": str(trajectory.stop or StopReason.FAILED),
        "turns": len(trajectory.turns),
        "parse_errors": sum(turn.parse_error is not None for turn in trajectory.turns),
        "ledger": asdict(trajectory.ledger),
        "session_id": trajectory.session_id,
        "reward_parts": dict(trajectory.reward_parts),
    }
    if failure := trajectory.failure:
        account["failure"] = {"kind": failure.kind, "boundary": failure.boundary, "error": failure.error}
    if trajectory.info:
        account["info"] = dict(trajectory.info)
    if isinstance(earlier := metadata.get(METADATA_KEY), Mapping):
        account["restarts"] = earlier.get("restarts", 0) + 1
    return account


def _count_requests(trajectory: Trajectory, sample: Any) -> None:
    """slime's counters of the prefix cache and of speculative decoding, over all generations."""
    cache, speculation = getattr(sample, "prefix_cache_info", None), getattr(sample, "spec_info", None)
    for turn in trajectory.turns:
        if cache is not None:
            cache.add({"cached_tokens": turn.cached_tokens, "prompt_tokens": turn.prompt_tokens})
        for meta in turn.meta:
            if speculation is not None and "spec_verify_ct" in meta:
                speculation.add(meta)


def _write(sample: Any, **values: Any) -> None:
    """Set the fields that this Sample has: those of slime's relatives lack some."""
    for name, value in values.items():
        if hasattr(sample, name):
            setattr(sample, name, value)
