"""Asks an SGLang server for its model's log-probs of given tokens: a teacher scores what a student sampled."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.engine.sglang.connections import Connections, UnavailableError
from agentrl.errors import EngineError

_TIMEOUT_S = 600.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
"""Seconds between attempts when the server is away. They double."""
_MAX_RETRY_AFTER_S = 60.0


async def score(
    connections: Connections, url: str, tokens: Sequence[int], count: int, *, retry_s: float
) -> Sequence[float]:
    """The log-probs [count] of the last `count` of these tokens at temperature 1: SGLang divides only what it samples
    by a temperature. `url` is the server's /generate.

    A server that is away is asked again for `retry_s` seconds. Raises EngineError, or TimeoutError, without an answer
    that has a finite number for each token.
    """
    if not count:
        return []
    scored = await _ask(connections, url, {"input_ids": list(tokens)}, retry_s)
    try:
        found, ids = [float(entry[0]) for entry in scored[-count:]], [int(entry[1]) for entry in scored[-count:]]
    except (ValueError, TypeError, LookupError) as exc:
        raise EngineError(f"the teacher's answer holds no log-probs of the tokens it was given: {exc!r}") from exc
    if ids != list(tokens[-count:]) or not all(math.isfinite(value) for value in found):
        raise EngineError("the teacher's log-probs are not finite numbers for the tokens it was given")
    return found


async def texts_of(connections: Connections, url: str, tokens: Sequence[int], *, retry_s: float) -> Sequence[str]:
    """What the server's own tokenizer makes of each token. Raises as `score` does."""
    scored = await _ask(connections, url, {"input_ids": list(tokens), "return_text_in_logprobs": True}, retry_s)
    texts = [entry[2] for entry in scored if isinstance(entry, list) and len(entry) > 2 and isinstance(entry[2], str)]
    if len(texts) != len(tokens):
        raise EngineError("the teacher's answer does not hold the text of each token: does it have a tokenizer?")
    return texts


async def _ask(connections: Connections, url: str, given: Mapping[str, Any], retry_s: float) -> Sequence[Any]:
    """`input_token_logprobs` of the answer: for each token its log-prob, its id and its text."""
    body = {
        **given,
        "sampling_params": {"temperature": 1.0, "max_new_tokens": 0, "skip_special_tokens": False},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    answer = await _post(connections, url, json.dumps(body).encode(), retry_s)
    try:
        scored = json.loads(answer)["meta_info"]["input_token_logprobs"]
    except (ValueError, TypeError, LookupError) as exc:
        raise EngineError(f"the teacher's answer holds no log-probs of the tokens it was given: {exc!r}") from exc
    if not isinstance(scored, list):
        raise EngineError(f"the teacher's answer holds no log-probs of the tokens it was given: {scored!r:.80}")
    return scored


async def _post(connections: Connections, url: str, body: bytes, retry_s: float) -> bytes:
    pause, waited = _PAUSE_S, 0.0
    while True:
        try:
            return await connections.post(url, body, {}, _TIMEOUT_S)
        except UnavailableError as exc:
            if waited >= retry_s:
                raise
            seconds = max(pause, min(exc.retry_after, _MAX_RETRY_AFTER_S))
            await asyncio.sleep(seconds)
            waited, pause = waited + seconds, min(2 * pause, _LONGEST_PAUSE_S)
