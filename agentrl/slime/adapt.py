"""`agentrl.adapt`: takes a slime Sample, plays one episode, and returns the same Sample."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from agentrl._util.concurrency import is_cancelled
from agentrl.engine.base import Engine
from agentrl.env.env import Env, is_agent, tools_of
from agentrl.env.factory import EnvFactory, load_env
from agentrl.episode.options import EpisodeHooks, EpisodeOptions, RewardFn
from agentrl.episode.resume import resume_episode
from agentrl.episode.run import run_episode
from agentrl.episode.shared import LoopResources, loop_resources
from agentrl.errors import Boundary, ConfigError, Failure, ResumeError
from agentrl.render.base import Renderer
from agentrl.slime import distill, replay, seats
from agentrl.slime.config import SlimeConfig, fan_out_problems
from agentrl.slime.fatal import failed_sample, log_once
from agentrl.slime.host import HostArgs, abort_flag, drops_ended_groups, queues_lists
from agentrl.slime.images import check_media, check_replay, pixels_of
from agentrl.slime.replay import IncrementalExperts, forget_old_experts, request_fields
from agentrl.slime.resumption import Resumption, sample_name
from agentrl.slime.ship import ship_evaluation, ship_training
from agentrl.slime.task import from_sample, metadata_of, template_kwargs
from agentrl.slime.trace import traced
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Raw, StopReason, Task

log = logging.getLogger("agentrl")


async def adapt(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False) -> Any:
    """Play one episode for slime and write it into `sample`, however the episode ends.

    An aborted sample continues where it stopped if its parked state still exists. A broken environment gives a masked,
    removed sample with the cause in metadata["agentrl"]. Under `thinking: strip`, and for an AgentEnv where slime's
    flags allow it, training gets a list with one sample for each segment; an aborted episode is one sample, which slime
    can send again. `args` and `sampling_params` are not changed.

    Raises ConfigError and TemplateError, which would break every sample, and passes on cancellation. slime's
    fully-async rollout swallows exceptions. There the sample carries the error and ends the run (see `fatal`).
    """
    flags = HostArgs.of(args)
    try:
        sample.metadata = metadata_of(sample)
        call = _AdaptCall(
            flags,
            SlimeConfig.from_args(args),
            sample,
            sampling_params,
            evaluation,
            abort_flag(args, sample),
            holds_ended=flags.partial_rollout and not flags.fully_async and drops_ended_groups(args, sample),
        )
        call.check_flags()
        return await call.play()
    except Exception as exc:  # the host's boundary: its fully-async rollout would swallow whatever this is
        log_once(exc)
        if evaluation or not flags.fully_async:
            raise
        return failed_sample(sample, exc)


@dataclass(frozen=True, slots=True)
class _EpisodeSetup:
    """The parts that a new or a resumed episode is played with."""

    engine: Engine
    renderer: Renderer
    options: EpisodeOptions
    reward: RewardFn | None
    hooks: EpisodeHooks


@dataclass(frozen=True, slots=True)
class _AdaptCall:
    """One call of `adapt`. All methods raise ConfigError."""

    flags: HostArgs
    config: SlimeConfig
    sample: Any
    sampling_params: Mapping[str, Any]
    evaluation: bool
    aborted: Any
    """slime's abort flag; None outside of slime."""
    holds_ended: bool = False
    """Whether an episode that ends while slime aborts comes back as an aborted one, and is handed over next time."""

    def check_flags(self) -> None:
        """Refuse flags and samples that agentrl or slime cannot handle."""
        if not self.evaluation:
            self.config.check_fan_out(self.flags, queues_lists=queues_lists(self.sample))
            distill.check_flags(self.flags, self.sample)
            replay.check_flags(self.flags)

    async def play(self) -> Any:
        flags, config, here = self.flags, self.config, loop_resources()
        parking = here.parking(config.parking.folder, config.parking.dead_s)
        session_id = "" if self.evaluation else getattr(self.sample, "session_id", None) or ""
        resumption = Resumption(parking, config.parking, sample_name(self.sample), session_id)
        renderer = await self._renderer(here)
        check_media(self.sample, renderer)
        check_replay(flags, renderer)
        replays_experts = flags.use_rollout_routing_replay and not self.evaluation
        task = from_sample(flags, self.sample, evaluation=self.evaluation)
        server = await here.engine(
            config.engine_url(flags),
            {} if self.evaluation else request_fields(flags),
            model=flags.hf_checkpoint or "",
            retry_s=config.engine_retry_s,
            stopped=self.aborted,
        )
        engine: Engine = server
        if replays_experts and not self._plays_agent(
            task
        ):  # an agent's branch needs the experts of its whole beginning
            engine = IncrementalExperts(server, flags.num_layers * flags.moe_router_topk)
        parks = config.parking.keep_s > 0 and not self.evaluation
        with traced(self.sample, engine) as engine:
            hooks = EpisodeHooks(
                aborted=self.aborted,
                on_turn=forget_old_experts if replays_experts else None,
                park=resumption.park if parks and flags.sends_aborted_again else None,
                save=resumption.save if parks and config.parking.every_turn else None,
            )
            options = config.slime_options(flags, self.sampling_params, evaluation=self.evaluation)
            setup = _EpisodeSetup(engine, renderer, options, config.reward_function(), hooks)
            if load_env(config.env_path(task.metadata)).seats:
                return await self._play_seats(here, task, setup)
            try:
                trajectory = await self._episode(here, resumption, task, setup)
                if parks and self.holds_ended and self.aborted():
                    await resumption.hold(trajectory)
                await resumption.ended(trajectory)
            finally:
                await resumption.give_back()
        if self.evaluation:
            return ship_evaluation(flags, trajectory, self.sample, decode=renderer.decode, extra=resumption.metadata())
        return ship_training(
            flags,
            trajectory,
            self.sample,
            pixels=await pixels_of(trajectory, renderer.vision),
            teacher_log_probs=await distill.ask_teacher(here, flags, trajectory, retry_s=config.engine_retry_s),
            segments=config.thinking == "strip" or (self._plays_agent(task) and self._agent_fans_out()),
            decode=renderer.decode,
            extra=resumption.metadata(),
        )

    async def _play_seats(self, here: LoopResources, task: Task, setup: _EpisodeSetup) -> Any:
        """Play an episode with seats. Return a sample for each seat that the policy has. An aborted one restarts."""
        flags, sample = self.flags, self.sample
        envs = await here.envs(self.config.env_path(task.metadata), self.config)
        _check_prompt(task, envs)
        seating = seats.seating_of(self.config, envs, sample)
        if not self.evaluation and len(seating.trained) > 1:
            seats.check_seats(flags, envs, sample, queues_lists=queues_lists(sample))
        name = getattr(sample, "session_id", None) or uuid4().hex
        played = await seats.play_seats(
            envs,
            task,
            seating,
            zlib.crc32(f"{getattr(sample, 'index', None)}".encode()),
            engine=setup.engine,
            renderer=setup.renderer,
            options=setup.options,
            reward=setup.reward,
            session_id=name,
            hooks=EpisodeHooks(aborted=self.aborted),
        )
        if self.evaluation:
            first = next(iter(played.values()))
            return ship_evaluation(flags, first, sample, decode=setup.renderer.decode, extra={})
        written, retry_s = list[Any](), self.config.engine_retry_s
        for one, trajectory in seats.samples_of(sample, played):
            shipped = ship_training(
                flags,
                trajectory,
                one,
                pixels=await pixels_of(trajectory, setup.renderer.vision),
                teacher_log_probs=await distill.ask_teacher(here, flags, trajectory, retry_s=retry_s),
                segments=self.config.thinking == "strip",
                decode=setup.renderer.decode,
                extra={},
            )
            written += shipped if isinstance(shipped, list) else [shipped]
        return written if len(written) > 1 else written[0]

    def _plays_agent(self, task: Task) -> bool:
        return is_agent(load_env(self.config.env_path(task.metadata)))

    def _agent_fans_out(self) -> bool:
        """Whether each segment of an agent becomes a sample. Else its main line is the sample."""
        problems = fan_out_problems(self.flags, queues_lists=queues_lists(self.sample))
        return hasattr(self.sample, "rollout_id") and not problems

    async def _renderer(self, here: LoopResources) -> Renderer:
        model, kwargs = self.config.model_path(self.flags), self.config.chat_template_kwargs
        if kwargs is None:
            kwargs = dict(template_kwargs(self.flags, self.sample, evaluation=self.evaluation))
        # slime has already run the code in --hf-checkpoint.
        trusted = self.aborted is not None and model == self.flags.hf_checkpoint
        return await here.renderer(
            model,
            self.config.template_text(),
            kwargs,
            trust_remote_code=trusted,
            special_tokens=self.config.special_tokens,
        )

    async def _episode(
        self, here: LoopResources, resumption: Resumption, task: Task, setup: _EpisodeSetup
    ) -> Trajectory:
        """Play or resume the episode. Errors outside of run_episode's boundaries become a failed Trajectory, too."""
        session_id = getattr(self.sample, "session_id", None) or uuid4().hex
        boundary: Boundary = "share"
        try:
            envs = await here.envs(self.config.env_path(task.metadata), self.config)
            _check_prompt(task, envs)
            boundary = "reset"
            resumed = await self._resumed(resumption, envs, setup)
            if resumed is not None:
                return resumed
            env = envs.make()
            boundary = "engine"
            return await run_episode(
                env,
                task,
                engine=setup.engine,
                renderer=setup.renderer,
                options=setup.options,
                reward=setup.reward,
                session_id=session_id,
                hooks=setup.hooks,
            )
        except ConfigError:
            raise
        except (Exception, asyncio.CancelledError) as exc:  # slime's boundary: an error would end its whole rollout
            if isinstance(exc, asyncio.CancelledError) and is_cancelled():
                raise
            log.warning("episode %s failed in %s", session_id, boundary, exc_info=exc)
            trajectory = Trajectory(task, session_id=session_id)
            trajectory.stop, trajectory.failure = StopReason.FAILED, Failure.of(exc, boundary)
            return trajectory

    async def _resumed(self, resumption: Resumption, envs: EnvFactory, setup: _EpisodeSetup) -> Trajectory | None:
        """Resume the episode that slime aborted. None if it has to start over."""
        parked = await resumption.take(self.flags, self.sample, self.aborted)
        if parked is None:
            return None
        if parked.episode.trajectory.stop not in (None, StopReason.ABORTED):
            return parked.episode.trajectory  # it had ended, in a process that died before slime had it
        try:
            return await resume_episode(
                parked,
                parked.env or envs.make(),
                engine=setup.engine,
                renderer=setup.renderer,
                options=setup.options,
                reward=setup.reward,
                hooks=setup.hooks,
            )
        except ResumeError as exc:
            resumption.cannot_resume(str(exc))
            return None


def _check_prompt(task: Task, envs: EnvFactory) -> None:
    has_tools = bool(tools_of(envs.cls)) or envs.cls.tools is not Env.tools
    if (has_tools or is_agent(envs.cls)) and isinstance(task.prompt, Raw):
        raise ConfigError(
            f"remove --apply-chat-template: it renders prompts before the tools of {envs.cls.__name__} are known, "
            "so the model would never see them; agentrl renders prompts itself"
        )
