"""Episodes that branch: an episode is played, then continued several times from a turn.

    root      prompt ─ turn 0 ─ turn 1 ─ turn 2 ─ turn 3           trained as any episode
                                 └─ turn 2' ─ ...                  a leaf: its prompt is all tokens before turn 2
                                 └─ turn 2" ─ turn 3" ─ ...

The leaves of a turn are a group: equal beginnings, each with its own reward, and their mean is the baseline. The tokens
before the turn are a leaf's prompt and are trained by the root alone, so each sampled token of the tree counts once.
The Env is forked by its snapshot, or else by playing the recorded actions to a fresh Env; every token must be the same.
If a snapshot holds a running machine, each leaf goes on in a copy of the machine.

Tree search over turns for credit: VinePPO (arXiv 2410.01679), TreeRL (arXiv 2506.11902).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from agentrl._util.boundary import at_boundary
from agentrl._util.concurrency import gather
from agentrl._util.seeds import sampling_seed
from agentrl.env.env import begin_env, runtime
from agentrl.env.tools import tool_name
from agentrl.episode.machines import release
from agentrl.episode.options import EpisodeHooks, EpisodeOptions
from agentrl.episode.parking import resume_method
from agentrl.episode.run import Episode, run_episode
from agentrl.episode.state import EpisodeState, Parked
from agentrl.errors import ConfigError, ResumeError
from agentrl.rollout.play.episodes import Rollout, raise_bug
from agentrl.rollout.play.groups import settle_rewards
from agentrl.sandbox import MachineSnapshot
from agentrl.trajectory.trajectory import Ledger, Trajectory, total_ledger
from agentrl.types import Generation, Rendered, SamplingParams, Task, TurnOptions


@dataclass(slots=True)
class Budget:
    """The limits of a tree's branches. The branches of a turn begin only while both limits are positive. The branches
    are played to their end, so a group may exceed `tokens`."""

    episodes: int
    """The number of branches that may still begin."""
    tokens: int | None = None
    """The number of tokens that may still be sampled in branches. None: no limit."""

    def allows(self, count: int) -> int:
        """How many of `count` wanted branches may begin."""
        spent = self.tokens is not None and self.tokens <= 0
        return 0 if spent else min(count, self.episodes)

    def spend(self, leaves: Sequence[Trajectory]) -> None:
        self.episodes -= len(leaves)
        if self.tokens is not None:
            self.tokens -= sum(total_ledger(leaf.segments).sampled for leaf in leaves)


@dataclass(frozen=True, slots=True)
class _Fork:
    """The state of the Env and of the conversation before a turn."""

    saved: Any
    """The result of `Env.snapshot`."""
    rng: Any
    turn_options: TurnOptions
    thinking: bool
    """Whether the generation prompt left a thinking block open."""
    machines: tuple[MachineSnapshot, ...]


@dataclass(slots=True)
class EpisodeTree:
    """An episode (the root) and its branches (the leaves). Close the tree, by `async with` or `close`: snapshots of the
    Env may hold running machines until then."""

    rollout: Rollout
    root: Trajectory
    task: Task
    """The task of the root."""
    budget: Budget
    params: SamplingParams
    groups: list[list[Trajectory]] = field(default_factory=list)
    """The groups to learn from. Each group has the leaves that begin with the same turn."""
    _forks: dict[int, _Fork] = field(default_factory=dict)

    @classmethod
    async def play(
        cls,
        rollout: Rollout,
        task: Task,
        budget: Budget,
        *,
        session_id: str,
        sampling_params: SamplingParams | None = None,
    ) -> EpisodeTree:
        """Play the root, and return its tree. Raises the errors of `run_episode`, and ConfigError for an Env that
        cannot be forked."""
        _check(rollout)
        params: SamplingParams = {
            **rollout.options.sampling_params,
            **(sampling_params or {}),
            "sampling_seed": sampling_seed(session_id),
        }
        forks: dict[int, _Fork] = {}

        async def keep(parked: Parked) -> None:
            state, trajectory = parked.episode, parked.episode.trajectory
            if state.stop is not None:  # no turn follows
                await release(parked.machines)
                return
            saved = copy.deepcopy(parked.saved)
            forks[len(trajectory.turns)] = _Fork(
                saved, parked.rng, state.turn_options, trajectory.segment.thinking, parked.machines
            )

        forked_by_snapshot = resume_method(rollout.envs.cls) == "snapshot"
        try:
            root = await run_episode(
                rollout.envs.make(),
                task,
                engine=rollout.engine,
                renderer=rollout.renderer,
                options=replace(rollout.options, sampling_params=params),
                reward=rollout.reward,
                session_id=session_id,
                hooks=EpisodeHooks(save=keep if forked_by_snapshot else None),
            )
            return cls(rollout, raise_bug(root), task, budget, params, _forks=forks)
        except BaseException:
            await _drop(forks)
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Remove the machines in the snapshots. After closing, turns that need a machine cannot branch. Safe to call
        twice."""
        await _drop(self._forks)

    @property
    def ledger(self) -> Ledger:
        """The count of all tokens of the tree. Tokens shared by branches are counted once."""
        leaves = [leaf for group in self.groups for leaf in group]
        return total_ledger([segment for episode in (self.root, *leaves) for segment in episode.segments])

    async def branch(self, turn: int, n: int) -> list[Trajectory]:
        """Continue the root `n` times from before its turn number `turn`, counted from 0. Return the leaves.

        The budget may allow fewer leaves. If the budget allows less than two, no leaf is played, because a single leaf
        has no baseline. A leaf with a failed environment is masked as `env_failure`. Limits include the root's spending
        before the branch. `Env.score` and reward functions see a leaf's whole conversation in `messages`, and the
        leaf's own turns in `turns`.

        Raises ConfigError for a turn outside of the root, and ResumeError if the Env does not return to the same
        tokens.
        """
        if not 0 <= turn < len(self.root.turns):
            raise ConfigError(f"branch({turn}): the episode has turns 0 to {len(self.root.turns) - 1}")
        if (allowed := self.budget.allows(n)) < 2:
            return []
        names = [f"{self.root.session_id}-b{len(self.groups)}-{number:03d}" for number in range(allowed)]
        leaves = await gather([self._leaf(turn, name) for name in names])
        settle_rewards(self.rollout.envs, self.rollout.scored, leaves)
        self.budget.spend(leaves)
        self.groups.append(leaves)
        return leaves

    async def _leaf(self, turn: int, name: str) -> Trajectory:
        rollout, leaf = self.rollout, Trajectory(self.task, session_id=name)
        params: SamplingParams = {**self.params, "sampling_seed": sampling_seed(name)}
        options = _left(replace(rollout.options, sampling_params=params), self.root, turn)
        state = EpisodeState(leaf)
        episode = Episode.of(
            rollout.envs.make(), state, rollout.engine, rollout.renderer, options, rollout.reward, None
        )
        raise_bug(await episode.run(lambda: self._fork(episode, turn)))
        if not leaf.is_valid:
            leaf.mask("env_failure" if leaf.failure is not None else "host")
        return leaf

    async def _fork(self, episode: Episode, turn: int) -> None:
        """Set a fresh Env and an empty trajectory to the state at the beginning of a turn. Raises ResumeError."""
        fork, root = self._forks.get(turn), self.root
        if turn == 0 or fork is None:
            thinking = await self._play_again(episode, turn)
        else:
            thinking = fork.thinking
            with at_boundary("reset", hook=episode.env.restore):
                await _restore(episode, root, fork)
        leaf, before = episode.state.trajectory, _tokens_before(root, turn)
        leaf.info["branch"] = {"of": root.session_id, "turn": turn}
        leaf.tools, episode.talk.turns_before = root.tools, turn
        media = tuple(medium for medium in root.segment.media if medium.stop <= len(before))
        leaf.append_prompt(Rendered(before, (), thinking, media=media), _messages_before(root, turn))
        await episode.reopen()

    async def _play_again(self, episode: Episode, turn: int) -> bool:
        """Reset the Env, and repeat the root's actions before the turn in a discarded conversation. Returns whether the
        generation prompt leaves a thinking block open."""
        root, leaf = self.root, episode.state.trajectory
        again = EpisodeState(Trajectory(self.task, session_id=root.session_id))
        replay = Episode.of(
            episode.env, again, episode.talk.engine, self.rollout.renderer, self.rollout.options, None, None
        )
        await replay.begin()
        await replay.reset()
        for old, action in zip(root.turns[:turn], root.actions[:turn], strict=True):
            log_probs = [0.0] * len(action.tokens)
            again.trajectory.append_model(Generation(action.tokens, log_probs, old.finish_reason, old.matched))
            again.trajectory.append_action(action)
            await replay.step(action)
        if again.trajectory.tokens != _tokens_before(root, turn):
            raise ResumeError(f"the environment diverged before turn {turn}: it answered differently than before")
        leaf.task, episode.state.given = again.trajectory.task, self.task
        episode.state.turn_options = again.turn_options
        return again.trajectory.segment.thinking


