"""`agentrl.adapt`: one slime Sample in, one episode, the same Sample out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, cast
from uuid import uuid4

from agentrl._concurrency import is_cancelled
from agentrl.engine.base import Engine, SamplingParams
from agentrl.env import Env, Envs
from agentrl.episode import run_episode
from agentrl.errors import Boundary, ConfigError, Failure, ResumeError
from agentrl.hosting.shared import Shared, shared
from agentrl.options import EpisodeOptions, Host, RewardFn
from agentrl.render.base import Renderer
from agentrl.resume import resume_episode
from agentrl.slime.config import SlimeConfig
from agentrl.slime.fatal import refused, say
from agentrl.slime.host import HostArgs, abort_flag
from agentrl.slime.replay import fill, forget_old_experts, request_fields
from agentrl.slime.sample import ROUNDS_KEY, clear, to_sample, to_samples
from agentrl.slime.task import from_sample, metadata_of, template_kwargs
from agentrl.slime.trace import traced
from agentrl.slime.visit import Visit
from agentrl.trajectory import Trajectory
from agentrl.types import JSON, Raw, StopReason, Task

log = logging.getLogger("agentrl")


async def adapt(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False) -> Any:
    """Play one episode for slime and write it into `sample`, whatever happened in it.

    A sample that slime aborted goes on where it stopped, if what was kept of it is still there. A broken environment
    gives a masked, removed sample with its cause in metadata["agentrl"]. Under `thinking: strip` training gets a list,
    one sample for each segment. `args` and `sampling_params` stay as they are.

    Raises ConfigError and TemplateError, which no sample could outlive, and cancellation. slime's fully-async rollout
    would swallow the first two, so there the sample carries the error instead, and ends the run (see `fatal`).
    """
    flags = HostArgs.of(args)
    try:
        return await _adapt(args, flags, sample, sampling_params, evaluation)
    except ConfigError as exc:
        say(exc)
        if evaluation or not flags.fully_async:
            raise
        return refused(sample, exc)


async def _adapt(args: Any, flags: HostArgs, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool) -> Any:
    config = SlimeConfig.from_args(args)
    sample.metadata = metadata_of(sample)
    _refuse(flags, sample, config, evaluation=evaluation)
    here, aborted = shared(), abort_flag(args, sample)
    visit = Visit(here.parking(config.park_folder), config.park_s)
    renderer = await _renderer(here, flags, config, sample, evaluation=evaluation, slime_is_there=aborted is not None)
    extra = {} if evaluation else request_fields(flags)
    engine = await here.engine(config.engine_url(flags), extra, model=flags.hf_checkpoint or "")
    with traced(sample, engine) as engine:
        trajectory = await _play(
            here,
            config,
            visit,
            flags,
            sample,
            from_sample(flags, sample, evaluation=evaluation),
            engine=engine,
            renderer=renderer,
            options=_options(flags, config, sampling_params, evaluation=evaluation),
            reward=config.reward_function(),
            host=Host(
                aborted=aborted,
                on_turn=forget_old_experts if request_fields(flags) and not evaluation else None,
                park=visit.park if config.park_s and not evaluation and flags.sends_aborted_again else None,
            ),
        )
    clear(sample)
    if evaluation or config.thinking == "keep":
        samples = [to_sample(trajectory, sample, decode=renderer.decode, account=visit.account())]
    else:
        samples = to_samples(trajectory, sample, decode=renderer.decode, account=visit.account())
    for one, segment in zip(samples, trajectory.segments[-len(samples) :], strict=True):
        _settle_reward(flags, one, trajectory.reward_parts, evaluation=evaluation, siblings=len(samples))
        if not evaluation:
            fill(flags, one, segment)
        if flags.log_multi_turn and not evaluation:
            one.metadata[ROUNDS_KEY] = len({span.turn for span in segment.spans if span.kind == "sampled"})
    return sample if evaluation or config.thinking == "keep" else samples


async def _renderer(
    here: Shared, flags: HostArgs, config: SlimeConfig, sample: Any, *, evaluation: bool, slime_is_there: bool
) -> Renderer:
    model, kwargs = config.model_path(flags), config.chat_template_kwargs
    return await here.renderer(
        model,
        config.template_text(),
        template_kwargs(flags, sample, evaluation=evaluation) if kwargs is None else kwargs,
        # slime has loaded --hf-checkpoint with whatever code lies there.
        trust_remote_code=slime_is_there and model == flags.hf_checkpoint,
    )


def _options(
    flags: HostArgs, config: SlimeConfig, sampling_params: Mapping[str, Any], *, evaluation: bool
) -> EpisodeOptions:
    # Which budget max_new_tokens is, the limits say.
    params = cast(SamplingParams, {name: value for name, value in sampling_params.items() if name != "max_new_tokens"})
    limits = config.slime_limits(flags, sampling_params, evaluation=evaluation)
    return EpisodeOptions(limits=limits, sampling_params=params, thinking=config.thinking)


async def _play(
    here: Shared,
    config: SlimeConfig,
    visit: Visit,
    flags: HostArgs,
    sample: Any,
    task: Task,
    *,
    engine: Engine,
    renderer: Renderer,
    options: EpisodeOptions,
    reward: RewardFn | None,
    host: Host,
) -> Trajectory:
    """The episode. What breaks outside of run_episode's own boundaries is recorded as it records it."""
    session_id = getattr(sample, "session_id", None) or uuid4().hex
    boundary: Boundary = "share"
    try:
        envs = await here.envs(config.env_path(task.metadata), config.env_config)
        _check_prompt(task, envs)
        boundary = "reset"
        if parked := await visit.take(flags, sample):
            try:
                back = parked.env or envs.make()
                return await resume_episode(
                    parked, back, engine=engine, renderer=renderer, options=options, reward=reward, host=host
                )
            except ResumeError as exc:
                visit.cannot_resume(str(exc))
        env = envs.make()
        boundary = "engine"
        return await run_episode(
            env,
            task,
            engine=engine,
            renderer=renderer,
            options=options,
            reward=reward,
            session_id=session_id,
            host=host,
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


def _refuse(flags: HostArgs, sample: Any, config: SlimeConfig, *, evaluation: bool) -> None:
    """Say what agentrl or slime cannot do, before it is done wrongly. Raises ConfigError."""
    if any(value is not None for value in (getattr(sample, "multimodal_inputs", None) or {}).values()):
        raise ConfigError("remove --multimodal-keys: agentrl plays text only")
    if not evaluation:
        config.refuse_fan_out(flags)


def _check_prompt(task: Task, envs: Envs) -> None:
    has_tools = bool(envs.cls._agentrl_tools) or envs.cls.tools is not Env.tools
    if has_tools and isinstance(task.prompt, Raw):
        raise ConfigError(
            f"remove --apply-chat-template: it renders prompts before the tools of {envs.cls.__name__} are known, "
            "so the model would never see them; agentrl renders prompts itself"
        )


def _settle_reward(flags: HostArgs, sample: Any, parts: Mapping[str, JSON], *, evaluation: bool, siblings: int) -> None:
    """Put the reward into the shape that slime will read: a number, or a mapping where --reward-key is given."""
    if sample.reward is None and siblings > 1 and flags.has_reward_model(sample):
        raise ConfigError(
            "thinking: strip needs the reward from Env.score or `reward`: slime's reward model would score each "
            "segment of an episode alone"
        )
    if sample.reward is None and not flags.has_reward_model(sample):
        _warn_once("no Env.score, step reward, `reward`, --rm-type or --custom-rm-path: every reward is 0")
        sample.reward = 0.0
    key = flags.reward_name(evaluation=evaluation)
    if key and sample.reward is not None:
        # In training a part must not pass for the total; evaluation may ask for a part by its name.
        sample.reward = {key: sample.reward, **parts} if evaluation else {**parts, key: sample.reward}


_warned: set[str] = set()


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        log.warning(message)
