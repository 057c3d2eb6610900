import math

import pytest
import torch

from agentrl.train.loss import group_advantages, kl_k3, policy_loss, token_log_probs


def advantages(rewards, valid=None, kind="grpo"):
    rewards = torch.tensor(rewards)
    valid = torch.ones_like(rewards, dtype=torch.bool) if valid is None else torch.tensor(valid)
    return group_advantages(rewards, valid, kind)


def test_grpo_divides_by_the_deviation_of_the_group():
    found = advantages([[1.0, 0.0, 0.0, 0.0]])

    # mean 1/4; deviations 3/4 and -1/4; their squares add up to 3/4, over n - 1 = 3: standard deviation 1/2
    assert found.values.tolist()[0] == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert found.informative.tolist() == [True]


def test_dr_grpo_does_not():
    assert advantages([[1.0, 0.0, 0.0, 0.0]], kind="dr_grpo").values.tolist() == [[0.75, -0.25, -0.25, -0.25]]


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_a_group_of_equal_rewards_has_no_advantage_at_all(kind, reward):
    found = advantages([[reward] * 7, [0.0, 1.0] * 3 + [0.0]], kind=kind)

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


def loss_of(ratio, advantage):
    old = torch.tensor([-1.0])
    new = (old + math.log(ratio)).requires_grad_()
    result = policy_loss(new, old, torch.tensor([advantage]), clip_low=0.2, clip_high=0.28)
    result.loss.backward()
    return result.loss.item(), new.grad.item(), result.clipped


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


def test_losses_are_sums_so_that_micro_batches_add_up():
    new, old, weight = (
        torch.tensor([-1.0, -2.0, -0.5]),
        torch.tensor([-1.1, -1.5, -0.5]),
        torch.tensor([1.0, -1.0, 0.5]),
    )

    whole = policy_loss(new, old, weight).loss
    parts = policy_loss(new[:1], old[:1], weight[:1]).loss + policy_loss(new[1:], old[1:], weight[1:]).loss

    assert whole.item() == pytest.approx(parts.item())


def test_k3_is_zero_at_the_reference_and_unbiased():
    same = torch.tensor([-1.0, -2.0])
    assert kl_k3(same, same).tolist() == [0.0, 0.0]

    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    expected = (policy * (policy / reference).log()).sum()
    assert (policy * kl_k3(policy.log(), reference.log())).sum().item() == pytest.approx(expected.item(), abs=1e-6)
    assert (kl_k3(policy.log(), reference.log()) > 0).all()
