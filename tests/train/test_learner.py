import copy
import math
import random
from dataclasses import replace

import pytest
import torch

from agentrl.models import load_model, tiny_model
from agentrl.train.batch import Row
from agentrl.train.config import WarmStartConfig
from agentrl.train.learner import DivergedError, Learner, Schedule
from agentrl.train.warm_start import make_optimizers
from tests.train.learners import make, rows, weights


def shifted(rows, by=-0.5):
    """The same rows from an engine that says otherwise."""
    return [replace(row, log_probs=[x + by for x in row.log_probs]) for row in rows]


def test_learning_makes_good_tokens_likelier_and_bad_ones_less(make_config):
    learner = make(make_config)
    before = rows(learner)

    update = learner.learn(before, step=1, normaliser=100)

    after = rows(learner)
    for old, new in zip(before, after, strict=True):
        assert (sum(new.log_probs) > sum(old.log_probs)) == (old.weights[0] > 0)
    assert update.updates == 2
    assert update.tokens == sum(len(row.positions) for row in before)
    assert update.numerics.max < 1e-5


def test_the_canary_sees_log_probs_that_are_not_the_trainers(make_config):
    learner = make(make_config)
    metrics = learner.learn(shifted(rows(learner)), step=1, normaliser=100).metrics()

    assert metrics["logprob_diff_mean"] == pytest.approx(0.5, abs=1e-4)
    assert metrics["logprob_diff_max"] == pytest.approx(0.5, abs=1e-4)
    assert metrics["logprob_diff_clipped"] == 1.0
    fresh = make(make_config)
    assert fresh.learn(rows(fresh), step=1, normaliser=100).metrics()["logprob_diff_clipped"] == 0.0


def test_gradient_accumulation_does_not_change_the_update(make_config):
    one, many = make(make_config, micro_batch_tokens=10_000), make(make_config, micro_batch_tokens=1)

    a, b = one.learn(rows(one), step=1, normaliser=100), many.learn(rows(many), step=1, normaliser=100)

    assert a.loss == pytest.approx(b.loss, abs=1e-5)
    assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-4)
    differences = (weights(one) - weights(many)).abs()
    assert differences.max() < 1e-4
    assert (differences > 1e-5).sum() <= 5  # of 558,464: Adam divides a gradient near 0 by itself


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


def test_tis_learns_from_the_trainers_own_log_probs_under_weights(make_config):
    """An engine that takes every token for less likely than it is, by e to the -0.5."""
    learner = make(make_config, minibatches=1, tis_clip=2.0)
    given = rows(learner)
    advantages = sum(sum(row.weights) for row in given)

    update = learner.learn(shifted(given), step=1, normaliser=100)

    assert update.loss == pytest.approx(-math.exp(0.5) * advantages / 100, rel=1e-4), "at ratio 1 to the trainer"
    assert (update.clipped, update.metrics()["tis_fraction"]) == (0, 0.0)
    assert update.numerics.tokens == sum(len(row.positions) for row in given), "all of the step's are compared"
    assert update.numerics.mean == pytest.approx(0.5, abs=1e-4)


def test_tis_weights_are_truncated(make_config):
    learner = make(make_config, minibatches=1, tis_clip=1.2)
    given = rows(learner)

    update = learner.learn(shifted(given), step=1, normaliser=100)

    assert update.loss == pytest.approx(-1.2 * sum(sum(row.weights) for row in given) / 100, rel=1e-4)
    assert update.metrics()["tis_fraction"] == 1.0
    assert learner.learn([], step=2, normaliser=100).metrics()["tis_fraction"] == 0.0


def test_with_tis_later_minibatches_are_clipped_against_the_weights_before_the_step(make_config):
    learner = make(make_config, minibatches=2, tis_clip=2.0, learning_rate=3e-2)
    off = shifted(rows(learner), by=0.3)

    update = learner.learn(off, step=1, normaliser=100)

    assert update.numerics.tokens == sum(len(row.positions) for row in off)
    assert update.numerics.max == pytest.approx(0.3, abs=1e-4), "compared before the first update"
    assert update.clipped > 0


