"""The protocol of an inference engine: token ids in, token ids and their log-probs out."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, TypedDict, runtime_checkable

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
"""Seconds during which requests to an unavailable engine are repeated. A restart takes a minute; slime's own generate
waits as long."""
GRAMMAR_CHANGED = 0.02
"""The rise of a token's log-prob under a grammar from which the grammar counts as a change of the log-prob. At this
rise the grammar has excluded 2 % of the probability. SGLang's rounding between sampling and scoring stays below."""


def stop_strings(params: SamplingParams) -> Sequence[str]:
    """The stop strings of `params` as a sequence. Callers may set `stop` to a single string."""
    stop = params.get("stop") or ()
    return [stop] if isinstance(stop, str) else stop


class Engine(Protocol):
    """Generates a turn of a conversation at a time. Implementations: SGLangEngine, LocalEngine, ScriptedEngine.

    An engine class with `takes_grammars = True` obeys the sampling parameter `structural_tag`, and returns
    `Generation.constrained`.
    """

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str = "", rid: str = ""
    ) -> Generation:
        """Continue `input_ids`.

        `session_id` names the episode (for routing and the prefix cache), `rid` names this request (for `abort`).
        Cancelling the caller also ends the request. Raises EngineError if the engine returns no result. Raises the
        subclass RequestError for a faulty request, where a retry cannot help.
        """
        ...

    async def abort(self, rid: str | None = None) -> None:
        """End the request with the id `rid`, or all requests. Each request returns the tokens sampled so far, with
        finish_reason "abort"."""
        ...

    async def context_length(self) -> int:
        """The most tokens of a sequence (prompt and response) that the engine can hold."""
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
        """Continue `input_ids`, as `Engine.generate` does. `input_ids` has a single pad token for each of `images`. The
        engine replaces each pad by the tokens of its image."""
        ...


class RequestFields(TypedDict, total=False):
    """The keyword arguments of `generate`, which wrapping engines pass on. The key `images` is present only with
    images, so engines without images need no such parameter."""

    session_id: str
    rid: str
    images: Sequence[Image]


def ask(
    engine: Any, input_ids: Sequence[int], sampling_params: SamplingParams, request: RequestFields
) -> Awaitable[Generation]:
    """Send a request to an engine; see `Engine.generate`."""
    answer: Awaitable[Generation] = engine.generate(input_ids, sampling_params, **request)
    return answer


class MessageEngine(Engine, Protocol):
    """An engine that takes messages instead of tokens: ChatEngine. The class has `takes_messages = True`. The
    generations cannot be trained on."""

    takes_messages: Literal[True]

    async def answer(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling_params: SamplingParams,
        *,
        session_id: str = "",
        rid: str = "",
    ) -> Generation:
        """Generate the next assistant message, in the tokens of the renderer. `Generation.said` has the message itself.

        `max_new_tokens` counts tokens of the model behind the API. Raises the errors of `generate`, and
        ContextFullError if the conversation is longer than this model can read.
        """
        ...


def message_engine(engine: Any) -> MessageEngine | None:
    """The engine if its class has `takes_messages = True`, else None. A method `answer` alone is no such statement."""
    return engine if getattr(engine, "takes_messages", False) else None


@runtime_checkable
class TrainedEngine(Engine, Protocol):
    """An engine that samples from the weights in training: LocalEngine.

    A trainer calls `wake`, `update`, plays episodes, calls `sleep`, learns, and begins again. With `staleness` the
    trainer plays episodes while learning, and never calls `sleep`. Staleness needs an engine class with
    `own_weights = True`: such an engine samples from a copy of the weights, made in `update`. The generations name
    their `weight_version`.
    """

    async def update(self, model: Any, version: str) -> None:
        """Sample from the present weights of `model` from now on, and report these weights as `version`. No request may
        run.

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
    """An engine that stores data of each session: SGLangEngine."""

    def forget(self, session_id: str) -> None:
        """Delete the stored data of an ended session. A later request of the session costs more, and gives the same
        tokens."""
        ...


def forget(engine: Engine, session_id: str) -> None:
    """Report the end of a session to the engine, if the engine stores data of sessions."""
    if isinstance(engine, SessionEngine):
        engine.forget(session_id)


@dataclass(frozen=True, slots=True, eq=False)
class EngineWrapper:
    """The base class of engines that wrap another engine, the inner engine. Subclasses define `generate`. The owner of
    the inner engine closes it."""

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
    """A base class of engines. `async with` closes the engine at the end."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
