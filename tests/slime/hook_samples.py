"""Samples as `adapt` leaves them, for the tests of the hooks."""

from __future__ import annotations

from collections import Counter
from itertools import count
from types import SimpleNamespace
from typing import Any

from agentrl import InfraError, Trajectory
from tests.slime.conftest import Sample

_indices = count()
_played = Counter[int]()


def in_turn(trajectory: Trajectory) -> float:
    """A reward function: the episodes of a prompt earn 1, 0 and 1; a flat prompt's all 1, a flaky one's third fails."""
    task = trajectory.task
    turn = _played[task.seed] % 3
    _played[task.seed] += 1
    if task.metadata.get("flaky") and turn == 2:
        raise InfraError("the grader is gone")
    return 0.0 if turn == 1 and not task.metadata.get("flat") else 1.0


class Segment(Sample):
    """A Sample of a host that knows fan-out."""

    rollout_id: int | None = None


def args(**given: Any) -> SimpleNamespace:
    """slime's args, as far as its hooks read them."""
    defaults = {
        "advantage_estimator": "grpo",
        "grpo_std_normalization": True,
        "rewards_normalization": True,
        "reward_key": None,
        "eval_reward_key": None,
        "n_samples_per_prompt": 4,
        "rollout_batch_size": 2,
        "load_debug_rollout_data": None,
    }
    return SimpleNamespace(**{**defaults, **given})


def played(group: int | None, reward: Any = 1.0, cls: Any = Segment, **note: Any) -> Any:
    """An episode of one turn with three sampled tokens and one observed. `note` is added to metadata["agentrl"]."""
    stop = note.setdefault("stop", "done")
    ledger = {"sampled": 3, "trained": 3, "masked": {}, "observation": 1, "scaffold": 0}
    sample = cls(
        group_index=group,
        index=next(_indices),
        tokens=[1, 2, 3, 4, 5],
        response_length=4,
        loss_mask=[1, 1, 0, 1],
        rollout_log_probs=[-1.0, -1.0, 0.0, -1.0],
        reward=reward,
    )
    whole = {"turns": 1, "bad_calls": 0, "reward_parts": {}, "session_id": f"s-{sample.index}", "ledger": ledger}
    sample.metadata = {"agentrl": {**whole, **note}}
    if stop == "failed":
        sample.status, sample.remove_sample, sample.loss_mask = cls.Status.FAILED, True, [0] * 4
        ledger.update(trained=0, masked={"env_failure": 3})
    elif stop == "aborted":
        sample.status = cls.Status.ABORTED
    return sample


def failed(group: int | None, cls: Any = Segment, *, kind: str = "environment", boundary: str = "step") -> Any:
    failure = {"kind": kind, "boundary": boundary, "error": "InfraError: gone", "at": "my_env.py:3 InfraError"}
    return played(group, 0.0, cls, stop="failed", failure=failure)


def fan_out(group: int, reward: float, segments: int, cls: Any = Segment) -> list[Any]:
    """One episode as so many samples with one rollout_id. The last one speaks for the whole episode."""
    siblings = [played(group, reward, cls) for _ in range(segments)]
    for sibling in siblings:
        sibling.index = sibling.rollout_id = siblings[0].index
    for sibling in siblings[:-1]:
        note = sibling.metadata["agentrl"]
        sibling.metadata["agentrl"] = {key: note[key] for key in ("stop", "session_id", "ledger")}
    return siblings
