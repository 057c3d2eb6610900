"""Continue an aborted episode exactly where it stopped."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from agentrl._util.boundary import FailedError, at_boundary
from agentrl.engine.base import Engine
from agentrl.env.env import Env, begin_env, is_agent, runtime
from agentrl.env.tools import tool_name
from agentrl.episode.options import EpisodeHooks, EpisodeOptions, RewardFn
from agentrl.episode.reasoning import ReasoningStripper
from agentrl.episode.run import Episode
from agentrl.episode.seats import SeatedEpisode, begins, replay_seats
from agentrl.episode.state import EpisodeState, Parked
from agentrl.errors import ConfigError, ResumeError, one_line
from agentrl.render.base import Renderer
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Generation


async def resume_episode(
    parked: Parked,
    env: Env,
    *,
    engine: Engine,
    renderer: Renderer,
    options: EpisodeOptions | None = None,
    reward: RewardFn | None = None,
    hooks: EpisodeHooks | None = None,
) -> Trajectory:
    """Continue an episode where it stopped, even in the middle of a turn. Other details are as in `run_episode`.

    `env` is `parked.env`, or a fresh Env of the same class. Limits count the earlier part of the episode, but
    `Limits.episode_s` leaves out the time between. The option `thinking` must be the same as before. If the Env cannot
    be restored, or responds to a recorded action differently, `env` is closed and ResumeError is raised.
    """
    if parked.episode.table is not None:
        raise ConfigError("the parked episode has seats: resume it with resume_seats")
    episode = Episode.of(env, parked.episode, engine, renderer, options, reward, hooks)
    episode.returning = parked
    return await episode.run(partial(_return, episode, parked))


async def resume_seats(
    parked: Parked,
    env: Env,
    *,
    engine: Engine,
    renderer: Renderer,
    players: Mapping[str, Engine] | None = None,
    options: EpisodeOptions | None = None,
    reward: RewardFn | None = None,
    hooks: EpisodeHooks | None = None,
) -> dict[str, Trajectory]:
    """Continue an episode with seats where it stopped. Other details are as in `resume_episode` and `run_seats`."""
    table = parked.episode.table
    if table is None:
        raise ConfigError("the parked episode has no seats: resume it with resume_episode")
    episode = SeatedEpisode.around(env, table, engine, renderer, players, options, reward, hooks)
    episode.returning = parked
    await episode.run(partial(_return, episode, parked))
    return episode.trajectories


async def _return(episode: Episode, parked: Parked) -> None:
    """Bring the Env to the state in which the episode stopped, unless the host aborts first."""
    if parked.env is None and episode.talk.is_aborted():
        return
    try:
        with at_boundary("reset"):
            back = await (_again if parked.how == "replay" else _restore)(episode, parked)
            if back:
                if not is_agent(type(episode.env)):
                    await episode.reopen()
                episode.returning = None
    except Exception as exc:  # the boundary of resuming: after any error the episode restarts
        error = str(exc) if isinstance(exc, FailedError | ResumeError) else one_line(exc)
        raise ResumeError(f"{parked.how}: {error}") from exc


async def _restore(episode: Episode, parked: Parked) -> bool:
    """Use the open Env, or restore an Env from its snapshot. Return True."""
    env, limits = episode.env, episode.talk.options.limits
    env_runtime = runtime(env)
    if parked.env is None:
        begin_env(env, parked.episode.trajectory.task, limits)
        env_runtime.rng.setstate(parked.rng)
        env_runtime.tool_errors.update(parked.episode.trajectory.info.get("tool_errors", {}))
        await env_runtime.hook(env.restore, parked.saved, timeout=limits.reset_s)
        env_runtime.offered = tuple(map(tool_name, parked.episode.trajectory.tools))
    env_runtime.limits = limits
    return True


async def _again(episode: Episode, parked: Parked) -> bool:
    """Execute the recorded actions in the fresh Env. Return False if the host aborts meanwhile. Raises ResumeError."""
    return await (replay_seats(episode) if isinstance(episode, SeatedEpisode) else _replay(episode, parked))


async def _replay(episode: Episode, parked: Parked) -> bool:
    """Execute the recorded actions in the fresh Env, as an episode that is then discarded. Return False if the host
    aborts meanwhile.

    Raises ResumeError if any token differs from the record.
    """
    recorded, steps = parked.episode.trajectory, parked.episode.steps
    again = Trajectory(parked.episode.given or recorded.task, session_id=recorded.session_id)
    state = EpisodeState(again, None if parked.episode.thoughts is None else ReasoningStripper())
    talk = episode.talk
    replay = Episode.of(episode.env, state, talk.engine, talk.renderer, talk.options, None, episode.hooks)
    await replay.begin()
    await replay.reset()
    for turn, action in zip(recorded.turns[:steps], recorded.actions, strict=False):
        if talk.is_aborted():
            return False
        log_probs = [0.0] * len(action.tokens)
        again.append_model(Generation(action.tokens, log_probs, turn.finish_reason, turn.matched))
        again.append_action(action)
        stop = await replay.step(action)
        if stop not in (None, parked.episode.stop) or not begins(recorded, again):
            raise ResumeError(f"the environment diverged: it answered turn {state.steps} differently than before")
    unanswered = sum(turn.sampled_tokens for turn in recorded.turns[steps:])
    if not begins(recorded, again) or again.segment.length + unanswered != recorded.segment.length:
        raise ResumeError("the environment diverged: its observation differs from before")
    recorded.task = again.task
    return True
