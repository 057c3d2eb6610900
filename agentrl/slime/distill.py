"""On-policy distillation from a teacher over HTTP: --use-opd --opd-type sglang --rm-url http://TEACHER:PORT/generate.

slime itself calls the teacher as a reward model: the teacher's response replaces the reward, and a reward post-process
unpacks the response (slime/rollout/on_policy_distillation.py, 624b824a8). But an Env has its own reward. So agentrl
asks the teacher after the episode and keeps the reward. slime's trainer finds the log-probs in
`sample.teacher_log_probs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.episode.shared import LoopResources
from agentrl.errors import ConfigError, EngineError, Failure
from agentrl.slime.host import HostArgs
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import StopReason


def check_flags(flags: HostArgs, sample: Any) -> None:
    """Raises ConfigError for flags that conflict with --opd-type sglang."""
    if not flags.asks_teacher:
        return
    hooks = {
        "--custom-rm-path": flags.custom_rm_path,
        "--custom-reward-post-process-path": flags.custom_reward_post_process_path,
    }
    if pair := [name for name, path in hooks.items() if "on_policy_distillation" in (path or "")]:
        raise ConfigError(
            f"--opd-type sglang: remove {' and '.join(pair)}, which would replace the Env's reward; agentrl "
            "asks the teacher at --rm-url itself"
        )
    if not flags.rm_url:
        raise ConfigError("--opd-type sglang: add --rm-url http://TEACHER:PORT/generate, the teacher to ask")
    if flags.rollout_temperature != 1:
        raise ConfigError(
            f"--opd-type sglang: the teacher's server scores at temperature 1, and slime compares at "
            f"{flags.rollout_temperature:g}; set --rollout-temperature 1, or use --opd-type megatron"
        )
    if not hasattr(sample, "teacher_log_probs"):
        raise ConfigError("--opd-type sglang: this host's Sample has no teacher_log_probs; use --opd-type megatron")


async def ask_teacher(
    here: LoopResources, flags: HostArgs, trajectory: Trajectory, *, retry_s: float
) -> list[Sequence[float]]:
    """The teacher's log-probs of the response, a list for each segment. Empty if the flags name no teacher, and for an
    episode without trained tokens.

    Requests to an unavailable teacher are repeated for `retry_s` seconds. If the teacher sends no log-probs, the
    episode fails.
    """
    if not flags.asks_teacher or trajectory.stop in (StopReason.FAILED, StopReason.ABORTED):
        return []
    from agentrl.engine.sglang.scoring import score  # imports aiohttp

    connections = await here.connections(flags.rm_url)
    try:
        return [
            await score(
                connections,
                connections.address.url,
                segment.tokens,
                segment.response_length,
                media=segment.media,
                retry_s=retry_s,
            )
            for segment in trajectory.segments
        ]
    except (EngineError, TimeoutError) as exc:
        trajectory.stop, trajectory.failure = StopReason.FAILED, Failure.of(exc, "score")
        return []


def write_log_probs(sample: Any, log_probs: Sequence[float]) -> None:
    """Write the log-probs into a sample. slime's trainer needs a number for each token, so missing log-probs become
    zeros."""
    import torch  # slime requires torch

    values = log_probs if len(log_probs) == sample.response_length else [0.0] * sample.response_length
    sample.teacher_log_probs = torch.tensor(values, dtype=torch.float32)
