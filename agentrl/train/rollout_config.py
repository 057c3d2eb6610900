"""Parts of a training configuration: how episodes are played beside each other."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from agentrl.episode.phases import Phase
from agentrl.rollout.failures import FailurePolicy


class AtOnceConfig(BaseModel):
    """How many of the episodes in flight may be in one phase at once. null: all."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    generate: int | None = Field(default=None, gt=0)
    """With fully_async: requests to the engine. The others wait."""
    reset: int | None = Field(default=None, gt=0)
    """Episodes that begin, which is when most environments start their sandbox."""
    step: int | None = Field(default=None, gt=0)
    """Calls of `Env.step`, with the tools in them."""
    score: int | None = Field(default=None, gt=0)
    """Episodes that are scored, by `Env.score` or the reward function."""

    def phases(self) -> dict[Phase, int]:
        """The bounds of `PhaseSlots`."""
        bounds: Mapping[Phase, int | None] = {"reset": self.reset, "step": self.step, "score": self.score}
        return {phase: bound for phase, bound in bounds.items() if bound is not None}


class FailureConfig(BaseModel):
    """What becomes of episodes whose environment fails. They have no reward, and are not part of the baseline."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    again: int = Field(default=1, ge=0)
    """How often such an episode is played once more, with a fresh Env."""
    wait_s: float = Field(default=0.0, ge=0)
    """Seconds before that. They double each time."""
    least: int = Field(default=0, ge=0)
    """With fully_async or over_sample, groups with fewer valid episodes are dropped, and replaced by other tasks."""
    ends_run: bool = False
    """Fail fast: an episode that fails for good ends the run."""

    def policy(self) -> FailurePolicy:
        return FailurePolicy(again=self.again, wait_s=self.wait_s, least=self.least, ends_run=self.ends_run)
