"""reasoning-gym 0.1: `create_dataset(name, seed=, size=)[i]` is a dict with question, answer and metadata."""

import os
import time
from random import Random
from types import SimpleNamespace


class Sums:
    def __init__(self, seed, size, most=9):
        assert most > 0, "most must be positive"
        self.seed, self.size, self.most = seed, size, most

    def __getitem__(self, index):
        rng = Random(self.seed + index)
        a, b = rng.randint(1, self.most), rng.randint(1, self.most)
        return {"question": f"{a} + {b} = ?", "answer": str(a + b), "metadata": {"pair": (a, b)}}

    def score_answer(self, answer, entry):
        if answer == "hang":
            time.sleep(600)
        if answer == "die":
            os._exit(1)
        if answer == "raise":
            raise ZeroDivisionError
        assert isinstance(entry["metadata"]["pair"], tuple)
        return 1.0 if answer == entry["answer"] else 0.01 if answer else 0.0


def create_dataset(name, seed=None, size=500, **options):
    return factory.DATASETS[name][0](seed, size, **options)


factory = SimpleNamespace(DATASETS={"chain_sum": (Sums, None), "sums": (Sums, None)})
