"""Engines for tests of `staleness` that start at once: LocalEngine with a copy of the weights, in this process."""

import copy
from dataclasses import replace

from agentrl.engine import LocalEngine


class CopiedEngine(LocalEngine):
    own_weights = True

    def __init__(self, model, tokenizer, *, max_batch=64, max_context=None):
        super().__init__(copy.deepcopy(model), tokenizer, max_batch=max_batch, max_context=max_context)


class LateEngine(CopiedEngine):
    """Says of every fourth answer that older weights sampled it."""

    answers = 0

    async def generate(self, *args, **kwargs):
        found = await super().generate(*args, **kwargs)
        self.answers += 1
        return replace(found, weight_version="0") if self.answers % 4 == 0 else found


class NamelessEngine(CopiedEngine):
    """Does not say which weights it has."""

    async def generate(self, *args, **kwargs):
        return replace(await super().generate(*args, **kwargs), weight_version=None)
