"""The metrics of a set of episodes. All trainers use this computation."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Self

from agentrl._util.loading import own_line
from agentrl.errors import Failure, LedgerError
from agentrl.monitor.earned import rewards_by_role, rewards_of
from agentrl.trajectory.spans import Ledger
from agentrl.trajectory.trajectory import Trajectory, total_ledger
from agentrl.types import JSON, CheckCounts, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeMetrics:
    """The numbers of an episode from which the metrics are computed."""

    stop: StopReason | None
    turns: int = 0
    bad_calls: int = 0
    """The number of turns with an unreadable tool call, an unknown tool or wrong arguments."""
    tools: int = 0
    """The number of tools offered to the model."""
    tool_calls: int = 0
    response_length: int = 0
    failure: str | None = None
    """The kind and the boundary of the failure, as `kind/boundary`. None without a failure."""
    failed_at: str | None = None
    """The line and the type of the failure; see the function `failed_at`. None without a failure."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    role_rewards: Mapping[str, float] = field(default_factory=dict)
    """Role -> the mean reward of its branches, for an agent with rewards on branches; see the function
    `role_rewards`."""
    tool_errors: Mapping[str, int] = field(default_factory=dict)
    refused_hosts: Mapping[str, int] = field(default_factory=dict)
    observation_tokens_cut: int = 0
    special_tokens: int = 0
    result_differs: int = 0
    bridges_checked: int = 0
    bridges_different: int = 0
    resumes: int = 0
    restarts: int = 0

    @classmethod
    def of(cls, trajectory: Trajectory) -> Self:
        failure = trajectory.failure
        return cls(
            stop=trajectory.stop,
            turns=len(trajectory.turns),
            bad_calls=sum(turn.bad_call is not None for turn in trajectory.turns),
            tools=len(trajectory.tools),
            tool_calls=trajectory.tool_call_count,
            response_length=sum(segment.response_length for segment in trajectory.segments),
            failure=f"{failure.kind}/{failure.boundary}" if failure is not None else None,
            failed_at=failed_at(failure) if failure is not None else None,
            reward_parts=trajectory.reward_parts,
            role_rewards=role_rewards(trajectory),
            **asdict(trajectory.checks),
            **cls.said_in(trajectory.info),
        )

    @staticmethod
    def said_in(info: Mapping[str, JSON]) -> dict[str, JSON]:
        """The fields of this class that an episode's `info` has. Values of a wrong type, which an Env may have put
        there, are ignored."""
        counts = {name: info.get(name) for name in _COUNTED}
        by_key = {name: info.get(name) for name in _COUNTED_BY_KEY}
        return {
            **{
                name: counts_by_key if isinstance(counts_by_key, Mapping) else {}
                for name, counts_by_key in by_key.items()
            },
            **{name: count if isinstance(count, int) else 0 for name, count in counts.items()},
        }

    @property
    def valid(self) -> bool:
        """Whether the episode neither failed nor was aborted. Only the reward of such an episode tells about the
        policy."""
        return self.stop not in (StopReason.FAILED, StopReason.ABORTED)

    @property
    def truncated(self) -> bool:
        return self.stop is not None and self.stop.truncated


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMetrics:
    """The metrics of a set of episodes. Rewards, turns and rates leave out failed and aborted episodes."""

    reward_mean: float = 0.0
    reward_std: float = 0.0
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    """Part of the reward -> the mean over the episodes with the part."""
    role_rewards: Mapping[str, float] = field(default_factory=dict)
    """Role of an agent's branches -> the mean reward over the episodes that have this role."""
    response_length_mean: float = 0.0
    turns_mean: float = 0.0
    episodes: int = 0
    failed_episodes: int = 0
    unscored_episodes: int = 0
    """The number of valid episodes without a reward. All means of rewards leave these episodes out."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """`kind/boundary` of a failure -> the number of episodes."""
    failed_at: Mapping[str, int] = field(default_factory=dict)
    """Line of the Env's code and type of the error -> the number of failed episodes."""
    failed_groups: int = 0
    """The number of groups in which every episode failed."""
    samples: int = 0
    """The number of token sequences. Each segment of an episode is a sequence."""
    groups: int = 0
    zero_advantage_groups: int = 0
    """The number of groups with equal rewards, and thus zero advantages."""
    uncredited_groups: int = 0
    """The number of groups with equal total rewards and different step rewards, under `credit: turn`. Such groups have
    no learning signal, either."""
    stops: Mapping[str, int] = field(default_factory=dict)
    resumes: int = 0
    restarts: int = 0
    episodes_with_tools: int = 0
    tool_call_rate: float = 0.0
    """The share of the episodes with tools in which the model called an existing tool."""
    bad_call_rate: float = 0.0
    """The share of the turns with an unreadable tool call, an unknown tool or wrong arguments."""
    truncation_rate: float = 0.0
    """The share of the episodes that a limit on tokens or time ended."""
    tool_errors: Mapping[str, int] = field(default_factory=dict)
    """`tool:Type` -> the number of unexpected exceptions of this type in the tool."""
    refused_hosts: Mapping[str, int] = field(default_factory=dict)
    """`host:port` -> the number of requests of sandboxes to this host, which is not allowed. Only the ten most
    common."""
    observation_tokens_cut: int = 0
    special_tokens: int = 0
    """The number of special tokens in users' text, tools and documents. Unless these are encoded as text, they can
    forge turns."""
    result_differs: int = 0
    """The number of episodes of an agent whose `run` returned text absent from all replies of the model."""
    bridges_checked: int = 0
    """The number of bridges (token sequences between two turns) that were rendered for a comparison with the memo:
    about a 64th."""
    bridges_different: int = 0
    """The number of these bridges that differ from the memo. Any value but 0 is a bug. The memo is then off, and the
    rendered bridge is used."""
    sampled_tokens: int = 0
    trained_tokens: int = 0
    masked_tokens: Mapping[str, int] = field(default_factory=dict)
    prefix_breaks: int | None = None
    """The number of generations whose prompt was changed after sending. Any value but 0 is a bug. None if unknown."""

    @classmethod
    def of(
        cls,
        episodes: Sequence[EpisodeMetrics],
        rewards: Sequence[Sequence[float]],
        tokens: Ledger,
        *,
        samples: int,
        failed_groups: int = 0,
        unscored: int = 0,
        prefix_breaks: int | None = None,
    ) -> Self:
        """Compute the metrics from the episodes, and from the rewards of valid episodes by group."""
        valid = [episode for episode in episodes if episode.valid]
        return cls(
            **_of_all(episodes),
            **_of_valid(valid),
            **_of_rewards(rewards),
            failed_episodes=len(episodes) - len(valid),
            failed_groups=failed_groups,
            unscored_episodes=unscored,
            samples=samples,
            sampled_tokens=tokens.sampled,
            trained_tokens=tokens.trained,
            masked_tokens=dict(tokens.masked),
            prefix_breaks=prefix_breaks,
        )

    @classmethod
    def of_groups(cls, groups: Sequence[Sequence[Trajectory]]) -> Self:
        """Compute the metrics from groups of trajectories. Raises LedgerError unless every sampled token is trained or
        masked.
        """
        trajectories = [trajectory for group in groups for trajectory in group]
        segments = [segment for trajectory in trajectories for segment in trajectory.segments]
        return cls.of(
            [EpisodeMetrics.of(trajectory) for trajectory in trajectories],
            [rewards_of(group) for group in groups],
            _balanced(total_ledger(segments)),
            samples=len(segments),
            failed_groups=sum(all(trajectory.failure for trajectory in group) for group in groups),
            unscored=sum(trajectory.is_valid and trajectory.reward is None for trajectory in trajectories),
            prefix_breaks=sum(trajectory.prefix_breaks for trajectory in trajectories),
        )

    @property
    def reward(self) -> float | None:
        """The mean reward, or None without any rewarded episode."""
        return self.reward_mean if self.episodes > self.failed_episodes + self.unscored_episodes else None

    def to_json(self) -> dict[str, JSON]:
        """Name -> value of every metric. Metrics that are unknown are left out."""
        values = {metric.name: getattr(self, metric.name) for metric in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


_PLACES = 10
"""The number of entries in the metrics of failure lines and of refused hosts. The most common are included."""
_COUNTED = ("observation_tokens_cut", "special_tokens", "result_differs")
"""The keys of counts in an episode's `info`."""
_COUNTED_BY_KEY = ("tool_errors", "refused_hosts")
_SUMMED = ("resumes", "restarts", *(count_field.name for count_field in fields(CheckCounts)), *_COUNTED)
"""The metrics that are the sum of the field of the same name over the episodes."""


def failed_at(failure: Failure) -> str:
    """The place of a failure as text, such as `my_env.py:12 FileNotFoundError`: the line of the Env's code, or else the
    boundary."""
    return f"{own_line(failure.traceback) or failure.boundary} {failure.error.partition(':')[0]}"


def role_rewards(trajectory: Trajectory) -> dict[str, float]:
    """Role -> the mean reward of its branches. The role of the main conversation is `main`. Empty without rewards for
    branches."""
    by_role = rewards_by_role([trajectory]) if trajectory.branch_rewards else {}
    return {role or "main": statistics.fmean(rewards) for role, rewards in by_role.items()}


def _of_all(episodes: Sequence[EpisodeMetrics]) -> dict[str, JSON]:
    """The metrics over all episodes, including failed and aborted episodes."""
    return {
        "episodes": len(episodes),
        "failures": dict(Counter(episode.failure for episode in episodes if episode.failure)),
        "failed_at": dict(Counter(episode.failed_at for episode in episodes if episode.failed_at).most_common(_PLACES)),
        "stops": dict(Counter(str(episode.stop) for episode in episodes)),
        "tool_errors": dict(_total(episode.tool_errors for episode in episodes)),
        "refused_hosts": dict(_total(episode.refused_hosts for episode in episodes).most_common(_PLACES)),
        **{name: sum(getattr(episode, name) for episode in episodes) for name in _SUMMED},
    }


def _of_valid(episodes: Sequence[EpisodeMetrics]) -> dict[str, JSON]:
    """The metrics over valid episodes, which describe the policy."""
    with_tools = [episode for episode in episodes if episode.tools]
    turns = sum(episode.turns for episode in episodes)
    return {
        "reward_parts": _means([episode.reward_parts for episode in episodes]),
        "role_rewards": _means([episode.role_rewards for episode in episodes]),
        "response_length_mean": _mean([episode.response_length for episode in episodes]),
        "turns_mean": _mean([episode.turns for episode in episodes]),
        "episodes_with_tools": len(with_tools),
        "tool_call_rate": _mean([episode.tool_calls > 0 for episode in with_tools]),
        "bad_call_rate": sum(episode.bad_calls for episode in episodes) / max(turns, 1),
        "truncation_rate": _mean([episode.truncated for episode in episodes]),
    }


def _of_rewards(groups: Sequence[Sequence[float]]) -> dict[str, JSON]:
    earned = [reward for group in groups for reward in group] or [0.0]
    return {
        "reward_mean": statistics.fmean(earned),
        "reward_std": statistics.pstdev(earned),
        "groups": len(groups),
        "zero_advantage_groups": sum(len(set(group)) < 2 for group in groups),
    }


def _balanced(tokens: Ledger) -> Ledger:
    """The ledger, unchanged. Raises LedgerError unless every sampled token is trained or masked."""
    if tokens.sampled != tokens.trained + sum(tokens.masked.values()):
        raise LedgerError(f"sampled {tokens.sampled} != trained {tokens.trained} + masked {dict(tokens.masked)}")
    return tokens


def _total(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    return sum((Counter(count) for count in counts), Counter[str]())


def _means(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _mean([part[name] for part in parts if name in part]) for name in names}


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