def test_gspo_has_one_ratio_a_sequence(make_config):
    """Each row's log-probs are off in both directions: tokens are clipped, sequences are not."""
    token, sequence = (
        make(make_config, minibatches=1, algorithm=name, reduction="token", clip_low=0.2, clip_high=0.28)
        for name in ("grpo", "gspo")
    )
    given = [row for row in rows(token, 8) if len(row.positions) % 2 == 0]
    uneven = [replace(r, log_probs=[x + (-1) ** i for i, x in enumerate(r.log_probs)]) for r in given]

    clipped = [learner.learn(uneven, step=1, normaliser=100).clipped for learner in (token, sequence)]

    assert clipped == [sum(len(row.positions) for row in given) // 2, 0]


def test_the_dual_clip_is_handed_on(make_config):
    given = rows(make(make_config))
    unlikely = [replace(row, weights=[-1.0] * len(row.weights)) for row in shifted(given, by=-2.0)]

    losses = [
        make(make_config, minibatches=1, dual_clip=bound).learn(unlikely, step=1, normaliser=100).loss
        for bound in (None, 3.0)
    ]

    tokens = sum(len(row.positions) for row in given)
    assert losses == pytest.approx([math.exp(2.0) * tokens / 100, 3.0 * tokens / 100], rel=1e-4)


@pytest.mark.thorough
def test_a_rows_share_is_what_its_tokens_count(make_config):
    learner = make(make_config, minibatches=1, kl_coef=0.5)
    learner.reference = copy.deepcopy(learner.model)
    with torch.no_grad():
        learner.reference.model.embed_tokens.weight.mul_(1.1)
    given = rows(learner)

    whole = make_loss(learner, given)
    parts = [
        make_loss(learner, [replace(row, share=share)]) for row, share in zip(given, (1, 2, 0, 4) * 2, strict=True)
    ]
    plain = [make_loss(learner, [row]) for row in given]

    assert whole == pytest.approx(sum(plain), rel=1e-4)
    assert parts == pytest.approx([loss * share for loss, share in zip(plain, (1, 2, 0, 4) * 2, strict=True)], rel=1e-4)


def make_loss(learner, rows):
    """The loss of one minibatch under the learner's weights, which stay."""
    before = copy.deepcopy(learner.model.state_dict())
    loss = learner.learn(rows, step=1, normaliser=1).loss
    learner.model.load_state_dict(before)
    return loss


def test_the_estimate_of_kl_is_the_one_asked_for(make_config):
    found = {}
    for kind in ("k1", "k2", "k3", "low_var_kl"):
        learner = make(make_config, kl_coef=0.5, kl_type=kind, minibatches=1)
        learner.reference = copy.deepcopy(learner.model)
        with torch.no_grad():
            learner.reference.model.embed_tokens.weight.mul_(1.1)
        found[kind] = learner.learn(rows(learner), step=1, normaliser=100).metrics()["kl"]

    assert len({round(kl, 6) for kl in found.values()}) == 3
    assert found["k3"] == found["low_var_kl"]


def half(make_config, **values):
    return Learner(tiny_model(seed=0).bfloat16(), make_config(**{"lr_warmup_steps": 0, "dtype": "bfloat16", **values}))


@pytest.mark.thorough
def test_small_steps_add_up_in_bfloat16(make_config):
    """Ten steps of a size that rounding would swallow, every one of them."""
    learner = half(make_config, learning_rate=1e-6, minibatches=1, lr_final=1.0)
    before, given = weights(learner).clone(), rows(learner)
    for _ in range(10):
        learner.learn(given, step=1, normaliser=100)

    masters = torch.cat([master.flatten() for master in learner.masters])
    assert (masters - before).abs().median() > 5e-6
    assert torch.equal(weights(learner), masters.bfloat16()), "what samples and learns is the masters, rounded"
    assert weights(learner).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_copies_are_stepped_one_by_one_as_if_all_at_once(make_config, kind, monkeypatch):
    """In bfloat16, with a float32 parameter among them; two updates, so that the moments count."""
    monkeypatch.setattr("agentrl.train.learner.STEP_BYTES", 1)
    model = load_model(make_config().model, dtype="bfloat16")
    model.model.norm.float().register_forward_hook(lambda module, inputs, output: output.bfloat16())
    learner = Learner(model, make_config(dtype="bfloat16", minibatches=1))
    given = rows(Learner(tiny_model(seed=0), make_config()))
    warm = WarmStartConfig(demonstrations="unused", optimizer=kind)
    optimizers = make_optimizers(model, learner.masters, warm)
    twins = [master.detach().clone().requires_grad_() for master in learner.masters]
    at_once = make_optimizers(model, twins, warm)
    most = []
    for optimizer in optimizers:
        optimizer.register_step_pre_hook(lambda *_: most.append(sum(m.grad is not None for m in learner.masters)))

    for _ in range(2):
        [micro] = learner.micro_batches(given, 10_000)
        loss = -(micro.weights * micro.model_log_probs(model)).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), learner.config.max_grad_norm)
        for parameter, twin in zip(model.parameters(), twins, strict=True):
            twin.grad = parameter.grad.float()
            parameter.grad = None
        for optimizer in at_once:
            optimizer.step()
        learner.imitate(given, optimizers, 10_000)
        assert all(torch.equal(a, b) for a, b in zip(learner.masters, twins, strict=True))
        pairs = zip(model.parameters(), twins, strict=True)
        assert all(torch.equal(p, twin.to(p.dtype)) and p.grad is None for p, twin in pairs)
    assert max(most) == 1


