import math

import pytest
import torch

from agentrl.train.loss import (
    group_advantages,
    kl_divergence,
    policy_loss,
    sequence_log_ratio,
    tis_weights,
    token_log_probs,
    turn_advantages,
)
from tests.parity import plain


def advantages(rewards, valid=None, algorithm="grpo"):
    rewards = torch.tensor(rewards)
    valid = torch.ones_like(rewards, dtype=torch.bool) if valid is None else torch.tensor(valid)
    return group_advantages(rewards, valid, algorithm)


def test_grpo_divides_by_the_deviation_of_the_group():
    found = advantages([[1.0, 0.0, 0.0, 0.0]])

    # mean 1/4; deviations 3/4 and -1/4; their squares add up to 3/4, over n - 1 = 3: standard deviation 1/2
    assert found.values.tolist()[0] == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert found.informative.tolist() == [True]


def test_dr_grpo_does_not():
    assert advantages([[1.0, 0.0, 0.0, 0.0]], algorithm="dr_grpo").values.tolist() == [[0.75, -0.25, -0.25, -0.25]]


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "gspo"])
def test_advantages_are_the_papers(algorithm):
    rewards = torch.rand(3, 5, generator=torch.Generator().manual_seed(0)).tolist()

    found = advantages(rewards, algorithm=algorithm).values.tolist()

    for group, values in zip(rewards, found, strict=True):
        assert values == pytest.approx(plain.advantages(group, deviation=algorithm != "dr_grpo"), abs=1e-5)


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_a_group_of_equal_rewards_has_no_advantage_at_all(algorithm, reward):
    found = advantages([[reward] * 7, [0.0, 1.0] * 3 + [0.0]], algorithm=algorithm)

    assert found.values[0].tolist() == [0.0] * 7
    assert found.informative.tolist() == [False, True]


def test_a_member_that_is_not_valid_is_out_of_the_baseline():
    found = advantages([[9.0, 1.0, 0.0]], [[False, True, True]], "dr_grpo")

    assert found.values.tolist() == [[0.0, 0.5, -0.5]]


@pytest.mark.parametrize("valid", [[False, False, False], [False, True, False], [False, True, True]])
def test_nothing_is_learned_from_too_few_valid_members(valid):
    found = advantages([[5.0, 1.0, 1.0]], [valid])

    assert found.values.tolist() == [[0.0, 0.0, 0.0]]
    assert found.informative.tolist() == [False]


def test_log_probs_are_those_of_the_sampling_temperature():
    logits = torch.tensor([[2.0, 0.0], [0.0, 4.0]])

    found = token_log_probs(logits, torch.tensor([0, 0]), temperature=2.0)

    assert found.tolist() == pytest.approx([-math.log(1 + math.exp(-1)), -math.log(1 + math.exp(2))])


def test_log_probs_of_half_precision_logits_are_summed_in_float32():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).bfloat16()

    assert token_log_probs(logits, torch.tensor([1, 2, 3])).dtype == torch.float32


def loss_of(ratio, advantage, **clips):
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    result = policy_loss(log_ratio, torch.tensor([advantage]), **{"clip_low": 0.2, "clip_high": 0.28, **clips})
    result.losses.sum().backward()
    return result.losses.item(), log_ratio.grad.item(), result.clipped


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, 0),
        (1.2, 2.0, -2.4, -2.4, 0),
        (1.5, 2.0, -2.56, 0.0, 1),  # better than the bound of 1.28 has no more to gain
        (0.5, 2.0, -1.0, -1.0, 0),  # a good token made unlikely is always pulled back
        (0.5, -2.0, 1.6, 0.0, 1),  # nor has worse than 0.8
        (1.5, -2.0, 3.0, 3.0, 0),
    ],
)
def test_the_surrogate_is_clipped_only_where_that_is_pessimistic(ratio, advantage, loss, gradient, clipped):
    assert loss_of(ratio, advantage) == pytest.approx((loss, gradient, clipped), abs=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (5.0, -2.0, 6.0, 0.0, 1),  # three times the advantage is the most
        (2.9, -2.0, 5.8, 5.8, 0),
        (0.5, -2.0, 1.6, 0.0, 1),  # the first clip is there as before
        (5.0, 2.0, -2.56, 0.0, 1),  # and good tokens know no second
    ],
)
def test_the_dual_clip_bounds_what_a_bad_token_can_cost(ratio, advantage, loss, gradient, clipped):
    assert loss_of(ratio, advantage, dual_clip=3.0) == pytest.approx((loss, gradient, clipped), abs=1e-5)


def random_samples(counts=(3, 1, 5, 4)):
    """Sequences of uneven length whose ratios lie on both sides of every bound, in float64."""
    generator = torch.Generator().manual_seed(1)

    def draw(count, spread):
        return (spread * torch.randn(count, generator=generator, dtype=torch.float64)).tolist()

    return [
        plain.Sample(
            new=[x - 2 for x in draw(count, 0.4)],
            old=[x - 2 for x in draw(count, 0.4)],
            advantages=[draw(1, 1.0)[0]] * count,
        )
        for count in counts
    ]


