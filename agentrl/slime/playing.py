"""Plays the episode of a slime Sample, in this process or in a worker. Input and output are plain data."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Unpack
from uuid import uuid4

from agentrl._util.boundary import watcher
from agentrl._util.concurrency import is_cancelled
from agentrl.engine.base import Engine, EngineWrapper, RequestFields, ask
from agentrl.env.env import Env, is_agent, tools_of
from agentrl.env.factory import EnvFactory, load_env
from agentrl.episode.options import EpisodeHooks, EpisodeOptions, RewardFn
from agentrl.episode.resume import resume_episode
from agentrl.episode.run import run_episode
from agentrl.episode.shared import LoopResources, loop_resources
from agentrl.errors import Boundary, ConfigError, ResumeError
from agentrl.render.base import ImageCounter, Renderer
from agentrl.slime import distill, seats
from agentrl.slime.config import SlimeConfig
from agentrl.slime.fatal import failed_episode
from agentrl.slime.host import HostArgs, session_of, takes_lists, tracing
from agentrl.slime.images import check_media, check_replay
from agentrl.slime.replay import IncrementalExperts, forget_old_experts, request_fields
from agentrl.slime.resumption import Resumption, sample_name
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Generation, Raw, SamplingParams, StopReason, Task

_HOOKS: Mapping[Boundary, str] = {"reset": "env_reset", "step": "env_step", "score": "env_score"}
"""The boundary (the kind of call to an Env) -> its name in slime's traces."""
_FLAG_S = 0.5
"""Seconds that an episode in a worker waits for slime's abort flag, after the engine has aborted a request."""
_LOOK_S = 0.01
"""Seconds between two checks of slime's abort flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """The input for playing the episode of a sample."""

    flags: HostArgs
    config: SlimeConfig
    sample: Any
    """The Sample. In a worker, a `SentSample`."""
    task: Task
    sampling_params: Mapping[str, Any]
    template_kwargs: Mapping[str, Any]
    evaluation: bool
    holds_ended: bool
    """Whether an episode that ends during slime's abort is returned as aborted now, and as ended when slime sends the
    sample again."""
    in_slime: bool
    """Whether slime itself calls. slime has then already run the code in the folder of --hf-checkpoint."""

    @property
    def plays_agent(self) -> bool:
        return is_agent(self.env)

    @property
    def has_seats(self) -> bool:
        return bool(self.env.seats)

    @property
    def env(self) -> type[Env]:
        return load_env(self.config.env_path(self.task.metadata))


@dataclass(frozen=True, slots=True)
class PlayedSample:
    """The episode of a sample, before it is written into the sample."""

    trajectory: Trajectory
    about: Mapping[str, JSON]
    """Entries of metadata["agentrl"]: the numbers of resumes and restarts, and after an abort the ticket for the saved
    state of the episode."""
    teacher_log_probs: Sequence[Sequence[float]]
    """For each segment, the teacher's log-probs; see `distill.ask_teacher`."""
    decode: Callable[[Sequence[int]], str]
    """Decodes response tokens to text."""
    vision: ImageCounter | None
    """Computes the pixels of images, in the process that has the Sample: a worker sends only the image files."""


@dataclass(frozen=True, slots=True)
class _EpisodeSetup:
    """The objects that a new or resumed episode needs."""

    engine: Engine
    renderer: Renderer
    options: EpisodeOptions
    reward: RewardFn | None
    hooks: EpisodeHooks


def play_sample(
    request: SampleRequest, aborted: Callable[[], bool] | None, stopped: Callable[[], bool] | None = None
) -> Coroutine[Any, Any, PlayedSample]:
    """Play the episode of a sample, or resume it. `aborted` returns slime's abort flag; None outside of slime.

    `stopped` returns a flag that all episodes share, if `aborted` belongs to a single rollout. Raises ConfigError.
    """
    return _SamplePlayer(request, aborted, stopped or aborted).play()


async def play_seats(request: SampleRequest, aborted: Callable[[], bool] | None) -> dict[str, PlayedSample]:
    """Play the episode of an Env with seats. Returns an episode for each seat of the policy. If aborted, the episode
    restarts.

    Raises ConfigError.
    """
    return await _SamplePlayer(request, aborted, aborted).play_seats()


