"""agentrl.slime.watch_log_probs, on what slime's loss hands it; tests/parity runs it inside slime's loss."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from agentrl import CanaryError
from agentrl.slime import watch_log_probs
from agentrl.slime.numerics import _watch

torch = pytest.importorskip("torch")

ENGINE = [torch.tensor([-1.0, 0.0, -2.0]), torch.tensor([-0.5])]
"""The second token is an observation: nobody sampled it."""


@pytest.fixture
def watch():
    _watch.cache_clear()

    def call(trainer, *, numerics=None, masks=((1, 0, 1), (1,)), **flags):
        args = SimpleNamespace(
            agentrl={"env": "my_env:Env", **({"numerics": numerics} if numerics else {})},
            **{"eps_clip": 0.2, "eps_clip_high": 0.28, "use_tis": False, "tis_clip": 2.0, "tis_clip_low": 0.5, **flags},
        )
        masks = [torch.tensor(mask) for mask in masks]
        loss = torch.tensor([1.0, 2.0, 3.0, 4.0])
        return watch_log_probs(
            args, pg_loss=loss, train_log_probs=trainer, rollout_log_probs=ENGINE, loss_masks=masks, total_lengths=[]
        )

    yield call
    _watch.cache_clear()


def near(*by):
    flat = torch.cat(ENGINE) + torch.tensor(by)
    return [flat[:3], flat[3:]]


def test_differences_are_metrics_and_the_loss_stays(watch):
    loss, masks, metrics = watch(near(0.01, -7.0, -0.3, 0.0))
    assert loss.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert [mask.tolist() for mask in masks] == [[1, 0, 1], [1]]
    assert metrics["logprob_diff"].tolist() == pytest.approx([0.01, 0.0, 0.3, 0.0], abs=1e-6)
    assert metrics["logprob_clipped"].tolist() == [0.0, 0.0, 1.0, 0.0]


def test_with_tis_the_loss_is_weighed_within_slimes_bounds(watch):
    loss, _, _ = watch(near(0.1, 0.0, 3.0, -3.0), use_tis=True, numerics={"stop": 9.0})
    expected = torch.tensor([1.0, 2.0, 3.0, 4.0]) * torch.tensor([torch.e**0.1, 1.0, 2.0, 0.5])
    assert loss.tolist() == pytest.approx(expected.tolist())


def test_it_warns_once_and_stops_the_run(watch, caplog):
    caplog.set_level(logging.WARNING, logger="agentrl")
    watch(near(0.0, 0.0, 0.001, 0.0))
    assert caplog.messages == []
    for _ in range(2):
        watch(near(0.1, 0.0, 0.1, 0.1))
    [said] = caplog.messages
    assert "differ by 0.1 on average" in said
    with pytest.raises(CanaryError, match=r"numerics\.stop is 0\.5"):
        watch(near(1.0, 0.0, 1.0, 1.0))
    watch(near(1.0, 0.0, 1.0, 1.0), numerics={"stop": 2.0})


def test_only_what_is_trained_is_judged(watch):
    watch(near(0.0, 0.0, -4.0, 0.0), masks=((1, 0, 0), (1,)))  # from older weights, and masked
    with pytest.raises(CanaryError):
        watch([torch.tensor([-1.0, -9.0, -2.0]), torch.tensor([-0.5])], masks=((1, 1, 1), (1,)))  # sampled at 0.0


def test_a_part_of_a_response_is_judged_without_its_mask(watch):
    """As under context parallelism."""
    watch(near(0.0, -9.0, 0.0, 0.0), masks=((1, 0, 1, 1, 1, 1), (1,)))
    with pytest.raises(CanaryError):
        watch(near(2.0, 0.0, 2.0, 2.0), masks=((1, 0, 1, 1, 1, 1), (1,)))


def test_a_micro_batch_without_a_trained_token_is_no_news(watch):
    assert watch(near(-9.0, 0.0, -9.0, 5.0), masks=((0, 0, 0), (0,)))[2]["logprob_diff"].tolist() == [0.0] * 4
