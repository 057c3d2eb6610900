"""One call of `generate`, and the possible ends."""

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
    """One call of `generate`, from waiting to answered. Fields below `aborted` belong to the worker thread."""

    input_ids: list[int]
    """Token ids. An image has one pad for each merged patch."""
    sampling: Sampling
    session_id: str = ""
    rid: str = ""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of the waiting caller."""
    future: Future[Generation] = field(default_factory=Future)
    media: Sequence[RenderedImage] = ()
    """The images among `input_ids`."""
    positions: Tensor | None = None
    """[3, tokens of the prompt], for rotary embeddings. None: a token's column is the token's position."""
    grammar: GrammarState | None = None
    """The grammar state of the answer, advanced by the worker thread."""
    aborted: bool = False
    """Set by `abort`, from any thread."""
    tokens: list[int] = field(default_factory=list)
    """Prompt and response."""
    log_probs: list[float] = field(default_factory=list)
    constrained: list[bool] = field(default_factory=list)
    """With a grammar, for each token of the response: whether the grammar changed the token's log-prob."""
    cached_tokens: int = 0
    computed: int = 0
    """How many of `tokens` have their keys and values in memory."""

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for the answer: the caller was cancelled, or the caller's event loop is closed."""
        return self.future.cancelled() or (self.loop is not None and self.loop.is_closed())

    def content(self) -> tuple[Any, ...]:
        """A sort key independent of arrival times. Random ids decide only between requests equal in all other
        respects.
        """
        images = [image.image.uri for image in self.media]
        tag = self.sampling.structural_tag or ""
        return self.input_ids, images, self.sampling.seed, tag, self.session_id, self.rid


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that has left the batch with an answer."""

    request: GenerateRequest
    reason: FinishReason
    matched: int | str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that has left the batch without an answer."""

    request: GenerateRequest
    error: EngineError


Outcome: TypeAlias = Finished | Failed
