"""An episode of an Env with seats (the players of a game): each seat has its own conversation, and the seats take turns
in the same Env.

Each seat's conversation has its own trajectory, limits, masks and reward:

    x   opening + observe("x") ──▶ turn ──▶ step        answer + observe("x") ──▶ turn ──▶ step
    o                                      opening + observe("o") ──▶ turn ──▶ step
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentrl._util.boundary import at_boundary
from agentrl.engine.base import Engine, forget
from agentrl.env.env import Env, offered_tools, runtime
from agentrl.episode.bad_calls import joined, observed
from agentrl.episode.conversation import Conversation
from agentrl.episode.options import EpisodeHooks, EpisodeOptions, RewardFn, slot
from agentrl.episode.reasoning import ReasoningStripper
from agentrl.episode.run import Episode
from agentrl.episode.scoring import nothing_earned, score
from agentrl.episode.state import EpisodeState, Table
from agentrl.errors import ConfigError, ResumeError
from agentrl.plain import number, to_json_lossy
from agentrl.render.base import Renderer
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Action, Generation, Message, Observation, Observed, Raw, StepResult, StopReason, Task

_SHARED = (StopReason.DONE, StopReason.ABORTED, StopReason.FAILED, StopReason.DEADLINE)
"""Reasons to stop that hold for all seats. Any other reason concerns a single seat."""


async def run_seats(
    env: Env,
    task: Task,
    *,
    engine: Engine,
    renderer: Renderer,
    players: Mapping[str, Engine] | None = None,
    options: EpisodeOptions | None = None,
    reward: RewardFn | None = None,
    session_id: str | None = None,
    hooks: EpisodeHooks | None = None,
) -> dict[str, Trajectory]:
    """Play an episode of an Env with seats. Return the trajectory of each seat, in the order of `Env.seats`.

    `players` maps seats to their engines: an engine with older weights, or a `ChatEngine` around a function, an API or
    a person. `engine` plays all other seats. `Limits` hold for each seat separately, except `Limits.episode_s`, which
    holds for the episode. Each trajectory has its `seat`, its reward and its reason to stop. If a seat reaches a limit
    or makes too many bad calls, the episode ends for all seats: the other seats stop with DONE, and info["ended_by"]
    names the seat. A broken environment, an abort and the deadline stop all seats for the same reason.

    Other details and errors are as in `run_episode`. Raises ConfigError for an Env without seats, and for an unknown
    seat.
    """
    seats, options = tuple(env.seats), options or EpisodeOptions()
    if not seats:
        raise ConfigError(f"{type(env).__name__} has no seats: play it with run_episode, or give the class `seats`")
    name = session_id or uuid.uuid4().hex
    table = new_table(seats, task, name, options)
    episode = SeatedEpisode.around(env, table, engine, renderer, players, options, reward, hooks)
    await episode.run(episode.begin)
    return episode.trajectories


def new_table(seats: Sequence[str], task: Task, name: str, options: EpisodeOptions) -> Table:
    """The states of the seats before an episode begins. The seats' session ids begin with `name`."""
    table = Table({}, seats[0], seats[0])
    for seat in seats:
        trajectory = Trajectory(task, session_id=f"{name}-{seat}")
        trajectory.seat = seat
        thoughts = ReasoningStripper() if options.thinking == "strip" else None
        table.seats[seat] = EpisodeState(trajectory, thoughts, table=table)
    return table


