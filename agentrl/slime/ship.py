"""Turns a finished episode into one or several samples, with tokens, reward and the data for slime's flags."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from agentrl.errors import ConfigError
from agentrl.slime import distill
from agentrl.slime.host import HostArgs
from agentrl.slime.images import Pixels, write_pixels
from agentrl.slime.replay import write_replay_data
from agentrl.slime.sample import ROUNDS_KEY, clear, to_sample, to_samples
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, StopReason

log = logging.getLogger("agentrl")


def ship_evaluation(
    flags: HostArgs,
    trajectory: Trajectory,
    sample: Any,
    *,
    decode: Callable[[Sequence[int]], str],
    extra: Mapping[str, JSON],
) -> Any:
    """Write the episode into the sample, with the reward in the form for slime's evaluation."""
    clear(sample)
    to_sample(trajectory, sample, decode=decode, extra=extra, evaluation=True)
    _write_reward(flags, sample, trajectory.reward_parts, evaluation=True, siblings=1)
    return sample


def ship_training(
    flags: HostArgs,
    trajectory: Trajectory,
    sample: Any,
    *,
    decode: Callable[[Sequence[int]], str],
    extra: Mapping[str, JSON],
    segments: bool,
    pixels: Sequence[Pixels],
    teacher_log_probs: Sequence[Sequence[float]],
) -> Any:
    """Write the episode into the sample. With `segments`, returns a list with a sample for each segment.

    Without `segments`, the last segment is the sample. For an agent this is the main conversation; its other requests
    are masked. An aborted episode is always a single sample, since slime does not send lists again.
    """
    clear(sample)
    if not segments:
        for segment in trajectory.segments[:-1]:
            segment.mask("host")
    fans_out = segments and trajectory.stop is not StopReason.ABORTED
    write = to_samples if fans_out else to_sample
    result = write(trajectory, sample, decode=decode, extra=extra)
    samples = result if fans_out else [sample]
    shipped = trajectory.segments[-len(samples) :]
    images = pixels[-len(samples) :]
    for sibling, segment, own_pixels in zip(samples, shipped, images, strict=True):
        _write_reward(flags, sibling, trajectory.reward_parts, evaluation=False, siblings=len(samples))
        write_replay_data(flags, sibling, segment)
        write_pixels(sibling, own_pixels)
        if flags.log_multi_turn:
            sibling.metadata[ROUNDS_KEY] = len({span.turn for span in segment.spans if span.kind == "sampled"})
    if flags.asks_teacher:
        taught = teacher_log_probs[-len(samples) :] or [()] * len(samples)
        for sibling, log_probs in zip(samples, taught, strict=True):
            distill.write_log_probs(sibling, log_probs)
    return result


def _write_reward(flags: HostArgs, sample: Any, parts: Mapping[str, JSON], *, evaluation: bool, siblings: int) -> None:
    """Write the reward in the form for slime: a number, or with --reward-key a mapping."""
    if sample.reward is None and siblings > 1 and flags.has_reward_model(sample):
        raise ConfigError(
            "an episode of several samples needs the reward from Env.score or `reward`: slime's reward model would "
            "score each of them alone"
        )
    if sample.reward is None and not flags.has_reward_model(sample):
        _warn_unscored()
        sample.reward = 0.0
    key = flags.reward_name(evaluation=evaluation)
    if key and sample.reward is not None:
        # In training a part must not replace the total. Evaluation may ask for a part by its name.
        sample.reward = {key: sample.reward, **parts} if evaluation else {**parts, key: sample.reward}


@cache
def _warn_unscored() -> None:
    log.warning("no Env.score, step reward, `reward`, --rm-type or --custom-rm-path: every reward is 0")
