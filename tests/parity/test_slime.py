"""The embedded trainer against slime's own loss: same episodes, same weights, same loss and gradients.

SLIME_SRC=... pytest -s tests/parity        # the table
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from tests.parity import embedded, slime_side
from tests.parity.cases import CASES

pytestmark = [
    pytest.mark.skipif(
        not slime_side.SOURCE, reason="SLIME_SRC is not set: give the root of slime's source to run these tests"
    ),
    pytest.mark.filterwarnings("default"),  # slime's and Megatron's own are not ours to fix
]

LOSS, GRADIENT = 5e-7, 5e-6
"""Tolerances: of the loss, absolute, and of the gradient's difference, relative to its norm. Both sides compute in
float32: slime packs episodes one behind the other and sums each by itself, the embedded trainer pads and sums them
together, and their softmax differs (slime's own against torch's), so that sums are rounded in another order."""


@pytest.fixture(scope="module")
def slime() -> Iterator:
    with slime_side.slime_modules() as modules:
        yield modules


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    rows: list[str] = []
    yield rows
    head = f"{'':36}{'embedded':>13}{'slime':>13}{'loss differs':>14}{'gradient differs':>18}"
    print("\n" + "\n".join([head, *rows, f"{'tolerance':62}{LOSS:>14.0e}{GRADIENT:>18.0e}"]))


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_slimes(groups, models, slime, table, name):
    ours = embedded.learn(groups, models, **CASES[name])
    theirs = slime_side.learn(slime, groups, models, CASES[name])

    gradient, expected = (torch.cat([g.flatten() for g in side.gradients.values()]) for side in (ours, theirs))
    differs = ((gradient - expected).norm() / expected.norm()).item()
    table.append(f"{name:36}{ours.loss:13.8f}{theirs.loss:13.8f}{abs(ours.loss - theirs.loss):14.1e}{differs:18.1e}")
    assert ours.loss == pytest.approx(theirs.loss, abs=LOSS)
    assert differs < GRADIENT
    assert expected.norm() > 1e-4, "there is a gradient to compare"


@pytest.mark.parametrize("name", ["TIS", "TIS, GSPO, mean over samples"])
def test_the_hook_that_watches_leaves_slimes_loss_as_it_is(groups, models, slime, monkeypatch, name):
    stock, arguments = slime_side.learn(slime, groups, models, CASES[name]), slime_side.arguments
    watched = {"custom_tis_function_path": "agentrl.slime.watch_log_probs", "agentrl": {}}
    monkeypatch.setattr(
        slime_side, "arguments", lambda values: SimpleNamespace(**{**vars(arguments(values)), **watched})
    )
    found = slime_side.learn(slime, groups, models, CASES[name])
    assert found.loss == stock.loss
    assert found.logged["logprob_diff"] > 0


@pytest.mark.parametrize("name", [name for name, values in CASES.items() if values.get("reduction") != "sample"])
def test_what_is_reported_is_slimes(groups, models, slime, name):
    values = CASES[name]
    ours = embedded.learn(groups, models, **values).update
    theirs = slime_side.learn(slime, groups, models, {**values, "reduction": "token"}).logged

    if "dual_clip" not in values:  # slime does not count what only the dual clip clips
        assert ours.clipped == theirs["pg_clipfrac"]
    if "kl_coef" in values:
        assert ours.kl == pytest.approx(theirs["kl_loss"], rel=1e-4)
    if "tis_clip" in values:
        assert 0 < ours.truncated <= theirs["tis_clipfrac"]  # of groups without spread no token is read


def test_advantages_are_slimes(groups, models, slime):
    theirs = slime_side.learn(slime, groups, models, {}).advantages
    rows = iter(embedded.learn(groups, models, kl_coef=1e-9).rows)  # with KL, groups without spread are read too

    for t, advantages in zip([t for group in groups for t in group], theirs, strict=True):
        if any(t.loss_mask):
            kept = [a for a, mask in zip(advantages.tolist(), t.loss_mask, strict=True) if mask]
            assert next(rows).weights == pytest.approx(kept, abs=1e-6)


def test_where_the_two_differ(groups, models, slime):
    """Not arithmetic, but policy: what a failed episode counts for."""
    found = slime_side.learn(slime, groups, models, {})
    assert found.tokens == sum(sum(t.loss_mask) for group in groups for t in group) + 1, "a masked sample is one token"

    args = slime_side.arguments({})
    stock = slime_side.normalised(slime, args, [t.reward or 0.0 for group in groups for t in group], 4)
    mine = slime_side.rewards_of(slime, args, groups)
    assert stock[:4] + stock[8:] == pytest.approx(mine[:4] + mine[8:])
    assert stock[4] > mine[4] + 0.1, "slime's baseline counts the episode that the environment failed as a 0"


@pytest.mark.parametrize("name", ["GRPO, mean over tokens", "GSPO", "KL low_var_kl, TIS, dual clip"])
def test_in_slime_too_logits_at_masked_tokens_move_nothing(groups, models, slime, name):
    args = slime_side.arguments(CASES[name])
    data = slime_side.rollout_data(slime, args, groups, models)
    episodes = [t for group in groups for t in group]
    logits = slime_side.packed_logits(models.now, data["unconcat_tokens"]).detach()
    masks = [[0] * (t.prompt_length - 1) + t.loss_mask + [0] for t in episodes]
    trained = torch.tensor([bool(mask) for episode in masks for mask in episode])
    masked = torch.nn.functional.pad(~trained, (0, logits.shape[1] - len(trained)), value=True)

    def learned(given):
        leaf = given.clone().requires_grad_()
        loss, *_ = slime.loss.loss_function(args, data, 1, len(episodes), leaf)
        loss.backward()
        return loss.item(), leaf.grad[0]

    loss, gradient = learned(logits)
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
    loss_after, gradient_after = learned(torch.where(masked[None, :, None], logits + noise, logits))

    assert (gradient[masked] == 0.0).all()
    assert loss_after == loss
    assert torch.equal(gradient_after, gradient)
    assert gradient[~masked].abs().sum() > 0
