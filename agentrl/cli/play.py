"""`agentrl play`: episodes in which a scripted player or you take the model's place."""

from __future__ import annotations

import asyncio
import inspect
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from agentrl._util.concurrency import gather
from agentrl._util.files import only_writer
from agentrl._util.loading import cause, load_object, source_of
from agentrl._util.signals import run
from agentrl.cli._errors import one_line_errors
from agentrl.cli.api import Samples, mask, own_reward
from agentrl.cli.episodes import (
    OnEpisode,
    PlayConfig,
    check_out,
    held,
    progress,
    refuse_all_failed,
    refuse_finished,
    warn_unscored,
)
from agentrl.cli.models import open_renderer
from agentrl.cli.options import EnvPath, Episodes, EpisodeSettings, Limit, MaybeData, Out
from agentrl.cli.results import Place, Results, how_to_resume, unfinished
from agentrl.engine.scripted import Turn
from agentrl.env.env import Env, own_task, runtime
from agentrl.env.factory import EnvFactory
from agentrl.env.tools import tool_name
from agentrl.episode.options import RewardFn
from agentrl.episode.run import run_episode
from agentrl.episode.seats import run_seats
from agentrl.errors import ConfigError, did_you_mean
from agentrl.monitor.earned import Earned
from agentrl.rollout.play.opponents import FixedPlayer
from agentrl.testing import rollout
from agentrl.testing.playing import reads_messages, takes_one_argument
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import MaybeAwait, Message, Task, ToolSpec

if TYPE_CHECKING:
    from agentrl.render.base import Renderer

Player: TypeAlias = Callable[[Task], Generator[Turn, str, None]]
"""A scripted player: yields the turns of an episode. Each yield returns the environment's observation as text."""

_PlayOne: TypeAlias = "Callable[[Env, Task, Renderer], Awaitable[Sequence[Trajectory]]]"
"""Plays an episode, and returns its trajectory or, in an Env with seats, a trajectory for each seat."""

_CONCURRENCY = 32
"""The most episodes at the same time: enough to hide waits for I/O, and few enough for any environment."""
_LAST_MESSAGES, _WORDS = 4, 200
"""Of an episode without a reward: the number of last messages, and of first characters of each."""


