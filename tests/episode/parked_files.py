"""A parked episode, and the files of a parking place."""

from __future__ import annotations

from random import Random

from agentrl import Task, Trajectory
from agentrl._util.owners import current
from agentrl.engine import Generation
from agentrl.episode.state import EpisodeState, Parked
from agentrl.render import Rendered, RenderedSpan


def files(folder) -> set[str]:
    """The names of the files in a folder, this process's heartbeat left out."""
    return {path.name for path in folder.iterdir()} - {current()}


def played() -> Trajectory:
    t = Trajectory(Task(prompt="Hi", label=1), session_id="s")
    t.append_prompt(Rendered((1, 2), (RenderedSpan("prompt", 0, 2),)))
    t.append_model(Generation([3, 4, 5, 6], [-0.5, -0.25, -1.0, -2.0], "abort", meta={"top_p_token_ids": "AAA="}))
    t.mask_where([1, 0, 0, 1], "off_policy")
    return t


def parked(how="snapshot", env=None, saved=None) -> Parked:
    return Parked(
        how=how,
        episode=EpisodeState(played(), played_s=1.5),
        rng=Random(4).getstate(),
        env=env,
        saved=saved,
    )
