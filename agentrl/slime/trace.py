"""Trace spans for slime: for each request to the engine, with slime's names, and for each hook of the Env.

slime computes its request metrics (latency, queue time, throughput) from the spans called `sglang_generate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Unpack

from agentrl._util.boundary import watcher
from agentrl.engine.base import Engine, EngineWrapper, RequestFields, ask
from agentrl.errors import Boundary
from agentrl.slime.host import tracing
from agentrl.types import Generation, SamplingParams

_HOOKS: Mapping[Boundary, str] = {"reset": "env_reset", "step": "env_step", "score": "env_score"}


@contextmanager
def traced(sample: Any, engine: Engine) -> Iterator[Engine]:
    """Record the hooks of the task's Env and the requests of the yielded engine as spans of the sample."""
    span, attributes = tracing(sample)
    if span is None:
        yield engine
        return
    token = watcher.set(lambda name: span(sample, _HOOKS[name]) if name in _HOOKS else nullcontext())
    try:
        yield _TracedEngine(engine, sample, span, attributes)
    finally:
        watcher.reset(token)


@dataclass(frozen=True, slots=True, eq=False)
class _TracedEngine(EngineWrapper):
    """An engine whose requests are spans."""

    sample: Any
    span: Callable[..., Any]
    attributes: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, **request: Unpack[RequestFields]
    ) -> Generation:
        span_attributes = {"max_new_tokens": sampling_params.get("max_new_tokens"), "prompt_tokens": len(input_ids)}
        with self.span(self.sample, "sglang_generate", attrs=span_attributes) as span:
            generation = await ask(self.engine, input_ids, sampling_params, request)
            if self.attributes is not None and hasattr(span, "update"):
                span.update(self.attributes(generation.meta))
        return generation
