"""A conversation with a model, recorded as exact tokens: sample a turn, then append an observation. No Env is needed.

    talk = Conversation(engine, renderer, Trajectory(), EpisodeOptions())
    await talk.open()
    talk.use_tools(tools)
    talk.begin([{"role": "user", "content": "Capital of France?"}])
    action, stop = await talk.sample()
    stop = stop or talk.observe([{"role": "user", "content": "And of Spain?"}])

The caller provides the observations. In an episode, the Env does.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import NamedTuple

from agentrl._util.boundary import at_boundary
from agentrl._util.concurrency import Deadline
from agentrl.engine.base import Engine, MessageEngine, RequestFields, ask, message_engine, stop_strings
from agentrl.episode.bad_calls import messages_of, with_calls
from agentrl.episode.chat_transcript import ChatTranscript, as_user, cut_to
from agentrl.episode.engine_aborts import EngineAborts
from agentrl.episode.gate import admission
from agentrl.episode.images import check_images, check_takes_images, too_many_images, without_pads
from agentrl.episode.options import EpisodeOptions
from agentrl.episode.reasoning import ReasoningStripper
from agentrl.errors import ConfigError, ContextFullError, EngineError, LedgerError, TemplateError
from agentrl.plain import text, to_json
from agentrl.render.base import Renderer
from agentrl.render.long_text import aside, texts_of, too_long
from agentrl.render.markers import warn
from agentrl.trajectory.arrays import checked
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import (
    Action,
    Generation,
    Observed,
    Raw,
    Rendered,
    SamplingParams,
    StopReason,
    ToolCall,
    ToolSpec,
    TurnOptions,
)


class Sampled(NamedTuple):
    """The result of `Conversation.sample`."""

    action: Action | None
    """The action of the closed turn. None if the turn is still open, or was never begun."""
    stop: StopReason | None
    """The reason for the conversation's end. None if the caller should respond to the action."""


