"""Asks an SGLang server for the model's log-probs of tokens. In this way a teacher scores a student's samples."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping, Sequence, Set
from typing import Any

from agentrl.engine.sglang.connections import Connections, patiently
from agentrl.errors import EngineError
from agentrl.types import RenderedImage, single_pads

_TIMEOUT_S = 600.0


async def score(
    connections: Connections,
    url: str,
    tokens: Sequence[int],
    count: int,
    *,
    media: Sequence[RenderedImage] = (),
    retry_s: float,
) -> Sequence[float]:
    """The log-probs [count] of the last `count` of these tokens, at temperature 1: SGLang divides only sampled logits
    by a temperature. `url` is the server's /generate. `media` are the images among the tokens. The tokens of images get
    0.0.

    Requests to an unavailable server are repeated for `retry_s` seconds. Raises EngineError or TimeoutError without a
    response that has a finite number for each token. Raises EngineError if the server reads an image in a different
    number of tokens.
    """
    if not count:
        return []
    fields: dict[str, Any] = {"input_ids": list(single_pads(array("i", tokens), media))}
    if media:
        fields["image_data"] = [image.image.uri for image in media]
    scored = await _ask(connections, url, fields, retry_s)
    if media and len(scored) != len(tokens):
        raise EngineError(
            f"the teacher read {len(scored)} tokens, and the student {len(tokens)}: it expands images otherwise, or "
            "reads text only"
        )
    pads = {index for image in media for index in range(image.start, image.stop)}
    return _log_probs(scored, tokens, count, pads)


def _log_probs(scored: Sequence[Any], tokens: Sequence[int], count: int, pads: Set[int]) -> list[float]:
    """The log-probs [count] of the last tokens. The tokens of images (pads) get 0.0, because servers return any token
    in their place.

    Raises EngineError unless the response has a finite number for every token except pads.
    """
    first = len(tokens) - count
    text_places = [i for i in range(count) if first + i not in pads]
    try:
        entries = scored[-count:]
        log_probs = {i: float(entries[i][0]) for i in text_places}
        ids = [int(entries[i][1]) for i in text_places]
    except (ValueError, TypeError, LookupError) as exc:
        raise EngineError(f"the teacher's answer holds no log-probs of the tokens it was given: {exc!r}") from exc
    asked = [tokens[first + i] for i in text_places]
    if not is_reported_as(asked, ids) or not all(map(math.isfinite, log_probs.values())):
        raise EngineError("the teacher's log-probs are not finite numbers for the tokens it was given")
    return [log_probs.get(i, 0.0) for i in range(count)]


def is_reported_as(tokens: Sequence[int], reported: Sequence[int]) -> bool:
    """Whether the ids in `input_token_logprobs` are those of the tokens. SGLang reports the vocabulary's last id as 0,
    with the right log-prob (logprob_result_processor.py), so 0 may stand for a single id."""
    if len(tokens) != len(reported):
        return False
    different = {pair for pair in zip(tokens, reported, strict=True) if pair[0] != pair[1]}
    return not different or (len(different) == 1 and all(id_reported == 0 for _, id_reported in different))


async def texts_of(connections: Connections, url: str, tokens: Sequence[int], *, retry_s: float) -> Sequence[str]:
    """The tokens' texts, decoded by the server's tokenizer. Raises the errors of `score`."""
    scored = await _ask(connections, url, {"input_ids": list(tokens), "return_text_in_logprobs": True}, retry_s)
    texts = [entry[2] for entry in scored if isinstance(entry, list) and len(entry) > 2 and isinstance(entry[2], str)]
    if len(texts) != len(tokens):
        raise EngineError("the teacher's answer does not hold the text of each token: does it have a tokenizer?")
    return texts


async def _ask(connections: Connections, url: str, fields: Mapping[str, Any], retry_s: float) -> Sequence[Any]:
    """The `input_token_logprobs` of the response: the log-prob, id and text of each token."""
    body = {
        **fields,
        "sampling_params": {"temperature": 1.0, "max_new_tokens": 0, "skip_special_tokens": False},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    raw = json.dumps(body).encode()
    answer = await patiently(lambda: connections.post(url, raw, {}, _TIMEOUT_S), retry_s)
    assert answer is not None  # without `ended`, the attempts never end early
    try:
        scored = json.loads(answer)["meta_info"]["input_token_logprobs"]
    except (ValueError, TypeError, LookupError) as exc:
        raise EngineError(f"the teacher's answer holds no log-probs of the tokens it was given: {exc!r}") from exc
    if not isinstance(scored, list):
        raise EngineError(f"the teacher's answer holds no log-probs of the tokens it was given: {scored!r:.80}")
    return scored
