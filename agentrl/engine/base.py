"""What agentrl needs of an inference engine: token ids in, token ids and their log-probs out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypedDict, runtime_checkable

from agentrl.types import FinishReason


class SamplingParams(TypedDict, total=False):
    """The sampling parameters that agentrl itself reads, spelled as SGLang spells them."""

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
    """With a seed, a token depends on (seed, its position in the sequence) and on nothing else that is random."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine sampled. `log_probs[i]` is the natural log-prob of `tokens[i]` when it was sampled."""

    tokens: Sequence[int]
    log_probs: Sequence[float]
    finish_reason: FinishReason
    matched: int | str | None = None
    """The stop token or stop string that ended it. A stop token is the last of `tokens`."""
    weight_version: str | None = None
    cached_tokens: int = 0
    """Prompt tokens that the engine found in its prefix cache."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What else the engine said (SGLang's `meta_info` without the log-probs: routed experts, top-p ids, ...); never
    serialised."""


class Engine(Protocol):
    """One conversation turn at a time. Implementations: SGLangEngine, LocalEngine, ScriptedEngine."""

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str = "", rid: str = ""
    ) -> Generation:
        """Continue `input_ids`.

        `session_id` names the episode (routing, prefix cache), `rid` this request (abort). A caller that is cancelled
        leaves no request running. Raises EngineError when there is no answer to be had, and of these RequestError when
        the request is to blame, so that asking again cannot help.
        """
        ...

    async def abort(self, rid: str | None = None) -> None:
        """End one request, or all; each returns what it has, with finish_reason "abort"."""
        ...

    async def context_length(self) -> int:
        """The longest sequence (prompt and response) the engine can hold, in tokens."""
        ...

    async def close(self) -> None:
        """Release connections, threads and memory. Safe to call twice."""
        ...


@runtime_checkable
class TrainedEngine(Engine, Protocol):
    """An engine that takes over the weights that are being trained: LocalEngine."""

    def load_weights(self, weights: Mapping[str, Any], version: str) -> None:
        """Answer with these weights, a state dict, from now on, and report them as `version`.

        A session's prefix computed with other weights is used no more.
        """
        ...


class AsyncClosing:
    """`async with` for an engine: leaving it closes it."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
