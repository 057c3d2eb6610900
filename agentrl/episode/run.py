"""The course of an episode: reset, turns of model and Env until there is a reason to stop, score, close."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Self

from agentrl._util.boundary import FailedError, at_boundary
from agentrl._util.concurrency import Deadline
from agentrl.engine.base import Engine, forget
from agentrl.env.env import Env, begin_env, close_env, offered_tools, own_task, runtime
from agentrl.episode.bad_calls import joined, observed, replies, with_calls
from agentrl.episode.conversation import Conversation
from agentrl.episode.options import EpisodeHooks, EpisodeOptions, ParkFn, RewardFn, slot
from agentrl.episode.parking import hand_over, save_state
from agentrl.episode.reasoning import ReasoningStripper
from agentrl.episode.scoring import nothing_earned, score
from agentrl.episode.state import EpisodeState, Parked
from agentrl.errors import BadCallPolicy, ConfigError, one_line
from agentrl.plain import copied, number, text, to_json_lossy
from agentrl.render.base import Renderer
from agentrl.render.results import in_call_order
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import (
    Action,
    Message,
    Observation,
    Observed,
    Raw,
    StepResult,
    StopReason,
    Task,
    ToolCall,
    TurnOptions,
)

__all__ = ["EpisodeHooks", "EpisodeOptions", "ParkFn", "RewardFn", "run_episode"]

log = logging.getLogger("agentrl")


async def run_episode(
    env: Env,
    task: Task,
    *,
    engine: Engine,
    renderer: Renderer,
    options: EpisodeOptions | None = None,
    reward: RewardFn | None = None,
    session_id: str | None = None,
    hooks: EpisodeHooks | None = None,
) -> Trajectory:
    """Play an episode and return its trajectory, even after a failure.

    The trajectory's `stop` is the reason for the end. After StopReason.FAILED, its `failure` has the cause. `reward`
    replaces `Env.score`. `session_id` names the episode to the engine; the default is random. `hooks` is for programs
    that abort and resume episodes.

    Raises ConfigError, TemplateError, LedgerError and CancelledError. Any other error is recorded in `failure`.
    """
    if env.seats:
        raise ConfigError(f"{type(env).__name__} has seats: play it with run_seats")
    options = options or EpisodeOptions()
    thoughts = ReasoningStripper() if options.thinking == "strip" else None
    state = EpisodeState(Trajectory(task, session_id=session_id or uuid.uuid4().hex), thoughts)
    episode = Episode.of(env, state, engine, renderer, options, reward, hooks)
    return await episode.run(episode.begin)


@dataclass(slots=True)
class Episode:
    """An Env and the Conversation with a model that take turns."""

    env: Env
    state: EpisodeState
    talk: Conversation
    reward: RewardFn | None
    hooks: EpisodeHooks
    returning: Parked | None = None
    """The parked episode that is being resumed, until its Env is restored. If the host aborts before, the episode is
    parked again unchanged."""
    _counted: float | None = None
    """The time of the last update of `EpisodeState.played_s`. None while time is not counted."""

    @classmethod
    def of(
        cls,
        env: Env,
        state: EpisodeState,
        engine: Engine,
        renderer: Renderer,
        options: EpisodeOptions | None,
        reward: RewardFn | None,
        hooks: EpisodeHooks | None,
    ) -> Self:
        hooks = hooks or EpisodeHooks()
        talk = Conversation(
            engine, renderer, state.trajectory, options or EpisodeOptions(), hooks.aborted, state.thoughts
        )
        return cls(env, state, talk, reward, hooks)

    async def run(self, begin: Callable[[], Awaitable[None]]) -> Trajectory:
        """Call `begin`, play to the end, and close the Env or pass it to `park`. Raises as run_episode and `begin`
        do."""
        trajectory, stays_open = self.whole.trajectory, False
        trajectory.stop = None
        try:
            await begin()
            trajectory.stop = await self._stop()
            if trajectory.stop is StopReason.ABORTED:
                timeout = self.talk.options.limits.step_s
                stays_open = await hand_over(self.hooks.park, self.env, self.whole, self.returning, timeout=timeout)
        except FailedError as failed:
            trajectory.stop, trajectory.failure = StopReason.FAILED, failed.failure
            log.warning(
                "episode %s failed in %s: %s", trajectory.session_id, failed.failure.boundary, failed.failure.error
            )
        finally:
            self.forget()
            if not stays_open and (error := await close_env(self.env)):
                trajectory.info["close_error"] = one_line(error)
        trajectory.info.update(runtime(self.env).info())
        return trajectory

    def forget(self) -> None:
        """Tell the engine that the episode has ended."""
        forget(self.talk.engine, self.state.trajectory.session_id)

    @property
    def whole(self) -> EpisodeState:
        """The state for parking: with seats, it holds the states of all seats."""
        return self.state

    async def begin(self) -> None:
        """Bind the Env to its own copy of the task. Only this episode sees the Env's changes to the copy."""
        trajectory = self.whole.trajectory
        self.whole.given = trajectory.task
        trajectory.task = own_task(trajectory.task)
        begin_env(self.env, trajectory.task, self.talk.options.limits)

    async def _stop(self) -> StopReason:
        """Play, then score, and return the reason to stop. Raises FailedError."""
        if self.returning is not None:  # the flag may be down again, but the Env is not back
            return StopReason.ABORTED
        if self.whole.stop is None:
            stop = await self._play()
            if stop is StopReason.ABORTED:
                return stop
            self.whole.stop = stop
            await self._save()
        if self.talk.is_aborted():
            return StopReason.ABORTED
        await self._score()
        return self.whole.stop

    async def _score(self) -> None:
        """Write the reward. The reward is 0 without a turn, for example after a too long prompt. Raises FailedError."""
        if self.state.trajectory.last_action is None:
            nothing_earned(self.state.trajectory, None)
            return
        timeout = self.talk.options.limits.score_s
        async with slot(self.hooks, "score"):
            await score(self.env, self.state.trajectory, self.reward, self.policy, timeout=timeout)

    async def _play(self) -> StopReason:
        """Play until there is a reason to stop. Raises FailedError."""
        limit, self._counted = self.talk.options.limits.episode_s, time.monotonic()
        seconds = None if limit is None else limit - self.whole.played_s
        try:
            if self.talk.is_aborted():
                return StopReason.ABORTED
            return await self.env._agentrl_play(self, seconds)
        finally:
            self._count()
            self._counted = None

    def _count(self) -> None:
        if self._counted is not None:
            now = time.monotonic()
            self.whole.played_s, self._counted = self.whole.played_s + now - self._counted, now

    async def _save(self) -> None:
        """Pass the state to `hooks.save`, if set. Raises FailedError."""
        if self.hooks.save is not None:
            self._count()
            await save_state(self.hooks.save, self.env, self.whole, timeout=self.talk.options.limits.step_s)

    async def take_turns(self, seconds: float | None) -> StopReason:
        """Reset and take turns until there is a reason to stop, for at most `seconds`. Raises FailedError."""
        deadline = Deadline(seconds)
        try:
            async with deadline:
                if not self.whole.trajectory.segment.length:
                    await self.reset()
                while True:
                    stop = await self._turn()
                    if stop is not None:
                        return stop
        except TimeoutError:
            if deadline.expired():
                self._note_deadline()
                return StopReason.DEADLINE
            raise

    async def reopen(self) -> None:
        """Prepare the Conversation to continue from the recorded trajectory."""
        await self.talk.open()
        self.talk.use_tools(self.state.trajectory.tools)

    def _note_deadline(self) -> None:
        """Record in which phase the episode reached its deadline."""
        trajectory = self.state.trajectory
        phase = trajectory.info["deadline_in"] = self.state.next if trajectory.segment.length else "reset"
        turns, limit = len(trajectory.turns), self.talk.options.limits.episode_s
        log.warning("episode %s ended after %s s in %s, after %d turns", trajectory.session_id, limit, phase, turns)

    async def reset(self) -> None:
        """Reset the Env. Its first observation becomes the prompt."""
        env, trajectory = self.env, self.state.trajectory
        await self.talk.open()
        with at_boundary("reset", hook=env.reset):
            async with slot(self.hooks, "reset"):
                first: Observation = await runtime(env).hook(
                    env.reset, trajectory.task, timeout=self.talk.options.limits.reset_s
                )
            read = observed(first, f"{type(env).__name__}.reset")
            tools = await offered_tools(env)
        self.talk.use_tools(tools)
        await self.talk.begin_aside(read)
        self.state.turn_options = env.turn_options

    async def _turn(self) -> StopReason | None:
        """Play a turn of the model and the Env's step, or the rest of a turn that an abort interrupted. Return the
        reason to stop, if any."""
        state, stop, action = self.state, None, None
        if state.next == "generate":
            summary = bool(state.trajectory.segment.request)
            action, stop = await self.talk.sample(TurnOptions() if summary else state.turn_options)
            if action is None:
                return stop
        if stop is None:
            state.next = "step"
            action = action or state.trajectory.last_action
            assert action is not None
            if self.talk.is_aborted():
                return StopReason.ABORTED
            stop = await self.step(action)
            state.next = "generate"
        if self.hooks.on_turn is not None:
            self.hooks.on_turn(state.trajectory)
        if stop is None:
            await self._save()
        return stop

    async def step(self, action: Action) -> StopReason | None:
        """Call the Env's step for an action, and append its observation if another turn follows. Return the reason to
        stop, if any."""
        env, state, trajectory = self.env, self.state, self.state.trajectory
        turn, started = trajectory.segment.turns[-1], time.monotonic()
        if turn.summary:
            return await self._begin_again(action)
        with at_boundary("step", hook=env.step):
            async with slot(self.hooks, "step"):
                result, corrections = await self._answer(action)
            read, reward = self._plain(result, corrections, action)
            trajectory.info.update(to_json_lossy(dict(result.info)) if result.info else {})
        state.steps += 1
        turn.env_s, turn.reward = time.monotonic() - started, reward
        if runtime(env).call_errors:
            turn.bad_call = turn.bad_call or "content"
        self._mask_bad_call()
        stop = await self._observe(result, read)
        if stop is not None:
            trajectory.append_unread(read)
        return stop

    def _mask_bad_call(self) -> None:
        """Mask the last turn if it has an unreadable call, and the policy asks for the mask."""
        trajectory, policy = self.state.trajectory, self.policy
        if policy and policy.mask and trajectory.segment.turns[-1].bad_call == "structural":
            trajectory.mask("malformed", turn=trajectory.turn_count - 1)

    async def _begin_again(self, summary: Action) -> StopReason | None:
        """Begin a new segment after a summary. Return the reason to stop, if any."""
        env, trajectory, limits = self.env, self.state.trajectory, self.talk.options.limits
        if summary.calls and trajectory.tools:  # the calls are not executed
            turn = trajectory.segment.turns[-1]
            turn.bad_call = turn.bad_call or "content"
        self._mask_bad_call()
        with at_boundary("step", hook=env.after_summary):
            prompt: Observation = await runtime(env).hook(
                env.after_summary, trajectory, summary.content.strip(), timeout=limits.step_s
            )
            first = observed(prompt, f"{type(env).__name__}.after_summary")
        self.state.steps += 1
        return await self.talk.begin_again_aside(first)

    def _plain(
        self, result: StepResult, corrections: Sequence[Message], action: Action
    ) -> tuple[Observed, float | None]:
        """The observation of a step, joined to the policy's replies, and the step's reward. Raises TypeError or
        ValueError for an invalid observation or reward."""
        where = f"{type(self.env).__name__}.step"
        if unknown := {*result.rewards, result.next_seat or next(iter(self.env.seats), None)} - {*self.env.seats, None}:
            raise ValueError(f"{where} names the seat {unknown.pop()!r}, and the Env's seats are {self.env.seats!r}")
        nothing = (result.done or result.next_seat is not None) and not result.observation
        read = () if nothing else observed(result.observation, where)
        if not isinstance(read, Raw):
            calls = [
                call for call in action.calls if call.error is None or not corrections
            ]  # the calls that the Env has seen
            by_id = self.talk.renderer.certificate.results == "id"
            read = in_call_order(read, calls, by_id=by_id)
            read = in_call_order([*corrections, *read], action.calls) if corrections and not result.done else read
        return read, None if result.reward is None else number(result.reward, f"the reward of {where}")

    async def _observe(self, result: StepResult, read: Observed) -> StopReason | None:
        """Append the next observation. If there is no next turn, return the reason to stop."""
        trajectory, policy = self.state.trajectory, self.policy
        if result.done:
            return StopReason.DONE
        if policy and trajectory.bad_calls_in_a_row >= policy.in_a_row:
            return StopReason.BAD_CALLS
        self.state.turn_options = result.turn_options or self.env.turn_options
        return await self._go_on(read)

    async def _go_on(self, read: Observed) -> StopReason | None:
        """Append an observation and, near the end of the context, the request for a summary. Return the reason to stop,
        if any."""
        before_next = await self._before_next_turn(read)
        if before_next is None:
            return StopReason.MAX_TURNS
        request = await self._summary_request()
        if not request:
            return await self.talk.observe_aside(before_next)
        asked = Raw(request) if isinstance(before_next, Raw) else request
        before_next = joined(before_next, asked, self.talk.renderer.certificate.capabilities)
        stop = await self.talk.observe_aside(before_next)
        segment = self.state.trajectory.segment
        if stop is None:
            segment.request = request
        else:
            self.state.trajectory.info["no_room_for_summary"] = segment.length
        return stop

    async def _summary_request(self) -> str:
        """The Env's request for a summary; "" if the next turn is no summary. The last turn is never a summary, because
        the Env may have asked for an answer."""
        env, trajectory, limits = self.env, self.state.trajectory, self.talk.options.limits
        segment, limit = trajectory.segment, limits.compact_at
        if limit is None or segment.length < limit or segment.prompt_length >= limit or self._turns >= limits.turns:
            return ""
        with at_boundary("step", hook=env.ask_summary):
            request: str = await runtime(env).hook(env.ask_summary, trajectory, timeout=limits.step_s)
            if not isinstance(request, str):
                raise TypeError(
                    f"{type(env).__name__}.ask_summary returned {request!r:.80}; return text, or an empty text"
                )
            return text(request)

    @property
    def _turns(self) -> int:
        """Number of turns that count towards `Limits.turns`."""
        return self.state.trajectory.turn_count - self.state.trajectory.summaries

    async def _answer(self, action: Action) -> tuple[StepResult, Sequence[Message]]:
        """The result of the Env's step, and the BadCallPolicy's replies to unreadable calls, if any."""
        env, corrections = self.env, list[Message]()
        runtime(env).call_errors.clear()
        if self.policy and action.error:
            corrections = replies(action, self.policy, self.talk.renderer.certificate.capabilities)
            if len(corrections) == len(action.calls):
                return StepResult(corrections), ()
        calls = [call for call in action.calls if call.error is None or not corrections]
        copies = tuple(
            ToolCall(call.id, call.name, copied(call.arguments, "arguments"), call.raw, call.error) for call in calls
        )
        seen = with_calls(action, copies)
        result: StepResult = await runtime(env).hook(env.step, seen, timeout=self.talk.options.limits.step_s)
        if not isinstance(result, StepResult):
            raise TypeError(f"{type(env).__name__}.step returned {type(result).__name__}, not a StepResult")
        if not isinstance(result.turn_options, TurnOptions | None):
            raise TypeError(
                f"{type(env).__name__}.step gave turn_options={result.turn_options!r:.80}; "
                "return StepResult(turn_options=TurnOptions(...))"
            )
        return result, corrections

    async def _before_next_turn(self, pending: Observed) -> Observed | None:
        """The observation for the next turn; None if the episode ends."""
        env, turns, limits = self.env, self._turns, self.talk.options.limits
        if turns < limits.turns:
            return pending
        if turns > limits.turns:
            return None
        with at_boundary("step", hook=env.last_turn):
            last = await runtime(env).hook(env.last_turn, StopReason.MAX_TURNS, timeout=limits.step_s)
            return None if last is None else joined(pending, last, self.talk.renderer.certificate.capabilities)

    @property
    def policy(self) -> BadCallPolicy | None:
        """The Env's BadCallPolicy. None without tools, because then no text is a tool call."""
        return self.env.bad_calls if self.state.trajectory.tools else None