async def _drop(forks: Mapping[int, _Fork]) -> None:
    await release(machine for fork in forks.values() for machine in fork.machines)


async def _restore(episode: Episode, root: Trajectory, fork: _Fork) -> None:
    """Restore a fresh Env from a snapshot."""
    env, limits = episode.env, episode.talk.options.limits
    task = copy.deepcopy(root.task)
    episode.state.given = episode.state.trajectory.task = task
    begin_env(env, task, limits)
    runtime(env).rng.setstate(fork.rng)
    await runtime(env).hook(env.restore, copy.deepcopy(fork.saved), timeout=limits.reset_s)
    runtime(env).offered = tuple(map(tool_name, root.tools))
    episode.state.turn_options = fork.turn_options


def _check(rollout: Rollout) -> None:
    """Raises ConfigError for an Env that cannot branch."""
    cls = rollout.envs.cls
    if cls.seats:
        raise ConfigError(f"{cls.__name__} has seats, and only an episode of one player can branch")
    if resume_method(cls) == "alive":
        raise ConfigError(
            f"{cls.__name__} cannot branch: write snapshot and restore, or set deterministic = True if the same "
            "actions always get the same answers"
        )
    if rollout.options.thinking == "strip" or rollout.options.limits.compact_at:
        raise ConfigError(
            'an episode with thinking "strip" or limits.compact_at cannot branch: its turns are read in several prompts'
        )


def _left(options: EpisodeOptions, root: Trajectory, turn: int) -> EpisodeOptions:
    """The options of a leaf: the root's turns and tokens before the turn are subtracted from the limits."""
    limits = options.limits
    spent = len(_tokens_before(root, turn)) - root.prompt_length
    tokens = None if limits.tokens is None else max(limits.tokens - spent, 1)
    return replace(options, limits=replace(limits, turns=max(limits.turns - turn, 1), tokens=tokens))


def _tokens_before(root: Trajectory, turn: int) -> list[int]:
    start = next(span.start for span in root.segment.spans if span.turn == turn and span.kind == "sampled")
    return root.tokens[: root.prompt_length + start]


def _messages_before(root: Trajectory, turn: int) -> list[Any]:
    """The messages of the root before its turn number `turn`."""
    return list(root.messages[: root.replies[turn]])
