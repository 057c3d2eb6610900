"""An engine that plays a script. Tests, demonstrations and scripted players need no model."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

from agentrl.engine.base import AsyncClosing, stop_strings
from agentrl.image import Image
from agentrl.types import Generation, Message, SamplingParams

if TYPE_CHECKING:
    from agentrl.render.base import Renderer

Turn: TypeAlias = str | Message | Generation | Exception
"""The next turn of a script: the content of an assistant message, an assistant message, exact tokens, or an error to
raise."""

Script: TypeAlias = Sequence[Turn] | Generator[Turn, str, None] | Callable[[Sequence[int]], Turn]


def scripted_log_prob(token: int) -> float:
    """An invented log-prob of a token: never 0, exact in float32, and different for neighbouring ids. So a test notices
    a shift by a token."""
    return -(13 + token % 89) / 128


@dataclass(slots=True)
class _ScriptPosition:
    """The position of an episode in the script."""

    turns: int = 0
    seen: int = 0
    """The number of tokens up to the end of the last turn that was played."""
    open: tuple[int, Generation] | None = None
    """A turn that was aborted or cancelled: the length of its prompt, and the generation that was planned."""


class ScriptedEngine(AsyncClosing):
    """Plays `turns`, and obeys stop strings, stop tokens and max_new_tokens as SGLang does.

    `turns` takes three forms:
    - a sequence. Each session_id plays the sequence in order, from the start;
    - a generator for one session. The generator is sent the text appended since the last turn: the result of `reads`,
      or the decoded tokens if `reads` is None;
    - a function of the input ids. A function has no state and so serves any number of sessions.

    A str or message becomes tokens through `renderer.encode`, with `scripted_log_prob` as log-probs. An exception is
    raised. A Generation is played unchanged, but cut at the request's limits. After an abort or a cancellation a
    sequence or generator continues at the point shown by the next prompt. `requests` collects the input ids of all
    requests.

    `seconds` is the simulated time of a turn. An abort returns the fraction sampled by then.
    """

    takes_images = True
    takes_grammars = True
    """Whether the engine takes grammars. The script itself must obey a grammar; violations are reported by the
    session."""

    def __init__(
        self,
        turns: Script,
        renderer: Renderer,
        *,
        seconds: float = 0.0,
        context_length: int = 1 << 20,
        reads: Callable[[], str | None] = lambda: None,
    ) -> None:
        if isinstance(turns, str | Mapping):
            raise TypeError("ScriptedEngine: turns must be a sequence of turns; put a single turn into a list")
        self.requests: list[list[int]] = []
        self.images: list[list[Image]] = []
        """The images of each request."""
        self._turns = turns
        self._renderer = renderer
        self.turn_seconds = seconds
        self._context_length = context_length
        self._reads = reads
        self.positions: dict[str, _ScriptPosition] = {}
        self.in_progress: dict[str, asyncio.Event] = {}

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        session_id: str = "",
        rid: str = "",
        images: Sequence[Image] = (),
    ) -> Generation:
        """Play the next turn. Raises AssertionError at the end of the script, because a longer episode is a bug of the
        test."""
        input_ids = list(input_ids)
        self.requests.append(input_ids)
        self.images.append(list(images))
        if isinstance(self._turns, Sequence | Generator):
            return await self._generate_next(self._session(session_id), input_ids, sampling_params, rid)
        turn = self._turns(input_ids)
        return await self._play(self._limit(self._generation(turn, input_ids), sampling_params), rid)

    async def _generate_next(
        self, session: _ScriptPosition, input_ids: Sequence[int], sampling_params: SamplingParams, rid: str
    ) -> Generation:
        reply = self._resumed(session, len(input_ids)) or self._generation(
            self._next_turn(session, input_ids), input_ids
        )
        # The turn is open until the end. After an abort or a cancellation the turn stays open.
        session.open = (len(input_ids), reply)
        generation = await self._play(self._limit(reply, sampling_params), rid)
        session.seen = len(input_ids) + len(generation.tokens)
        if generation.finish_reason != "abort" or reply.finish_reason == "abort":
            session.open = None
        return generation

    def _session(self, session_id: str) -> _ScriptPosition:
        if session_id not in self.positions and self.positions and isinstance(self._turns, Generator):
            first = next(iter(self.positions))
            raise AssertionError(
                f"ScriptedEngine: a generator plays one session ({first!r}), but {session_id!r} asks too; "
                "use a function of messages and tools, or of the input ids"
            )
        return self.positions.setdefault(session_id, _ScriptPosition())

    @staticmethod
    def _resumed(session: _ScriptPosition, length: int) -> Generation | None:
        """The rest of an open turn, if a prompt of `length` tokens ends inside this turn; else None."""
        if session.open is None:
            return None
        start, reply = session.open
        offset = length - start
        if not 0 <= offset < len(reply.tokens):
            return None
        return replace(reply, tokens=reply.tokens[offset:], log_probs=reply.log_probs[offset:])

    def _next_turn(self, session: _ScriptPosition, input_ids: Sequence[int]) -> Turn:
        session.turns += 1
        if isinstance(self._turns, Sequence):
            if session.turns <= len(self._turns):
                return self._turns[session.turns - 1]
        elif isinstance(self._turns, Generator):
            try:
                if session.turns == 1:
                    return next(self._turns)
                read = self._reads()
                return self._turns.send(self._renderer.decode(input_ids[session.seen :]) if read is None else read)
            except StopIteration:
                # Falls through to the message below; a StopIteration may not leave a coroutine.
                session.open = None
        raise AssertionError(
            f"ScriptedEngine: asked for turn {session.turns}, but the script has {session.turns - 1}; "
            "add a turn or end the episode earlier"
        )

    def _generation(self, turn: Turn, prompt: Sequence[int] = ()) -> Generation:
        match turn:
            case Generation():
                return turn
            case Exception():
                raise turn
            case str():
                tokens = self._renderer.encode({"role": "assistant", "content": turn}, prompt)
            case Mapping():
                tokens = self._renderer.encode(turn, prompt)
            case _:
                raise TypeError(
                    "a turn is text, a message such as call(...) makes, a Generation or an exception to raise, "
                    f"not {turn!r}"
                )
        return Generation(tokens, [scripted_log_prob(token) for token in tokens], "stop")

    def _limit(self, reply: Generation, sampling_params: SamplingParams) -> Generation:
        """Cut a generation as SGLang would. At the same token, stop strings have priority over stop tokens, and stop
        tokens over the length."""
        tokens = reply.tokens
        ends = [(len(tokens), 3, reply.finish_reason, reply.matched)]
        if (budget := sampling_params.get("max_new_tokens")) is not None and budget <= len(tokens):
            ends.append((budget, 2, "length", None))
        stop_ids = self._renderer.stop_token_ids.union(sampling_params.get("stop_token_ids") or ())
        ends.extend((i + 1, 1, "stop", token) for i, token in enumerate(tokens) if token in stop_ids)
        ends.extend((self._end_of(stop, tokens), 0, "stop", stop) for stop in stop_strings(sampling_params))
        count, _, finish_reason, matched = min(ends, key=lambda end: end[:2])
        return replace(
            reply,
            tokens=list(tokens[:count]),
            log_probs=list(reply.log_probs[:count]),
            finish_reason=finish_reason,
            matched=matched,
        )

    def _end_of(self, stop: str, tokens: Sequence[int]) -> int:
        """The number of tokens after which the text contains `stop`. If the text does not contain `stop`, the number of
        all tokens plus 1."""
        decode = self._renderer.decode
        if stop not in decode(tokens):
            return len(tokens) + 1
        return bisect_left(range(len(tokens) + 1), True, key=lambda count: stop in decode(tokens[:count]))

    async def _play(self, reply: Generation, rid: str) -> Generation:
        rid = rid or uuid4().hex
        aborted = self.in_progress[rid] = asyncio.Event()
        clock = asyncio.get_running_loop().time
        start = clock()
        try:
            async with asyncio.timeout(self.turn_seconds):
                await aborted.wait()
        except TimeoutError:
            return reply
        finally:
            self.in_progress.pop(rid, None)
        count = int(len(reply.tokens) * min(1.0, (clock() - start) / self.turn_seconds)) if self.turn_seconds else 0
        return replace(
            reply, tokens=reply.tokens[:count], log_probs=reply.log_probs[:count], finish_reason="abort", matched=None
        )

    async def abort(self, rid: str | None = None) -> None:
        """End the request with the id `rid`, or all requests. A request that is not running is not an error."""
        for name, aborted in self.in_progress.items():
            if rid in (None, name):
                aborted.set()

    async def context_length(self) -> int:
        """The context length that the constructor got, in tokens."""
        return self._context_length

    async def close(self) -> None:
        """End running requests, and the generator."""
        await self.abort()
        if isinstance(self._turns, Generator):
            self._turns.close()
