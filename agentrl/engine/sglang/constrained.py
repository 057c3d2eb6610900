"""Finds the tokens changed by a grammar. Under a grammar, SGLang's log-probs belong to the constrained distribution.
The same tokens are scored again without the grammar, and compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.engine.base import GRAMMAR_CHANGED
from agentrl.image import Image
from agentrl.types import Generation

GRAMMARS = frozenset({"json_schema", "regex", "ebnf", "structural_tag"})
"""SGLang's sampling parameters for grammars."""


def is_comparable(generation: Generation, sampling_params: Mapping[str, Any], images: Sequence[Image]) -> bool:
    """Whether the tokens can be scored without the grammar. A score is at temperature 1, and of a single set of
    weights.

    With images, tokens for media must have been forbidden: a sampled media token would stand for one image more.
    """
    whole = generation.finish_reason != "abort" and not generation.earlier_versions
    forbidden = sampling_params.get("logit_bias") or {}
    readable = not images or (forbidden and not any(str(token) in forbidden for token in generation.tokens))
    return bool(whole and readable and sampling_params.get("temperature", 1.0) == 1.0)


def scoring_body(
    prompt: Sequence[int], generation: Generation, images: Sequence[Image], fields: Mapping[str, Any]
) -> bytes:
    """The request to score the tokens of a generation. `fields` select the policy, such as a LoRA adapter.

    `prompt` has one pad for each image. SGLang expands the pads, so SGLang counts the prompt's tokens.
    """
    length = generation.meta.get("prompt_tokens") if images else None
    body = {
        **fields,
        "input_ids": [*prompt, *generation.tokens],
        **({"image_data": [image.uri for image in images]} if images else {}),
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": (length if isinstance(length, int) else len(prompt)) - 1,
        "stream": False,
    }
    return json.dumps(body).encode()


def constrained(generation: Generation, answer: bytes) -> list[bool]:
    """For each token, whether the grammar has changed the probability. All True if the answer does not tell."""
    count = len(generation.tokens)
    try:
        meta = json.loads(answer)["meta_info"]
        scored = meta["input_token_logprobs"][-count:]
        same = [int(entry[1]) for entry in scored] == list(generation.tokens)
        version = meta.get("weight_version")
        if not same or (None if version is None else str(version)) != generation.weight_version:
            return [True] * count
        pairs = zip(generation.log_probs, (float(entry[0]) for entry in scored), strict=True)
        return [not log_prob - free < GRAMMAR_CHANGED for log_prob, free in pairs]
    except (ValueError, TypeError, LookupError):
        return [True] * count
