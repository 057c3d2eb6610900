"""A whole run of the embedded trainer, from the configuration to the summary."""

from __future__ import annotations

from rich.console import Console

from agentrl._util.signals import run
from agentrl.train.config import TrainConfig
from agentrl.train.report import Summary
from agentrl.train.trainer import Trainer


def train(
    config: TrainConfig,
    *,
    resume: bool = False,
    accept_changed_data: bool = False,
    trainer: type[Trainer] | None = None,
    console: Console | None = None,
) -> Summary:
    """Run to the end, and return a summary.

    Raises ConfigError before anything is written, BugError for a bug in the Env, and DivergedError for a loss that is
    not finite. Raises CanaryError if nothing can be learned, or if engine and trainer disagree. After such an error, or
    after a kill, `resume` continues from the last checkpoint. After Ctrl-C and SIGTERM it continues where the run was.
    A run that fails before the first step leaves no folder, or only the engine's log. `accept_changed_data`: continue
    even if tasks have changed.
    """

    async def whole() -> Summary:
        kind = trainer or Trainer
        async with kind(config, resume=resume, accept_changed_data=accept_changed_data, console=console) as running:
            return await running.run()

    return run(whole())
