"""One episode: reset, then generate and step until done, under limits; then score; the Env closed on every path."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from agentrl._concurrency import is_cancelled
from agentrl.engine.base import Engine, Generation, SamplingParams
from agentrl.env import Env, close_env
from agentrl.errors import Boundary, ConfigError, Failure, LedgerError, ParsePolicy, ResumeError, TemplateError
from agentrl.parking import Next, Parked, way_back
from agentrl.render.base import Rendered, Renderer
from agentrl.replies import as_messages, in_call_order, joined, replies
from agentrl.thoughts import Thoughts
from agentrl.trajectory import Trajectory
from agentrl.types import (
    Action,
    Ask,
    Limits,
    MaybeAwait,
    Message,
    Observation,
    Raw,
    Reward,
    StepResult,
    StopReason,
    Task,
)

RewardFn: TypeAlias = Callable[[Trajectory], MaybeAwait[float | Reward]]
"""A reward function: scores a finished trajectory in place of `Env.score`."""

ParkFn: TypeAlias = Callable[[Parked], Awaitable[None]]
"""Takes over an aborted episode; from then on it closes `Parked.env`, if there is one. Raises if it cannot."""

log = logging.getLogger("agentrl")

_ABORT_PAUSE_S = 0.05
"""First wait before going on after the engine dropped a request by itself, say for a weight update; then doubling."""
_unparked: set[tuple[type[Env], type[Exception]]] = set()
"""What has been warned of."""


async def run_episode(
    env: Env,
    task: Task,
    *,
    engine: Engine,
    renderer: Renderer,
    limits: Limits | None = None,
    sampling_params: SamplingParams | None = None,
    reward: RewardFn | None = None,
    session_id: str | None = None,
    aborted: Callable[[], bool] | None = None,
    on_turn: Callable[[Trajectory], None] | None = None,
    thinking: Literal["keep", "strip"] = "keep",
    park: ParkFn | None = None,
) -> Trajectory:
    """Play one episode and return what happened, whatever happened.

    The trajectory's `stop` says why it ended; with StopReason.FAILED, `failure` says what broke. `reward` replaces
    `Env.score`. `aborted` is the host's flag: polled before reset, before each generation, around each step and before
    scoring; once it is set nothing new is started. When a generation ends in an abort while it is False, the turn goes
    on in place (engines abort for weight updates). Without it, an abort ends the episode. `on_turn` is called after
    each turn.

    `park` takes an episode that the host aborted, and `resume_episode` goes on with it. Where that fails,
    info["not_parked"] says why; an episode aborted before its reset is not parked, for there is nothing to keep.

    `thinking` says what becomes of earlier thoughts that the template would drop from the next prompt: "keep" them as
    they were sampled, or "strip" them, which starts a new segment of the trajectory (see `Thoughts`).

    Raises ConfigError, TemplateError, LedgerError and cancellation; anything else is recorded.
    """
    limits = limits or Limits()
    if thinking == "strip" and limits.observation_tokens is not None:
        raise ConfigError('thinking "strip" renders whole observations again: leave out limits.observation_tokens')
    episode = Episode(
        env=env,
        engine=engine,
        renderer=renderer,
        limits=limits,
        sampling_params=sampling_params or {},
        reward=reward,
        aborted=aborted,
        on_turn=on_turn,
        park=park,
        trajectory=Trajectory(task, session_id=session_id or uuid.uuid4().hex),
        thoughts=Thoughts() if thinking == "strip" else None,
    )
    return await episode.run(episode.begin)


class FailedError(Exception):
    """Carries a Failure out of the episode's loop; `Episode.run` records it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error)
        self.failure = failure


@contextlib.contextmanager
def at_boundary(name: Boundary, *, data: bool = False) -> Iterator[None]:
    """Type whatever a hook or the engine raises by where it crossed, unless it must end the run.

    `data`: what is rendered is an episode's own, so that a TemplateError speaks of it and not of the template.
    """
    try:
        yield
    except (ConfigError, LedgerError, ResumeError, FailedError) as exc:
        if not (data and isinstance(exc, TemplateError)):
            raise
        raise FailedError(Failure.of(exc, name)) from exc
    except asyncio.CancelledError as exc:
        # What a hook waited for was cancelled, not this episode: its host must not take it for the end of the run.
        if is_cancelled():
            raise
        raise FailedError(Failure.of(exc, name)) from exc
    except Exception as exc:
        raise FailedError(Failure.of(exc, name)) from exc