@dataclass(frozen=True, slots=True, eq=False)
class _LateFlagEngine(EngineWrapper):
    """The engine of an episode in a worker. slime sets its abort flag before it aborts the engine's requests, but a
    worker may see the flag later. So the engine waits for the flag. Otherwise the turn would be requested again and
    sampled to its end."""

    aborted: Callable[[], bool]

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, **request: Unpack[RequestFields]
    ) -> Generation:
        generation = await ask(self.engine, input_ids, sampling_params, request)
        give_up = time.monotonic() + _FLAG_S
        while generation.finish_reason == "abort" and not self.aborted() and time.monotonic() < give_up:  # noqa: ASYNC110 - a flag
            await asyncio.sleep(_LOOK_S)
        return generation


@dataclass(frozen=True, slots=True)
class _SamplePlayer:
    """A call of `play_sample` or `play_seats`."""

    request: SampleRequest
    aborted: Callable[[], bool] | None
    stopped: Callable[[], bool] | None

    async def play(self) -> PlayedSample:
        request = self.request
        flags, config, sample, evaluation = request.flags, request.config, request.sample, request.evaluation
        here = loop_resources()
        parking = here.parking(config.parking.folder, config.parking.dead_s)
        # an evaluation's samples are numbered from 0 as well, and may not take an episode of the training
        name, session_id = ("", "") if evaluation else (sample_name(sample), session_of(sample))
        resumption = Resumption(parking, config.parking, name, session_id)
        parks = config.parking.keep_s > 0 and not evaluation
        hooks = EpisodeHooks(
            aborted=self.aborted,
            on_turn=forget_old_experts if self._replays_experts else None,
            park=resumption.park if parks and flags.may_send_again else None,
            save=resumption.save if parks and config.parking.every_turn else None,
        )
        async with self._opened(here, hooks) as setup:
            try:
                trajectory = await self._episode(here, resumption, setup)
                if parks and request.holds_ended and self.aborted is not None and self.aborted():
                    await resumption.hold(trajectory)
                await resumption.ended(trajectory)
            finally:
                await resumption.give_back()
        return await self._played(here, trajectory, setup.renderer, resumption.metadata())

    async def play_seats(self) -> dict[str, PlayedSample]:
        request, here = self.request, loop_resources()
        task, sample, config = request.task, request.sample, request.config
        _check_prompt(task, request.env)
        seating = seats.seating_of(config, request.env, sample)
        if not request.evaluation and len(seating.trained) > 1:
            seats.check_seats(request.flags, request.env, sample, takes_lists=takes_lists(request.flags, sample))
        async with self._opened(here, EpisodeHooks(aborted=self.aborted)) as setup:
            trajectories = await seats.play_seats(
                here.envs(config.env_path(task.metadata), config),
                task,
                seating,
                zlib.crc32(f"{getattr(sample, 'index', None)}".encode()),
                engine=setup.engine,
                renderer=setup.renderer,
                options=setup.options,
                reward=setup.reward,
                session_id=session_of(sample) or uuid4().hex,
                hooks=setup.hooks,
            )
        return {
            seat: await self._played(here, trajectory, setup.renderer, {}) for seat, trajectory in trajectories.items()
        }

    @property
    def _replays_experts(self) -> bool:
        return self.request.flags.use_rollout_routing_replay and not self.request.evaluation

    @asynccontextmanager
    async def _opened(self, here: LoopResources, hooks: EpisodeHooks) -> AsyncIterator[_EpisodeSetup]:
        """While the context is open, the objects for the play are usable. Raises ConfigError for a sample that cannot
        be played."""
        request, flags, config = self.request, self.request.flags, self.request.config
        renderer = await self._renderer(here)
        check_media(request.sample, renderer)
        check_replay(flags, renderer)
        server = await here.engine(
            config.engine_url(flags),
            {} if request.evaluation else request_fields(flags),
            model=flags.hf_checkpoint or "",
            retry_s=config.engine_retry_s,
            stopped=self.stopped,
        )
        engine: Engine = server
        if self._replays_experts and not request.plays_agent:  # an agent's branch needs the experts of its beginning
            engine = IncrementalExperts(server, flags.num_layers * flags.moe_router_topk)
        if self.stopped is not self.aborted and self.aborted is not None:
            engine = _LateFlagEngine(engine, self.aborted)
        options = config.slime_options(flags, request.sampling_params, evaluation=request.evaluation)
        with _traced(request.sample, engine) as engine:
            yield _EpisodeSetup(engine, renderer, options, config.reward_function(), hooks)

    async def _played(
        self, here: LoopResources, trajectory: Trajectory, renderer: Renderer, about: Mapping[str, JSON]
    ) -> PlayedSample:
        flags, taught = self.request.flags, list[Sequence[float]]()
        if not self.request.evaluation:
            taught = await distill.ask_teacher(here, flags, trajectory, retry_s=self.request.config.engine_retry_s)
        return PlayedSample(trajectory, about, taught, renderer.decode, renderer.vision)

    async def _renderer(self, here: LoopResources) -> Renderer:
        request = self.request
        model, kwargs = request.config.model_path(request.flags), request.config.chat_template_kwargs
        return await here.renderer(
            model,
            request.config.template_text(),
            dict(request.template_kwargs) if kwargs is None else kwargs,
            trust_remote_code=request.in_slime and model == request.flags.hf_checkpoint,
            special_tokens=request.config.special_tokens,
        )

    async def _episode(self, here: LoopResources, resumption: Resumption, setup: _EpisodeSetup) -> Trajectory:
        """Play or resume the episode. Errors outside of `run_episode` also become a failed Trajectory."""
        request, task = self.request, self.request.task
        session_id = session_of(request.sample) or uuid4().hex
        boundary: Boundary = "share"
        try:
            envs = await here.envs(request.config.env_path(task.metadata), request.config)
            _check_prompt(task, envs.cls)
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
            return failed_episode(task, session_id, exc, boundary)

    async def _resumed(self, resumption: Resumption, envs: EnvFactory, setup: _EpisodeSetup) -> Trajectory | None:
        """Resume the episode that slime aborted. Returns None if the episode has to restart."""
        parked = await resumption.take(self.request.flags, self.request.sample, self.aborted)
        if parked is None:
            return None
        if parked.episode.trajectory.stop not in (None, StopReason.ABORTED):
            return (
                parked.episode.trajectory
            )  # the episode had ended, in a process that died before slime had the result
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


