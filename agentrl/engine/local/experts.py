"""The experts that a mixture-of-experts model chooses for each token, for a trainer that replays them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from agentrl.errors import RequestError


def experts_of(config: Any) -> int:
    """The number of experts of a token, from a model's text config; 0 for a model without experts."""
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    return int(getattr(config, "num_experts_per_tok", 0) or 0) if experts else 0


def route(model: Any, tokens: Sequence[int]) -> list[list[list[int]]]:
    """The experts of each token in each layer, the likeliest first: (tokens, layers, experts of a token).

    Raises RequestError for a model in which some layers have no experts.
    """
    config = model.config.get_text_config()
    with torch.no_grad():
        output = model(torch.tensor([list(tokens)], device=model.device), output_router_logits=True, use_cache=False)
    layers = output.router_logits
    if len(layers) != config.num_hidden_layers:
        raise RequestError(f"{len(layers)} of {config.num_hidden_layers} layers have experts: they cannot be returned")
    chosen = [logits.float().topk(experts_of(config), dim=-1).indices for logits in layers]
    routes: list[list[list[int]]] = torch.stack(chosen, dim=1).tolist()
    return routes