@dataclass(slots=True)
class SeatedEpisode(Episode):
    """The episode of an Env with seats. `state` and `talk` always belong to the seat that acts."""

    talks: dict[str, Conversation] = field(default_factory=dict)

    @classmethod
    def around(
        cls,
        env: Env,
        table: Table,
        engine: Engine,
        renderer: Renderer,
        players: Mapping[str, Engine] | None,
        options: EpisodeOptions | None,
        reward: RewardFn | None,
        hooks: EpisodeHooks | None,
    ) -> SeatedEpisode:
        """Make the episode from the states of its seats. Raises ConfigError if `players` names an unknown seat."""
        players, hooks, options = players or {}, hooks or EpisodeHooks(), options or EpisodeOptions()
        if unknown := [seat for seat in players if seat not in table.seats]:
            raise ConfigError(
                f"{type(env).__name__} has no seat {unknown[0]!r}; its seats are {', '.join(table.seats)}"
            )
        talks = {
            seat: Conversation(
                players.get(seat, engine),
                renderer,
                state.trajectory,
                _options_of(seat, options),
                hooks.aborted,
                state.thoughts,
            )
            for seat, state in table.seats.items()
        }
        return cls(env, table.seats[table.seat], talks[table.seat], reward, hooks, talks=talks)

    @property
    def table(self) -> Table:
        assert self.state.table is not None
        return self.state.table

    def forget(self) -> None:
        for talk in self.talks.values():
            forget(talk.engine, talk.trajectory.session_id)

    @property
    def whole(self) -> EpisodeState:
        return self.table.seats[self.table.first]

    @property
    def trajectories(self) -> dict[str, Trajectory]:
        return {seat: state.trajectory for seat, state in self.table.seats.items()}

    async def begin(self) -> None:
        await Episode.begin(self)
        for state in self.table.seats.values():
            state.given, state.trajectory.task = self.whole.given, self.whole.trajectory.task
        self._sit(self.table.seat)

    def _sit(self, seat: str) -> None:
        """Make a seat the acting seat: `Env.seat` is set, and the next turn is in the seat's conversation."""
        self.state, self.talk = self.table.seats[seat], self.talks[seat]
        self.env.seat = seat

    async def reopen(self) -> None:
        for seat, talk in self.talks.items():
            await talk.open()
            if (trajectory := self.table.seats[seat].trajectory).segment.length:
                talk.use_tools(trajectory.tools)
        self._sit(self.table.seat)

    async def reset(self) -> None:
        """Reset the Env, and begin the conversation of the first seat."""
        env, table = self.env, self.table
        for talk in self.talks.values():
            await talk.open()
        with at_boundary("reset", hook=env.reset):
            async with slot(self.hooks, "reset"):
                opening: Observation = await runtime(env).hook(
                    env.reset, self.whole.trajectory.task, timeout=self.talk.options.limits.reset_s
                )
            table.opening = observed(opening, f"{type(env).__name__}.reset") if opening else ()
            if env.seat not in table.seats:
                raise ValueError(f"{type(env).__name__}.reset set self.seat to {env.seat!r}; its seats are {env.seats}")
        table.seat = table.first = env.seat
        await self.begin_turn()

    async def begin_turn(self) -> StopReason | None:
        """Append the unread observation to the seat's conversation, and mark its turn as begun. Return the reason to
        stop, if any."""
        table = self.table
        self._sit(table.seat)
        if self.talk.is_aborted():
            return StopReason.ABORTED
        with at_boundary("step", hook=self.env.observe):
            seen: Observation = await runtime(self.env).hook(
                self.env.observe, table.seat, timeout=self.talk.options.limits.step_s
            )
            observation = observed(seen, f"{type(self.env).__name__}.observe")
            capabilities = self.talk.renderer.certificate.capabilities
            first = not self.state.trajectory.segment.length
            pending = table.opening if first else table.answers.get(table.seat, ())
            read = _together(pending, observation, capabilities)
        stop = await (self._begin_talk(read) if first else self._go_on(read))
        if stop is None:
            table.answers.pop(table.seat, None)
            table.begun = True
        return stop

    async def _begin_talk(self, read: Observed) -> None:
        with at_boundary("reset", hook=self.env.tools):
            tools = await offered_tools(self.env)
        self.talk.use_tools(tools)
        await self.talk.begin_aside(read)
        self.state.turn_options = self.env.turn_options

    async def _turn(self) -> StopReason | None:
        stop = None if self.table.begun else await self.begin_turn()
        self._sit(self.table.seat)
        return stop or await Episode._turn(self)

    async def answer_again(self, recorded: Trajectory) -> bool:
        """Append the seat's next recorded turn, and call the Env's step. Return whether the tokens equal the recorded
        tokens."""
        if not self.table.begun and await self.begin_turn() is not None:
            return False
        again = self.state.trajectory
        turn, action = recorded.turns[len(again.turns)], recorded.actions[len(again.turns)]
        log_probs = [0.0] * len(action.tokens)
        again.append_model(Generation(action.tokens, log_probs, turn.finish_reason, turn.matched))
        again.append_action(action)
        await self.step(action)
        return begins(recorded, again)

    async def step(self, action: Action) -> StopReason | None:
        seat = self.table.seat
        stop = await Episode.step(self, action)
        self.table.moves.append(seat)
        return stop

    async def _observe(self, result: StepResult, read: Observed) -> StopReason | None:
        self._pay(result.rewards)
        for trajectory in self.trajectories.values():
            trajectory.info.update(to_json_lossy(dict(result.info)))
        table, policy = self.table, self.policy
        if result.done or result.next_seat is None:
            return await Episode._observe(self, result, read)
        if policy and self.state.trajectory.bad_calls_in_a_row >= policy.in_a_row:
            return StopReason.BAD_CALLS
        self.state.turn_options = result.turn_options or self.env.turn_options
        table.answers[table.seat] = read
        table.seat, table.begun = result.next_seat, False
        return None

    def _pay(self, rewards: Mapping[str, float]) -> None:
        """Add each reward to the last turn of its seat."""
        table = self.table
        if early := table.early.pop(table.seat, 0.0):
            rewards = {**rewards, table.seat: rewards.get(table.seat, 0.0) + early}
        for seat, value in rewards.items():
            if turns := table.seats[seat].trajectory.segment.turns:
                turns[-1].reward = (turns[-1].reward or 0.0) + value
            else:
                table.early[seat] = table.early.get(seat, 0.0) + value

    def _plain(
        self, result: StepResult, corrections: Sequence[Message], action: Action
    ) -> tuple[Observed, float | None]:
        for seat, value in result.rewards.items():
            number(value, f"the reward of seat {seat}")
        return Episode._plain(self, result, corrections, action)

    async def _score(self) -> None:
        """Score each seat. Raises FailedError."""
        table, timeout = self.table, self.talk.options.limits.score_s
        if self.whole.stop not in _SHARED:
            for state in table.seats.values():
                state.trajectory.info["ended_by"] = table.seat
        nobody_played = all(state.trajectory.last_action is None for state in table.seats.values())
        for seat, state in table.seats.items():
            self._sit(seat)
            if nobody_played:
                nothing_earned(state.trajectory, None)
                continue
            async with slot(self.hooks, "score"):
                await score(self.env, state.trajectory, self.reward, self.policy, timeout=timeout)
            if not state.trajectory.turns and seat in table.early and self._sums():
                nothing_earned(state.trajectory, None)
                state.trajectory.reward = table.early[seat]

    def _sums(self) -> bool:
        return self.reward is None and type(self.env).score is Env.score

    async def run(self, begin: Callable[[], Awaitable[None]]) -> Trajectory:
        """Play the episode, and write its end into every trajectory. Return the trajectory of the first seat."""
        first = self.whole.trajectory
        await Episode.run(self, begin)
        stop, ended_by = first.stop, self.table.seat
        for seat, trajectory in self.trajectories.items():
            trajectory.stop = stop if stop in _SHARED or seat == ended_by else StopReason.DONE
            trajectory.failure = first.failure
            for key in ("close_error", "tool_errors", "refused_hosts"):
                if key in first.info:
                    trajectory.info[key] = first.info[key]
        return self.whole.trajectory


