"""`run_episode` turned inside out: the core that the doors share, for hosts that sample by themselves.

`run_episode` asks an engine for each turn. Here the engine asks the host, and the host answers when it has sampled:

    hosted = HostedEnv("my_env.py:MyEnv", model="Qwen/Qwen3-0.6B")
    async with await hosted.turned(task, context_length=4096) as episode:
        request = await episode.request()
        while request is not None:
            tokens, log_probs = await sample(request.input_ids, request.sampling_params)
            request = await episode.reply(generation(request, tokens, log_probs))
    episode.trajectory

A closed, cancelled or dropped episode closes its Env. The end of the event loop closes the Envs of all episodes.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar
from uuid import uuid4

from agentrl._util.boundary import FailedError, at_boundary
from agentrl.chat.client import Speaker
from agentrl.chat.engine import ChatEngine
from agentrl.engine.base import AsyncClosing, Engine
from agentrl.env.env import Env
from agentrl.env.factory import EnvFactory, load_env
from agentrl.episode.host_config import TemplateConfig
from agentrl.episode.options import EpisodeHooks
from agentrl.episode.run import run_episode
from agentrl.episode.shared import loop_resources
from agentrl.errors import ConfigError
from agentrl.image import Image
from agentrl.render.base import Renderer
from agentrl.rollout.data.tasks import tasks_of
from agentrl.rollout.play.episodes import Rollout, raise_bug
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, FinishReason, Generation, Message, SamplingParams, StopReason, Task, ToolSpec

Request = TypeVar("Request")
Reply = TypeVar("Reply")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A turn that the host shall sample."""

    input_ids: Sequence[int]
    """The prompt and all tokens so far."""
    sampling_params: SamplingParams
    """`max_new_tokens`, `stop_token_ids` and, if the Env has stop strings, `stop`; then the host's parameters."""
    images: Sequence[Image] = ()


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A turn that the host's model shall write."""

    messages: Sequence[Message]
    tools: Sequence[ToolSpec]


class Questions(Generic[Request, Reply]):
    """The requests of an episode, which the host answers in order."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[tuple[Request, asyncio.Future[Reply]]] = asyncio.Queue()
        self._open: tuple[Request, asyncio.Future[Reply]] | None = None
        """The request that the host got last, until the reply."""

    async def ask(self, request: Request) -> Reply:
        """Pass a request to the host, and wait for the reply."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((request, reply))
        return await reply

    async def next(self) -> Request:
        """The next request that the episode still needs; until the reply, the same request."""
        while self._open is None or self._open[1].done():
            self._open = await self._waiting.get()
        return self._open[0]

    def reply(self, reply: Reply) -> None:
        """Answer the latest request. A reply that the episode no longer needs is dropped."""
        if self._open is None:
            raise RuntimeError("the episode waits for no reply: await request() first, and reply once")
        (_, waiting), self._open = self._open, None
        if not waiting.done():
            waiting.set_result(reply)


class AskingEngine(AsyncClosing):
    """An engine that asks the host for tokens."""

    takes_images = True

    def __init__(self, questions: Questions[TokenRequest, Generation], context_length: int) -> None:
        self._questions, self._context_length = questions, context_length

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        session_id: str = "",
        rid: str = "",
        images: Sequence[Image] = (),
    ) -> Generation:
        return await self._questions.ask(TokenRequest([*input_ids], sampling_params, images))

    async def abort(self, rid: str | None = None) -> None:
        """Do nothing: the host's sampling cannot be stopped from here."""

    async def context_length(self) -> int:
        return self._context_length

    async def close(self) -> None:
        pass


class AskingSpeaker:
    """A speaker that asks the host for messages."""

    def __init__(self, questions: Questions[MessageRequest, Message]) -> None:
        self._questions = questions

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Message:
        return await self._questions.ask(MessageRequest([*messages], tools))


