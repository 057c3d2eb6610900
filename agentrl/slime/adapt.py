"""`agentrl.adapt`: one slime Sample in, one episode, the same Sample out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

from agentrl._concurrency import is_cancelled
from agentrl.engine.base import Engine, SamplingParams
from agentrl.env import Env, EnvFactory
from agentrl.episode import run_episode
from agentrl.errors import Boundary, ConfigError, Failure, ResumeError
from agentrl.hosting.loop_resources import LoopResources, loop_resources
from agentrl.options import EpisodeOptions, Host, RewardFn
from agentrl.render.base import Renderer
from agentrl.resume import resume_episode
from agentrl.slime import distill
from agentrl.slime.config import SlimeConfig
from agentrl.slime.fatal import refused, say
from agentrl.slime.host import HostArgs, abort_flag
from agentrl.slime.replay import forget_old_experts, request_fields
from agentrl.slime.ship import ship_evaluation, ship_training
from agentrl.slime.task import from_sample, metadata_of, template_kwargs
from agentrl.slime.trace import traced
from agentrl.slime.visit import Visit
from agentrl.trajectory import Trajectory
from agentrl.types import Raw, StopReason, Task

log = logging.getLogger("agentrl")


async def adapt(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False) -> Any:
    """Play one episode for slime and write it into `sample`, whatever happened in it.

    A sample that slime aborted goes on where it stopped, if what was kept of it is still there. A broken environment
    gives a masked, removed sample with its cause in metadata["agentrl"]. Under `thinking: strip` training gets a list,
    one sample for each segment. `args` and `sampling_params` stay as they are.

    Raises ConfigError and TemplateError, which no sample could outlive, and cancellation. slime's fully-async rollout
    would swallow what is raised, so there the sample carries the error instead, and ends the run (see `fatal`).
    """
    flags = HostArgs.of(args)
    try:
        sample.metadata = metadata_of(sample)
        call = _Call(flags, SlimeConfig.from_args(args), sample, sampling_params, evaluation, abort_flag(args, sample))
        call.refuse()
        return await call.play()
    except Exception as exc:  # the host's boundary: its fully-async rollout would swallow whatever this is
        say(exc)
        if evaluation or not flags.fully_async:
            raise
        return refused(sample, exc)


@dataclass(frozen=True, slots=True)
class _Played:
    """What an episode is played with, whether it begins or goes on."""

    engine: Engine
    renderer: Renderer
    options: EpisodeOptions
    reward: RewardFn | None
    host: Host


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of `adapt`. Methods raise ConfigError."""

    flags: HostArgs
    config: SlimeConfig
    sample: Any
    sampling_params: Mapping[str, Any]
    evaluation: bool
    aborted: Any
    """slime's abort flag; None where no slime is."""

    def refuse(self) -> None:
        """Say what agentrl or slime cannot do, before it is done wrongly."""
        if any(value is not None for value in (getattr(self.sample, "multimodal_inputs", None) or {}).values()):
            raise ConfigError("remove --multimodal-keys: agentrl plays text only")
        if not self.evaluation:
            self.config.refuse_fan_out(self.flags)
            distill.refuse(self.flags, self.sample)

    async def play(self) -> Any:
        flags, config, here = self.flags, self.config, loop_resources()
        visit = Visit(here.parking(config.park_folder), config.park_s)
        renderer = await self._renderer(here)
        experts = {} if self.evaluation else request_fields(flags)
        task = from_sample(flags, self.sample, evaluation=self.evaluation)
        engine = await here.engine(config.engine_url(flags), experts, model=flags.hf_checkpoint or "")
        with traced(self.sample, engine) as engine:
            host = Host(
                aborted=self.aborted,
                on_turn=forget_old_experts if experts else None,
                park=visit.park if config.park_s and not self.evaluation and flags.sends_aborted_again else None,
            )
            played = _Played(engine, renderer, self._options(), config.reward_function(), host)
            trajectory = await self._episode(here, visit, task, played)
        if self.evaluation:
            return ship_evaluation(flags, trajectory, self.sample, decode=renderer.decode, account=visit.account())
        return ship_training(
            flags,
            trajectory,
            self.sample,
            taught=await distill.ask_teacher(here, flags, trajectory),
            segments=config.thinking == "strip",
            decode=renderer.decode,
            account=visit.account(),
        )

    async def _renderer(self, here: LoopResources) -> Renderer:
        model, kwargs = self.config.model_path(self.flags), self.config.chat_template_kwargs
        if kwargs is None:
            kwargs = dict(template_kwargs(self.flags, self.sample, evaluation=self.evaluation))
        # slime has loaded --hf-checkpoint with whatever code lies there.
        trusted = self.aborted is not None and model == self.flags.hf_checkpoint
        return await here.renderer(model, self.config.template_text(), kwargs, trust_remote_code=trusted)

    def _options(self) -> EpisodeOptions:
        # Which budget max_new_tokens is, the limits say.
        params = {name: value for name, value in self.sampling_params.items() if name != "max_new_tokens"}
        limits = self.config.slime_limits(self.flags, self.sampling_params, evaluation=self.evaluation)
        return EpisodeOptions(
            limits=limits, sampling_params=cast(SamplingParams, params), thinking=self.config.thinking
        )

    async def _episode(self, here: LoopResources, visit: Visit, task: Task, played: _Played) -> Trajectory:
        """The episode. What breaks outside of run_episode's own boundaries is recorded as it records it."""
        session_id = getattr(self.sample, "session_id", None) or uuid4().hex
        boundary: Boundary = "share"
        try:
            envs = await here.envs(self.config.env_path(task.metadata), self.config.env_config)
            _check_prompt(task, envs)
            boundary = "reset"
            resumed = await self._resumed(visit, envs, played)
            if resumed is not None:
                return resumed
            env = envs.make()
            boundary = "engine"
            return await run_episode(
                env,
                task,
                engine=played.engine,
                renderer=played.renderer,
                options=played.options,
                reward=played.reward,
                session_id=session_id,
                host=played.host,
            )
        except ConfigError:
            raise
        except (Exception, asyncio.CancelledError) as exc:  # slime's boundary: this would end its whole rollout
            if isinstance(exc, asyncio.CancelledError) and is_cancelled():
                raise
            log.warning("episode %s failed in %s", session_id, boundary, exc_info=exc)
            trajectory = Trajectory(task, session_id=session_id)
            trajectory.stop, trajectory.failure = StopReason.FAILED, Failure.of(exc, boundary)
            return trajectory

    async def _resumed(self, visit: Visit, envs: EnvFactory, played: _Played) -> Trajectory | None:
        """The episode that slime aborted, gone on with; None: it starts anew."""
        parked = await visit.take(self.flags, self.sample)
        if parked is None:
            return None
        try:
            return await resume_episode(
                parked,
                parked.env or envs.make(),
                engine=played.engine,
                renderer=played.renderer,
                options=played.options,
                reward=played.reward,
                host=played.host,
            )
        except ResumeError as exc:
            visit.cannot_resume(str(exc))
            return None


def _check_prompt(task: Task, envs: EnvFactory) -> None:
    has_tools = bool(envs.cls._agentrl_tools) or envs.cls.tools is not Env.tools
    if has_tools and isinstance(task.prompt, Raw):
        raise ConfigError(
            f"remove --apply-chat-template: it renders prompts before the tools of {envs.cls.__name__} are known, "
            "so the model would never see them; agentrl renders prompts itself"
        )
