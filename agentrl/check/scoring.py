"""Check that the reward is a number in the range, and that `score` does not change the trajectory."""

from __future__ import annotations

import inspect
from typing import Any

from agentrl.check.playing import EnvUnderTest, PlayedEpisode, Speak, play
from agentrl.check.state import Culprit, picture
from agentrl.env.env import Env, runtime
from agentrl.types import JSON, Reward, Task

_CHECK = "reward"
_USUAL = (-1.0, 1.0)


async def scoring(subject: EnvUnderTest, task: Task, speak: Speak) -> None:
    """Report mistakes in `score`: two calls must give the same reward, and must not change the trajectory."""
    if not subject.author.wrote("score"):
        return
    seen: list[tuple[Any, Any, bool]] = []

    def prepare(env: Env) -> None:
        score, env_runtime = env.score, runtime(env)

        async def twice(trajectory: Any) -> Any:
            before = _json(trajectory)
            first = await env_runtime.call(score, trajectory) if _is_plain(score) else await score(trajectory)  # type: ignore[misc]
            unchanged = _json(trajectory) == before
            second = await env_runtime.call(score, trajectory) if _is_plain(score) else await score(trajectory)  # type: ignore[misc]
            seen.append((_value(first), _value(second), unchanged))
            return first

        setattr(env, "score", twice)  # noqa: B010 - a method is replaced

    in_range(subject, await play(subject, task, speak, prepare=prepare), "a script, played again")
    for first, second, unchanged in seen:
        if not unchanged:
            await _changes(subject, task, speak)
        elif first != second and first == first:
            subject.report.warn(
                _CHECK,
                subject.author.of_member("score"),
                f"score gives {first} and, called again on the same trajectory, {second}",
                "let score only read: what it consumes or counts differs in the next call",
            )


async def _changes(subject: EnvUnderTest, task: Task, speak: Speak) -> None:
    places = []

    def prepare(env: Env) -> None:
        score, env_runtime = env.score, runtime(env)

        async def watched(trajectory: Any) -> Any:
            with Culprit(subject.author, lambda: picture(_json(trajectory), subject.author)) as culprit:
                value = await env_runtime.call(score, trajectory) if _is_plain(score) else await score(trajectory)  # type: ignore[misc]
            places.append(culprit.place)
            return value

        setattr(env, "score", watched)  # noqa: B010 - a method is replaced

    await play(subject, task, speak, prepare=prepare)
    place = next(filter(None, places), None) or subject.author.of_member("score")
    message = "score changes the trajectory, and the changed one is trained on and logged"
    subject.report.error(_CHECK, place, message, "work on a copy; write notes to trajectory.info")


def in_range(subject: EnvUnderTest, episode: PlayedEpisode, player: str) -> None:
    """Report a reward outside the declared range, or else outside the usual range."""
    reward, declared = episode.trajectory.reward, subject.cls.reward_range
    if reward is None:
        return
    least, most = declared or _USUAL
    if least <= reward <= most:
        return
    place = subject.author.of_member("score", "step")
    if declared:
        message = f"the reward {reward:g} is outside of reward_range, {least:g} to {most:g} ({episode.told(player)})"
        subject.report.error(_CHECK, place, message, "fix score, or reward_range", episode.row(player))
    else:
        message = (
            f"the reward {reward:g} is outside of -1 to 1, and no reward_range is declared ({episode.told(player)})"
        )
        remedy = f"scale it, or declare it: reward_range = ({min(0.0, reward):g}, ...)"
        subject.report.warn(_CHECK, place, message, remedy, episode.row(player))


def _json(trajectory: Any) -> dict[str, JSON]:
    values: dict[str, JSON] = trajectory.to_json()
    return {key: value for key, value in values.items() if key not in ("info", "reward", "reward_parts")}


def _value(score: Any) -> Any:
    return score.value if isinstance(score, Reward) else score


def _is_plain(hook: Any) -> bool:
    return not inspect.iscoroutinefunction(hook)