def _check_prompt(task: Task, env: type[Env]) -> None:
    has_tools = bool(tools_of(env)) or env.tools is not Env.tools
    if (has_tools or is_agent(env)) and isinstance(task.prompt, Raw):
        raise ConfigError(
            f"remove --apply-chat-template: it renders prompts before the tools of {env.__name__} are known, "
            "so the model would never see them; agentrl renders prompts itself"
        )


@contextmanager
def _traced(sample: Any, engine: Engine) -> Iterator[Engine]:
    """While the context is open, the calls of the task's Env and the requests of the yielded engine are spans in the
    sample's trace."""
    span, attributes = tracing(sample)
    if span is None:
        yield engine
        return
    token = watcher.set(lambda name: span(sample, _HOOKS[name]) if name in _HOOKS else nullcontext())
    try:
        yield _TracedEngine(engine, sample, span, attributes)
    finally:
        watcher.reset(token)


@dataclass(frozen=True, slots=True, eq=False)
class _TracedEngine(EngineWrapper):
    """An engine whose requests are recorded as spans of a sample's trace."""

    sample: Any
    span: Callable[..., Any]
    attributes: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, **request: Unpack[RequestFields]
    ) -> Generation:
        span_attributes = {"max_new_tokens": sampling_params.get("max_new_tokens"), "prompt_tokens": len(input_ids)}
        with self.span(self.sample, "sglang_generate", attrs=span_attributes) as span:
            generation = await ask(self.engine, input_ids, sampling_params, request)
            if self.attributes is not None and hasattr(span, "update"):
                span.update(self.attributes(generation.meta))
        return generation
