"""Log-probs of trained tokens, computed in pieces where the logits of all tokens at once would fill the memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from agentrl.models.adapter import without_adapter
from agentrl.train.loss import token_log_probs

log = logging.getLogger("agentrl")

PIECE_BYTES = 64 << 20
"""The most bytes of float32 logits in memory at once. The copies and gradients of these logits take about four times as
much in addition."""

_TOLERANCE = {torch.float32: 1e-5, torch.float16: 0.03, torch.bfloat16: 0.2}
"""Type of the weights -> the largest difference between two computations of the same logits that still counts as
rounding. The unit is the standard deviation of the logits.

In bfloat16, two attention kernels differ by .04 with 4 layers and by .09 with 36 (Qwen3's shapes, random weights). A
token that is shifted by a position changes logits by 5 to 7.
"""

Finish: TypeAlias = Callable[[Tensor], Tensor]
"""A function that changes the output of a model's last layer."""

_finishes: WeakKeyDictionary[Any, Finish | None] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Halves:
    """A causal language model in two halves: `body` computes hidden states from tokens, `head` and `finish` compute
    logits from hidden states."""

    body: Any
    head: Any
    finish: Finish

    def hidden_states(self, **inputs: Tensor) -> Tensor:
        """The hidden states [rows, length, width] of the last layer."""
        hidden: Tensor = self.body(**inputs, use_cache=False).last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return self.finish(self.head(hidden))

    def log_probs(
        self,
        hidden: Tensor,
        targets: Tensor,
        temperature: float,
        vocabulary: int,
        forbidden: Tensor | None = None,
    ) -> Tensor:
        """Log-probs [n] of the token ids `targets` [n] that follow the hidden states `hidden` [n, width]. The backward
        pass computes the logits again. The softmax leaves out the ids `forbidden`."""

        def of_piece(hidden: Tensor, targets: Tensor) -> Tensor:
            return token_log_probs(self.logits(hidden), targets, temperature, forbidden)

        size = max(1, PIECE_BYTES // (4 * vocabulary))
        pieces = zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
        return torch.cat([checkpoint(of_piece, *piece, use_reentrant=False) for piece in pieces])


def vocabulary(model: Any) -> int:
    """The size of a model's vocabulary; 0 if the model does not declare the size."""
    config = getattr(model, "config", None)
    return 0 if config is None else int(config.get_text_config().vocab_size)


def take_apart(model: Any) -> Halves | None:
    """The two halves of a transformers model or peft model. None if the halves together do not give the model's
    logits."""
    whole = without_adapter(model)
    body, head = whole.base_model, whole.get_output_embeddings()
    if body is whole or head is None:
        return None
    if model not in _finishes:
        halves = Halves(body, head, _finish(whole.config.get_text_config()))
        _finishes[model] = halves.finish if (fit := _fit(halves, model)) else None
        if not fit:
            log.warning(
                "the logits of %s are computed as a whole: computed in parts, they differ", type(whole).__name__
            )
    finish = _finishes[model]
    return None if finish is None else Halves(body, head, finish)


def _finish(config: Any) -> Finish:
    """The function that changes the output of the head, by the model's configuration: a soft cap (Gemma), a divisor
    (Granite) or a factor (Cohere)."""
    cap = getattr(config, "final_logit_softcapping", None)
    divisor = getattr(config, "logits_scaling", None)
    factor = getattr(config, "logit_scale", None)
    if cap:
        return lambda logits: torch.tanh(logits / cap) * cap
    if divisor:
        return lambda logits: logits / divisor
    if factor:
        return lambda logits: logits * factor
    return lambda logits: logits


@torch.no_grad()
def _fit(halves: Halves, model: Any) -> bool:
    """Whether the two halves together give the model's own logits, tried on a few tokens."""
    ids = probe(model)
    try:
        whole = model(input_ids=ids, use_cache=False).logits.float()
        parts = halves.logits(halves.hidden_states(input_ids=ids)).float()
    except (TypeError, AttributeError, RuntimeError):  # a body with other arguments or another kind of output
        return False
    return alike(whole, parts, model.dtype)


def probe(model: Any) -> Tensor:
    """Twelve token ids, as a tensor of shape [1, 12], with which two computations of the same model are compared."""
    size = vocabulary(model)
    return torch.tensor([[(17 + 29 * i * i) % size for i in range(12)]], device=model.device)


def alike(logits: Tensor, others: Tensor, dtype: torch.dtype) -> bool:
    """Whether two tensors of logits differ by rounding alone. `dtype` is the type of the model's weights. NaN counts as
    equal, because other checks report NaN."""
    off = (logits - others).abs().max() / logits.std()
    return not bool(off > _TOLERANCE.get(dtype, 0.2))
