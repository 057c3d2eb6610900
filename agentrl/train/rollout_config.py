"""Parts of a training configuration: how episodes are played beside each other."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from agentrl.episode.phases import Phase
from agentrl.rollout.play.failures import FailurePolicy


class AtOnceConfig(BaseModel):
    """The most episodes in flight that may be in a phase at once. null: all."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    generate: int | None = Field(default=None, gt=0)
    """The most concurrent requests to the engine, with `fully_async`. Further requests wait."""
    reset: int | None = Field(default=None, gt=0)
    """Beginning episodes. Most environments start their sandbox at the beginning."""
    step: int | None = Field(default=None, gt=0)
    """Calls of `Env.step`, including tools."""
    score: int | None = Field(default=None, gt=0)
    """Episodes in `Env.score` or the reward function."""

    def phases(self) -> dict[Phase, int]:
        """The bounds of `PhaseSlots`."""
        bounds: Mapping[Phase, int | None] = {"reset": self.reset, "step": self.step, "score": self.score}
        return {phase: bound for phase, bound in bounds.items() if bound is not None}


class FailureConfig(BaseModel):
    """The fate of episodes whose environment fails. They have no reward, and are not part of the baseline."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    again: int = Field(default=1, ge=0)
    """How often such an episode is played once more, with a fresh Env."""
    wait_s: float = Field(default=0.0, ge=0)
    """Seconds before each retry, doubled each time."""
    least: int = Field(default=0, ge=0)
    """With fully_async or over_sample, groups with fewer valid episodes are dropped, and replaced by other tasks."""
    ends_run: bool = False
    """Fail fast: an episode that fails for good ends the run."""

    def policy(self) -> FailurePolicy:
        return FailurePolicy(again=self.again, wait_s=self.wait_s, least=self.least, ends_run=self.ends_run)
