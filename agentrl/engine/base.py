"""The protocol of an inference engine: token ids in, token ids and their log-probs out."""

from __future__ import annotations

from collections.abc import Sequence
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
"""A token's log-prob that a grammar raises by so much counts as changed: it excluded 2 % of the probability. SGLang's
rounding between sampling and scoring stays below it."""


def stop_strings(params: SamplingParams) -> Sequence[str]:
    """`stop`, which callers may give as one string."""
    stop = params.get("stop") or ()
    return [stop] if isinstance(stop, str) else stop


class Engine(Protocol):
    """Generates one conversation turn at a time. Implementations: SGLangEngine, LocalEngine, ScriptedEngine.

    An engine whose class has `takes_grammars = True` obeys `structural_tag`, and returns `Generation.constrained`.
    """

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str = "", rid: str = ""
    ) -> Generation:
        """Continue `input_ids`.

        `session_id` names the episode (for routing and the prefix cache), `rid` names this request (for `abort`).
        Cancelling the caller also ends the request. Raises EngineError when the engine gives no answer. Raises its
        subclass RequestError when the request is at fault, so another attempt cannot help.
        """
        ...

    async def abort(self, rid: str | None = None) -> None:
        """End one request, or all. Each returns the tokens sampled so far, with finish_reason "abort"."""
        ...

    async def context_length(self) -> int:
        """The longest sequence (prompt and response) the engine can hold, in tokens."""
        ...

    async def close(self) -> None:
        """Release connections, threads and memory. Safe to call twice."""
        ...


class ImageEngine(Engine, Protocol):
    """An engine whose model reads images. Its class has `takes_images = True`."""

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        session_id: str = "",
        rid: str = "",
        images: Sequence[Image] = (),
    ) -> Generation:
        """As `Engine.generate`. `input_ids` has one pad token for each of `images`, which the engine expands."""
        ...


class RequestFields(TypedDict, total=False):
    """The keywords of `generate`, which an engine around another one passes on. `images` only where there are any, so
    that other engines need not know it."""

    session_id: str
    rid: str
    images: Sequence[Image]


async def ask(
    engine: Any, input_ids: Sequence[int], sampling_params: SamplingParams, request: RequestFields
) -> Generation:
    """The engine's answer to a request; see `Engine.generate`."""
    generation: Generation = await engine.generate(input_ids, sampling_params, **request)
    return generation


@runtime_checkable
class MessageEngine(Engine, Protocol):
    """An engine that is asked with messages, not with tokens: ChatEngine. Its answers cannot be trained on."""

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

    A trainer calls `wake`, `update`, plays episodes, calls `sleep`, learns, and begins again. With `staleness` it plays
    episodes while it learns, and calls `sleep` never. That needs an engine whose class says `own_weights = True`: it
    samples from a copy of the weights, made in `update`. Its generations name their `weight_version`.
    """

    async def update(self, model: Any, version: str) -> None:
        """Sample from the weights that `model` has now, and report them as `version`. No request may run.

        `model` is a transformers model, or a peft model around one. Prefixes that were computed with other weights are
        not reused. Raises EngineError if the weights did not arrive.
        """
        ...

    async def sleep(self) -> None:
        """Free the device for training. No request may run. Does nothing if the device is not shared."""
        ...

    async def wake(self) -> None:
        """Take the device back, before the next `update`. Weights and prefixes may be gone until then."""
        ...


@runtime_checkable
class SessionEngine(Engine, Protocol):
    """An engine that keeps something of each session: SGLangEngine."""

    def forget(self, session_id: str) -> None:
        """Drop what is kept of a session that has ended. A later request of it costs more, and is answered alike."""
        ...


def forget(engine: Engine, session_id: str) -> None:
    """Report the end of a session to an engine that keeps something of it."""
    if isinstance(engine, SessionEngine):
        engine.forget(session_id)


@dataclass(frozen=True, slots=True, eq=False)
class EngineWrapper:
    """What engines around another one have in common. Subclasses have `generate`. The other one's owner closes it."""

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
    """`async with` for an engine closes it at the end."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
