"""Whether what was recorded of an episode is what its fault asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from agentrl import Trajectory
from tests.hostile.faults import FAULTS, prompt


@dataclass(frozen=True)
class Record:
    """What a host has of an episode."""

    stop: str
    failure: tuple[str, str, str] | None
    reward: float | None
    info: Mapping[str, Any]
    trained: int
    masked: Mapping[str, int]
    bad_calls: int
    read: str
    """All that the model read, or would have."""

    @classmethod
    def of(cls, t: Trajectory) -> Record:
        failure = t.failure and (t.failure.kind, t.failure.boundary, t.failure.error)
        read = "\n".join(str(m["content"]) for m in t.messages[1:] if m["role"] != "assistant")
        errors = sum(turn.bad_call is not None for turn in t.turns)
        return cls(str(t.stop), failure, t.reward, t.to_json()["info"], t.ledger.trained, t.ledger.masked, errors, read)


def wrong(name: str, found: Record, *, again: bool = True, in_full: bool = True, at_random: bool = False) -> list[str]:
    """What is not as it should be. `again`: the host plays a failed episode once more; `in_full`: it keeps messages."""
    fault, said = FAULTS[name], list[str]()
    expected = ("environment", "step", "this time") if fault.once and not again else fault.failure
    if expected is None:
        given = fault.stop, fault.reward if fault.reward is not None else found.reward in (0.25, 0.5, 1.0)
        got = found.stop, found.reward if fault.reward is not None else True
        said += [f"stop and reward {got}, not {given}"] if got != given or found.failure else []
        said += ["nothing trained"] if not found.trained else []
        said += (
            [f"parse errors {found.bad_calls}"]
            if bool(found.bad_calls) != bool(fault.bad_call) and not at_random
            else []
        )
        said += [f"read {found.read!r:.200}"] if in_full and fault.reads not in found.read else []
    else:
        failure = found.failure or ("", "", "")
        if failure[:2] != expected[:2] or expected[2] not in failure[2] or "\n" in failure[2]:
            said.append(f"failure {found.failure}, not {expected}")
        said += [f"trained {found.trained}, masked {found.masked}"] if found.trained else []
        said += [f"stop {found.stop}"] if found.stop != "failed" else []
    info = {key: str(value) for key, value in found.info.items()}
    if expected is None and (
        set(info) != set(fault.info) or any(part not in info[key] for key, part in fault.info.items())
    ):
        said.append(f"info {str(info)[:200]}, not {fault.info}")
    return [f"{name}: {one}; {found.failure}" for one in said]


def rows(names: Sequence[str], count: int, seed: int = 9) -> list[dict[str, Any]]:
    """Tasks: each fault once as far as it goes, then some at random, shuffled."""
    chance = Random(seed)
    drawn = [*names, *chance.choices(names, k=max(0, count - len(names)))]
    chance.shuffle(drawn)
    return [
        {"prompt": prompt(name), "label": "", "metadata": {"fault": name}, "id": str(i)}
        for i, name in enumerate(drawn[:count])
    ]
