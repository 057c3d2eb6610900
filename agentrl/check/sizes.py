"""Check for observations that are too large, or that repeat all earlier observations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from agentrl.check.playing import EnvUnderTest, PlayedEpisode
from agentrl.env.env import tools_of

_CHECK = "sizes"
LARGE = 40_000
"""An observation with more characters, about ten thousand tokens, is reported."""
_REPEATS = 3
_LEAST = 20


def sizes(subject: EnvUnderTest, episode: PlayedEpisode) -> None:
    """Report observations of a play that are too large, or that repeat earlier observations."""
    observed = _observed(episode)
    if (largest := max(map(len, observed), default=0)) > LARGE:
        subject.report.warn(
            _CHECK,
            subject.author.of_member(*_hooks(subject, observed)),
            f"an observation has {largest} characters, about {largest // 4} tokens",
            "cut it, or show a part and let the model ask for more; limits.observation_tokens only cuts the end off",
        )
    elif _repeats(observed[1:]):
        subject.report.warn(
            _CHECK,
            subject.author.of_member("step", "exec_tool", *_tools(subject)),
            f"each observation repeats all earlier ones, from {len(observed[1])} to {len(observed[-1])} characters",
            "show only what is new: the model still reads the earlier observations",
        )


def _hooks(subject: EnvUnderTest, observed: Sequence[str]) -> Sequence[str]:
    return ("reset",) if observed and len(observed[0]) > LARGE else ("step", "exec_tool", *_tools(subject), "reset")


def _tools(subject: EnvUnderTest) -> list[str]:
    return [spec.attribute for spec in tools_of(subject.cls).values()]


def _observed(episode: PlayedEpisode) -> list[str]:
    """The prompt, and each later observation, as text."""
    texts, now = [""], 0
    for message in episode.trajectory.messages:
        if message.get("role") == "assistant":
            now += 1
            continue
        while len(texts) <= now:
            texts.append("")
        texts[now] += str(message.get("content") or "")
    raw = [turn.raw for turn in episode.trajectory.turns if turn.raw]
    return [texts[0], *raw] if raw else texts


def _repeats(observed: Sequence[str]) -> bool:
    """Whether several observations in a row each contain the observation before, and more."""
    row = 0
    for before, after in pairwise(observed):
        longer = len(before) >= _LEAST and len(after) > len(before) and before.strip() in after
        row = row + 1 if longer else 0
        if row >= _REPEATS:
            return True
    return False
