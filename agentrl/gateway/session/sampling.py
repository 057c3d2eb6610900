"""The side of a session towards the model: renders prompts and samples replies. A line is a path of replies through the
session's tree."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal, Unpack

from agentrl._util.boundary import FailedError, at_boundary
from agentrl._util.seeds import nth_seed
from agentrl.chat.request import ChatRequest, Forced, RefusedError
from agentrl.chat.tokens.grammar import end_of_call, structural_tag
from agentrl.chat.tokens.writer import Writer, prove_for_agents
from agentrl.engine.base import Engine, EngineWrapper, MessageEngine, RequestFields, ask, forget, message_engine
from agentrl.episode.conversation import Conversation
from agentrl.episode.images import check_takes_images
from agentrl.episode.options import EpisodeOptions
from agentrl.errors import ConfigError, EngineError, RequestError, TemplateError
from agentrl.gateway.session.nodes import Head, Node, Prompt
from agentrl.gateway.session.openings import Opening, opening_key, openings
from agentrl.render.base import Renderer
from agentrl.render.long_text import aside, too_long
from agentrl.render.markers import warn
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import (
    JSON,
    Action,
    CheckCounts,
    Generation,
    Message,
    Raw,
    Rendered,
    SamplingParams,
    StopReason,
    ToolSpec,
    TurnOptions,
)

_log = logging.getLogger("agentrl")

_THINKS = ("enable_thinking", "thinking")
"""Names of template arguments that turn thoughts on or off."""
_LOOK_S = 0.05
"""Seconds between two checks of whether the host has cleared its abort flag."""


class Sampler:
    """Samples replies with an engine from a call of `play` to `hold`. Between, requests wait."""

    def __init__(self) -> None:
        self.options = EpisodeOptions()
        self.returned = 0
        """Number of tokens that the engine returned."""
        self.discarded_tokens = 0
        """Number of returned tokens that belong to no turn, after a stop string that the engine missed."""
        self.player: dict[str, Any] = {}
        """The name of the API model and its usage, as `Trajectory.info["player"]`; empty for other engines."""
        self._engine: Engine | None = None
        self._speaks = False
        """Whether the engine is a MessageEngine."""
        self._renderer: Renderer | None = None
        self._renderers: dict[bytes, Renderer] = {}
        self._ends_of_calls: dict[bytes, str | None] = {}
        self._aborted: Callable[[], bool] = lambda: False
        self._session_id = ""
        self._lines: set[str] = set()
        """The session ids that the engine got for lines so far."""
        self._context = 0
        self._playing = asyncio.Event()
        self._running: dict[Node, Conversation] = {}
        self._still = asyncio.Event()
        self._still.set()
        self._aborts: set[asyncio.Task[None]] = set()

    def play(
        self,
        engine: Engine,
        renderer: Renderer,
        options: EpisodeOptions,
        aborted: Callable[[], bool] | None,
        session_id: str,
    ) -> None:
        """Start or resume sampling with this engine.

        Raises ConfigError for options that a session cannot obey, TemplateError for a template that would lose a role.
        """
        if options.thinking == "strip":
            raise ConfigError(
                'thinking "strip" is not for agents that play by themselves: their clients decide what stays in the '
                'history; set thinking to "keep"'
            )
        if options.limits.compact_at:
            raise ConfigError("an agent writes its own summaries: leave out limits.compact_at")
        renderer = options.renderer(renderer)
        prove_for_agents(renderer)
        self._engine, self._renderer, self.options = engine, renderer, options
        self._speaks = message_engine(engine) is not None
        self._aborted, self._session_id = aborted or (lambda: False), session_id
        self._renderers.clear()
        self._ends_of_calls.clear()
        self._playing.set()

    @property
    def started(self) -> bool:
        """Whether `play` was called."""
        return self._engine is not None

    def hold(self) -> None:
        """Stop sampling, and abort the engine's running requests. Their turns stay open."""
        self._playing.clear()
        for talk in self._running.values():
            abort = asyncio.get_running_loop().create_task(_abort(talk))
            self._aborts.add(abort)
            abort.add_done_callback(self._aborts.discard)

    async def quiet(self) -> None:
        """Wait until no sampling is in progress."""
        await self._still.wait()
        if self._aborts:
            await asyncio.wait(self._aborts)

    def forget(self) -> None:
        """Tell the engine that no line will be continued."""
        if self._engine is not None:
            for name in self._lines:
                forget(self._engine, name)

    async def ready(self) -> None:
        """Wait until sampling is allowed. Raises FailedError if the engine breaks."""
        await self._playing.wait()
        while self._aborted():
            await asyncio.sleep(_LOOK_S)
            await self._playing.wait()
        await self._learn_context()

    async def _learn_context(self) -> None:
        """Ask the engine for the longest sequence, once. Raises FailedError if the engine breaks."""
        if not self._context:
            assert self._engine is not None
            with at_boundary("engine"):
                self._context = self.options.limits.context or await self._engine.context_length()

    async def render(self, prompt: Prompt, request: ChatRequest) -> None:
        """Render a prompt's tokens, unless they exist already. A long prompt is rendered in a thread.

        Raises RefusedError for a prompt that certainly does not fit, and TemplateError if the template cannot carry the
        prompt. Raises FailedError if the engine or the template breaks.
        """
        if prompt.length:
            return
        await self._learn_context()
        with at_boundary("render"):
            writer = self._writer(prompt.head, request)
        await self._refuse_too_long(prompt, writer.renderer)
        key = None
        if prompt.parent is None and not prompt.known_replies:
            key = opening_key(writer.renderer, request, prompt.entries)
        with at_boundary("render"):
            if key is not None:
                await self._open(key, writer, prompt, request)
                return
            rendered, messages = await self._aside(writer, prompt, request)
        if not prompt.length:  # another request may have written the tokens meanwhile
            _set(prompt, rendered, messages)

    async def _open(self, key: bytes, writer: Writer, prompt: Prompt, request: ChatRequest) -> None:
        """Render a first prompt, or share tokens, entries and tools with a session with the same first prompt."""
        checks = CheckCounts()

        async def make() -> Opening:
            nonlocal checks
            rendered, messages = await self._aside(writer, prompt, request)
            checks = rendered.checks  # counted once
            alike = replace(rendered, checks=CheckCounts())
            return Opening(writer.renderer, prompt.entries, prompt.head.tools, alike, messages)

        opening = await openings().get(key, make)
        if not prompt.length:
            prompt.entries, prompt.head = opening.entries, replace(prompt.head, tools=opening.tools)
            _set(prompt, replace(opening.rendered, checks=checks), deepcopy(opening.messages))

    async def _aside(self, writer: Writer, prompt: Prompt, request: ChatRequest) -> tuple[Rendered, Sequence[Message]]:
        rendered, messages = await aside(_size(prompt), lambda: self.write(writer, prompt, request))
        return replace(rendered, tokens=array("i", rendered.tokens)), messages

    async def _refuse_too_long(self, prompt: Prompt, renderer: Renderer) -> None:
        """Raises RefusedError for new entries that certainly do not fit, before the encoding."""
        if prompt.parent is not None and self.options.limits.observation_tokens is not None:
            return  # the render will cut the observation
        bound, _ = self._bound(prompt)
        texts = [entry.text for i, entry in enumerate(prompt.entries) if i not in prompt.known_replies]
        about = await too_long(renderer, texts, bound - prompt.before)
        if about is not None:
            raise _full(f"about {prompt.before + about}", bound)

    def write(self, writer: Writer, prompt: Prompt, request: ChatRequest) -> tuple[Rendered, Sequence[Message]]:
        """Render a prompt's new entries, and store the tokens and messages in the prompt."""
        above = prompt.parent
        rendered = self._rendered(writer, prompt)
        if self.options.special_tokens == "keep":
            warn(rendered.special)
        return rendered, writer.messages(
            prompt.entries, _ids(prompt), root=above is None, action=above.action if above else None
        )

    def _rendered(self, writer: Writer, prompt: Prompt) -> Rendered:
        """The tokens of a prompt's entries, and of the generation prompt."""
        above, entries = prompt.parent, prompt.entries
        opened = prompt.continued and entries[-1:] and entries[-1].role == "assistant"
        material = entries[:-1] if opened else entries
        replies = {i: (_whole(node), node.turn.ids) for i, node in prompt.known_replies.items() if i < len(material)}
        if above is None:
            rendered = writer.prompt(material, replies, _ids(prompt))
        elif not entries and prompt.continued:
            rendered = writer.renderer.text(Raw(""), _whole(above), history=prompt.history())
        else:
            budget = self.options.limits.observation_tokens
            rendered = writer.bridge(prompt.history(), _whole(above), material, replies, _ids(prompt), budget=budget)
        return writer.opened(rendered, entries[-1]) if opened else rendered

    def template_kwargs(self, request: ChatRequest) -> dict[str, JSON]:
        """The request's arguments that the template reads.

        An effort that the template refuses is left out, because many clients send an effort unasked.
        """
        if self._renderer is None:
            return dict(request.template_kwargs)
        reads = self._renderer.arguments
        if request.effort == "none":
            arguments: dict[str, JSON] = dict.fromkeys(_THINKS, False)
        elif request.effort is not None and "reasoning_effort" in reads and self._takes(request.effort):
            arguments = {"reasoning_effort": request.effort}
        else:
            arguments = {}
        for name in request.template_kwargs.keys() - reads:
            _warn_unread(name)
        return {name: value for name, value in {**arguments, **request.template_kwargs}.items() if name in reads}

    def _takes(self, effort: str) -> bool:
        assert self._renderer is not None
        try:
            self._renderer.bind((), reasoning_effort=effort)
        except TemplateError:
            return False
        return True

    @property
    def reads_images(self) -> bool:
        """Whether the model reads images, and the template writes a user's images."""
        return self._renderer is not None and self._renderer.certificate.capabilities.get("images", False)

    def check_images(self, prompt: Prompt) -> None:
        """Raises ConfigError if the engine does not take the images of a prompt."""
        if prompt.rendered.media:
            assert self._engine is not None
            check_takes_images(self._engine)

    def check_fits(self, prompt: Prompt) -> None:
        """Raises RefusedError if the limits leave no token to be sampled after a prompt."""
        bound, _ = self._bound(prompt)
        if prompt.length >= bound:
            raise _full(str(prompt.length), bound)

    def full(self, prompt: Prompt) -> StopReason | None:
        """The limit that a prompt reaches; None if at least one token can be sampled."""
        bound, reason = self._bound(prompt)
        return reason if prompt.length >= bound else None

    def _bound(self, prompt: Prompt) -> tuple[int, StopReason]:
        tokens = self.options.limits.tokens
        if tokens is not None and prompt.top.length + tokens < self._context:
            return prompt.top.length + tokens, StopReason.MAX_TOKENS
        return self._context, StopReason.CONTEXT_FULL

    async def sample(self, node: Node, request: ChatRequest, number: int) -> Action:
        """Sample a reply to its end, even if sampling is paused in between. `number` counts the replies to the same
        prompt.

        Raises FailedError if the engine breaks.
        """
        await self.ready()
        grammar = self.grammar(node.prompt, request.forced)
        talk = self._talk(node, number, grammar, request.stop_token_ids)
        wishes = turn_options_of(request)
        if not request.parallel and grammar is None and (end := self._end_of_call(node.prompt.head)):
            wishes = replace(wishes, stop=(*wishes.stop, end))
        discarded_tokens = 0
        while True:
            await self.ready()
            assert self._engine is not None
            talk.engine = self._counted()
            talk.speaker = message_engine(talk.engine)
            self._start(node, talk)
            try:
                sampled = await talk.sample(wishes)
            except FailedError as failed:
                if grammar is not None and isinstance(failed.__cause__, RequestError):
                    raise RefusedError("invalid", f"the engine refuses this form: {failed.__cause__}") from failed
                raise
            finally:
                self._end(node)
                self.discarded_tokens += talk.discarded_tokens - discarded_tokens
                discarded_tokens = talk.discarded_tokens
            if sampled.action is not None:
                self._add_player(talk.trajectory.info.get("player", {}))
                return sampled.action
            if sampled.stop is not StopReason.ABORTED:
                raise RefusedError("context_full", f"prompt is too long: {node.prompt.length} tokens")

    def _add_player(self, player: Mapping[str, Any]) -> None:
        """Add the usage of a reply. If tokens of a reply differ from its message, the episode may not be imitated."""
        for name, value in player.items():
            if name == "not_carried":
                self.player[name] = {"0": next(iter(value.values()))}
            else:
                self.player[name] = self.player.get(name, 0) + value if isinstance(value, int | float) else value

    def grammar(self, prompt: Prompt, forced: Forced | None) -> str | None:
        """The grammar for the form that a client demands, as `structural_tag`; None without a demand.

        Raises RefusedError if the engine or the template does not support the form.
        """
        if forced is None:
            return None
        if not getattr(self._engine, "takes_grammars", False):
            raise RefusedError(
                "invalid",
                f"{forced.source}: this engine cannot sample under a grammar; use local or sglang, or leave it out and "
                "ask for the form in the prompt (an AgentEnv may set SessionOptions(forced='ignore'))",
            )
        thinking, continued = prompt.rendered.thinking, prompt.continued
        return structural_tag(self.bind(prompt.head), forced, prompt.head.tools, thinking=thinking, continued=continued)

    def _end_of_call(self, head: Head) -> str | None:
        """The text at the end of a call, where a turn of one call stops. None if the template has no such text."""
        if not head.tools:
            return None
        if head.digest not in self._ends_of_calls:
            self._ends_of_calls[head.digest] = end_of_call(self.bind(head), head.tools)
        return self._ends_of_calls[head.digest]

    def _talk(self, node: Node, number: int, grammar: str | None, stop_token_ids: Sequence[int]) -> Conversation:
        assert self._engine is not None
        prompt, limits = node.prompt, self.options.limits
        options, params = self.options, _for(number, self.options.sampling_params)
        if grammar is not None:
            params = {**params, "structural_tag": grammar}
        if stop_token_ids:
            params = {**params, "stop_token_ids": [*(params.get("stop_token_ids") or ()), *stop_token_ids]}
        if params is not options.sampling_params:
            options = replace(options, sampling_params=params)
        if limits.tokens is not None:
            budget = prompt.top.length + limits.tokens - prompt.length
            options = replace(options, limits=replace(limits, tokens=budget))
        scratch = Trajectory(session_id=self._affinity(prompt), tools=prompt.head.tools)
        scratch.segments = [node.turn]
        engine = self._counted()
        read = [*prompt.history(), *prompt.messages] if message_engine(engine) else ()
        scratch.append_prompt(prompt.whole(), read)
        return Conversation(
            engine,
            self.bind(prompt.head),
            scratch,
            options,
            self._is_held,
            context=self._context,
            turns_before=len(prompt.line()),
        )

    def _counted(self) -> Engine:
        """The engine in a wrapper that counts the returned tokens."""
        assert self._engine is not None
        speaker = message_engine(self._engine)
        return _CountingEngine(self._engine, self) if speaker is None else _CountingSpeaker(speaker, self)

    def _affinity(self, prompt: Prompt) -> str:
        """The session id of a line for the engine. Lines with a common beginning share the id, so that a router sends
        them to the same worker."""
        name = f"{self._session_id}.{prompt.number}" if prompt.number else self._session_id
        self._lines.add(name)
        return name

    def _is_held(self) -> bool:
        return not self._playing.is_set() or self._aborted()

    def _start(self, node: Node, talk: Conversation) -> None:
        self._running[node] = talk
        self._still.clear()

    def _end(self, node: Node) -> None:
        self._running.pop(node, None)
        if not self._running:
            self._still.set()

    def _writer(self, head: Head, request: ChatRequest) -> Writer:
        return Writer(self.bind(head), request.deferred)

    def bind(self, head: Head) -> Renderer:
        """The renderer bound to a root's tools and template arguments. Raises TemplateError if the template cannot
        write the tools."""
        assert self._renderer is not None
        if head.digest not in self._renderers:
            self._renderers[head.digest] = self._renderer.bind(head.tools, **head.template_kwargs)
        return self._renderers[head.digest]


