"""--rollout-function-path: slime's sync and fully-async rollout, played by agentrl's loop.

slime itself plays each group, with slime's seeds, slots and reward models. The loop decides when groups begin, how
aborted, too old and filtered groups are treated, and in which order groups are trained. The loop runs on slime's own
event loop, as evaluations do, so both run side by side.

These functions are for slime before 0.4. From 0.4 on, slime's queues do this work, and agentrl only provides the Env.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import ConfigError
from agentrl.rollout.loop.group_loop import ABORTED, GroupLoop
from agentrl.slime.config import SlimeConfig
from agentrl.slime.data_source import DataSource
from agentrl.slime.fatal import check_played
from agentrl.slime.host import PACKAGES, HostArgs, has_queues, rollout_output
from agentrl.slime.rollouts import flat_samples

log = logging.getLogger("agentrl")


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """--rollout-function-path agentrl.slime.generate_rollout: play the groups of a rollout. Returns the groups in the
    order of their prompts.

    Like slime's own function, this function plays --over-sampling-batch-size groups, drops the groups that
    --dynamic-sampling-filter-path refuses, and aborts the rest once the rollout is full. No prompt is lost: with
    --partial-rollout the played parts of the rest return to the data source, otherwise only their prompts. The
    exception of an episode ends the rollout.
    """
    host = _Host.here(args)
    if evaluation:
        return host.rollout.generate_rollout(args, rollout_id, data_source, evaluation=True)
    return host.run(_sync(host, rollout_id, data_source))


def generate_rollout_fully_async(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """--rollout-function-path agentrl.slime.generate_rollout_fully_async: returns the ready groups, the oldest first.

    Groups are played all the time, as many rollouts ahead as the key `staleness` under `agentrl` allows. A group that
    began too many rollouts ago is dropped (`stale: drop`) or trained unchanged (`stale: mask`, with slime's own
    correction of off-policy tokens). Evaluations run at the same time. Dynamic filters are called. The exception of an
    episode ends the run.
    """
    host = _Host.here(args)
    if evaluation:
        return host.rollout.generate_rollout(args, rollout_id, data_source, evaluation=True)
    return host.run(_ahead(host, rollout_id, data_source))


@dataclass(eq=False, slots=True)
class SampleGroup:
    """The samples of a prompt, which are fresh from the data source or in play."""

    number: int
    born: int
    samples: list[Any]
    fresh: list[Any] | None
    """A copy of the fresh samples, to restart the group. None if the group continues with the tokens played so far."""


@dataclass(slots=True)
class SampleSource:
    """slime's data source with the interface of a GroupSource."""

    data_source: Any
    partial: bool
    dropped: Counter[str] = field(default_factory=Counter)
    taken: int = 0

    def take(self, version: int) -> SampleGroup | None:
        groups = self.data_source.get_samples(1)
        if not groups:
            return None
        self.taken += 1
        began = [s.metadata.get("start_rollout_id") for s in flat_samples(groups[0]) if isinstance(s.metadata, dict)]
        born = min([version, *(number for number in began if number is not None)])
        return SampleGroup(self.taken, born, groups[0], None if self.partial else copy.deepcopy(groups[0]))

    def put_back(self, group: SampleGroup, *, anew: bool) -> None:
        if not anew:
            for sample in flat_samples(group.samples):
                if sample.response and "start_rollout_id" not in sample.metadata:
                    sample.metadata["start_rollout_id"] = group.born
        self.data_source.add_samples([group.fresh if anew and group.fresh is not None else group.samples])

    def drop(self, group: SampleGroup, reason: str) -> None:
        self.dropped[reason] += 1
        if isinstance(self.data_source, DataSource):
            self.data_source.drop(group.samples, reason)

    def shipped(self, rollout_id: int, groups: list[list[Any]]) -> None:
        """Tell the data source that a rollout gives these groups to the trainer."""
        if isinstance(self.data_source, DataSource):
            self.data_source.shipped(rollout_id, groups)


