"""An agent's session: the model's replies to the agent's requests as a tree, each with its sampled tokens.

    session = Session(key)
    session.play(engine, renderer, EpisodeOptions(), None, session_id)
    exchange = session.ask(request)
    await exchange.accepted()
    replies = await exchange.replies()
    exchange.delivered()
    session.close("done")
    session.write(trajectory)

A session does not depend on HTTP. Requests are matched with the tree on arrival, and sampled concurrently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import asdict, replace
from typing import Literal, Self

from agentrl._util.boundary import FailedError
from agentrl._util.concurrency import gather
from agentrl.chat.options import SessionOptions
from agentrl.chat.request import ChatRequest, Entry, Exchange, RefusalKind, RefusedError, Reply
from agentrl.engine.base import Engine
from agentrl.episode.gate import admission
from agentrl.episode.images import too_much
from agentrl.episode.options import EpisodeOptions
from agentrl.errors import ConfigError, Failure, TemplateError
from agentrl.gateway.session import replaying
from agentrl.gateway.session.exchange import Answers, PendingAnswer, RefusedExchange, Waiting
from agentrl.gateway.session.log import SessionLog
from agentrl.gateway.session.matching import START, Digest, entry_digest, head_digest, tools_digest
from agentrl.gateway.session.nodes import Head, Node, Prompt
from agentrl.gateway.session.replying import disobeyed, entry_text, reply_of
from agentrl.gateway.session.sampling import Sampler, turn_options_of
from agentrl.gateway.session.segments import write
from agentrl.gateway.session.stored import Stored
from agentrl.gateway.session.tree import Tree, TreePosition
from agentrl.render.base import Renderer
from agentrl.trajectory.segment import Segment
from agentrl.trajectory.spans import MaskReason
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, StopReason, ToolSpec

log = logging.getLogger("agentrl")

_ORPHAN_S = 120.0
"""Maximum number of seconds for which sampling goes on after the client has disconnected. Clients retry within a
minute."""


class Session:
    """The model's replies to an agent, whose requests have the session's key."""

    def __init__(self, key: str, *, options: SessionOptions | None = None) -> None:
        self.key = key
        self.options = options or SessionOptions()
        self.tree = Tree(as_sent=self.options.echo == "as_sent")
        self.log = SessionLog()
        self.ended = asyncio.Event()
        """Set when the session is closed, or ended by a limit or an error."""
        self.stop: StopReason | None = None
        """The limit that ended the session."""
        self.failure: Failure | None = None
        """The failure of the engine or the template."""
        self.error: Exception | None = None
        """An error that must end the whole run: a wrong configuration, or a bug in agentrl."""
        self.result: JSON = None
        """The result of the agent's `run`."""
        self._sampler = Sampler()
        self._answers = Answers()
        self._stored = Stored()
        self._tools: tuple[Sequence[ToolSpec], Digest] = ((), START)
        self._closed: RefusedError | None = None
        self._on_turn: Callable[[Trajectory], None] | None = None
        self._context = copy_context()
        """The episode's contextvars. Sampling runs with these variables, so a lockstep engine and a host's traces
        attribute sampling to the episode, not to the HTTP server."""

    # The episode's side

    def play(
        self,
        engine: Engine,
        renderer: Renderer,
        options: EpisodeOptions,
        aborted: Callable[[], bool] | None,
        session_id: str,
        *,
        on_turn: Callable[[Trajectory], None] | None = None,
    ) -> None:
        """Start or resume sampling. `on_turn` is called after each reply with a trajectory of the turns up to the
        reply.

        Raises ConfigError for options that a session cannot obey.
        """
        self._on_turn, self._context = on_turn, copy_context()
        self._sampler.play(engine, renderer, options, aborted, session_id)
        self.log.name(session_id)
        self.log.note("play", session=session_id, tag=self.tree.tag, options=asdict(self.options))

    def hold(self) -> None:
        """Pause sampling; requests wait. Replies in progress are interrupted, and continue at the next `play`."""
        self._sampler.hold()
        self.log.note("hold")

    async def quiet(self) -> None:
        """Wait until no sampling is in progress."""
        await self._sampler.quiet()

    def close(self, reason: str, *, unavailable: bool = False) -> None:
        """Refuse all waiting and future requests. `unavailable`: clients are asked to retry later."""
        if self._closed is None:
            self._closed = RefusedError("unavailable" if unavailable else "closed", reason)
            self.log.note("closed", reason=reason)
        for answer in self._answers:
            self._give_up(answer)
        self._sampler.forget()
        self.ended.set()

    def returned(self, result: JSON) -> None:
        """Record that the agent has ended with a result. The reply that equals the result, or is quoted in it, ends the
        main line."""
        self.result = result
        self.log.note("returned", lambda: {"result": result})

    def mask(self, reason: MaskReason) -> None:
        """Mask all tokens sampled so far."""
        for node in self.tree.nodes:
            node.turn.mask(reason)

    def write(self, trajectory: Trajectory) -> None:
        """Write all sampled tokens as the trajectory's segments, the main line last.

        If the main line ended because its next prompt was too long, the trajectory's `stop` is set to the exceeded
        limit.

        Raises LedgerError if a returned token is not in exactly one segment.
        """
        unknown = self.failure or self.error or not self._sampler.started
        exact = None if unknown else self._sampler.returned - self._sampler.discarded_tokens
        end = write(
            trajectory,
            self.tree,
            self.options,
            self.log.lines,
            closed=self._closed is not None,
            sampled=exact,
            result=self.result,
        )
        if self._sampler.player:
            trajectory.info["player"] = dict(self._sampler.player)
        if end is not None and self.stop is None and self._closed is not None:
            refused = [answer.prompt for answer in self._answers.after(end) if answer.refused]
            self.stop = next((stop for prompt in refused if (stop := self._sampler.full(prompt))), None)

    @classmethod
    def replay(cls, lines: Iterable[str]) -> Self:
        """Rebuild a session from the lines of its log file. The session is closed, and can be written or inspected.

        Raises ValueError or KeyError for lines of another kind.
        """
        read = replaying.read(lines)
        start = next(line for line in read if line["event"] == "play")
        self = cls("", options=SessionOptions(**start["options"]))
        self.tree = replaying.tree_of(read, start["tag"], as_sent=self.options.echo == "as_sent")
        self.log.lines = read
        self.result = next((line.get("result") for line in reversed(read) if line["event"] == "returned"), None)
        self.close("it was played before")
        return self

    # The client's side

    @property
    def reads_images(self) -> bool:
        """Whether the model is shown the images of a request."""
        return self._sampler.reads_images

    def ask(self, request: ChatRequest) -> Exchange:
        """Accept a request. Never raises: the methods of the returned exchange raise."""
        try:
            answer = self._attach(request)
            self._stored.note(request, answer)
        except RefusedError as refused:
            self.log.note("refused", kind=refused.kind, message=str(refused), wire=request.wire)
            return RefusedExchange(refused)
        return Waiting(answer, self._refusal, self._left)

    def note_refused(self, target: str, status: int, message: str, kind: RefusalKind = "invalid") -> None:
        """Log a refusal by the server, before the request reached the session."""
        self.log.note("refused", kind=kind, message=message, what=target, status=status)

    async def count(self, request: ChatRequest) -> int:
        """The number of tokens of the request's whole prompt. Raises RefusedError for a prompt that is too long or
        cannot be written."""
        self._check_open()
        if not self._sampler.started:
            raise RefusedError("unavailable", "this session has not begun; ask again")
        request = self._stored.whole(request, self.tree)
        place = self._find(request)
        prompt = place.prompt or Prompt(
            *(-1, place.parent, place.entries, place.digest, place.known_replies, self._head(request), 0),
            continued=request.continued,
        )
        try:
            await self._sampler.render(prompt, request)
        except TemplateError as exc:
            raise RefusedError("invalid", str(exc)) from exc
        except FailedError as failed:
            raise RefusedError("unavailable", f"the model cannot answer: {failed.failure.error}") from failed
        return prompt.length

    def _attach(self, request: ChatRequest) -> PendingAnswer:
        """The answer to a request. A repeated request gets the answer to the earlier request."""
        self._check_open()
        self._check(request)
        if (again := self._answers.repeated(request)) is not None:
            return self._joined(again)
        request = self._stored.whole(request, self.tree)
        place = self._find(request)
        self._note_echoes(place)
        if place.rest is not None and place.parent is not None:
            return self._rest(place.parent, place.rest, request)
        prompt = self.tree.attach(place, self._head(request))
        if (again := self._answers.unclaimed(prompt, request)) is not None:
            return self._joined(again)
        return self._begin(prompt, request)

    def _check(self, request: ChatRequest) -> None:
        """Raises RefusedError for an invalid request."""
        if not request.entries:
            raise RefusedError("invalid", "the request holds no messages; send at least one")
        if not 1 <= request.n <= self.options.most_replies:
            raise RefusedError("invalid", f"n is {request.n}; ask for 1 to {self.options.most_replies} replies")
        try:
            turn_options_of(request)
        except ConfigError as exc:
            raise RefusedError("invalid", str(exc)) from exc

    def _joined(self, answer: PendingAnswer) -> PendingAnswer:
        done = answer.task is not None and answer.task.done()
        self.log.note("replay" if done else "join", request=answer.number)
        return answer

    def _rest(self, node: Node, rest: Entry, request: ChatRequest) -> PendingAnswer:
        """An answer with the missing rest of a reply, for a client that got only the beginning."""
        assert node.reply is not None
        calls = node.reply.calls if rest.calls else ()
        reply = replace(node.reply, content=rest.text, calls=calls, without_reasoning=True)
        answer = self._answers.add(request, node.prompt, whole=False)
        answer.nodes.append(node)
        answer.accepted.set()
        answer.task = asyncio.get_running_loop().create_task(_completed([reply]))
        self.log.note("rest", request=answer.number, node=node.index)
        return answer

    def _begin(self, prompt: Prompt, request: ChatRequest) -> PendingAnswer:
        """Start to sample the replies to a prompt."""
        answer = self._answers.add(request, prompt)
        prompt.ask(answer.number, request.branch)
        answer.task = asyncio.get_running_loop().create_task(self._answer(answer, request), context=self._context)
        answer.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.log.note(
            "request",
            request=answer.number,
            wire=request.wire,
            prompt=prompt.index,
            behind=prompt.parent.index if prompt.parent else None,
            new=len(prompt.entries),
            known=[node.index for node in prompt.known_replies.values()],
            n=request.n,
            branch=request.branch,
            max_tokens=request.max_tokens,
            asked=dict(request.recorded),
            template_kwargs=dict(request.template_kwargs),
        )
        return answer

    async def _answer(self, answer: PendingAnswer, request: ChatRequest) -> Sequence[Reply]:
        try:
            return await self._sampled(answer, request)
        except asyncio.CancelledError:
            answer.refused = self._refusal()
            raise
        except RefusedError as refused:
            answer.refused = refused
            raise
        except FailedError as failed:
            self.failure = self.failure or failed.failure
            answer.refused = self._end(f"the model cannot answer: {failed.failure.error}")
            raise answer.refused from failed
        except Exception as exc:  # the task's boundary: the episode raises it
            self.error = self.error or exc
            answer.refused = self._end("the session broke")
            raise answer.refused from exc
        finally:
            answer.accepted.set()
            if answer.refused is not None:
                self.log.note("refused", request=answer.number, kind=answer.refused.kind, message=str(answer.refused))

    async def _sampled(self, answer: PendingAnswer, request: ChatRequest) -> Sequence[Reply]:
        """Render, check and sample. Raises RefusedError and FailedError."""
        prompt = answer.prompt
        await self._sampler.ready()
        await admission()
        self._bind(prompt.head)
        if not prompt.length:
            try:
                await self._sampler.render(prompt, request)
            except TemplateError as exc:
                raise RefusedError("invalid", str(exc)) from exc
            self.log.note("prompt", lambda: replaying.of_prompt(prompt), prompt=prompt.index, tokens=prompt.length)
            await admission()  # a thousand sessions may have waited for one prompt
        self._check_images(prompt)
        self._sampler.check_fits(prompt)
        self._sampler.grammar(prompt, request.forced)  # refused before the turn counts
        self._take_turns(request.n)
        first = len(prompt.replies)
        answer.nodes = [self.tree.add(prompt, request.branch) for _ in range(request.n)]
        answer.accepted.set()
        return await gather(self._reply(node, answer, first + i) for i, node in enumerate(answer.nodes))

    def _bind(self, head: Head) -> None:
        """Raises RefusedError if the template cannot be used with the client's arguments."""
        try:
            self._sampler.bind(head)
        except TemplateError as exc:
            if not head.template_kwargs:
                raise
            raise RefusedError("invalid", f"chat_template_kwargs: {exc}") from exc

    async def _reply(self, node: Node, answer: PendingAnswer, number: int) -> Reply:
        action = await self._sampler.sample(node, answer.request, number)
        reply, ids = reply_of(node, action, answer.request, self.options)
        self.tree.commit(node, action, reply, ids)
        node.lost = not answer.waiting and not answer.delivered
        more = {"node": node.index, "prompt": node.prompt.index, "request": answer.number, "stop": reply.stop}
        self.log.note("reply", lambda: replaying.of_reply(node), **more)
        for call in action.calls:
            if call.error is not None:
                self._audit("unreadable_call", node, stored=call.raw, why=call.error)
        if (wrong := disobeyed(reply, answer.request.forced)) is not None:
            node.lost = True
            self.log.note("lost", request=answer.number)
            raise RefusedError("invalid", f"{wrong}, although the engine sampled under a grammar; check its settings")
        if self._on_turn is not None:
            self._on_turn(_line(node))
        return reply

    def _check_images(self, prompt: Prompt) -> None:
        """Raises RefusedError if the images exceed their limits, and then ends the session, except for the first
        prompt. Raises ConfigError if the engine takes no images."""
        if not prompt.rendered.media:
            return
        self._sampler.check_images(prompt)
        images = [image for other in self.tree.prompts for image in other.rendered.media]
        if too_much(images, self._sampler.options.limits):
            why = "more images than limits.image_pixels or limits.image_bytes"
            if not self.tree.nodes:
                raise RefusedError("invalid", f"the first prompt has {why}")
            self.stop = self.stop or StopReason.MAX_IMAGES
            self.ended.set()
            raise RefusedError("closed", f"this session has shown {why}")

    def _take_turns(self, count: int) -> None:
        """Raises RefusedError, and ends the session, if the replies would exceed their limit."""
        turns = self._sampler.options.limits.turns_or(self.options.replies)
        if len(self.tree.nodes) + count > turns:
            self.stop = self.stop or StopReason.MAX_TURNS
            self.ended.set()
            raise RefusedError("closed", f"this session has had its {turns} replies")

    def _left(self, event: Literal["delivered", "lost"], answer: PendingAnswer) -> None:
        """Called when a client has received the answer or disconnected. After a disconnect, sampling continues for a
        while, in case the client retries."""
        self.log.note(event, request=answer.number)
        if event == "lost" and answer.task is not None and not answer.task.done():
            asyncio.get_running_loop().call_later(_ORPHAN_S, self._forget, answer)

    def _forget(self, answer: PendingAnswer) -> None:
        """Cancel an answer for which no client waits."""
        if not answer.waiting and not answer.delivered:
            self._give_up(answer)

    def _give_up(self, answer: PendingAnswer) -> None:
        """Cancel an incomplete answer."""
        if answer.task is not None and not answer.task.done():
            answer.task.cancel()
            answer.refused = self._refusal()  # a task that never began does not set this itself
            answer.accepted.set()

    def _find(self, request: ChatRequest) -> TreePosition:
        head, continued = self._head(request), request.continued
        place = self.tree.find(request.entries, head.digest, continued=continued)
        if not self.options.sticky_tools or request.tools or place.parent is not None:
            return place
        heads = [it for it in self.tree.heads() if it.tools and it.template_kwargs == head.template_kwargs]
        others = (self.tree.find(request.entries, it.digest, continued=continued) for it in heads)
        return next((other for other in others if other.parent is not None), place)

    def _note_echoes(self, place: TreePosition) -> None:
        """Log the differences between replies and their first echoes."""
        for node, entry in place.first_echoes:
            if node.echoed or node.sent is None:
                continue
            node.echoed = node.delivered = place.rest is None or node is not place.parent
            how = node.telling(entry)
            if node.echoed:
                node.first_echo = entry
            if node.echoed and how != "verbatim":
                self._audit(f"told_in_another_{how}", node, stored=entry_text(node.sent), told=entry_text(entry))
        if self.options.echo == "as_sent":  # then a client's own words are expected
            return
        known_replies = place.known_replies.values()
        for node, entry in place.tells:
            form = entry_digest(entry)
            if node not in known_replies and node.sent is not None and form not in node.logged:
                node.logged.add(form)
                self._audit(
                    "edited" if node.echoed else "told_in_other_words",
                    node,
                    stored=entry_text(node.sent),
                    told=entry_text(entry),
                )

    def _audit(self, kind: str, node: Node, **texts: str) -> None:
        self.log.note("audit", kind=kind, node=node.index, **texts)

    def _head(self, request: ChatRequest) -> Head:
        digest, arguments = self._tools_digest(request), self._sampler.template_kwargs(request)
        return Head(tuple(request.tools), head_digest(digest, arguments), request.branch, arguments, digest)

    def _tools_digest(self, request: ChatRequest) -> Digest:
        """The digest of the request's tools. The last digest is remembered, because most requests repeat the tools of
        the request before."""
        if self._tools[0] != request.tools:
            self._tools = (request.tools, tools_digest(request.tools))
        return self._tools[1]

    def _check_open(self) -> None:
        if self._closed is not None or self.ended.is_set():
            raise self._refusal()

    def _refusal(self) -> RefusedError:
        """The reason why the session accepts no more requests."""
        if self._closed is not None:
            return RefusedError(self._closed.kind, str(self._closed))
        if self.stop is not None:
            return RefusedError("closed", f"this session has ended: {self.stop}")
        return RefusedError("unavailable", "this session cannot continue")

    def _end(self, why: str) -> RefusedError:
        """End the session because of a failure."""
        self.ended.set()
        return RefusedError("unavailable", why)


async def _completed(replies: Sequence[Reply]) -> Sequence[Reply]:
    return replies


def _line(node: Node) -> Trajectory:
    """A trajectory of the turns up to a reply, for `on_turn`."""
    trajectory = Trajectory()
    trajectory.segments = [Segment()]
    trajectory.segment.turns = [turn for reply in (*node.prompt.line(), node) for turn in reply.turn.turns]
    return trajectory