@dataclass(frozen=True, slots=True, eq=False)
class _CountingEngine(EngineWrapper):
    """An engine that counts the returned tokens."""

    sampler: Sampler

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, **request: Unpack[RequestFields]
    ) -> Generation:
        generation = await ask(self.engine, input_ids, sampling_params, request)
        self.sampler.returned += len(generation.tokens)
        return generation


@dataclass(frozen=True, slots=True, eq=False)
class _CountingSpeaker(_CountingEngine):
    """A MessageEngine that counts the returned tokens."""

    engine: MessageEngine
    takes_messages: ClassVar[Literal[True]] = True

    async def answer(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling_params: SamplingParams,
        **request: Any,
    ) -> Generation:
        generation = await self.engine.answer(messages, tools, sampling_params, **request)
        self.sampler.returned += len(generation.tokens)
        return generation


def _full(tokens: str, bound: int) -> RefusedError:
    """The error for a prompt that leaves no room for a token, in words that make clients compact their history."""
    return RefusedError("context_full", f"prompt is too long: {tokens} tokens > {bound} maximum")


def _set(prompt: Prompt, rendered: Rendered, messages: Sequence[Message]) -> None:
    prompt.rendered, prompt.messages = rendered, messages
    prompt.length = prompt.before + len(rendered.tokens)


