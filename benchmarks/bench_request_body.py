"""Milliseconds to encode the request of one more turn: the whole history by json.dumps, or only what is new.

python benchmarks/bench_request_body.py
"""

from __future__ import annotations

import json
import random
import time
from array import array
from collections.abc import Callable
from statistics import median
from typing import TypeVar

from agentrl.engine.sglang.client import _body
from agentrl.engine.sglang.encoding import HistoryEncoder

FIELDS = {"sampling_params": {"temperature": 1.0, "max_new_tokens": 512}, "return_logprob": True, "stream": False}
NEW_TOKENS = 500
TURNS = 15


Ids = TypeVar("Ids", list[int], "array[int]")


def milliseconds(encode: Callable[[Ids], bytes], history: Ids) -> tuple[float, list[bytes]]:
    """The median over turns that grow `history`, and the bodies."""
    rng = random.Random(0)
    history = history[:]
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
    print(f"{'history':>10} {'json.dumps':>12} {'of a list':>12} {'of an array':>12} {'ratio':>7}")
    for tokens in (2_000, 8_000, 32_000, 70_000, 128_000):
        rng = random.Random(tokens)
        history = [rng.randrange(150_000) for _ in range(tokens)]
        lists, arrays = HistoryEncoder(), HistoryEncoder()
        whole, expected = milliseconds(lambda ids: json.dumps({"input_ids": ids, **FIELDS}).encode(), history)
        new, bodies = milliseconds(lambda ids, e=lists: _body(e.encode("s", ids), FIELDS), history)
        # A trajectory keeps its tokens in an array.
        kept, same = milliseconds(lambda ids, e=arrays: _body(e.encode("s", ids), FIELDS), array("i", history))
        if bodies != expected or same != expected:
            raise SystemExit(f"{tokens} tokens: the bodies differ")
        print(f"{tokens:>10,} {whole:>9.2f} ms {new:>9.2f} ms {kept:>9.2f} ms {whole / kept:>6.1f}x")


if __name__ == "__main__":
    main()
