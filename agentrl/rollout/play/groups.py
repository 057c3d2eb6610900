"""Groups of episodes: each task is played `group_size` times, concurrently. Seeds fix the sampling."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar, runtime_checkable

from agentrl._util.boundary import FailedError, at_boundary
from agentrl._util.concurrency import gather
from agentrl._util.garbage import settle
from agentrl._util.seeds import sampling_seed
from agentrl.chat.engine_speaker import EngineSpeaker
from agentrl.env.factory import EnvFactory
from agentrl.episode.scoring import give, is_relative, nothing_earned
from agentrl.errors import ConfigError
from agentrl.rollout.play.episodes import (
    LockstepProtocol,
    NoLockstep,
    RewardSeen,
    Rollout,
    play_all_seats,
    raise_bug,
)
from agentrl.rollout.play.in_flight import flying
from agentrl.rollout.play.opponents import Seating
from agentrl.rollout.play.waiting import waiting_for
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Reward, SamplingParams, StopReason, Task

T = TypeVar("T")

Place: TypeAlias = tuple[int, int]
"""An episode or a trajectory of a group: the number of the task, and the number within the group."""


@runtime_checkable
class LockstepEngine(Protocol):
    """An engine such as LocalEngine: results are bit-identical in each run if episodes take their turns in waves."""

    def lockstep(self, episodes: int) -> AbstractContextManager[LockstepProtocol]: ...


@runtime_checkable
class GroupReward(Protocol):
    """A reward function for a group of finished episodes; see `agentrl.rewards.group`."""

    async def of_group(
        self, trajectories: Sequence[Trajectory], policy: EngineSpeaker | None = None
    ) -> Sequence[float | Reward]:
        """Return a reward for each trajectory. `policy` is the model in training, for functions that question a model.
        A function without this parameter does not get the policy."""
        ...


async def run_groups(
    rollout: Rollout,
    tasks: Sequence[Task],
    group_size: int,
    *,
    sampling_params: SamplingParams | None = None,
    name: str = "train",
    seed: int = 0,
    step: int = 0,
    first: int = 0,
    on_episode: Callable[[Trajectory], None] | None = None,
    keep_unscored: bool = False,
    finished: Mapping[Place, Trajectory] | None = None,
    keep: Callable[[Trajectory, Place], None] | None = None,
) -> list[list[Trajectory]]:
    """Play `group_size` episodes of each task. Returns the groups in the order of the tasks.

    `first` is the number of the first group. Episodes in `finished` are not played again. `keep` is called with each
    new trajectory and its place (task, member) as soon as the episode has ended.

    Sampling seeds and session ids depend on (name, seed, step, group, member) alone. After a failure of the environment
    the episode is played again, as `rollout.failures` says. An episode whose last attempt fails has no reward, and is
    masked as `env_failure`. A turn that the engine aborts continues. `settle_rewards` settles rewards.

    With seats, a group holds the trajectory of each seat that the policy has, episode by episode. Members are numbered
    in this order. `rollout.opponents` have the other seats.

    Raises BugError for a bug, which cancels the other episodes. Raises ConfigError if no episode got a reward, unless
    `keep_unscored` is set.
    """
    settle()
    slots = asyncio.Semaphore(rollout.concurrency)
    seatings = _seatings(rollout, range(first, first + len(tasks)), sampling_seed(name, seed, step) if step else 0)
    params: SamplingParams = {**rollout.options.sampling_params, **(sampling_params or {})}
    round_ = _Round(rollout, tasks, seatings, params, name, seed, step, first, on_episode, keep, slots)
    episodes = [(group, member) for group in range(len(tasks)) for member in range(group_size)]
    trajectories = await round_.play_all(episodes, finished or {})
    groups = [
        [trajectories[place] for episode in group for place in _places(episode, seatings)]
        for group in batched(episodes, group_size)
    ]
    if isinstance(rollout.reward, GroupReward):
        with waiting_for("the comparison of groups", name):
            await _score_groups(rollout, rollout.reward, groups, name)
    unscored = settle_rewards(rollout.envs, rollout.scored, [trajectory for group in groups for trajectory in group])
    if unscored and not keep_unscored:
        refuse_unscored(rollout.envs, unscored[0].task)
    return groups


@dataclass(frozen=True, slots=True)
class _Round:
    """The groups of a call of `run_groups`, with the call's parameters."""

    rollout: Rollout
    tasks: Sequence[Task]
    seatings: Sequence[Seating | None]
    params: SamplingParams
    name: str
    seed: int
    step: int
    first: int
    on_episode: Callable[[Trajectory], None] | None
    keep: Callable[[Trajectory, Place], None] | None
    slots: asyncio.Semaphore

    async def play_all(
        self, episodes: Sequence[Place], finished: Mapping[Place, Trajectory]
    ) -> Mapping[Place, Trajectory]:
        """Play these episodes. Returns their trajectories by place. Episodes in `finished` are not played again."""
        trajectories = {
            place: trajectory
            for place, trajectory in finished.items()
            if _fits(trajectory, self.seatings[place[0]], place[1])
        }
        places = {episode: _places(episode, self.seatings) for episode in episodes}
        missing = [episode for episode in episodes if not all(place in trajectories for place in places[episode])]
        with waiting_for(f"step {self.step}" if self.step else "the evaluation", self.name):
            results = await _play_in_waves(self.rollout, missing, self._play)
        for episode, result in zip(missing, results, strict=True):
            trajectories.update(zip(places[episode], result, strict=True))
        return trajectories

    async def _play(self, episode: Place, lockstep: LockstepProtocol) -> list[Trajectory]:
        (group, member), rollout = episode, self.rollout
        task, number = self.tasks[group], self.first + group
        params: SamplingParams = {
            **self.params,
            "sampling_seed": sampling_seed(self.name, self.seed, self.step, number, member),
        }
        async with self.slots if rollout.slot is None else rollout.slot():
            session_id = f"{self.name}-{self.step:06d}-{number:04d}-{member:03d}"
            with lockstep.episode(), flying(session_id, task.id, self.name):
                result = await play_all_seats(rollout, task, params, session_id, lockstep, self.seatings[group])
        for place, trajectory in zip(_places(episode, self.seatings), result, strict=True):
            if self.keep is not None:
                self.keep(trajectory, place)
            if self.on_episode is not None:
                self.on_episode(trajectory)
        return result