@dataclass(slots=True)
class Conversation:
    """The turns of a model and the observations, within the limits of `options`. `trajectory` records everything.

    Methods raise FailedError if the engine or the template fails.
    """

    engine: Engine
    renderer: Renderer
    trajectory: Trajectory
    options: EpisodeOptions
    aborted: Callable[[], bool] | None = None
    """A function that tells whether to stop, see `EpisodeHooks.aborted`."""
    thoughts: ReasoningStripper | None = None
    """Drops thoughts of earlier turns as the template does. None if thoughts are kept."""
    context: int = 0
    """Maximum length of a sequence in tokens; set by `open`."""
    turns_before: int = 0
    """Number of earlier turns of the same conversation that are not in `trajectory`."""
    rid: str = ""
    """The id of the running request to the engine; "" without a request."""
    discarded_tokens: int = 0
    """Number of generated tokens that were discarded, after a stop string that the engine missed or above a speaker's
    limit."""
    speaker: MessageEngine | None = field(init=False)
    """The engine if it is a MessageEngine, else None."""
    spoken: ChatTranscript = field(default_factory=ChatTranscript)
    """The messages of a MessageEngine, in the form of its speaker."""
    _unanswered: Action | None = None
    """The last action with its tokens, until the next observation is rendered. Then the large tuple of tokens is
    released."""

    def __post_init__(self) -> None:
        self.renderer = self.options.renderer(self.renderer)
        self.speaker = message_engine(self.engine)

    async def open(self) -> None:
        """Ask the engine for the maximum length of a sequence. Call this method first."""
        with at_boundary("engine"):
            self.context = self.options.limits.context or await self.engine.context_length()
        if (compact_at := self.options.limits.compact_at or 0) >= self.context:
            raise ConfigError(
                f"limits.compact_at is {compact_at}, and the context ends at {self.context} tokens: a summary would "
                "come too late; lower it"
            )

    def use_tools(self, tools: Sequence[ToolSpec]) -> None:
        """Give the tools to the template. Call it before `begin`."""
        self.trajectory.tools = tuple(tools)
        with at_boundary("render"):
            self.renderer = self.renderer.bind(self.trajectory.tools)

    def begin(self, observed: Observed) -> None:
        """Render the first prompt."""
        with at_boundary("render", data=True):
            self._append_first(observed, self.renderer.prompt(observed))

    async def begin_aside(self, observed: Observed) -> None:
        """Like `begin`, but a long observation is rendered in a thread, so that other episodes continue."""
        await admission()
        with at_boundary("render", data=True):
            rendered = await aside(sum(map(len, texts_of(observed))), lambda: self.renderer.prompt(observed))
            self._append_first(observed, rendered)

    async def begin_again_aside(self, observed: Observed) -> StopReason | None:
        """Begin a new segment, whose prompt holds only `observed`: the first observation after a summary. If the prompt
        is too long, append nothing, and return the reason to stop."""
        await admission()
        with at_boundary("render", data=True):
            rendered = await aside(sum(map(len, texts_of(observed))), lambda: self.renderer.prompt(observed))
        self._unanswered = None
        stop = self._append_next(observed, rendered, anew=True, summarized=True)
        if stop is None and self.thoughts is not None:
            self.thoughts.begin(observed)
        return stop

    def _append_first(self, observed: Observed, rendered: Rendered) -> None:
        if rendered.media:
            check_takes_images(self.engine)
            if too_many_images(self.trajectory, rendered, self.options.limits):
                raise TemplateError("the first prompt has more images than limits.image_pixels or limits.image_bytes")
        self.trajectory.append_prompt(rendered, messages_of(observed))
        self._warn(rendered)
        if self.thoughts is not None:
            self.thoughts.begin(observed)

    async def sample(self, turn_options: TurnOptions = TurnOptions()) -> Sampled:  # noqa: B008 - immutable
        """Sample a turn, or the rest of an aborted turn, and parse it."""
        trajectory = self.trajectory
        stop = await self._generate(turn_options)
        if stop is StopReason.ABORTED or not trajectory.segment.open:
            return Sampled(None, stop)
        return Sampled(self._read_turn(), stop)

    def say(self, generation: Generation) -> Action:
        """Append a complete turn that was not sampled, such as an assistant's message of a recorded chat, and parse
        it."""
        with at_boundary("engine"):
            _check(generation)
        self.trajectory.append_model(generation)
        return self._read_turn()

    def _read_turn(self) -> Action:
        """Parse the open turn, and close the turn with its action."""
        trajectory, segment = self.trajectory, self.trajectory.segment
        turn = segment.turns[-1]
        with at_boundary("render"):
            action = self.renderer.parse(
                segment.turn_tokens,
                turn.finish_reason,
                turn.matched,
                thinking=segment.thinking,
                turn=self.turns_before + trajectory.turn_count - 1,
            )
            if self.speaker is not None:
                action = self.spoken.read(action, trajectory)
            action = _executable(action)
        trajectory.append_action(action)
        self._unanswered = action
        if self.speaker is not None:
            self.spoken.keep(trajectory)
        return action

    def observe(self, observed: Observed) -> StopReason | None:
        """Append the next observation, and return None. If no turn would fit afterwards, append nothing, and return the
        reason to stop."""
        with at_boundary("render", data=True):
            rendered, anew = self._next(observed)
        return self._append_next(observed, rendered, anew)

    async def observe_aside(self, observed: Observed) -> StopReason | None:
        """Like `observe`, but a long observation is rendered in a thread, so that other episodes continue.

        An observation that certainly exceeds the limits is not rendered.
        """
        await admission()
        texts = texts_of(observed)
        with at_boundary("render", data=True):
            if self.options.limits.observation_tokens is None:
                room = self.context - (0 if self.thoughts else self.trajectory.segment.length)
                if await too_long(self.renderer, texts, room) is not None:
                    return StopReason.CONTEXT_FULL
            rendered, anew = await aside(sum(map(len, texts)), lambda: self._next(observed))
        return self._append_next(observed, rendered, anew)

    def _next(self, observed: Observed) -> tuple[Rendered, bool]:
        """The tokens of the next observation, and whether the tokens begin a new segment."""
        stripped = self.thoughts.strip(self.trajectory, observed, self.renderer) if self.thoughts else None
        return (self._render(observed), False) if stripped is None else (stripped, True)

    def _append_next(
        self, observed: Observed, rendered: Rendered, anew: bool, *, summarized: bool = False
    ) -> StopReason | None:
        trajectory, limits, length = self.trajectory, self.options.limits, len(rendered.tokens)
        segment = trajectory.segment
        if rendered.media and too_many_images(trajectory, rendered, limits):
            return StopReason.MAX_IMAGES
        if anew:
            if length >= self.context:
                return StopReason.CONTEXT_FULL
            trajectory.begin_segment(rendered, messages_of(observed), summarized=summarized)
            self._warn(rendered)
            return None
        if segment.length + length >= self.context:
            return StopReason.CONTEXT_FULL
        if limits.tokens is not None and segment.response_length + length >= limits.tokens:
            return StopReason.MAX_TOKENS
        trajectory.append_observation(rendered, messages_of(observed))
        self._warn(rendered)
        if isinstance(observed, Raw):
            segment.turns[-1].raw = self._read(rendered) if rendered.cut else text(observed.text)
        return None

    def _warn(self, rendered: Rendered) -> None:
        if self.options.special_tokens == "keep":
            warn(rendered.special)

    def is_aborted(self) -> bool:
        """Whether the host has asked to stop: the result of `aborted`."""
        return self.aborted is not None and self.aborted()

    async def _generate(self, turn_options: TurnOptions) -> StopReason | None:
        """Sample until the turn is complete. After an abort by the engine the turn continues with another
        generation."""
        aborts = EngineAborts(self.options.engine_retry_s)
        while True:
            if self.is_aborted():
                return StopReason.ABORTED
            budget, reason = self._budget(turn_options)
            if budget <= 0:
                return reason
            started = time.monotonic()
            if self.speaker is not None:
                answer = await self._ask_speaker(self.speaker, turn_options, budget)
                if answer is None:
                    return StopReason.CONTEXT_FULL
                generation, cut = answer
                reason = reason if cut else StopReason.TURN_MAX_TOKENS
            else:
                generation = await self._ask_engine(turn_options, budget)
            if generation.finish_reason == "length":
                return reason
            if generation.finish_reason == "stop":
                return None
            if self.aborted is None:
                return StopReason.ABORTED
            if not self.is_aborted():
                with at_boundary("engine"):
                    await aborts.wait(len(generation.tokens), time.monotonic() - started)

    async def _ask_engine(self, turn_options: TurnOptions, budget: int) -> Generation:
        trajectory, started = self.trajectory, time.monotonic()
        params, sent = self._sampling_params(turn_options, budget), trajectory.segment.length
        self.rid = f"{trajectory.session_id}-{sent}-{token_hex(4)}"
        with at_boundary("engine"):
            generation = await self._in_time(self._asked(params))
            _check(generation)
        seconds = time.monotonic() - started
        await admission()  # before the turn is recorded: a cancellation here equals a cancellation during sampling
        sampled = len(generation.tokens)
        generation = self._cut_at_stop(generation, params)
        if generation.finish_reason == "abort" and "structural_tag" in params:  # the grammar would begin again
            self.discarded_tokens += sampled
            return Generation((), (), "abort")
        self.discarded_tokens += sampled - len(generation.tokens)
        trajectory.append_model(generation, prompt_tokens=sent, seconds=seconds)
        return generation

    async def _asked(self, params: SamplingParams) -> Generation:
        """Send a request to the engine. Raises EngineError if the engine and the trainer read different tokens for the
        images."""
        segment, session_id = self.trajectory.segment, self.trajectory.session_id
        request: RequestFields = {"session_id": session_id, "rid": self.rid}
        if segment.media:
            request["images"] = segment.images
        generation = await ask(self.engine, segment.engine_ids, params, request)
        if self.renderer.vision is not None:
            check_images(generation, segment, self.renderer.vision)
        return generation

    async def _in_time(self, generating: Awaitable[Generation]) -> Generation:
        """Await a generation. Raises EngineError after `limits.generate_s` seconds, and cancels the request."""
        limit = self.options.limits.generate_s
        if limit is None:
            return await generating
        deadline = Deadline(limit)
        try:
            async with deadline:
                return await generating
        except TimeoutError as exc:
            if not deadline.expired():
                raise
            raise EngineError(
                f"a request took longer than limits.generate_s ({limit:g} s): raise it, or play fewer episodes at once"
            ) from exc

    async def _ask_speaker(
        self, engine: MessageEngine, turn_options: TurnOptions, budget: int
    ) -> tuple[Generation, bool] | None:
        """Ask the speaker for a turn. Returns the turn and whether it was cut to `budget`, or None if the conversation
        is too long for the speaker."""
        trajectory, started = self.trajectory, time.monotonic()
        sent, cap = trajectory.segment.length, min(self._caps(turn_options), default=None)
        params = self._sampling_params(turn_options, cap or 0)
        if cap is None:
            del params["max_new_tokens"]
        self.rid = f"{trajectory.session_id}-{sent}-{token_hex(4)}"
        with at_boundary("engine"):
            try:
                generation = await engine.answer(
                    self.spoken.messages(trajectory, self.renderer),
                    trajectory.tools,
                    params,
                    session_id=trajectory.session_id,
                    rid=self.rid,
                )
            except ContextFullError as exc:
                if not trajectory.turns:
                    raise
                trajectory.info["context_full"] = str(exc)
                return None
            _check(generation)
        cut = len(generation.tokens) > budget
        self.discarded_tokens += max(len(generation.tokens) - budget, 0)
        generation = cut_to(budget, generation) if cut else generation
        self.spoken.heard(generation, trajectory)
        trajectory.append_model(generation, prompt_tokens=sent, seconds=time.monotonic() - started)
        return generation, cut

    def _cut_at_stop(self, generation: Generation, params: SamplingParams) -> Generation:
        """End a turn at its first stop token, or at the first stop string in its text.

        With speculative decoding an engine may return tokens after the stop. The engine misses a stop string that an
        abort has split, because the engine searches only the tokens of the present request. Tokens after the stop do
        not belong to the turn: they are counted as discarded, are in no prompt, and are never trained.
        """
        ends: list[tuple[int, int, int | str]] = []
        if (count := self._end_of_stop_token(generation, params)) is not None:
            ends.append((count, 1, generation.tokens[count - 1]))
        strings = ((self._end_of_stop_string(generation, string), string) for string in params.get("stop") or ())
        ends += [(count, 0, string) for count, string in strings if count is not None]
        if not ends:
            return generation
        count, _, matched = min(ends, key=lambda end: end[:2])
        complete = generation.finish_reason == "stop" or (
            generation.finish_reason == "length" and not self.trajectory.segment.open
        )
        if count == len(generation.tokens) and complete:
            return generation
        return replace(
            generation,
            tokens=generation.tokens[:count],
            log_probs=generation.log_probs[:count],
            constrained=generation.constrained[:count],
            finish_reason="stop",
            matched=matched,
        )

    def _end_of_stop_token(self, generation: Generation, params: SamplingParams) -> int | None:
        """The number of tokens up to and including the first stop token. None without a stop token."""
        if params.get("ignore_eos"):
            return None
        least, stops = params.get("min_new_tokens") or 0, params["stop_token_ids"]
        return next((i for i, token in enumerate(generation.tokens, 1) if i > least and token in stops), None)

    def _end_of_stop_string(self, generation: Generation, stop: str) -> int | None:
        """The number of tokens up to the end of the first stop string. None without a stop string."""
        tokens, longest = generation.tokens, len(stop.encode())  # a token is at least a byte
        segment = self.trajectory.segment
        before = segment.turn_tokens[-longest:] if segment.open else []

        def has_stop(count: int) -> bool:
            return stop in self.renderer.decode([*before, *tokens[:count]])

        if not tokens or not has_stop(len(tokens)):
            return None
        if not has_stop(len(tokens) - 1):
            return len(tokens)
        return bisect_left(range(1, len(tokens)), True, key=has_stop) + 1

    def _render(self, observed: Observed) -> Rendered:
        action, budget = self._unanswered or self.trajectory.last_action, self.options.limits.observation_tokens
        self._unanswered = None
        if action is None:
            raise LedgerError("an observation must follow an action, and there is none")
        if isinstance(observed, Raw):
            return self.renderer.text(observed, action, history=self.trajectory.conversation, budget=budget)
        try:
            return self.renderer.bridge(self.trajectory.conversation, action, observed, budget=budget)
        except TemplateError:
            if not self.spoken.any:
                raise
            # The template cannot write the answer to this turn, but the speaker reads the answer.
            self.spoken.not_carried(self.trajectory, "the chat template refuses the answer to it")
            plain_action = with_calls(action, ())
            return self.renderer.bridge(self.trajectory.conversation, plain_action, as_user(observed), budget=budget)

    def _read(self, rendered: Rendered) -> str:
        """The part of a Raw text that the model read, if the text was cut."""
        return self.renderer.decode(rendered.tokens[rendered.spans[-1].start :])

    def _budget(self, turn_options: TurnOptions) -> tuple[int, StopReason]:
        """The number of tokens that may be sampled now, and the reason to stop if a turn uses them up."""
        segment, limits = self.trajectory.segment, self.options.limits
        spent = len(segment.turn_tokens) if segment.open else 0
        budgets = [(self.context - segment.length, StopReason.CONTEXT_FULL)]
        if limits.tokens is not None:
            budgets.append((limits.tokens - segment.response_length, StopReason.MAX_TOKENS))
        if self.speaker is None:  # a speaker's turn is bounded in its own tokens
            budgets.extend((cap - spent, StopReason.TURN_MAX_TOKENS) for cap in self._caps(turn_options))
        return min(budgets, key=lambda budget: budget[0])

    def _caps(self, turn_options: TurnOptions) -> list[int]:
        """All bounds on the number of tokens of a turn."""
        sampling_cap = self.options.sampling_params.get("max_new_tokens")
        caps = (self.options.limits.max_tokens_per_turn, turn_options.max_tokens, sampling_cap)
        return [cap for cap in caps if cap is not None]

    def _sampling_params(self, turn_options: TurnOptions, budget: int) -> SamplingParams:
        base = self.options.sampling_params
        stop_token_ids = {*(base.get("stop_token_ids") or ()), *self.renderer.stop_token_ids}
        params: SamplingParams = {**base, "max_new_tokens": budget, "stop_token_ids": sorted(stop_token_ids)}
        if stop := [*stop_strings(base), *turn_options.stop]:
            params["stop"] = stop
        if self.renderer.vision is not None:
            params["logit_bias"] = without_pads(base.get("logit_bias"), self.renderer.vision)
        if least := base.get("min_new_tokens"):
            params["min_new_tokens"] = min(least, budget)  # SGLang refuses more than max_new_tokens
        return params


def _check(generation: Generation) -> None:
    """Raises EngineError if the generation is invalid."""
    try:
        checked(generation)
    except LedgerError as exc:
        raise EngineError(f"the engine's answer cannot be trained on: {exc}") from exc


def _executable(action: Action) -> Action:
    """The action with each call marked as unreadable if JSON cannot hold the call's arguments."""
    return with_calls(action, tuple(map(_plain_call, action.calls))) if action.calls else action


def _plain_call(call: ToolCall) -> ToolCall:
    error, arguments = call.error, call.arguments
    try:
        arguments = to_json(arguments, "arguments")
    except (TypeError, ValueError) as exc:
        error, arguments = error or str(exc), {}
    return ToolCall(text(call.id), text(call.name), arguments, call.raw, error and text(error))