def test_in_float32_the_parameters_are_their_own_masters(make_config):
    learner = make(make_config)

    assert all(p is master for p, master in zip(learner.model.parameters(), learner.masters, strict=True))
    assert learner.state_dict()["masters"] == []


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_leaves_the_weights_alone(make_config, poison):
    learner = make(make_config, minibatches=1)
    given = rows(learner)
    before = weights(learner).clone()
    bad = Row(given[0].tokens, given[0].positions, [poison] * len(given[0].positions), given[0].log_probs)

    with pytest.raises(DivergedError, match="an advantage is not finite: is a reward"):
        learner.learn([bad, *given], step=1, normaliser=100)

    assert torch.equal(weights(learner), before)
    learner.learn(given, step=1, normaliser=100)
    assert weights(learner).isfinite().all(), "no gradient of the bad loss is left over"


@pytest.mark.parametrize(
    ("minibatches", "says"),
    [
        (
            1,
            r"engine and trainer differ by 9\d over a token's log-prob before any update: do both",
        ),
        (2, r"an update changed a token's log-prob by 9\d: lower the learning rate"),
    ],
)
def test_a_ratio_without_bounds_is_blamed_on_what_made_it(make_config, minibatches, says):
    learner = make(make_config, minibatches=minibatches)
    given = rows(learner)
    # Any advantage may do it: that of a good token is clipped, and then its gradient is 0 times infinity.
    far = [replace(row, log_probs=[value - 92 for value in row.log_probs]) for row in given]
    order = list(range(len(given)))
    random.Random(f"{learner.config.seed}/1").shuffle(order)
    first = set(order[0::minibatches]) if minibatches > 1 else set()

    mixed = [row if i in first else bad for i, (row, bad) in enumerate(zip(given, far, strict=True))]
    with pytest.raises(DivergedError, match=says):
        learner.learn(mixed, step=1, normaliser=100)


def test_a_loss_that_is_only_large_blames_the_learning_rate(make_config):
    learner = make(make_config, minibatches=1)
    given = [replace(row, weights=[1e38 for _ in row.weights]) for row in rows(learner)]
    with pytest.raises(DivergedError, match="; lower the learning rate"):
        learner.learn(given, step=1, normaliser=1e-3)


def test_nothing_to_learn_from_changes_nothing(make_config):
    learner = make(make_config)
    before = weights(learner).clone()

    metrics = learner.learn([], step=1, normaliser=100).metrics()

    assert torch.equal(weights(learner), before)
    assert metrics["loss"] == metrics["grad_norm"] == metrics["read_tokens"] == 0


def test_the_learning_rate_rises_and_falls_linearly(make_config):
    schedule = Schedule(rise=4, final=0.1, steps=100)

    assert schedule.at(2) == pytest.approx(0.5 * (1 - 0.9 * 0.02))
    assert schedule.at(50) == pytest.approx(0.55)
    assert schedule.at(100) == pytest.approx(0.1)
    learner = make(make_config, steps=100, lr_final=0.1, learning_rate=3e-4)
    assert learner.learn([], step=100, normaliser=1).learning_rate == pytest.approx(3e-5)


def test_the_learning_rate_does_not_jump_when_a_run_gets_other_steps():
    schedule = Schedule(rise=4, final=0.1, steps=10)

    assert schedule.until(10, step=5) == schedule
    finished = schedule.until(20, step=10)
    assert [finished.at(step) for step in (10, 11, 20)] == pytest.approx([0.1, 0.1, 0.1])
    longer = schedule.until(20, step=5)
    assert [longer.at(step) for step in (5, 6, 20)] == pytest.approx([0.55, 0.52, 0.1])
    shorter = schedule.until(7, step=5)
    assert [shorter.at(step) for step in (5, 6, 7)] == pytest.approx([0.55, 0.325, 0.1])
    again = longer.until(30, step=15)
    assert again.at(15) == longer.at(15)
    assert (again.at(30), schedule.until(4, step=5).at(5)) == (pytest.approx(0.1), pytest.approx(0.55))


@pytest.mark.parametrize("made", [make, half])
def test_its_state_restores_optimizer_and_random_numbers(make_config, made):
    straight, stopped = made(make_config), made(make_config)
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
    assert all(torch.equal(a, b) for a, b in zip(straight.masters, again.masters, strict=True))