async def _play_in_waves(
    rollout: Rollout, places: Sequence[Place], play: Callable[[Place, LockstepProtocol], Coroutine[Any, Any, T]]
) -> list[T]:
    """The results of `play` for each place, in waves if the engine has a lockstep."""
    engine, results = rollout.engine, list[T]()
    if not isinstance(engine, LockstepEngine) or rollout.workers is not None:
        return await gather([play(place, NoLockstep()) for place in places])
    for wave in batched(places, rollout.concurrency):
        with engine.lockstep(len(wave)) as lockstep:
            results += await gather([play(place, lockstep) for place in wave])
    return results


def _seatings(rollout: Rollout, numbers: Sequence[int], offset: int) -> list[Seating | None]:
    """The seating of each group; None for an Env without seats."""
    seats = rollout.envs.cls.seats
    return [rollout.opponents.seating(seats, offset + number) if seats else None for number in numbers]


def _places(episode: Place, seatings: Sequence[Seating | None]) -> list[Place]:
    """The places of an episode's trajectories. An episode with seats has several."""
    group, member = episode
    seats = 1 if (seating := seatings[group]) is None else len(seating.trained)
    return [(group, member * seats + i) for i in range(seats)]


def _fits(trajectory: Trajectory, seating: Seating | None, member: int) -> bool:
    """Whether a finished trajectory has the opponent and the seat of the seating. A repeated group may get another
    seating."""
    if seating is None:
        return True
    same = trajectory.info.get("opponent") == seating.opponent.name
    return same and trajectory.seat == seating.trained[member % len(seating.trained)]


