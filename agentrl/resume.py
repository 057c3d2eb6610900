"""Going on with an aborted episode exactly where it stopped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from agentrl.engine.base import Engine, Generation, SamplingParams
from agentrl.env import Env
from agentrl.episode import Episode, FailedError, ParkFn, RewardFn, at_boundary
from agentrl.errors import ResumeError
from agentrl.parking import Parked
from agentrl.render.base import Renderer
from agentrl.thoughts import Thoughts
from agentrl.trajectory import Trajectory
from agentrl.types import Limits


async def resume_episode(
    parked: Parked,
    env: Env,
    *,
    engine: Engine,
    renderer: Renderer,
    limits: Limits | None = None,
    sampling_params: SamplingParams | None = None,
    reward: RewardFn | None = None,
    aborted: Callable[[], bool] | None = None,
    on_turn: Callable[[Trajectory], None] | None = None,
    park: ParkFn | None = None,
) -> Trajectory:
    """Go on where the episode stopped, in the middle of a turn if need be; the rest is as `run_episode` does it.

    `env` is `parked.env` where there is one, else a fresh one of the same class. All budgets count what was spent
    before; `Limits.episode_s` does not count the time in between. Raises ResumeError, `env` closed, if it cannot be
    brought back or answers the recorded actions otherwise than before.
    """
    episode = Episode(
        env=env,
        engine=engine,
        renderer=renderer,
        limits=limits or Limits(),
        sampling_params=sampling_params or {},
        reward=reward,
        aborted=aborted,
        on_turn=on_turn,
        park=park,
        trajectory=parked.trajectory,
        thoughts=parked.thoughts,
        ask=parked.ask,
        next=parked.next,
        stop=parked.stop,
        steps=parked.steps,
        played_s=parked.played_s,
        away=parked,
    )
    return await episode.run(partial(_return, episode, parked))


async def _return(episode: Episode, parked: Parked) -> None:
    """Bring the Env to where the episode stopped."""
    if parked.env is None and episode.is_aborted():
        return  # parked again as it is
    try:
        with at_boundary("reset"):
            await (_replay if parked.how == "replay" else _restore)(episode, parked)
    except Exception as exc:  # the boundary of the way back: whatever it is, a restart needs nothing of it
        error = str(exc) if isinstance(exc, FailedError | ResumeError) else f"{type(exc).__name__}: {exc}"
        raise ResumeError(f"{parked.how}: {error}") from exc


async def _restore(episode: Episode, parked: Parked) -> None:
    env, trajectory = episode.env, episode.trajectory
    if parked.env is None:
        await episode.begin()
        env.rng.setstate(parked.rng)
        env.tool_errors.update(trajectory.info.get("tool_errors", {}))
        await env.call(env.restore, parked.state, timeout=episode.limits.reset_s)
    env.limits = episode.limits
    await episode.ask_context()
    episode.bind()
    episode.away = None


async def _replay(episode: Episode, parked: Parked) -> None:
    """Have the fresh Env answer the recorded actions again, until it is there or the host aborts. The trajectory stays
    the recorded one. Raises ResumeError if any token comes out otherwise."""
    recorded, turns = parked.trajectory, parked.trajectory.turns
    again = episode.trajectory = Trajectory(recorded.task, session_id=recorded.session_id)
    episode.thoughts, episode.steps = None if parked.thoughts is None else Thoughts(), 0
    try:
        await episode.begin()
        await episode.reset()
        for turn, action in zip(turns[: parked.steps], recorded.actions, strict=False):
            if episode.is_aborted():
                return
            log_probs = [0.0] * len(action.tokens)
            again.append_model(Generation(action.tokens, log_probs, turn.finish_reason, turn.matched))
            again.append_action(action)
            stop = await episode.step(action)
            if stop not in (None, parked.stop) or not _begins(recorded, again):
                raise ResumeError(f"the environment diverged: it answered turn {episode.steps} otherwise than before")
        unanswered = sum(turn.sampled_tokens for turn in turns[parked.steps :])
        if not _begins(recorded, again) or len(again.tokens) + unanswered != len(recorded.tokens):
            raise ResumeError("the environment diverged: it shows other than before")
        episode.away = None
    finally:
        episode.trajectory = recorded


def _begins(recorded: Trajectory, again: Trajectory) -> bool:
    """The last segment of `again` is how that segment of `recorded` begins; the others were compared as they grew."""
    segments = recorded.segments[len(again.earlier) :]
    return bool(segments) and again.tokens == segments[0].tokens[: len(again.tokens)]
