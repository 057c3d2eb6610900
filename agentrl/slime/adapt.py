"""`agentrl.adapt`: takes a slime Sample, plays one episode, and returns the same Sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import ConfigError
from agentrl.slime import distill, replay, seats
from agentrl.slime.config import SlimeConfig, fan_out_problems
from agentrl.slime.data_source import in_play
from agentrl.slime.fatal import end_run, ended_sample, log_once
from agentrl.slime.host import HostArgs, has_queues, refuses_rewards, rollout_state, takes_lists
from agentrl.slime.images import pixels_of
from agentrl.slime.playing import PlayedSample, SampleRequest, play_sample, play_seats
from agentrl.slime.remote import sample_workers
from agentrl.slime.rollouts import flat_samples
from agentrl.slime.sample import set_reward_aside
from agentrl.slime.ship import ship_evaluation, ship_training
from agentrl.slime.task import from_sample, metadata_of, template_kwargs


async def adapt(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """Play an episode for slime, and write its result into `sample`, however the episode ends.

    An aborted sample continues where it stopped if the saved state of its episode still exists. If the environment
    fails, the sample is masked and removed, with the cause in metadata["agentrl"]. Under `thinking: strip` or
    `limits.compact_at`, and for an AgentEnv where slime's flags allow lists, training gets a list with a sample for
    each segment. An aborted episode is a single sample, which slime can send again. `args` and `sampling_params` are
    not changed.

    Raises ConfigError and TemplateError, which would break every sample, and passes on cancellation. Some rollouts
    swallow exceptions. So after an error each sample carries the error, and ends the run (see `fatal`).
    """
    flags = HostArgs.of(args)
    if not evaluation and (ended := await ended_sample(args, sample)) is not None:
        return _for_group_model(flags, ended)
    try:
        sample.metadata = metadata_of(sample)
        state = rollout_state(args, sample)
        call = _AdaptCall(
            flags,
            SlimeConfig.from_args(flags),
            sample,
            sampling_params,
            evaluation,
            None if state is None else lambda: bool(state.aborted),
            holds_ended=flags.partial_rollout and flags.plays_ahead is not True and has_queues(state),
        )
        call.check_flags()
        with in_play(args, sample):
            result = await call.play()
        return result if evaluation else _for_group_model(flags, result)
    except Exception as exc:
        log_once(exc)
        if not evaluation:
            end_run(args, exc)
        raise


adapt.abort_mode = "server"  # type: ignore[attr-defined]
"""How slime 0.4 (rollout/sglang_rollout.py) aborts this function. server: slime aborts the engine's requests and awaits
`adapt`, which saves the state of the episode. request: slime cancels the call, and the episode restarts."""


def _for_group_model(flags: HostArgs, samples: Any) -> Any:
    """The samples for the reward model of groups of slime or miles. A reward that this model would refuse is moved
    aside."""
    for sample in flat_samples(samples) if flags.group_rm else ():
        if refuses_rewards(sample):
            set_reward_aside(sample)
    return samples


@dataclass(frozen=True, slots=True)
class _AdaptCall:
    """A call of `adapt`. All methods raise ConfigError."""

    flags: HostArgs
    config: SlimeConfig
    sample: Any
    sampling_params: Mapping[str, Any]
    evaluation: bool
    aborted: Any
    """slime's abort flag; None outside of slime."""
    holds_ended: bool = False
    """Whether an episode that ends during slime's abort is returned as aborted now, and as ended when slime sends the
    sample again."""

    def check_flags(self) -> None:
        """Raises ConfigError for flags and samples that agentrl or slime cannot handle."""
        if not self.evaluation:
            self.config.check_fan_out(self.flags, takes_lists=takes_lists(self.flags, self.sample))
            distill.check_flags(self.flags, self.sample)
            replay.check_flags(self.flags)

    async def play(self) -> Any:
        flags, config, sample, evaluation = self.flags, self.config, self.sample, self.evaluation
        request = SampleRequest(
            flags=flags,
            config=config,
            sample=sample,
            task=from_sample(flags, sample, evaluation=evaluation),
            sampling_params=dict(self.sampling_params),
            template_kwargs={}
            if config.chat_template_kwargs is not None
            else template_kwargs(flags, sample, evaluation=evaluation),
            evaluation=evaluation,
            holds_ended=self.holds_ended,
            in_slime=self.aborted is not None,
        )
        if request.has_seats:
            return await self._play_seats(request)
        play = sample_workers(config.workers).play if config.workers else play_sample
        episode = await play(request, self.aborted)
        if evaluation:
            return ship_evaluation(flags, episode.trajectory, sample, decode=episode.decode, extra=episode.about)
        segments = bool(config.splits) or (request.plays_agent and self._agent_fans_out())
        return await self._ship(sample, episode, segments=segments)

    async def _play_seats(self, request: SampleRequest) -> Any:
        """Play an episode with seats. Returns a sample for each seat of the policy."""
        if self.config.workers:
            raise ConfigError(f"{seats.NOT_IN_WORKERS.format(request.env.__name__)}; write workers: 0")
        episodes = await play_seats(request, self.aborted)
        if self.evaluation:
            first = next(iter(episodes.values()))
            return ship_evaluation(self.flags, first.trajectory, self.sample, decode=first.decode, extra=first.about)
        samples, segments = list[Any](), bool(self.config.splits)
        for sample, trajectory in seats.samples_of(
            self.sample, {seat: episode.trajectory for seat, episode in episodes.items()}
        ):
            shipped = await self._ship(sample, episodes[trajectory.seat], segments=segments)
            samples += shipped if isinstance(shipped, list) else [shipped]
        return samples if len(samples) > 1 else samples[0]

    async def _ship(self, sample: Any, episode: PlayedSample, *, segments: bool) -> Any:
        return ship_training(
            self.flags,
            episode.trajectory,
            sample,
            pixels=await pixels_of(episode.trajectory, episode.vision),
            teacher_log_probs=episode.teacher_log_probs,
            segments=segments,
            decode=episode.decode,
            extra=episode.about,
        )

    def _agent_fans_out(self) -> bool:
        """Whether each segment of an agent's episode becomes a sample. Otherwise only the main conversation is the
        sample."""
        problems = fan_out_problems(self.flags, takes_lists=takes_lists(self.flags, self.sample))
        return hasattr(self.sample, "rollout_id") and not problems
