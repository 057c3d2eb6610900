"""The command of a training in a host, and the sizes that it has in common with the quickstart's `train.yaml`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

LIMITS = {"turns": 4, "max_tokens_per_turn": 48}
PROMPTS, GROUP, UPDATES = 8, 8, 2
"""Tasks of a step, episodes of a task, and updates of a step."""


@dataclass(frozen=True, slots=True)
class Run:
    model: str
    """The folder of the model at the start: of a run of `agentrl train`, or of Hugging Face."""
    out: str
    """The folder of the trained model."""
    env: str
    tokens: int
    """How many tokens to sample, at least: the training ends after this step."""
    seed: int
    learning_rate: float

    @classmethod
    def of_command(cls, learning_rate: float) -> Run:
        parser = argparse.ArgumentParser()
        parser.add_argument("model")
        parser.add_argument("out")
        parser.add_argument("--env", required=True)
        parser.add_argument("--tokens", type=int, required=True)
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--learning-rate", type=float, default=learning_rate)
        values = vars(parser.parse_args())
        folder = Path(values["model"])
        return cls(**{**values, "model": str(folder / "model" if (folder / "model").is_dir() else folder)})

    def write(self, train: Callable[[Run], tuple[int, int]]) -> None:
        """Train, and write the cost beside the model."""
        began = time.monotonic()
        updates, tokens = train(self)
        cost = {**asdict(self), "steps": updates, "tokens": tokens, "seconds": time.monotonic() - began}
        (Path(self.out) / "cost.json").write_text(json.dumps(cost), encoding="utf-8")
