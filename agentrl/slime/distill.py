"""On-policy distillation from a teacher over HTTP: --use-opd --opd-type sglang --rm-url http://TEACHER:PORT/generate.

slime uses a reward model whose answer replaces the reward, and a reward post-process that unpacks the answer
(slime/rollout/on_policy_distillation.py, 624b824a8). But an Env has its own reward. So agentrl asks the teacher after
the episode and keeps the reward. slime's trainer finds the log-probs in `sample.teacher_log_probs`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentrl.episode.shared import LoopResources
from agentrl.errors import ConfigError, EngineError, Failure
from agentrl.slime.host import HostArgs
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import StopReason

if TYPE_CHECKING:
    from agentrl.engine.sglang.connections import Connections

_TIMEOUT_S = 600.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
"""Seconds between attempts when the teacher is away. They double."""
_MAX_RETRY_AFTER_S = 60.0


def check_flags(flags: HostArgs, sample: Any) -> None:
    """Raises ConfigError for flags that conflict with --opd-type sglang."""
    if not flags.asks_teacher:
        return
    given = {
        "--custom-rm-path": flags.custom_rm_path,
        "--custom-reward-post-process-path": flags.custom_reward_post_process_path,
    }
    if pair := [name for name, path in given.items() if "on_policy_distillation" in (path or "")]:
        raise ConfigError(
            f"--opd-type sglang: remove {' and '.join(pair)}, which would replace the Env's reward; agentrl "
            "asks the teacher at --rm-url itself"
        )
    if not flags.rm_url:
        raise ConfigError("--opd-type sglang: add --rm-url http://TEACHER:PORT/generate, the teacher to ask")
    if not hasattr(sample, "teacher_log_probs"):
        raise ConfigError("--opd-type sglang: this host's Sample has no teacher_log_probs; use --opd-type megatron")


async def ask_teacher(
    here: LoopResources, flags: HostArgs, trajectory: Trajectory, *, retry_s: float
) -> list[Sequence[float]]:
    """The teacher's log-probs of the response, one list for each segment. Without an answer the episode fails.

    A teacher that is away is asked again for `retry_s` seconds.

    Empty where the flags name no teacher, and for an episode that is not trained.
    """
    if not flags.asks_teacher or trajectory.stop in (StopReason.FAILED, StopReason.ABORTED):
        return []
    connections = await here.connections(flags.rm_url)
    try:
        return [
            await _log_probs(connections, flags, list(segment.tokens), segment.response_length, retry_s)
            for segment in trajectory.segments
        ]
    except (EngineError, TimeoutError) as exc:
        trajectory.stop, trajectory.failure = StopReason.FAILED, Failure.of(exc, "score")
        return []


def write_log_probs(sample: Any, log_probs: Sequence[float]) -> None:
    """Write the log-probs into a sample. slime's trainer needs a number for each token, so missing ones are zeros."""
    import torch  # there is no slime without it

    known = log_probs if len(log_probs) == sample.response_length else [0.0] * sample.response_length
    sample.teacher_log_probs = torch.tensor(known, dtype=torch.float32)


async def _log_probs(
    connections: Connections, flags: HostArgs, tokens: list[int], count: int, retry_s: float
) -> Sequence[float]:
    if not count:
        return []
    body = {
        "input_ids": tokens,
        "sampling_params": {
            "temperature": flags.rollout_temperature,
            "max_new_tokens": 0,
            "skip_special_tokens": False,
        },
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    answer = await _post(connections, json.dumps(body).encode(), retry_s)
    try:
        scored = json.loads(answer)["meta_info"]["input_token_logprobs"][-count:]
        found, ids = [float(entry[0]) for entry in scored], [int(entry[1]) for entry in scored]
    except (ValueError, TypeError, LookupError) as exc:
        raise EngineError(f"the teacher's answer holds no log-probs of the tokens it was given: {exc!r}") from exc
    if ids != tokens[-count:] or not all(math.isfinite(value) for value in found):
        raise EngineError("the teacher's log-probs are not finite numbers for the tokens it was given")
    return found


async def _post(connections: Connections, body: bytes, retry_s: float) -> bytes:
    from agentrl.engine.sglang.connections import UnavailableError

    url, pause, waited = connections.address.url, _PAUSE_S, 0.0
    while True:
        try:
            return await connections.post(url, body, {}, _TIMEOUT_S)
        except UnavailableError as exc:
            if waited >= retry_s:
                raise
            seconds = max(pause, min(exc.retry_after, _MAX_RETRY_AFTER_S))
            await asyncio.sleep(seconds)
            waited, pause = waited + seconds, min(2 * pause, _LONGEST_PAUSE_S)