async def replay_seats(episode: SeatedEpisode) -> bool:
    """Execute the recorded actions in the fresh Env of an episode, with copies of its conversations that are then
    discarded.

    Return False if the host aborts meanwhile. Raises ResumeError if any token differs from the record.
    """
    recorded = episode.table
    again = _unplayed(recorded)
    engines = {seat: talk.engine for seat, talk in episode.talks.items()}
    talk = episode.talk
    replay = SeatedEpisode.around(
        episode.env, again, talk.engine, talk.renderer, engines, talk.options, None, episode.hooks
    )
    await replay.begin()
    await replay.reset()
    for turn, seat in enumerate(recorded.moves, 1):
        if talk.is_aborted():
            return False
        if again.seat != seat or not await replay.answer_again(recorded.seats[seat].trajectory):
            raise ResumeError(f"the environment diverged: it answered turn {turn} differently than before")
    if recorded.begun and not again.begun:
        await replay.begin_turn()
    for seat, state in recorded.seats.items():
        same, trajectory = again.seats[seat].trajectory, state.trajectory
        unanswered = sum(turn.sampled_tokens for turn in trajectory.turns[state.steps :])
        if trajectory.segment.length and not (
            begins(trajectory, same) and same.segment.length + unanswered == trajectory.segment.length
        ):
            raise ResumeError("the environment diverged: its observation differs from before")
        trajectory.task = same.task
    return True


def _unplayed(recorded: Table) -> Table:
    """The states of the same seats at the beginning of the same episode."""
    seats = list(recorded.seats)
    again = Table({}, seats[0], seats[0])
    for seat, state in recorded.seats.items():
        trajectory = Trajectory(state.given or state.trajectory.task, session_id=state.trajectory.session_id)
        trajectory.seat = seat
        thoughts = None if state.thoughts is None else ReasoningStripper()
        again.seats[seat] = EpisodeState(trajectory, thoughts, table=again)
    return again


def begins(recorded: Trajectory, again: Trajectory) -> bool:
    """Whether the tokens of the last segment of `again` begin the same segment of `recorded`. Earlier segments were
    compared before."""
    segments = recorded.segments[len(again.segments) - 1 :]
    return bool(segments) and again.segment.ids == segments[0].ids[: again.segment.length]


def _options_of(seat: str, options: EpisodeOptions) -> EpisodeOptions:
    """The options of a seat, with a sampling seed of its own, so that equal prompts get different turns."""
    params = options.sampling_params
    if "sampling_seed" not in params:
        return options
    seed = zlib.crc32(f"{params['sampling_seed']}/{seat}".encode()) >> 1
    return replace(options, sampling_params={**params, "sampling_seed": seed})


def _together(pending: Observed, latest: Observed, capabilities: Mapping[str, bool]) -> Observed:
    """Two observations joined. Neighbouring texts of a user become one message, because some templates refuse two user
    messages in a row."""
    if not pending:
        return latest
    if isinstance(pending, Raw) or isinstance(latest, Raw):
        return joined(pending, latest, capabilities)
    last, first = pending[-1], latest[0]
    plain = isinstance(last.get("content"), str) and isinstance(first.get("content"), str)
    if plain and first["role"] == "user" and len(latest) == 1 and last["role"] == "tool":
        return joined(pending, first["content"], capabilities)
    if plain and last["role"] == first["role"] == "user":
        return [*pending[:-1], {**first, "content": f"{last['content']}\n\n{first['content']}"}, *latest[1:]]
    return [*pending, *latest]