class _Host:
    """The modules of slime or miles, and the functions that a rollout needs of these modules."""

    def __init__(self, args: Any, package: str) -> None:
        self.args, self.flags = args, HostArgs.of(args)
        self.rollout = importlib.import_module(f"{package}.rollout.sglang_rollout")
        self._run = importlib.import_module(f"{package}.utils.async_utils").run
        self.http = importlib.import_module(f"{package}.utils.http_utils")
        self.load = importlib.import_module(f"{package}.utils.misc").load_function
        self.groups = self.flags.rollout_batch_size

    @classmethod
    def here(cls, args: Any) -> _Host:
        """The modules of the loaded program. Raises ConfigError outside of slime, and for slime from 0.4 on."""
        package = next((name for name in PACKAGES if name in sys.modules), None)
        if package is None:
            raise ConfigError("agentrl.slime.generate_rollout is slime's: name it in slime's --rollout-function-path")
        host = cls(args, package)
        if has_queues(host.state):
            raise ConfigError(
                "this slime has queues that do what agentrl's rollout functions do: leave out --rollout-function-path, "
                "or name slime's own"
            )
        return host

    @property
    def state(self) -> Any:
        return self.rollout.GenerateState(self.args)

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine on slime's own event loop."""
        return self._run(coroutine)

    async def play(self, group: SampleGroup) -> str | None:
        """Let slime play a group. Returns `aborted` if a sample was aborted, else None. Raises ConfigError for episodes
        that could not be played."""
        params = self.state.sampling_params.copy()
        group.samples = await self.rollout.generate_and_rm_group(self.args, group.samples, params, evaluation=False)
        samples = list(flat_samples(group.samples))
        check_played(samples)
        return ABORTED if any(sample.status == sample.Status.ABORTED for sample in samples) else None

    def unwanted(self) -> Callable[[SampleGroup], str | None]:
        """The filter of --dynamic-sampling-filter-path as a function of a group, which returns the reason to drop the
        group, or None."""
        if not self.flags.dynamic_sampling_filter_path:
            return lambda group: None
        filter_group = self.load(self.flags.dynamic_sampling_filter_path)

        def reason(group: SampleGroup) -> str | None:
            output = filter_group(self.args, group.samples)
            if getattr(output, "keep", output):
                return None
            return getattr(output, "reason", None) or "dynamic_filter"

        return reason

    def loop(self, source: SampleSource, **values: Any) -> GroupLoop[SampleGroup]:
        return GroupLoop(source, self.play, groups=self.groups, drop_reason=self.unwanted(), **values)

    async def cut(self, rollout_id: int) -> None:
        """Abort the requests of all of slime's servers. slime sets its abort flag, which stops the episodes.
        `state.reset` clears the flag."""
        await self.rollout.abort(self.args, rollout_id)


async def _sync(host: _Host, rollout_id: int, data_source: Any) -> Any:
    began, source = time.monotonic(), SampleSource(data_source, partial=host.flags.partial_rollout)
    at_once = max(host.flags.over_sampling_batch_size, host.groups)
    loop = host.loop(source)
    try:
        taken = await loop.collect(rollout_id, at_once)
        await loop.abort(lambda: host.cut(rollout_id), partial_groups=source.partial)
        loop.give_back()
    except BaseException:
        await asyncio.shield(loop.stop())
        raise
    finally:
        host.state.reset()
    if path := host.flags.rollout_sample_filter_path:
        host.load(path)(host.args, [group.samples for group in taken])
    return shipped(rollout_id, taken, source, {"rollout/agentrl/loop/seconds": time.monotonic() - began})


loops: dict[asyncio.AbstractEventLoop, tuple[GroupLoop[SampleGroup], SampleSource]] = {}
"""Event loop -> the rollout loop that plays ahead. slime has a single event loop, from its first rollout to the end of
the process."""


async def _ahead(host: _Host, rollout_id: int, data_source: Any) -> Any:
    here = asyncio.get_running_loop()
    if here not in loops or loops[here][1].data_source is not data_source:
        if here in loops:
            await loops[here][0].stop()
        loops[here] = _begin(host, data_source)
    loop, source = loops[here]
    began = time.monotonic()
    loop.begin(rollout_id, rollout_id)
    ready = loop.ready
    taken = await loop.take(rollout_id + 1)
    ages = [rollout_id - group.born for group in taken]
    metrics = {
        "waited_s": time.monotonic() - began,
        "ready_before": ready,
        "playing": loop.playing,
        "ready": loop.ready,
        "age_mean": sum(ages) / len(ages),
        "age_max": max(ages),
    }
    return shipped(
        rollout_id, taken, source, {f"rollout/agentrl/loop/{name}": value for name, value in metrics.items()}
    )


def _begin(host: _Host, data_source: Any) -> tuple[GroupLoop[SampleGroup], SampleSource]:
    config, source = SlimeConfig.from_args(host.args), SampleSource(data_source, partial=True)
    most = host.flags.sglang_server_concurrency * host.http.get_rollout_num_engines(host.args)
    loop: GroupLoop[SampleGroup]
    loop = host.loop(source, staleness=config.staleness, stale=config.stale, hungry=lambda: loop.playing < most)
    return loop, source


def shipped(rollout_id: int, taken: list[SampleGroup], source: SampleSource, metrics: dict[str, float]) -> Any:
    dropped, source.dropped = source.dropped, Counter()
    metrics |= {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in dropped.items()}
    groups = sorted((group.samples for group in taken), key=lambda samples: next(flat_samples(samples)).index)
    source.shipped(rollout_id, groups)
    return rollout_output(groups, metrics)
