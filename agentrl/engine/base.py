"""The protocol of an inference engine: token ids in, token ids and their log-probs out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypedDict, runtime_checkable

from agentrl.types import FinishReason, Message, ToolSpec

RETRY_S = 120.0
"""Seconds for which an unavailable engine is retried. A restart takes a minute; slime's own generate waits as long."""


class SamplingParams(TypedDict, total=False):
    """The sampling parameters that agentrl itself reads, with SGLang's names."""

    temperature: float
    """0 is greedy."""
    top_p: float
    top_k: int
    """-1 is unlimited."""
    max_new_tokens: int
    min_new_tokens: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    sampling_seed: int
    """With a seed, the only randomness of a token is a function of (seed, its position in the sequence)."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The original chat message of a turn, if a chat API produced it. The token ids are only an encoding of it."""

    message: Message
    """content, reasoning_content and tool_calls; see `agentrl.chat.client.Speaker`."""
    sent_back: Message
    """The same message, in the form that the speaker wants to read in its next turn."""
    by: Mapping[str, str] = field(default_factory=dict)
    """The model and its host."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """The answer's usage: tokens by the speaker's own count, and so on."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The answer of an engine. `log_probs[i]` is the natural log-prob of `tokens[i]` when it was sampled."""

    tokens: Sequence[int]
    log_probs: Sequence[float]
    finish_reason: FinishReason
    matched: int | str | None = None
    """The stop token or stop string that ended the generation. A stop token is the last of `tokens`."""
    weight_version: str | None = None
    """The weights that sampled the last token."""
    cached_tokens: int = 0
    """Prompt tokens that the engine found in its prefix cache."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Other data from the engine: SGLang's `meta_info` without the log-probs (routed experts, top-p ids, ...). It is
    never serialised."""
    earlier_versions: Sequence[tuple[str, int]] = ()
    """If the weights changed meanwhile: each version before `weight_version`, and the number of tokens that were
    sampled when it ended, in order."""
    said: ChatReply | None = None
    """The turn in messages, from a MessageEngine."""

    def versions(self) -> Iterator[tuple[str | None, int, int]]:
        """Each version with the range of the tokens that it sampled, in order; at least one, which may be empty."""
        at, end, any_yet = 0, len(self.tokens), False
        for version, stop in (*self.earlier_versions, (self.weight_version, end)):
            if at < (stop := min(stop, end)):
                yield version, at, stop
                at, any_yet = stop, True
        if not any_yet:
            yield self.weight_version, 0, end


class Engine(Protocol):
    """Generates one conversation turn at a time. Implementations: SGLangEngine, LocalEngine, ScriptedEngine."""

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


@runtime_checkable
class MessageEngine(Engine, Protocol):
    """An engine that is asked with messages, not with tokens: PlayerEngine. Its answers cannot be trained on."""

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

    A trainer calls `wake`, `update`, plays episodes, calls `sleep`, learns, and begins again.
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


class AsyncClosing:
    """`async with` for an engine: leaving it closes it."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
