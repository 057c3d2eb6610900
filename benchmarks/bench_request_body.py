"""Milliseconds to encode the request of one more turn: the whole history by json.dumps, or only what is new.

python benchmarks/bench_request_body.py
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from statistics import median

from agentrl.engine.sglang.client import _body
from agentrl.engine.sglang.encoding import HistoryEncoder

FIELDS = {"sampling_params": {"temperature": 1.0, "max_new_tokens": 512}, "return_logprob": True, "stream": False}
NEW_TOKENS = 500
TURNS = 15


def milliseconds(encode: Callable[[list[int]], bytes], history: list[int]) -> tuple[float, list[bytes]]:
    """The median over turns that grow `history`, and the bodies."""
    rng = random.Random(0)
    history = list(history)
    encode(history)
    seconds, bodies = [], []
    for _ in range(TURNS):
        history.extend(rng.randrange(150_000) for _ in range(NEW_TOKENS))
        start = time.perf_counter()
        bodies.append(encode(history))
        seconds.append(time.perf_counter() - start)
    return 1000 * median(seconds), bodies


def main() -> None:
    print(f"one turn of {NEW_TOKENS} new tokens, median of {TURNS}")
    print(f"{'history':>10} {'json.dumps':>12} {'incremental':>12} {'ratio':>7}")
    for tokens in (2_000, 8_000, 32_000, 70_000, 128_000):
        rng = random.Random(tokens)
        history = [rng.randrange(150_000) for _ in range(tokens)]
        encoder = HistoryEncoder()
        whole, expected = milliseconds(lambda ids: json.dumps({"input_ids": ids, **FIELDS}).encode(), history)
        new, bodies = milliseconds(lambda ids, e=encoder: _body(e.encode("s", ids), FIELDS), history)
        if bodies != expected:
            raise SystemExit(f"{tokens} tokens: the bodies differ")
        print(f"{tokens:>10,} {whole:>9.2f} ms {new:>9.2f} ms {whole / new:>6.1f}x")


if __name__ == "__main__":
    main()
