"""What the hooks read in slime's Samples: which are of one rollout, which of them count, and what they earned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentrl.errors import ConfigError
from agentrl.slime.host import HostArgs
from agentrl.slime.sample import METADATA_KEY
from agentrl.types import JSON, StopReason


def account(sample: Any) -> Mapping[str, JSON]:
    """What `adapt` noted of the episode; empty where another generate function made the sample."""
    found = sample.metadata.get(METADATA_KEY) if isinstance(sample.metadata, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def is_valid(sample: Any) -> bool:
    """Its reward says something about the policy: not failed by the environment or a bug, not aborted.

    `sample.remove_sample` by itself does not decide it: slime's own filters set it to spare a sample the loss alone.
    """
    return account(sample).get("stop") not in (StopReason.FAILED, StopReason.ABORTED)


def leaves(samples: Any) -> Iterator[Any]:
    """The Samples of any nesting of lists: a fan-out puts a list where a Sample was."""
    if isinstance(samples, list):
        for item in samples:
            yield from leaves(item)
    else:
        yield samples


def by_prompt(samples: Iterable[Any]) -> dict[int | None, list[Any]]:
    """The samples of each prompt, by `group_index`."""
    found: dict[int | None, list[Any]] = {}
    for sample in samples:
        found.setdefault(sample.group_index, []).append(sample)
    return found


def by_rollout(samples: Iterable[Any]) -> list[list[Any]]:
    """The samples of each rollout of a prompt: one each, but for the siblings of a fan-out.

    Siblings have one `rollout_id`. Where it is None it is the `index` (slime/utils/types.py:98), as in slime's
    relatives, which have no other. A sample without either is a rollout of its own.
    """
    found: dict[Any, list[Any]] = {}
    for sample in samples:
        name = getattr(sample, "rollout_id", None)
        name = sample.index if name is None else name
        found.setdefault(("unnamed", id(sample)) if name is None else name, []).append(sample)
    return list(found.values())


def reward_of(flags: HostArgs, sample: Any, *, evaluation: bool = False) -> float:
    """The number in `sample.reward`, by --reward-key where that is given. Raises ConfigError if there is none."""
    key, value = flags.reward_name(evaluation=evaluation), sample.reward
    try:
        number = float(value[key] if key else value)
    except ConfigError:  # of a sample that could not be played: this is what it is for
        raise
    except (TypeError, ValueError, KeyError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            f"the reward of sample {sample.index} is {value!r:.200}, which holds no finite number"
            + (f" under --reward-key {key}" if key else "; a mapping needs --reward-key")
        )
    return number