@dataclass(frozen=True, slots=True)
class _PlayJob:
    env: str
    data: Path | None
    episodes: int | None
    limit: int | None
    out: Path | None
    samples: int
    min_reward: float | None
    model: str
    config: PlayConfig

    def prepare(self) -> tuple[EnvFactory, list[Task]]:
        """The Env and the tasks. Raises ConfigError. Writes no file."""
        from agentrl.episode.scoring import check_of
        from agentrl.rollout import tasks_of

        envs = EnvFactory(self.env, self.config.env_config)
        check = check_of(self.config.reward_function())
        self.config.check_opponents(envs.cls)
        tasks = tasks_of(envs, self.data, "train", episodes=self.episodes, check=check, columns=self.config.columns)[
            : self.limit
        ]
        check_out(self.out, self.data)
        return envs, tasks

    def keep(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The trajectories that are good enough to be imitated."""
        if self.min_reward is None:
            return list(trajectories)
        return [t for t in trajectories if t.is_valid and t.reward is not None and t.reward >= self.min_reward]


def play(
    env: EnvPath,
    data: MaybeData = None,
    player: Annotated[
        str | None,
        typer.Option(
            help="A generator function of a task, or a function of messages and tools: file.py:function or "
            "package.module:function. Without it, you play."
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="The model whose tokens record the episodes.")] = "tiny",
    episodes: Episodes = None,
    limit: Limit = None,
    samples: Samples = 1,
    out: Out = None,
    min_reward: Annotated[float | None, typer.Option(help="Keep only episodes with this reward, or more.")] = None,
    settings: EpisodeSettings = None,
) -> None:
    """Play episodes with a scripted player, or yourself; record them as demonstrations.

    A player is a generator that takes a Task and yields the model's turns: text, or agentrl.testing.call(tool, ...).
    Each yield returns the environment's answer. A function of two parameters (messages, tools) can play, too: it is
    called for each turn, and also gets the first observation. In an environment with seats, such a function has every
    seat, and with an agent it answers each of its conversations. --set reward=FILE.py:function replaces the
    environment's score.

    A finished --out is not overwritten if you play; players replace it. An API model plays in agentrl eval --api.

    A player that knows the answers and one that does nothing show whether an environment can be won, and only by
    playing it.
    """
    yours = list[Trajectory]()
    with one_line_errors(lambda: _how_to_go_on(out, player, yours)):
        config = PlayConfig.parse(settings or (), with_reward=True)
        job = _PlayJob(env, data, episodes, limit, out, samples, min_reward, model, config)
        if player is None:
            _play_yourself(job, yours)
            return
        replaced = 0 if out is None else held(out)
        trajectories = _play_script(job, player)
    _report(trajectories, job.keep(trajectories), job)
    if out is not None:
        also = f" (replaced {replaced} episodes)" if replaced else ""
        typer.echo(f"written to {out}{also}; look at the first with: agentrl show {quote(str(out))}")
    with one_line_errors(lambda: "fix that, and run the command again"):
        refuse_all_failed(trajectories)
        _warn_unknown_tools(trajectories, player)


def _play_yourself(job: _PlayJob, finished: list[Trajectory]) -> None:
    from agentrl.cli.human import play_yourself

    refuse_finished(job.out)
    envs, tasks = job.prepare()
    with only_writer(job.out):
        play_yourself(envs, tasks, job.model, job.config, job.out, finished)


def load_player(path: str) -> Player:
    """The player at `file.py:function` or `package.module:function`. Raises ConfigError."""
    function = load_object(path)
    if not callable(function):
        raise ConfigError(f"--player {path} is {function!r}; it must be a generator function that takes a Task")
    if not takes_one_argument(function):
        raise ConfigError(
            f"{path} does not take a Task alone; the player here must be a generator function that takes a Task and "
            "yields its turns"
        )

    def start(task: Task) -> Generator[Turn, str, None]:
        try:
            turns = function(own_task(task))
            if not isinstance(turns, Generator):
                raise ConfigError(f"--player {path} returned {type(turns).__name__}; it must yield its turns")
            yield from turns
        except ConfigError:
            raise
        except Exception as exc:  # the player's boundary
            raise ConfigError(f"--player {path} failed on task {task.id}: {cause(exc)}") from exc

    return start


def _player(path: str, config: PlayConfig, seats: Sequence[str]) -> _PlayOne:
    """The function that plays an episode with the player at `path`. Raises ConfigError."""
    reward = own_reward(config)
    if seats:
        return partial(_play_seats, player=FixedPlayer.load(path, "--player"), config=config, reward=reward)
    if reads_messages(load_object(path)):
        return partial(_play_speaker, path=path, config=config, reward=reward)
    player, summary = load_player(path), getattr(load_object(path), "summary", None)

    async def play_one(env: Env, task: Task, renderer: Renderer) -> Sequence[Trajectory]:
        turns = _to_the_end(player(task), path, task)
        trajectory = await rollout(
            env,
            task,
            turns,
            renderer=renderer,
            limits=config.limits,
            special_tokens=config.special_tokens,
            reward=reward,
            summary=summary,
        )
        return [trajectory]

    return play_one


def _to_the_end(turns: Generator[Turn, str, None], path: str, task: Task) -> Generator[Turn, str, None]:
    """The turns of a script. Raises ConfigError if the script ends before the episode does."""
    count = 0
    with closing(turns):
        try:
            turn = next(turns)
            while True:
                count += 1
                turn = turns.send((yield turn))
        except StopIteration:
            pass
    raise ConfigError(
        f"--player {path} ended after turn {count}, but the episode is not over (task {task.id}); yield another turn"
    )


async def _play_speaker(
    env: Env, task: Task, renderer: Renderer, *, path: str, config: PlayConfig, reward: RewardFn | None
) -> Sequence[Trajectory]:
    """Play an episode with a function of messages and tools.

    Raises ConfigError, and AssertionError for a bug of a tool.
    """
    from agentrl.chat.client import ScriptedSpeaker
    from agentrl.chat.engine import ChatEngine

    function = load_object(path)

    async def say(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str | Message:
        try:
            reply: MaybeAwait[str | Message] = function(messages, tools)
            return await reply if inspect.isawaitable(reply) else reply
        except ConfigError:
            raise
        except Exception as exc:  # the player's boundary
            raise ConfigError(f"--player {path} failed on task {task.id}: {cause(exc)}") from exc

    engine, options = (
        ChatEngine(ScriptedSpeaker(say), renderer, by={"model": path}),
        config.options(),
    )
    trajectory = await run_episode(env, task, engine=engine, renderer=renderer, options=options, reward=reward)
    if error := runtime(env).first_tool_error:
        raise AssertionError(f"a tool of {type(env).__name__} raised {cause(error)}") from error
    mask(trajectory, trained=True)
    return [trajectory]


async def _play_seats(
    env: Env, task: Task, renderer: Renderer, *, player: FixedPlayer, config: PlayConfig, reward: RewardFn | None
) -> Sequence[Trajectory]:
    """Play an episode in which a single player has every seat. Raises ConfigError."""
    engines = {
        seat: player.engine(renderer, zlib.crc32(f"{task.id}/{task.seed}/{seat}".encode())) for seat in env.seats
    }
    by_seat = await run_seats(
        env,
        task,
        engine=engines[env.seats[0]],
        renderer=renderer,
        players=engines,
        options=config.options(),
        reward=reward,
        session_id=task.id or None,
    )
    for trajectory in by_seat.values():
        mask(trajectory, trained=True)
    return [*by_seat.values()]


def _how_to_go_on(out: Path | None, player: str | None, yours: Sequence[Trajectory]) -> str:
    if player is None and yours:
        place = f"are in {out}" if out is not None else "were not written, as there is no --out"
        return f"the episodes that you finished {place}"
    return how_to_resume(out)


def _play_script(job: _PlayJob, path: str) -> list[Trajectory]:
    """Play the tasks with a script. Returns all episodes, including episodes of a killed command. The good
    episodes are written to `out`."""
    from agentrl.rollout.play.episodes import RewardSeen
    from agentrl.rollout.play.groups import settle_rewards

    envs, tasks = job.prepare()
    if tuple(job.config.opponents) != ("policy",):
        raise ConfigError(f"--set opponents: --player {path} has every seat; leave it out")
    play_one = _player(path, job.config, envs.cls.seats)
    with only_writer(job.out):
        about, seats = _about(job, envs, path), max(len(envs.cls.seats), 1)
        results = Results(tasks, about, unfinished(job.out), seats=seats)
        results.load_same()
        results.tell()
        trajectories = run(_play(job, envs, play_one, results))
        settle_rewards(envs, RewardSeen(), trajectories)
        results.finish(job.out, job.keep(trajectories))
    return trajectories


def _about(job: _PlayJob, envs: EnvFactory, path: str) -> Mapping[str, object]:
    """The settings that two runs of the command must share, if the second is to resume the first."""
    sources = {"env": envs.cls, "player": load_object(path), "reward": job.config.reward_function()}
    code = {name: source_of(source)[1] for name, source in sources.items()}
    return {"env": job.env, "player": path, "code": code, "tokenizer": job.model, "settings": asdict(job.config)}


async def _play(job: _PlayJob, envs: EnvFactory, play_one: _PlayOne, results: Results) -> list[Trajectory]:
    renderer, _ = open_renderer(job.model)  # transformers takes seconds to import
    async with envs:
        with progress("playing", len(results.tasks) * job.samples) as on_episode:
            for finished in results.by_place(job.samples).values():
                on_episode(finished)
            await _episodes(envs, play_one, results, job.samples, renderer, on_episode)
    return [trajectory for group in results.groups(job.samples) for trajectory in group]


async def _episodes(
    envs: EnvFactory, play_one: _PlayOne, results: Results, samples: int, renderer: Renderer, on_episode: OnEpisode
) -> None:
    """Play the episodes that `results` lacks. An episode whose environment fails is masked.

    Raises BugError for a bug of the Env, and ConfigError for a bug of a tool.
    """
    from agentrl.errors import BugError

    slots = asyncio.Semaphore(_CONCURRENCY)

    async def episode(task: Task, place_of_task: Place) -> None:
        async with slots:
            try:
                trajectories = await play_one(envs.make(), task, renderer)
            except AssertionError as exc:  # a tool has a bug
                raise ConfigError(f"task {task.id}: {str(exc).partition(chr(10))[0]}") from exc
        for trajectory, place in zip(trajectories, results.places(place_of_task), strict=True):
            if trajectory.failure is not None:
                if trajectory.failure.kind == "bug":
                    raise BugError(trajectory.failure, trajectory.session_id)
                trajectory.mask("env_failure")
            results.add(trajectory, place)
            on_episode(trajectory)

    await gather(episode(task, place_of_task) for task, place_of_task in results.missing(samples))


def _report(episodes: Sequence[Trajectory], kept_episodes: Sequence[Trajectory], job: _PlayJob) -> None:
    earned = Earned.of(episodes)
    typer.echo(f"episodes     {len(episodes)}")
    typer.echo(f"failed       {earned.failed}")
    typer.echo(f"mean reward  {earned}")
    typer.echo(f"mean turns   {fmean(len(t.turns) for t in episodes):.2f}")
    if earned.mean == 0:
        _say_why_nothing(episodes)
    warn_unscored(earned.unscored)
    if job.min_reward is not None:
        won = Counter(t.task.id for t in kept_episodes)
        tasks = len({t.task.id for t in episodes})
        typer.echo(f"kept         {len(kept_episodes)} of {len(episodes)} episodes, of {len(won)} of {tasks} tasks")


def _say_why_nothing(episodes: Sequence[Trajectory]) -> None:
    """Say how the episodes ended, their wrong calls, and the last words of the longest: no episode earned anything."""
    stops, longest = Counter(str(t.stop) for t in episodes), max(episodes, key=lambda t: len(t.turns))
    bad = Counter(str(turn.bad_call) for t in episodes for turn in t.turns if turn.bad_call is not None)
    typer.echo(f"stops        {_listed(stops)}")
    typer.echo(f"bad calls    {_listed(bad)}")
    typer.echo(f"an episode   task {longest.task.id}, {len(longest.turns)} turns; it ends so:")
    for message in longest.messages[-_LAST_MESSAGES:]:
        words = " ".join(str(message.get("content") or message.get("tool_calls") or "").split())
        typer.echo(f"  {message.get('role')}: {words:.{_WORDS}}")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def _warn_unknown_tools(trajectories: Sequence[Trajectory], player: str) -> None:
    """Warn if a script called tools that the Env lacks. Raises ConfigError if every episode called such a tool."""
    unknown, episodes = Counter[str](), 0
    for trajectory in trajectories:
        offered = [tool_name(tool) for tool in trajectory.tools]
        names = [call.name for action in trajectory.said for call in action.calls if call.name not in offered]
        episodes += bool(names and offered)
        unknown.update(f"{name!r}{did_you_mean(name, offered, '; the tools are {}')}" for name in names)
    if not episodes:
        return
    called = "; ".join(f"{name_of_tool} (called {count} times)" for name_of_tool, count in unknown.most_common(3))
    message = (
        f"--player {player} called a tool that does not exist in {episodes} of {len(trajectories)} episodes: {called}"
    )
    if episodes == len(trajectories):
        raise ConfigError(message)
    typer.echo(f"warning: {message}", err=True)
