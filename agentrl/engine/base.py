"""The protocol of an inference engine: token ids in, token ids and their log-probs out."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypedDict, runtime_checkable

from agentrl.image import Image
from agentrl.types import ChatReply, Generation, Message, SamplingParams, ToolSpec

__all__ = [
    "RETRY_S",
    "AsyncClosing",
    "ChatReply",
    "Engine",
    "EngineWrapper",
    "Generation",
    "ImageEngine",
    "MessageEngine",
    "RequestFields",
    "SamplingParams",
    "TrainedEngine",
    "ask",
    "stop_strings",
]

RETRY_S = 120.0
"""Seconds for which an unavailable engine is retried. A restart takes a minute; slime's own generate waits as long."""
GRAMMAR_CHANGED = 0.02
"""The rise of a token's log-prob under a grammar that counts as a change: 2 % of the probability was excluded. SGLang's
rounding between sampling and scoring stays below this value.
"""


def stop_strings(params: SamplingParams) -> Sequence[str]:
    """`stop` as a sequence: callers may give a single string."""
    stop = params.get("stop") or ()
    return [stop] if isinstance(stop, str) else stop


class Engine(Protocol):
    """Generates one conversation turn at a time. Implementations: SGLangEngine, LocalEngine, ScriptedEngine.

    An engine class with `takes_grammars = True` obeys `structural_tag`, and returns `Generation.constrained`.
    """

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str = "", rid: str = ""
    ) -> Generation:
        """Continue `input_ids`.

        `session_id` names the episode (for routing and the prefix cache), `rid` names this request (for `abort`).
        Cancelling the caller also ends the request. Raises EngineError without an answer of the engine. Raises the
        subclass RequestError for a faulty request, where a retry cannot help.
        """
        ...

    async def abort(self, rid: str | None = None) -> None:
        """End one request, or all. Each request returns the tokens sampled so far, with finish_reason "abort"."""
        ...

    async def context_length(self) -> int:
        """The longest sequence (prompt and response) the engine can hold, in tokens."""
        ...

    async def close(self) -> None:
        """Release connections, threads and memory. Safe to call twice."""
        ...


class ImageEngine(Engine, Protocol):
    """An engine for a model that reads images. The class has `takes_images = True`."""

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        session_id: str = "",
        rid: str = "",
        images: Sequence[Image] = (),
    ) -> Generation:
        """As `Engine.generate`. `input_ids` has one pad token for each of `images`. The engine expands the pads."""
        ...


class RequestFields(TypedDict, total=False):
    """The keywords of `generate`, passed on by wrapping engines. `images` is present only with images, so engines
    without images need no such parameter.
    """

    session_id: str
    rid: str
    images: Sequence[Image]


def ask(
    engine: Any, input_ids: Sequence[int], sampling_params: SamplingParams, request: RequestFields
) -> Awaitable[Generation]:
    """The engine's answer to a request; see `Engine.generate`."""
    answer: Awaitable[Generation] = engine.generate(input_ids, sampling_params, **request)
    return answer


@runtime_checkable
class MessageEngine(Engine, Protocol):
    """An engine that takes messages instead of tokens: ChatEngine. The answers cannot be trained on."""

    async def answer(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling_params: SamplingParams,
        *,
        session_id: str = "",
        rid: str = "",
    ) -> Generation:
        """The next assistant message in the renderer's tokens, with `said`.

        `max_new_tokens`, if given, counts the speaker's tokens. Raises as `generate` does, and ContextFullError if the
        conversation is longer than the speaker can read.
        """
        ...


@runtime_checkable
class TrainedEngine(Engine, Protocol):
    """An engine that samples from the weights in training: LocalEngine.

    A trainer calls `wake`, `update`, plays episodes, calls `sleep`, learns, and begins again. With `staleness` the
    trainer plays episodes while learning, and never calls `sleep`. Staleness needs an engine class with
    `own_weights = True`: such an engine samples from a copy of the weights, made in `update`. The generations name
    their `weight_version`.
    """

    async def update(self, model: Any, version: str) -> None:
        """Sample from the present weights of `model`, and report the weights as `version`. No request may run.

        `model` is a transformers model, or a peft model around a transformers model. Prefixes computed with old weights
        are not reused. Raises EngineError if the weights did not arrive.
        """
        ...

    async def sleep(self) -> None:
        """Free the device for training. No request may run. Has no effect if the device is not shared."""
        ...

    async def wake(self) -> None:
        """Take the device back, before the next `update`. Weights and prefixes may be gone until then."""
        ...


@runtime_checkable
class SessionEngine(Engine, Protocol):
    """An engine with a memory of each session: SGLangEngine."""

    def forget(self, session_id: str) -> None:
        """Drop the memory of an ended session. A later request of the session costs more, with the same answer."""
        ...


def forget(engine: Engine, session_id: str) -> None:
    """Report the end of a session to an engine with a memory of sessions."""
    if isinstance(engine, SessionEngine):
        engine.forget(session_id)


@dataclass(frozen=True, slots=True, eq=False)
class EngineWrapper:
    """The common part of engines around an inner engine. Subclasses have `generate`. The inner engine's owner closes
    the inner engine.
    """

    engine: Engine

    @property
    def takes_images(self) -> bool:
        return getattr(self.engine, "takes_images", False)

    @property
    def takes_grammars(self) -> bool:
        return getattr(self.engine, "takes_grammars", False)

    async def abort(self, rid: str | None = None) -> None:
        await self.engine.abort(rid)

    async def context_length(self) -> int:
        return await self.engine.context_length()

    def forget(self, session_id: str) -> None:
        forget(self.engine, session_id)

    async def close(self) -> None:
        pass


class AsyncClosing:
    """`async with` for an engine closes the engine at the end."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
