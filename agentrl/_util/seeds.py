"""Sampling seeds from names and numbers."""

from __future__ import annotations

import hashlib


def sampling_seed(*parts: str | int) -> int:
    """A seed of 31 bits that depends on every part. SGLang's kernels take int32."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def nth_seed(seed: int, number: int) -> int:
    """The seed of sampling `number` among several with a common `seed`. Number 0 has `seed` itself.

    The result is not a sum. Hosts give a group's episodes consecutive seeds, so sums of different episodes would be
    equal.
    """
    return sampling_seed(seed, number) if number else seed