class TurnedEpisode(Generic[Request, Reply]):
    """An episode whose turns the host samples. `request` returns the first request, `reply` the next one."""

    def __init__(
        self, questions: Questions[Request, Reply], playing: asyncio.Task[Trajectory], masks: Sequence[bool] = ()
    ) -> None:
        self._questions, self._playing = questions, playing
        self.masks = masks
        """For each turn so far, whether none of its tokens is trained, for example after an unreadable call."""
        # A host that raises drops the episode without a call of `close`.
        weakref.finalize(self, _cancel, playing).atexit = False

    @property
    def trajectory(self) -> Trajectory:
        """The record of the ended episode. Raises RuntimeError before the end."""
        if not self._playing.done():
            raise RuntimeError("the episode has not ended: reply until there is no further request")
        return self._playing.result()

    async def request(self) -> Request | None:
        """The next request, or None at the end of the episode.

        A cancellation of the caller closes the episode. Raises the errors of `run_episode`, and BugError if the Env has
        a bug.
        """
        asked = asyncio.ensure_future(self._questions.next())
        try:
            await asyncio.wait((asked, self._playing), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.close()
            raise
        finally:
            if not asked.done():
                asked.cancel()
        if asked.done() and not self._playing.done():
            return asked.result()
        raise_bug(self._playing.result())
        return None

    async def reply(self, reply: Reply) -> Request | None:
        """Answer the latest request. Returns and raises as `request` does."""
        self._questions.reply(reply)
        return await self.request()

    def cancel(self) -> None:
        """End the episode without a wait, from any thread."""
        _cancel(self._playing)

    async def close(self) -> None:
        """End the episode, and wait until its Env is closed. Safe to call twice."""
        self._playing.cancel()
        await _ended((self._playing,))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def generation(
    request: TokenRequest, tokens: Sequence[int], log_probs: Sequence[float], finish_reason: FinishReason | None = None
) -> Generation:
    """The host's tokens as the answer to a request. Hosts that report no finish reason leave it out: a turn without a
    stop token that has fewer than `max_new_tokens` tokens then counts as stopped."""
    stops = request.sampling_params.get("stop_token_ids") or ()
    matched = tokens[-1] if tokens and tokens[-1] in stops else None
    full = len(tokens) >= request.sampling_params["max_new_tokens"]
    reason: FinishReason = "length" if full else "stop"
    return Generation(tokens, log_probs, "stop" if matched is not None else finish_reason or reason, matched)


class DoorConfig(TemplateConfig):
    """The keys of an Env in a host."""

    data: Path | None = None
    """File of the tasks. Default: the Env's own tasks."""
    episodes: int | None = None
    """How many of the Env's own tasks to take."""


@dataclass(frozen=True, slots=True)
class OpenedEnv:
    """An Env class whose shared objects are open, on one event loop."""

    factory: EnvFactory
    running: set[asyncio.Task[Any]]

    def start(self, episodes: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start episodes that end with the event loop, at the latest."""
        task = asyncio.create_task(episodes)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task


class HostedEnv:
    """An Env and its settings in a host: the keys of `DoorConfig`. Can be pickled. Raises ConfigError."""

    def __init__(self, env: str | type[Env], **settings: Any) -> None:
        name = env if isinstance(env, str) else None
        self.env, self.config = env, DoorConfig.parse(f"{type(self).__name__}(...)", {**settings, "env": name})
        if self.factory().cls.seats:
            raise ConfigError(f"{self.factory().cls.__name__} has seats, and the host has a single policy: use slime")

    def factory(self) -> EnvFactory:
        """A new factory of the Env, without its shared objects."""
        cls = load_env(self.env) if isinstance(self.env, str) else self.env
        return EnvFactory(cls, self.config.env_config)

    def tasks(self, split: Literal["train", "eval"] = "train") -> list[Task]:
        """The tasks of the file `data`, or else the Env's own tasks. Raises ConfigError, also if two tasks have the
        same id."""
        tasks = tasks_of(self.factory(), self.config.data, split, episodes=self.config.episodes)
        ids = set[str]()
        for task in tasks:
            if task.id in ids:
                raise ConfigError(f"two tasks have the id {task.id!r}, but a host finds a task by its id: rename one")
            ids.add(task.id)
        return tasks

    @cached_property
    def by_id(self) -> dict[str, Task]:
        """All tasks, for training and for evaluation, by id. Raises ConfigError."""
        splits: list[Literal["train", "eval"]] = ["train"] if self.config.data else ["train", "eval"]
        return {task.id: task for split in splits for task in self.tasks(split)}

    async def opened(self) -> OpenedEnv:
        """The Env with its shared objects, on the running event loop."""
        key = ("hosted", self.env, json.dumps(self.config.env_config, sort_keys=True, default=str))
        return await loop_resources().entered(key, lambda: _open(self.factory()))

    async def renderer(self, default: str | None = None) -> Renderer:
        """The renderer of the configured `model`, or of the model `default`. Raises ConfigError."""
        model = self.config.model or default
        if model is None:
            raise ConfigError('the door needs the model\'s tokenizer: pass model="FOLDER or NAME"')
        return await loop_resources().renderer(
            model, self.config.template_text(), self.config.chat_template_kwargs or {}
        )

    async def play_in_messages(self, task: Task, speaker: Speaker, *, session_id: str = "") -> Trajectory:
        """Play a whole episode with a speaker as the model. The tokens of the trajectory are those of `model`, or of
        the bundled tiny model, and no tokens of the host. Raises ConfigError, TemplateError and BugError."""
        renderer = await self.renderer("tiny")
        engine = ChatEngine(speaker, renderer, by={"model": "host"})
        return await self.play(task, engine, renderer, session_id=session_id)

    async def play(
        self, task: Task, engine: Engine, renderer: Renderer, *, session_id: str = "", **implied: JSON
    ) -> Trajectory:
        """Play a whole episode with an engine. The configured `limits` override the `implied` limits. Raises
        ConfigError, TemplateError and BugError."""
        playing, _ = await self._play(task, engine, renderer, None, session_id, **implied)
        return raise_bug(await playing)

    async def turned(
        self, task: Task, *, context_length: int, sampling_params: SamplingParams | None = None, session_id: str = ""
    ) -> TurnedEpisode[TokenRequest, Generation]:
        """Start an episode whose turns the host samples as tokens. Raises ConfigError and TemplateError."""
        questions = Questions[TokenRequest, Generation]()
        engine = AskingEngine(questions, context_length)
        return TurnedEpisode(
            questions, *await self._play(task, engine, await self.renderer(), sampling_params, session_id)
        )

    async def turned_in_messages(self, task: Task, *, session_id: str = "") -> TurnedEpisode[MessageRequest, Message]:
        """Start an episode whose turns the host's model writes as messages. The trajectory's tokens are those of
        `model`, or of the bundled tiny model, and are no tokens of the host. Raises ConfigError and TemplateError."""
        questions = Questions[MessageRequest, Message]()
        renderer = await self.renderer("tiny")
        engine = ChatEngine(AskingSpeaker(questions), renderer, by={"model": "host"})
        return TurnedEpisode(questions, *await self._play(task, engine, renderer, None, session_id))

    async def _play(
        self,
        task: Task,
        engine: Engine,
        renderer: Renderer,
        params: SamplingParams | None,
        session_id: str,
        **implied: JSON,
    ) -> tuple[asyncio.Task[Trajectory], Sequence[bool]]:
        """Start an episode. Also returns the list that `TurnedEpisode.masks` describes."""
        opened, masks = await self.opened(), list[bool]()
        rollout = Rollout(
            envs=opened.factory,
            engine=engine,
            renderer=renderer,
            options=self.config.options(params, **implied),
            reward=self.config.reward_function(),
        )
        hooks = EpisodeHooks(on_turn=lambda trajectory: masks.append(_is_masked(trajectory)))
        episode = _play(rollout, task, session_id or uuid4().hex, hooks)
        return opened.start(episode), masks


async def _play(rollout: Rollout, task: Task, session_id: str, hooks: EpisodeHooks) -> Trajectory:
    """Play an episode once, without `rollout.failures`: the host decides what a failed episode leads to."""
    try:
        with at_boundary("reset"):
            env = rollout.envs.make()
    except FailedError as failed:
        trajectory = Trajectory(task, session_id=session_id)
        trajectory.stop, trajectory.failure = StopReason.FAILED, failed.failure
        return trajectory
    return await run_episode(
        env,
        task,
        engine=rollout.engine,
        renderer=rollout.renderer,
        options=rollout.options,
        reward=rollout.reward,
        session_id=session_id,
        hooks=hooks,
    )


def _is_masked(trajectory: Trajectory) -> bool:
    """Whether the latest turn is masked. False for the turns of an agent, whose masks are known at the end."""
    segment = next(segment for segment in reversed(trajectory.segments) if segment.turns)
    latest = [span for span in segment.spans if span.turn == len(segment.turns) - 1]
    return bool(latest) and not any(span.trained for span in latest)


def _open(factory: EnvFactory) -> AbstractAsyncContextManager[OpenedEnv]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[OpenedEnv]:
        async with factory:
            env = OpenedEnv(factory, set())
            try:
                yield env
            finally:
                running = {*env.running}
                for episode in running:
                    episode.cancel()
                await _ended(running)

    return opened()


async def _ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait for the end of cancelled episodes, even while being cancelled. Errors of the episodes are dropped."""
    cancelled = None
    while any(not task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as exc:
            cancelled = exc
    for task in tasks:
        if not task.cancelled():
            task.exception()  # else asyncio would log the exception as never retrieved
    if cancelled is not None:
        raise cancelled


def _cancel(playing: asyncio.Task[Trajectory]) -> None:
    """Cancel an episode from any thread."""
    loop = playing.get_loop()
    if not playing.done() and not loop.is_closed():
        loop.call_soon_threadsafe(playing.cancel)
