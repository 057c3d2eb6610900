"""A call of `generate` in the engine, and its two ends: finished or failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from agentrl.engine.local.sampling import Sampling
from agentrl.errors import EngineError
from agentrl.types import FinishReason, Generation, RenderedImage

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.engine.local.grammar import GrammarState


@dataclass(slots=True, eq=False)
class GenerateRequest:
    """A call of `generate`, from its arrival to its result. The worker thread owns the fields below `aborted`."""

    input_ids: list[int]
    """The token ids of the prompt. An image has a pad token for each merged patch."""
    sampling: Sampling
    session_id: str = ""
    rid: str = ""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of the caller."""
    future: Future[Generation] = field(default_factory=Future)
    media: Sequence[RenderedImage] = ()
    """The images among `input_ids`."""
    positions: Tensor | None = None
    """The positions [3, tokens of the prompt] for rotary embeddings. None: the position of a token is its index."""
    grammar: GrammarState | None = None
    """The position of the response in its grammar. The worker thread advances the position."""
    aborted: bool = False
    """Whether `abort` was called for the request, from any thread."""
    tokens: list[int] = field(default_factory=list)
    """The ids of the prompt and of the response so far."""
    log_probs: list[float] = field(default_factory=list)
    constrained: list[bool] = field(default_factory=list)
    """With a grammar, for each token of the response: whether the grammar changed the token's log-prob."""
    cached_tokens: int = 0
    computed: int = 0
    """The number of `tokens` whose keys and values are in memory."""

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for the result: the caller was cancelled, or its event loop is closed."""
        return self.future.cancelled() or (self.loop is not None and self.loop.is_closed())

    def content(self) -> tuple[Any, ...]:
        """A sort key that does not depend on arrival times. Random ids decide only between requests that are equal in
        all other respects."""
        images = [image.image.uri for image in self.media]
        tag = self.sampling.structural_tag or ""
        return self.input_ids, images, self.sampling.seed, tag, self.session_id, self.rid


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that has left the batch with a result."""

    request: GenerateRequest
    reason: FinishReason
    matched: int | str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that has left the batch with an error."""

    request: GenerateRequest
    error: EngineError


Outcome: TypeAlias = Finished | Failed
