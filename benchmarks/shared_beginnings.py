"""What rows begin with alike: how often it is computed, and what that costs, with stems and without, side by side.

    python -m benchmarks.shared_beginnings              # two minutes

The rows are those of an agent's session that forgets (a window of 5 messages over 40 replies behind long instructions),
of a group with equal prompts, of a session whose thoughts are stripped, and of one with sub-agents. Tokens are random;
what they share is what matters. The model is a random Qwen2 of 2 layers, in float32. Both learn every row from the same
weights; the best of the rounds counts.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch

from agentrl.train import TrainConfig
from agentrl.train.batch import Row, micro_batches
from agentrl.train.learner import Learner
from agentrl.train.stems import unique_tokens

VOCABULARY, BUDGET = 2000, 2048
CHANCE = random.Random(0)


def some(count: int) -> list[int]:
    return [CHANCE.randrange(3, VOCABULARY) for _ in range(count)]


def row(prompt: Sequence[int], reply: Sequence[int]) -> Row:
    positions = range(len(prompt), len(prompt) + len(reply))
    return Row([*prompt, *reply], positions, [CHANCE.uniform(-1, 1) for _ in reply], [-7.0] * len(reply))


def window() -> list[Row]:
    """Instructions of 3,000 tokens; each reply of 26 sees the five messages before it, of 150."""
    instructions, said = some(3000), [some(150) for _ in range(44)]
    return [row([*instructions, *chain.from_iterable(said[at : at + 5])], some(26)) for at in range(40)]


def group() -> list[Row]:
    """Four prompts of 1,500 tokens, each with eight answers of 100."""
    return [row(prompt, some(100)) for prompt in [some(1500) for _ in range(4)] for _ in range(8)]


def stripped() -> list[Row]:
    """Two sessions of 20 turns: each reply of 120 tokens is kept as its last 30, and 80 more are observed."""
    found = []
    for _ in range(2):
        history = some(800)
        for _ in range(20):
            reply = some(120)
            found.append(row(history, reply))
            history = [*history, *reply[-30:], *some(80)]
    return found


def sub_agents() -> list[Row]:
    """A main line of 3,500 tokens, and 12 sub-agents that begin with a copy of its first 2,500, each 200 of its own."""
    main = some(3500)
    return [row(main, some(100)), *(row([*main[:2500], *some(150)], some(50)) for _ in range(12))]


CASES: dict[str, Callable[[], list[Row]]] = {
    "window": window,
    "group": group,
    "stripped": stripped,
    "sub-agents": sub_agents,
}


def model() -> Any:
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(**sizes, num_key_value_heads=2, vocab_size=VOCABULARY, max_position_embeddings=8192)
    return AutoModelForCausalLM.from_config(config).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    base = model()
    for name in args.cases or CASES:
        print(f"{name}: {json.dumps(compare(base, CASES[name](), args.rounds))}", flush=True)
    print(f"{os.cpu_count()} cores, one thread, load {os.getloadavg()[0]:.0f}, torch {torch.__version__}")


def compare(base: Any, rows: Sequence[Row], rounds: int) -> dict[str, Any]:
    config = TrainConfig.make(env="-", data="-", out="-", learning_rate=1e-6, minibatches=1, micro_batch_tokens=BUDGET)
    learners = {name: Learner(copy.deepcopy(base), config) for name in ("without", "with")}
    plain = learners["without"]
    plain.micro_batches = lambda rows, most: micro_batches(rows, most, plain.device, packing=plain.packing)  # type: ignore[method-assign]
    seconds, found = dict.fromkeys(learners, float("inf")), dict[str, Any]()
    for _ in range(rounds):
        for name, learner in learners.items():
            began = time.process_time()
            update = learner.learn(rows, step=1, normaliser=sum(len(row.positions) for row in rows))
            seconds[name] = min(seconds[name], time.process_time() - began)
            found.setdefault(name, update)
    read, unique = sum(row.length for row in rows), unique_tokens([row.read for row in rows])
    return {
        "rows": len(rows),
        "trained": sum(len(row.positions) for row in rows),
        "read": read,
        "unique": unique,
        "computed": {name: update.computed for name, update in found.items()},
        "computed_by_unique": {name: round(update.computed / unique, 2) for name, update in found.items()},
        "seconds": {name: round(used, 2) for name, used in seconds.items()},
        "times_as_fast": round(seconds["without"] / seconds["with"], 2),
        "difference_of_losses": abs(found["with"].loss - found["without"].loss),
        "difference_of_gradients": abs(found["with"].grad_norm / found["without"].grad_norm - 1),
    }


if __name__ == "__main__":
    main()
