"""A warm start that learns its demonstrations by heart is reported, and one that learns their form is not."""

from __future__ import annotations

import io
from random import Random

import pytest
from rich.console import Console

from agentrl.monitor.canaries import learned_by_heart
from agentrl.train import Trainer
from agentrl.train.config import WarmStartConfig
from agentrl.train.warm_start import Demonstration, keep_apart, passes


def config(steps=1000, **values):
    return WarmStartConfig(demonstrations="unread.jsonl", steps=steps, **values)


def some(count, prompts=None):
    return [Demonstration([1, n % (prompts or count), 3, n], [0, 0, 0, 1]) for n in range(count)]


def test_a_few_are_kept_apart_and_no_prompt_is_on_both_sides():
    every = some(400, prompts=80)
    learned, apart = keep_apart(every, config(), seed=0)
    assert len(learned) + len(apart) == 400
    assert 20 <= len(apart) <= 24
    assert {d.tokens[1] for d in learned}.isdisjoint(d.tokens[1] for d in apart)
    assert [d for d in every if d in learned] == learned
    assert keep_apart(every, config(), seed=0) == (learned, apart)
    assert keep_apart(every, config(), seed=1)[1] != apart


@pytest.mark.parametrize(
    ("demonstrations", "steps"),
    [(some(100), 1000), (some(1000), 40), (some(400, prompts=1), 1000)],
    ids=["too few", "each is read about once", "one prompt"],
)
def test_none_is_kept_apart(demonstrations, steps):
    assert keep_apart(demonstrations, config(steps), seed=0) == (demonstrations, [])


def test_passes():
    assert passes(640, config(40, batch_size=32)) == 2


def losses(mean, spread, count=32):
    rng = Random(0)
    return [max(0.0, rng.gauss(mean, spread)) for _ in range(count)]


@pytest.mark.parametrize(
    ("learned", "apart", "warns"),
    [
        (losses(0.003, 0.001), losses(0.4, 0.2), True),
        (losses(0.05, 0.02), losses(0.06, 0.03), False),  # the form: alike
        (losses(1.0, 0.3), losses(1.4, 0.3), False),  # it generalises a little less
        (losses(0.01, 0.01, 8), [0.01] * 7 + [0.3], False),  # one odd demonstration
        (losses(0.3, 0.1), losses(0.1, 0.1), False),
        ([0.0] * 8, [0.0] * 8, False),
    ],
)
def test_the_rule(learned, apart, warns):
    assert (learned_by_heart(learned, apart) is not None) is warns


@pytest.mark.thorough
@pytest.mark.parametrize("by_heart", [True, False])
async def test_a_run_says_so(make_config, demonstrations, by_heart):
    """Tosses of a coin can be learned by heart only. What is always the same is a form."""
    warm = {"demonstrations": demonstrations, "steps": 120, "batch_size": 16, "learning_rate": 3e-3}
    warm |= {"optimizer": "adamw", "context_weight": 0.0}
    config = make_config(model="tiny", warm_start=warm, steps=0)
    console = Console(file=io.StringIO(), width=300)
    async with Trainer(config, console=console) as trainer:
        rng = Random(0)
        made = [
            Demonstration([*rng.choices(range(300), k=4), rng.randrange(2) * by_heart], [0, 0, 0, 0, 1])
            for _ in range(160)
        ]
        trainer.demonstrations.rows, trainer.demonstrations.apart = keep_apart(made, config.warm_start, 0)
        await trainer.warm_start()
    said = "warning: the warm start has learned its demonstrations by heart: their loss is 0."
    assert (said in console.file.getvalue()) is by_heart, console.file.getvalue()