@dataclass(slots=True)
class Episode:
    env: Env
    engine: Engine
    renderer: Renderer
    limits: Limits
    sampling_params: SamplingParams
    reward: RewardFn | None
    aborted: Callable[[], bool] | None
    on_turn: Callable[[Trajectory], None] | None
    park: ParkFn | None
    trajectory: Trajectory
    thoughts: Thoughts | None = None
    context: int = 0
    policy: ParsePolicy | None = None
    ask: Ask = field(default_factory=Ask)
    next: Next = "generate"
    stop: StopReason | None = None
    """Why it ended, once it has; it may still have to be scored."""
    steps: int = 0
    played_s: float = 0.0
    away: Parked | None = None
    """What the episode comes back from, as long as the Env has not been brought back."""

    async def run(self, begin: Callable[[], Awaitable[None]]) -> Trajectory:
        """Begin, play to the end, and close the Env or leave it to `park`. Raises what run_episode and `begin` do."""
        trajectory, kept = self.trajectory, False
        trajectory.stop = None
        try:
            await begin()
            trajectory.stop = await self._stop()
            if trajectory.stop is StopReason.ABORTED:
                kept = await self._parked()
        except FailedError as failed:
            trajectory.stop, trajectory.failure = StopReason.FAILED, failed.failure
            log.warning(
                "episode %s failed in %s: %s", trajectory.session_id, failed.failure.boundary, failed.failure.error
            )
        finally:
            if not kept and (error := await close_env(self.env)):
                trajectory.info["close_error"] = f"{type(error).__name__}: {error}"
        self._count_tool_errors()
        return trajectory

    async def _stop(self) -> StopReason:
        """Play, then score; why it ended. Raises FailedError."""
        if self.stop is None:
            stop = await self._play()
            if stop is StopReason.ABORTED:
                return stop
            self.stop = stop
        if self.is_aborted():
            return StopReason.ABORTED
        await self._score()
        return self.stop

    async def _play(self) -> StopReason:
        """Reset and take turns until there is a reason to stop. Raises FailedError."""
        left = None if self.limits.episode_s is None else self.limits.episode_s - self.played_s
        deadline, started = asyncio.timeout(left), time.monotonic()
        try:
            async with deadline:
                if self.is_aborted():
                    return StopReason.ABORTED
                if not self.trajectory.tokens:
                    await self.reset()
                while True:
                    stop = await self._turn()
                    if stop is not None:
                        return stop
        except TimeoutError:
            if deadline.expired():
                return StopReason.DEADLINE
            raise
        finally:
            self.played_s += time.monotonic() - started

    async def _score(self) -> None:
        with at_boundary("score"):
            hook: Callable[[Trajectory], Any] = self.reward or self.env.score
            value = await self.env.call(hook, self.trajectory, timeout=self.limits.score_s)
            given = value if isinstance(value, Reward) else Reward(value)
            parts = {name: _finite(part, f"part {name!r} of the reward") for name, part in given.parts.items()}
            self.trajectory.reward = None if value is None else _finite(given.value, "the reward")
            self.trajectory.reward_parts = parts
        self._penalise()

    def _penalise(self) -> None:
        """Take the policy's penalty from the reward, if there is one."""
        trajectory, penalty = self.trajectory, self.policy.penalty if self.policy else 0.0
        unread = sum(turn.parse_error == "structural" for turn in trajectory.turns)
        if trajectory.reward is not None and penalty and unread:
            trajectory.reward -= penalty * unread
            trajectory.reward_parts = {**trajectory.reward_parts, "parse_penalty": -penalty * unread}

    async def _parked(self) -> bool:
        """Hand the episode to `park`; whether the Env is to stay open. Nothing that fails here fails the episode."""
        if self.park is None or not self.trajectory.tokens:
            return False
        self._count_tool_errors()
        try:
            with at_boundary("step"):
                parked = self.away or await self._pack()
                await self.park(parked)
        except Exception as exc:  # noqa: BLE001 - the parking boundary: the episode restarts instead
            self._note_unparked(exc)
            return False
        return parked.env is not None

    def _note_unparked(self, exc: Exception) -> None:
        env, error = type(self.env), str(exc)
        self.trajectory.info["not_parked"] = error
        if (env, type(exc)) not in _unparked:
            _unparked.add((env, type(exc)))
            log.warning("an aborted episode of %s cannot be kept, and restarts. First one: %s", env.__name__, error)

    async def _pack(self) -> Parked:
        how, env = way_back(type(self.env)), self.env
        return Parked(
            how=how,
            trajectory=self.trajectory,
            next=self.next,
            stop=self.stop,
            steps=self.steps,
            played_s=self.played_s,
            ask=self.ask,
            thoughts=self.thoughts,
            rng=env.rng.getstate(),
            env=env if how == "alive" else None,
            state=await env.call(env.snapshot, timeout=self.limits.step_s) if how == "snapshot" else None,
        )

    def _count_tool_errors(self) -> None:
        if self.env.tool_errors:
            self.trajectory.info["tool_errors"] = dict(self.env.tool_errors)

    async def begin(self) -> None:
        self.env.begin(self.trajectory.task, self.limits)

    async def ask_context(self) -> None:
        with at_boundary("engine"):
            self.context = self.limits.context or await self.engine.context_length()

    def bind(self) -> None:
        """Take over what depends on the episode's tools."""
        with at_boundary("render"):
            self.renderer = self.renderer.bind(self.trajectory.tools)
        self.policy = self.env.parse_errors if self.trajectory.tools else None

    async def reset(self) -> None:
        env, trajectory = self.env, self.trajectory
        await self.ask_context()
        with at_boundary("reset"):
            observation: Observation = await env.call(env.reset, trajectory.task, timeout=self.limits.reset_s)
            trajectory.tools = tuple(env.tools())
        self.bind()
        with at_boundary("render", data=True):
            trajectory.append_prompt(self.renderer.prompt(observation), as_messages(observation))
        if self.thoughts is not None:
            self.thoughts.begin(observation)
        self.ask = env.ask

    async def _turn(self) -> StopReason | None:
        """One turn of the model and the Env's answer to it, or what is left of it; why the episode ends, or None."""
        trajectory, stop = self.trajectory, None
        if self.next == "generate":
            stop = await self._generate()
            if stop is StopReason.ABORTED or not trajectory.open:
                return stop
            turn = trajectory.turns[-1]
            with at_boundary("render"):
                action = self.renderer.parse(
                    trajectory.turn_tokens, turn.finish_reason, turn.matched, thinking=trajectory.thinking
                )
            trajectory.append_action(action)
        if stop is None:
            self.next = "step"
            if self.is_aborted():
                return StopReason.ABORTED
            stop = await self.step(trajectory.actions[-1])
            self.next = "generate"
        if self.on_turn is not None:
            self.on_turn(trajectory)
        return stop

    async def _generate(self) -> StopReason | None:
        """Sample until the turn is complete, through aborts that are not the host's."""
        pause = _ABORT_PAUSE_S
        while True:
            if self.is_aborted():
                return StopReason.ABORTED
            budget, reason = self._budget()
            if budget <= 0:
                return reason
            generation = await self._ask_engine(budget)
            if generation.finish_reason == "length":
                return reason
            if generation.finish_reason == "stop":
                return None
            if self.aborted is None:
                return StopReason.ABORTED
            if not self.is_aborted():
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)

    async def _ask_engine(self, budget: int) -> Generation:
        trajectory, started = self.trajectory, time.monotonic()
        params = self._sampling_params(budget)
        rid = f"{trajectory.session_id}-{len(trajectory.tokens)}-{uuid.uuid4().hex[:8]}"
        with at_boundary("engine"):
            generation = await self.engine.generate(
                trajectory.tokens, params, session_id=trajectory.session_id, rid=rid
            )
        generation = self._stopped(_closed(generation, params["stop_token_ids"]), params.get("stop") or ())
        sent = len(trajectory.tokens)
        trajectory.append_model(generation, prompt_tokens=sent, seconds=time.monotonic() - started)
        return generation

    def _stopped(self, generation: Generation, stop: Sequence[str]) -> Generation:
        """End a turn at a stop string that an abort has split, or come with: engines look in what they sample now, and
        only if nothing else has ended it."""
        longest = max((len(string.encode()) for string in stop), default=0)  # a token is at least a byte
        before = self.trajectory.turn_tokens[-longest:] if longest and self.trajectory.open else []
        given = len(generation.tokens)
        seam = range(1, min(longest, given) + 1) if self.trajectory.open else ()
        end = (given,) if longest and generation.finish_reason == "abort" else ()
        for count in (*seam, *end):
            tokens = generation.tokens[:count]
            text = self.renderer.decode([*before, *tokens][-2 * longest :])
            if matched := next((string for string in stop if string in text), None):
                log_probs = generation.log_probs[:count]
                return replace(generation, tokens=tokens, log_probs=log_probs, finish_reason="stop", matched=matched)
        return generation

    async def step(self, action: Action) -> StopReason | None:
        """Let the Env answer, and append its observation if another turn is to come."""
        env, trajectory, started = self.env, self.trajectory, time.monotonic()
        turn = trajectory.turns[-1]
        with at_boundary("step"):
            result = await self._answer(action)
            trajectory.info.update(result.info)
        self.steps += 1
        turn.env_s, turn.reward = time.monotonic() - started, result.reward
        if env.call_errors:
            turn.parse_error = turn.parse_error or "content"
        if self.policy and self.policy.mask and turn.parse_error == "structural":
            trajectory.mask("malformed", turn=len(trajectory.turns) - 1)
        if result.done:
            return StopReason.DONE
        if self.policy and trajectory.parse_errors_in_a_row >= self.policy.in_a_row:
            return StopReason.PARSE_ERRORS
        observation = await self._before_next_turn(result.observation)
        if observation is None:
            return StopReason.TURNS
        self.ask = result.ask or env.ask
        return self._observe(action, observation)

    async def _answer(self, action: Action) -> StepResult:
        """The Env's answer; under a ParsePolicy, calls that could not be read are answered here instead."""
        env, said = self.env, list[Message]()
        env.call_errors.clear()
        if self.policy and action.error:
            said = replies(action, self.policy, self.renderer.certificate.capabilities)
            if len(said) == len(action.calls):
                return StepResult(said)
        seen = replace(action, calls=tuple(call for call in action.calls if call.error is None)) if said else action
        result: StepResult = await env.call(env.step, seen, timeout=self.limits.step_s)
        if not isinstance(result, StepResult):
            raise TypeError(f"{type(env).__name__}.step returned {type(result).__name__}, not a StepResult")
        if not said or result.done or isinstance(result.observation, Raw):
            return result
        return replace(result, observation=in_call_order([*as_messages(result.observation), *said], action))

    async def _before_next_turn(self, pending: Observation) -> Observation | None:
        """What the next turn reads; None if there is to be none."""
        env, turns = self.env, len(self.trajectory.turns)
        if turns < self.limits.turns:
            return pending
        if turns > self.limits.turns:
            return None
        with at_boundary("step"):
            last = await env.call(env.last_turn, StopReason.TURNS, timeout=self.limits.step_s)
            return None if last is None else joined(pending, last, self.renderer.certificate.capabilities)

    def _observe(self, action: Action, observation: Observation) -> StopReason | None:
        """Append the observation, unless no turn would fit behind it: then the episode ends at this boundary."""
        trajectory = self.trajectory
        with at_boundary("render", data=True):
            stripped = self.thoughts.strip(trajectory, observation, self.renderer) if self.thoughts else None
        if stripped is not None:
            if len(stripped.tokens) >= self.context:
                return StopReason.CONTEXT
            trajectory.begin_segment(stripped, as_messages(observation))
            return None
        with at_boundary("render", data=True):
            rendered = self._render(action, observation)
        length = len(rendered.tokens)
        if len(trajectory.tokens) + length >= self.context:
            return StopReason.CONTEXT
        if self.limits.tokens is not None and trajectory.response_length + length >= self.limits.tokens:
            return StopReason.TOKENS
        trajectory.append_observation(rendered, as_messages(observation))
        return None

    def _render(self, action: Action, observation: Observation) -> Rendered:
        budget = self.limits.observation_tokens
        if isinstance(observation, Raw):
            return self.renderer.text(observation, action, budget=budget)
        return self.renderer.bridge(self.trajectory.messages, action, as_messages(observation), budget=budget)

    def _budget(self) -> tuple[int, StopReason]:
        """Tokens that may be sampled now, and the reason to stop when they are used up."""
        trajectory, limits = self.trajectory, self.limits
        spent = len(trajectory.turn_tokens) if trajectory.open else 0
        budgets = [(self.context - len(trajectory.tokens), StopReason.CONTEXT)]
        if limits.tokens is not None:
            budgets.append((limits.tokens - trajectory.response_length, StopReason.TOKENS))
        caps = (limits.turn_tokens, self.ask.max_tokens, self.sampling_params.get("max_new_tokens"))
        budgets.extend((cap - spent, StopReason.TURN_CUT) for cap in caps if cap is not None)
        return min(budgets, key=lambda budget: budget[0])

    def _sampling_params(self, budget: int) -> SamplingParams:
        given = self.sampling_params
        stop_token_ids = {*(given.get("stop_token_ids") or ()), *self.renderer.stop_token_ids}
        params: SamplingParams = {**given, "max_new_tokens": budget, "stop_token_ids": sorted(stop_token_ids)}
        if stop := [*_strings(given.get("stop")), *self.ask.stop]:
            params["stop"] = stop
        if least := given.get("min_new_tokens"):
            params["min_new_tokens"] = min(least, budget)  # SGLang refuses more than max_new_tokens
        return params

    def is_aborted(self) -> bool:
        return self.aborted is not None and self.aborted()


def _finite(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{what} is {value!r}; it must be a finite number")
    return number


def _closed(generation: Generation, stop_token_ids: Sequence[int]) -> Generation:
    """Finished, if its last token ends the turn: SGLang calls it aborted where the abort came in the same step."""
    if generation.finish_reason == "abort" and generation.tokens and generation.tokens[-1] in stop_token_ids:
        return replace(generation, finish_reason="stop", matched=generation.tokens[-1])
    return generation


def _strings(stop: Sequence[str] | str | None) -> Sequence[str]:
    return [stop] if isinstance(stop, str) else stop or ()