def _size(prompt: Prompt) -> int:
    """Number of characters of a prompt's new entries, and of the tools of a root."""
    calls = sum(len(str(call.arguments)) for entry in prompt.entries for call in entry.calls)
    tools = len(str(prompt.head.tools)) if prompt.parent is None else 0
    return sum(len(entry.text) + len(entry.reasoning or "") for entry in prompt.entries) + calls + tools


def turn_options_of(request: ChatRequest) -> TurnOptions:
    """The client's turn options. Raises ConfigError for invalid options."""
    return TurnOptions(stop=request.stop, max_tokens=request.max_tokens)


@cache
def _warn_unread(name: str) -> None:
    _log.warning("a request has the template argument %.80r, which the chat template does not read", name)


async def _abort(talk: Conversation) -> None:
    """Ask the engine to abort a request. An error is ignored, because the request then ends by itself."""
    with suppress(EngineError):
        await talk.engine.abort(talk.rid)


def _whole(node: Node) -> Action:
    """The action of a reply, with tokens."""
    assert node.action is not None
    return replace(node.action, tokens=tuple(node.turn.ids))


def _ids(prompt: Prompt) -> dict[str, str]:
    """The client's ids of calls in a prompt's entries -> ids of the calls in the tokens."""
    nodes = [*prompt.known_replies.values(), *([prompt.parent] if prompt.parent else [])]
    return {wire: call_id for node in nodes for wire, call_id in node.call_ids.items()}


def _for(number: int, params: SamplingParams) -> SamplingParams:
    """Sampling parameters with a different seed for each reply to the same prompt. With the same seed, all replies
    would be equal.

    The seeds also differ from the seeds of other episodes of the group, because the first prompt is the same.
    """
    if number and (seed := params.get("sampling_seed")) is not None:
        return {**params, "sampling_seed": nth_seed(seed, number)}
    return params