@pytest.mark.parametrize("sequence", [False, True], ids=["token", "sequence"])
@pytest.mark.parametrize("clips", [{}, {"clip_high": 0.2}, {"clip_low": 0.05, "clip_high": 0.04}, {"dual_clip": 1.1}])
def test_losses_and_gradients_are_the_papers(sequence, clips):
    """The gradients against finite differences of the plain formula."""
    samples = random_samples()
    new = torch.tensor([x for s in samples for x in s.new], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([x for s in samples for x in s.old], dtype=torch.float64)
    weights = torch.tensor([x for s in samples for x in s.advantages], dtype=torch.float64)
    row = torch.tensor([i for i, s in enumerate(samples) for _ in s.new])

    log_ratio = sequence_log_ratio(new - old, row) if sequence else new - old
    found = policy_loss(log_ratio, weights, **clips).losses
    found.sum().backward()

    expected = [loss for s in samples for loss in plain.losses(s, sequence=sequence, **clips)]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    assert new.grad.tolist() == pytest.approx(differences(samples, sequence=sequence, **clips), abs=1e-6)


def differences(samples, **options):
    """The gradient of the summed loss by central differences."""
    step, found = 1e-6, []
    for sample in samples:
        for i, value in enumerate(sample.new):
            sides = []
            for moved in (value + step, value - step):
                sample.new[i] = moved
                sides.append(sum(plain.losses(sample, **options)))
            sample.new[i] = value
            found.append((sides[0] - sides[1]) / (2 * step))
    return found


def test_a_sequence_has_one_ratio_the_geometric_mean_of_its_tokens():
    ratios = torch.tensor([2.0, 0.5, 1.0, 3.0, 3.0])

    found = sequence_log_ratio(ratios.log(), torch.tensor([0, 0, 0, 1, 1])).exp()

    assert found.tolist() == pytest.approx([1.0, 1.0, 1.0, 3.0, 3.0])


def test_tis_weighs_by_what_trainer_and_engine_disagree_and_no_more_than_the_clip():
    trainer, engine = torch.tensor([0.5, 0.1, 0.3]).log(), torch.tensor([0.1, 0.5, 0.3]).log()

    assert tis_weights(trainer, engine, 2.0).tolist() == pytest.approx([2.0, 0.2, 1.0])


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "low_var_kl"])
def test_kl_estimates_are_schulmans(kind):
    new, reference = torch.tensor([-1.0, -0.2, -4.0, -9.0]), torch.tensor([-1.5, -3.0, -0.1, -0.5])

    found = kl_divergence(new, reference, kind).tolist()

    assert found == pytest.approx([plain.kl(n, r, kind) for n, r in zip(new.tolist(), reference.tolist(), strict=True)])
    assert (found[-1] == 10.0) == (kind == "low_var_kl"), "e to the 8.5 is beyond its clamp"


@pytest.mark.parametrize(("kind", "exact"), [("k1", True), ("k2", False), ("k3", True)])
def test_k1_and_k3_are_unbiased_and_k2_nearly(kind, exact):
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    expected = (policy * (policy / reference).log()).sum().item()

    estimate = kl_divergence(policy.log(), reference.log(), kind)

    assert (policy * estimate).sum().item() == pytest.approx(expected, abs=1e-6 if exact else 0.05)
    assert (estimate >= 0).all() == (kind != "k1")


# Credit for each turn: rewards of two episodes, and what each had earned before its turns


def test_a_turn_is_credited_with_what_came_after_it_began():
    found = advantages([[1.5, 0.0]], algorithm="dr_grpo")
    earned = torch.tensor([[[0.0, 0.5, 0.5], [0.0, 0.0, 0.0]]])

    per_turn = turn_advantages(found, earned, torch.tensor([[True, True]]))

    # first turn: all rewards, 1.5 and 0 against 0.75; later ones: what was left, 1 and 0 against 0.5
    assert per_turn.tolist() == [[[0.75, 0.5, 0.5], [-0.75, -0.5, -0.5]]]


def test_all_parts_of_a_reward_are_divided_by_the_deviation_of_the_whole():
    valid = torch.tensor([[True, True]])
    found = advantages([[1.5, 0.0]])

    per_turn = turn_advantages(found, torch.tensor([[[0.0, 0.5], [0.0, 0.0]]]), valid)

    deviation = 1.5 / math.sqrt(2)
    assert per_turn[0, 0].tolist() == pytest.approx([0.75 / deviation, 0.5 / deviation], rel=1e-5)


def test_a_reward_that_all_members_get_at_the_same_turn_changes_no_advantage():
    valid = torch.ones(1, 3, dtype=torch.bool)
    found = advantages([[1.1, 0.1, 0.1]])

    per_turn = turn_advantages(found, torch.tensor([[[0.0, 0.1, 0.1]] * 3]), valid)

    assert torch.allclose(per_turn, found.values[..., None].expand(1, 3, 3), atol=1e-6)


def test_outcomes_that_hardly_differ_do_not_blow_up_the_credit_of_turns():
    earned = torch.tensor([[[0.0, 0.5], [0.0, 0.0], [0.0, 0.5], [0.0, 0.0]]])
    per_turn = turn_advantages(advantages([[1.0, 1.0, 1.0, 1.01]]), earned, torch.ones(1, 4, dtype=torch.bool))
    assert per_turn[..., 1].abs().max() == pytest.approx(0.89, abs=0.02)


def test_turns_of_a_member_that_is_not_valid_and_of_a_group_without_spread_get_nothing():
    rewards, valid = [[1.0, 0.0, 9.0], [0.5, 0.5, 0.5]], [[True, True, False], [True, True, True]]
    earned = torch.tensor([[[0.0, 0.5], [0.0, 0.0], [0.0, 9.0]], [[0.0, 0.5], [0.0, 0.0], [0.0, 0.1]]])

    per_turn = turn_advantages(advantages(rewards, valid, "dr_grpo"), earned, torch.tensor(valid), "dr_grpo")

    assert per_turn.tolist() == [[[0.5, 0.25], [-0.5, -0.25], [0.0, 0.0]], [[0.0, 0.0]] * 3]
