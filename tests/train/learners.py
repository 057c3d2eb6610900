"""Learners over a tiny model, and rows for them."""

import torch

from agentrl.models import tiny_model
from agentrl.train.batch import Row
from agentrl.train.learner import Learner


def rows(learner, n=8):
    """Rows as the learner's own model would have sampled them."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for i in range(n):
        tokens = torch.randint(0, 600, (6 + i,), generator=generator)
        with torch.no_grad():
            log_probs = learner.model(input_ids=tokens[None]).logits[0].float().log_softmax(-1)
        positions = list(range(3, len(tokens)))
        sampled = [log_probs[p - 1, tokens[p]].item() for p in positions]
        found.append(Row(tokens.tolist(), positions, [1.0 if i % 2 else -1.0] * len(positions), sampled))
    return found


def make(make_config, **values):
    return Learner(tiny_model(seed=0), make_config(**{"lr_warmup_steps": 0, **values}))


def weights(learner):
    return torch.cat([p.detach().flatten() for p in learner.model.parameters()])
