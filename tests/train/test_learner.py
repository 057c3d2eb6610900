import copy
import math

import pytest
import torch

from agentrl.models import tiny_model
from agentrl.train.batch import Row
from agentrl.train.learner import DivergedError, Learner, rl_schedule


def rows(learner, n=8):
    """Rows as the learner's own model would have sampled them."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for i in range(n):
        tokens = torch.randint(0, 600, (6 + i,), generator=generator)
        with torch.no_grad():
            log_probs = learner.model(input_ids=tokens[None]).logits[0].log_softmax(-1)
        positions = list(range(3, len(tokens)))
        sampled = [log_probs[p - 1, tokens[p]].item() for p in positions]
        found.append(Row(tokens.tolist(), positions, [1.0 if i % 2 else -1.0] * len(positions), sampled))
    return found


def make(make_config, **values):
    return Learner(tiny_model(seed=0), make_config(**{"lr_warmup_steps": 0, **values}))


def weights(learner):
    return torch.cat([p.detach().flatten() for p in learner.model.parameters()])


def test_learning_makes_good_tokens_likelier_and_bad_ones_less(make_config):
    learner = make(make_config)
    before = rows(learner)

    update = learner.learn(before, step=1, normaliser=100)

    after = rows(learner)
    for old, new in zip(before, after, strict=True):
        assert (sum(new.log_probs) > sum(old.log_probs)) == (old.weights[0] > 0)
    assert update.updates == 2
    assert update.tokens == sum(len(row.positions) for row in before)
    assert update.difference_max < 1e-5


def test_the_canary_sees_log_probs_that_are_not_the_trainers(make_config):
    learner = make(make_config)
    shifted = [Row(r.tokens, r.positions, r.weights, [x - 0.5 for x in r.log_probs]) for r in rows(learner)]

    metrics = learner.learn(shifted, step=1, normaliser=100).metrics()

    assert metrics["logprob_diff_mean"] == pytest.approx(0.5, abs=1e-4)
    assert metrics["logprob_diff_max"] == pytest.approx(0.5, abs=1e-4)


def test_gradient_accumulation_does_not_change_the_update(make_config):
    one, many = make(make_config, micro_batch_tokens=10_000), make(make_config, micro_batch_tokens=1)

    a, b = one.learn(rows(one), step=1, normaliser=100), many.learn(rows(many), step=1, normaliser=100)

    assert a.loss == pytest.approx(b.loss, abs=1e-5)
    assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-4)
    assert torch.allclose(weights(one), weights(many), atol=1e-5)


def test_the_loss_is_divided_by_what_it_is_told(make_config):
    learner = make(make_config, minibatches=1)
    given = rows(learner)

    update = learner.learn(given, step=1, normaliser=500)

    # at ratio 1 each token's loss is minus its advantage
    assert update.loss == pytest.approx(-sum(sum(row.weights) for row in given) / 500, abs=1e-6)


def test_kl_pulls_back_to_the_reference(make_config):
    learner = make(make_config, kl_coef=0.5, minibatches=1)
    learner.reference = copy.deepcopy(learner.model)
    still = [Row(r.tokens, r.positions, [0.0] * len(r.positions), r.log_probs) for r in rows(learner)]

    assert learner.learn(still, step=1, normaliser=100).metrics()["kl"] == pytest.approx(0.0, abs=1e-6)

    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    first = learner.learn(still, step=1, normaliser=100).metrics()["kl"]
    for _ in range(10):
        last = learner.learn(still, step=1, normaliser=100).metrics()["kl"]
    assert 0 < last < first


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_leaves_the_weights_alone(make_config, poison):
    learner = make(make_config, minibatches=1)
    given = rows(learner)
    before = weights(learner).clone()
    bad = Row(given[0].tokens, given[0].positions, [poison] * len(given[0].positions), given[0].log_probs)

    with pytest.raises(DivergedError, match="lower the learning rate"):
        learner.learn([bad, *given], step=1, normaliser=100)

    assert torch.equal(weights(learner), before)
    learner.learn(given, step=1, normaliser=100)
    assert weights(learner).isfinite().all(), "no gradient of the bad loss is left over"


def test_nothing_to_learn_from_changes_nothing(make_config):
    learner = make(make_config)
    before = weights(learner).clone()

    metrics = learner.learn([], step=1, normaliser=100).metrics()

    assert torch.equal(weights(learner), before)
    assert metrics["loss"] == metrics["grad_norm"] == metrics["read_tokens"] == 0


def test_the_learning_rate_rises_and_falls_linearly(make_config):
    config = make_config(steps=100, lr_warmup_steps=4, lr_final=0.1)

    assert rl_schedule(2, config) == pytest.approx(0.5 * (1 - 0.9 * 0.02))
    assert rl_schedule(50, config) == pytest.approx(0.55)
    assert rl_schedule(100, config) == pytest.approx(0.1)
    assert make(make_config, steps=100, lr_final=0.1).learn([], step=100, normaliser=1).learning_rate == pytest.approx(
        3e-5
    )


def test_its_state_restores_optimizer_and_random_numbers(make_config):
    straight, stopped = make(make_config), make(make_config)
    given = rows(straight)
    straight.learn(given, step=1, normaliser=100)
    stopped.learn(given, step=1, normaliser=100)
    state = copy.deepcopy(stopped.state_dict())
    expected_draw = torch.rand(3)

    again = Learner(stopped.model, stopped.config)
    again.load_state_dict(state)

    assert torch.equal(torch.rand(3), expected_draw)
    straight.learn(given, step=2, normaliser=100)
    again.learn(given, step=2, normaliser=100)
    assert torch.equal(weights(straight), weights(again))
