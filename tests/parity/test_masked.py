"""Nothing is learned from a token with loss_mask 0: shown by changing what the model says where it stands."""

from __future__ import annotations

import copy
from array import array
from types import SimpleNamespace

import pytest
import torch

from agentrl.train import Trainer
from agentrl.train.batch import MicroBatch
from agentrl.train.learner import Learner, Update
from tests.parity.embedded import config

CASES = {
    "grpo": {},
    "dual clip": {"dual_clip": 1.05, "reduction": "sample"},
    "gspo": {"algorithm": "gspo", "clip_low": 0.05, "clip_high": 0.06},
    "kl": {"kl_coef": 0.1, "kl_type": "k2"},
}


class Table(torch.nn.Module):
    """A model whose logits are what it is made of."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, input_ids, use_cache, logits_to_keep):
        return SimpleNamespace(logits=self.logits[:, logits_to_keep])


def learned(rows, logits, values):
    """Loss and gradient of one micro-batch whose logits are given."""
    learner = Learner(Table(logits.clone()), config(**values))
    if values.get("kl_coef"):
        learner.reference = Table(torch.zeros_like(logits))
    loss = learner._policy_loss(MicroBatch.padded(rows, torch.device("cpu")), Update(0.0), first=True)
    loss.backward()
    return loss.item(), learner.model.logits.grad


def logits_near(rows, generator):
    """Random logits under which every token learned from is as likely as it was when sampled, give or take a third."""
    logits = torch.randn(len(rows), max(row.length for row in rows), 1024, generator=generator)
    for i, row in enumerate(rows):
        for position, log_prob in zip(row.positions, row.log_probs, strict=True):
            others = logits[i, position - 1].clone()
            others[row.tokens[position]] = -torch.inf
            wanted = torch.tensor(log_prob).exp() * (0.67 + 0.66 * torch.rand((), generator=generator))
            logits[i, position - 1, row.tokens[position]] = others.logsumexp(0) + (wanted / (1 - wanted)).log()
    return logits


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_logits_at_masked_tokens_move_nothing(groups, values):
    rows, _ = Trainer(config(**values)).rows(groups)
    generator = torch.Generator().manual_seed(0)
    logits = logits_near(rows, generator)
    masked = torch.ones(logits.shape[:2], dtype=torch.bool)
    for i, row in enumerate(rows):
        masked[i, [position - 1 for position in row.positions]] = False
    assert 0.5 < masked.float().mean() < 1

    loss, gradient = learned(rows, logits, values)
    other = torch.where(masked[..., None], 9 * torch.randn(logits.shape, generator=generator), logits)
    loss_after, gradient_after = learned(rows, other, values)

    assert (gradient[masked] == 0.0).all()
    assert (gradient_after[masked] == 0.0).all()
    assert loss_after == loss
    assert torch.equal(gradient_after, gradient)
    assert gradient[~masked].abs().sum() > 0
    changed = logits.clone()
    changed[~masked] += torch.randn(changed[~masked].shape, generator=generator)
    assert learned(rows, changed, values)[0] != loss, "what is trained does count"


def test_recorded_log_probs_of_masked_tokens_are_not_read(groups):
    trainer = Trainer(config())
    changed = copy.deepcopy(groups)
    for t in [t for group in changed for t in group]:
        sampled = [mask for mask, source in zip(t.loss_mask, t.segment.sources, strict=True) if source == "sampled"]
        held = t.segment._log_probs
        t.segment._log_probs = array("f", [x if mask else -7.0 for x, mask in zip(held, sampled, strict=True)])

    assert trainer.rows(changed) == trainer.rows(groups)
    changed[0][0].segment._log_probs[0] -= 1.0
    assert trainer.rows(changed) != trainer.rows(groups)


def test_an_episode_that_is_masked_whole_moves_nothing(groups):
    """The environment failed it: neither its tokens nor its missing reward reach the loss of its group."""
    trainer = Trainer(config())
    without = [groups[0], [t for t in groups[1] if t.failure is None], groups[2]]

    assert [trainer.rows([group])[0] for group in groups] == [trainer.rows([group])[0] for group in without]
