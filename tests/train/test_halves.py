"""A supervised step in two threads: the learning is the same, repeats to the bit, and happens only where it pays."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import pytest
import torch

from agentrl.train.halves import halves, two_halves
from agentrl.train.learner import DivergedError
from tests.train.learners import make, rows, weights


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def imitated(make_config, *, shared, **values):
    """The losses of three steps, the weights, and the names of the threads that computed gradients."""
    learner, seen = make(make_config, **values), set()
    learner.model.register_forward_hook(lambda *_: seen.add(threading.current_thread().name))
    batches, optimizers = [rows(learner, n) for n in (8, 7, 1)], [learner.optimizer]
    if shared:
        with two_halves(learner):
            losses = [learner.imitate(batch, optimizers, 40) for batch in batches]
    else:
        losses = [learner.imitate(batch, optimizers, 40) for batch in batches]
    return losses, weights(learner), seen


def test_two_threads_learn_the_same_as_one(make_config):
    losses, learned, _ = imitated(make_config, shared=False)
    of_halves, of_both, seen = imitated(make_config, shared=True)

    assert len(seen) == 2, "both threads computed"
    assert of_halves == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(of_both, learned, rtol=0, atol=2e-5)


def test_two_threads_repeat_to_the_bit(make_config):
    first, again = (imitated(make_config, shared=True) for _ in range(2))

    assert first[0] == again[0]
    assert torch.equal(first[1], again[1])


def test_halves_have_about_as_many_tokens_and_keep_rows_that_begin_alike_together(make_config):
    given = rows(make(make_config), 8)
    first, second = halves([*given, *given][::2])

    assert sorted(map(id, [*first, *second])) == sorted(map(id, [*given, *given][::2]))
    assert max(row.read for row in first) <= min(row.read for row in second)
    assert abs(sum(r.length for r in first) - sum(r.length for r in second)) <= 2 * max(r.length for r in given)


@pytest.mark.parametrize("why", ["one core", "large", "bfloat16", "a part is trained"])
def test_where_it_does_not_pay_a_step_is_as_usual(make_config, monkeypatch, why):
    learner = make(make_config)
    if why == "one core":
        torch.set_num_threads(1)
    if why == "large":
        monkeypatch.setattr("agentrl.train.halves.MOST_PARAMETERS", 500_000)
    if why == "bfloat16":
        learner.model.bfloat16()
    if why == "a part is trained":
        learner.parameters.pop()

    with two_halves(learner):
        assert learner.shared_gradient is None


def test_a_failed_half_fails_the_step_and_leaves_the_usual_step_behind(make_config):
    learner = make(make_config)
    given = rows(learner, 4)
    last = max(given, key=lambda row: row.read)
    poisoned = [replace(row, weights=[math.nan] * len(row.weights)) if row is last else row for row in given]
    before = weights(learner)

    with pytest.raises(DivergedError, match="the loss is nan"), two_halves(learner):
        learner.imitate(poisoned, [learner.optimizer], 1000)

    assert torch.equal(weights(learner), before)
    assert learner.shared_gradient is None
    assert torch.get_num_threads() == 2
    assert all(parameter.grad is None for parameter in learner.parameters)
