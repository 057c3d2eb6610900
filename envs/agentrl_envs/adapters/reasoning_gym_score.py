"""A script that runs the suite's scorer in a separate process. The script does not import agentrl, so it starts
fast."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Mapping
from functools import lru_cache
from typing import Any


def packed(metadata: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """A question as data for the script. The script cannot generate the question anew: some questions depend on the
    order of a set, which differs between processes."""
    return base64.b64encode(pickle.dumps((dict(metadata), dict(entry)))).decode()


def score(question: str, answer: str | None) -> float:
    metadata, entry = pickle.loads(base64.b64decode(question))
    dataset = _made(metadata["dataset"], json.dumps(metadata["options"]), metadata["seed"], metadata["size"])
    return float(dataset.score_answer(answer=answer, entry=entry))


@lru_cache(maxsize=256)
def _made(name: str, options: str, seed: int, size: int) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, seed=seed, size=size, **json.loads(options))
