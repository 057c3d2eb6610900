"""The updates of a run, before and after a rewind."""

from __future__ import annotations

import os

import pytest

from tests.rollout.crash.program import Settings

KILLS = int(os.environ.get("AGENTRL_CRASH", "6"))


PROMPTS = 40 * KILLS if "AGENTRL_CRASH" in os.environ else 200


def updates(settings):
    """The updates in the newest checkpoint."""
    return max((int(file.stem.removeprefix("step_")) for file in settings.folder.glob("step_*.json")), default=0)


def rewind(settings, checkpoints):
    """Go back: the newest checkpoints are removed."""
    for file in sorted(settings.folder.glob("step_*.json"))[-checkpoints:]:
        file.unlink()


@pytest.fixture
def settings(tmp_path):
    return Settings(folder=tmp_path, prompts=PROMPTS, group_size=4 if "AGENTRL_CRASH" in os.environ else 2)