def by_seat(group: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """The members of a group by seat. Only members of the same seat are compared."""
    seats = dict.fromkeys(trajectory.seat for trajectory in group)
    return [[trajectory for trajectory in group if trajectory.seat == seat] for seat in seats]


async def _score_groups(
    rollout: Rollout, reward: GroupReward, groups: Sequence[Sequence[Trajectory]], name: str
) -> None:
    """Score all groups at once, each seat separately. Questions to the policy go through the engine's lockstep."""
    policy = EngineSpeaker(rollout.engine, rollout.renderer)
    seats = [seat for group in groups for seat in by_seat(group)]

    async def score(place: Place, lockstep: LockstepProtocol) -> None:
        group = seats[place[0]]
        with lockstep.episode(), flying(f"{name}-group-{place[0]:04d}", group[0].task.id, name, episode=False):
            await score_group(reward, group, policy)

    await _play_in_waves(rollout, [(number, 0) for number in range(len(seats))], score)


async def score_group(reward: GroupReward, group: Sequence[Trajectory], policy: EngineSpeaker | None = None) -> None:
    """Score the valid episodes of a finished group.

    An episode without a turn keeps its reward of 0. If the reward function fails because of the environment, all valid
    episodes count as failed. With a relative reward, the result of `Env.score` becomes the part `score` of the reward,
    and branches keep their rewards. Raises BugError for a bug, and ConfigError.
    """
    valid = [trajectory for trajectory in group if trajectory.is_valid and trajectory.turn_count]
    if not valid:
        return
    arguments = {"policy": policy} if _takes_policy(reward) else {}
    try:
        with at_boundary("score"):
            for trajectory, value in zip(valid, await reward.of_group(valid, **arguments), strict=True):
                earned = trajectory.reward if is_relative(reward) else None
                env_part = {} if earned is None else {"score": trajectory.reward_parts.get("score", earned)}
                branches = {} if earned is None else trajectory.branch_rewards
                give(trajectory, value)
                trajectory.reward_parts = {**env_part, **trajectory.reward_parts}
                trajectory.branch_rewards = trajectory.branch_rewards or branches
    except FailedError as failed:
        for trajectory in valid:
            trajectory.stop, trajectory.failure = StopReason.FAILED, failed.failure
            trajectory.mask("env_failure")
            raise_bug(trajectory)


def _takes_policy(reward: GroupReward) -> bool:
    """Whether `of_group` accepts the argument `policy`."""
    parameters = inspect.signature(reward.of_group).parameters
    return "policy" in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def settle_rewards(envs: EnvFactory, scored: RewardSeen, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Give a reward to episodes without a reward where the rule below allows. Returns the episodes that stay without.

    The default `Env.score` is a sum. If any episode of the run was rewarded, an empty sum is 0. The reward is also 0 if
    the Env never saw a turn. Otherwise the episode stays unscored, with reward None.
    """
    scored.any |= any(trajectory.reward is not None and trajectory.turn_count for trajectory in trajectories)
    missing = [trajectory for trajectory in trajectories if trajectory.is_valid and trajectory.reward is None]
    for trajectory in missing:
        if scored.any or not _was_answered(trajectory):
            nothing_earned(trajectory, envs.cls.bad_calls if trajectory.tools else None)
    return [trajectory for trajectory in missing if trajectory.reward is None]


def refuse_unscored(envs: EnvFactory, task: Task) -> NoReturn:
    raise ConfigError(
        f"{envs.cls.__name__} gave no episode a reward, for example that of {task.id or task.prompt!r:.80}; "
        "write score(trajectory), give a reward in step (reward=0.0 for a loss), or name a reward function in `reward`"
    )


def _was_answered(trajectory: Trajectory) -> bool:
    """Whether `Env.step`, or an agent, has seen a turn. Turns with unreadable tool calls never reach `Env.step`."""
    answered = any(turn.env_s > 0 and turn.bad_call != "structural" for turn in trajectory.turns)
    return answered or "agent" in trajectory.info


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Slices of `size` items. The last slice may be shorter."""
    return (items[start : start + size] for start in range(0, len(items), size))
