"""Play episodes of an Env under check, with a player in the model's place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, TypeAlias

from agentrl._util.findings import Place, Report
from agentrl.check.places import AuthorCode
from agentrl.engine.base import Engine
from agentrl.engine.scripted import ScriptedEngine, Turn
from agentrl.env.env import Env, is_agent, own_task, runtime
from agentrl.env.factory import EnvFactory
from agentrl.episode.options import EpisodeHooks, EpisodeOptions
from agentrl.episode.resume import resume_episode, resume_seats
from agentrl.episode.run import Episode
from agentrl.episode.seats import SeatedEpisode, new_table
from agentrl.episode.state import EpisodeState, Parked, Table
from agentrl.errors import Failure
from agentrl.render.base import Renderer
from agentrl.testing.playing import LastAnswer
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Limits, Task

Player: TypeAlias = Callable[[Task], Generator[Turn, str, None]]
Speech: TypeAlias = Generator[Turn, str, None]
Speak: TypeAlias = Callable[[Task, Trajectory], Speech]
"""A player that also sees the trajectory so far, including the offered tools."""
Prepare: TypeAlias = Callable[[Env], None]
Around: TypeAlias = Callable[[Engine], Engine]

NOTHING = "I do nothing."
_HOOKS_OF = {
    "reset": ("reset", "tools"),
    "step": ("step", "exec_tool", "last_turn", "ask_summary", "after_summary"),
    "run": ("run",),
}


@dataclass(slots=True)
class EnvUnderTest:
    """The Env under check, and everything that a check needs to play."""

    path: str
    """The Env's dotted path or file, so that a second process can load the Env; "" if only the class is known."""
    envs: EnvFactory
    tasks: Sequence[Task]
    renderer: Renderer
    limits: Limits
    author: AuthorCode
    report: Report
    gold: Player | None = None
    noop: Player | None = None
    seconds: float = 0.0
    """Seconds that an episode took."""
    share_s: float = 0.0
    slow: bool = False
    patience_s: float = 20.0
    """Seconds for all cancelled plays of a script. Other time limits are multiples of these seconds."""
    plays: int = 0
    """How many episodes were started."""
    scripts: dict[str, list[Turn]] = field(default_factory=dict)
    """Task id -> the turns of a play. Several checks replay these turns."""
    steady: bool = True
    """Whether two plays of the same script got the same observations and rewards."""

    @property
    def cls(self) -> type[Env]:
        return self.envs.cls

    @property
    def is_agent(self) -> bool:
        return is_agent(self.cls)

    def script(self, task: Task) -> Sequence[Turn]:
        return self.scripts.get(task.id) or next(iter(self.scripts.values()), [])

    def place_of(self, failure: Failure) -> Place:
        """The line that a report of the failure names: a line of the author's code, else the definition of the hook."""
        hooks = _HOOKS_OF.get(failure.boundary, (failure.boundary,))
        return self.author.of_text(failure.traceback) or self.author.of_member(*hooks)


@dataclass(slots=True)
class PlayedEpisode:
    """A finished episode, with its Env."""

    env: Env
    trajectory: Trajectory
    seconds: float = 0.0
    close_errors: list[Exception] = field(default_factory=list)
    parked: Parked | None = None
    others: list[Trajectory] = field(default_factory=list)
    """With seats, the trajectories of the other seats."""
    turn_limit: int = 0
    """The most turns of the episode."""

    def told(self, player: str) -> str:
        """A text with the player, the task and the number of turns, so that a person can repeat the episode."""
        turns = self.trajectory.turn_count - self.trajectory.summaries
        return f"{player}, task {self.trajectory.task.id}, {turns} of at most {self.turn_limit} turns"

    def row(self, player: str) -> dict[str, JSON]:
        """Player, task, turns and reward as JSON."""
        return {
            "player": player,
            "task": self.trajectory.task.id,
            "turns": self.trajectory.turn_count - self.trajectory.summaries,
            "turn_limit": self.turn_limit,
            "reward": self.trajectory.reward,
        }

    @property
    def failure(self) -> Failure | None:
        return self.trajectory.failure

    @property
    def turns(self) -> int:
        """The number of turns of all seats together, without summaries."""
        return sum(t.turn_count - t.summaries for t in (self.trajectory, *self.others))

    def answers(self) -> list[str]:
        """All observations and rewards of the Env, in order, for the comparison of two plays of a script."""
        return [line for trajectory in (self.trajectory, *self.others) for line in self._answers(trajectory)]

    def _answers(self, trajectory: Trajectory) -> list[str]:
        spoken = [f"{m.get('role')}: {m.get('content')}" for m in trajectory.messages if m.get("role") != "assistant"]
        raw = [f"raw text: {turn.raw}" for turn in trajectory.turns if turn.raw]
        rewards = [f"reward of turn {i}: {turn.reward}" for i, turn in enumerate(trajectory.turns, 1)]
        broke = [f"failure: {trajectory.failure.error}"] if trajectory.failure else []
        return [*spoken, *raw, *rewards, f"stop: {trajectory.stop}", f"reward: {trajectory.reward}", *broke]

    def first(self) -> list[str]:
        """The observations before the first turn."""
        before = takewhile(lambda message: message.get("role") != "assistant", self.trajectory.messages)
        prompt = self.trajectory.segments[0].tokens[: self.trajectory.segments[0].prompt_length]
        return [*(str(message.get("content")) for message in before), str(list(prompt))]


async def play(
    subject: EnvUnderTest,
    task: Task,
    speak: Speak,
    *,
    turns: int | None = None,
    prepare: Prepare = lambda env: None,
    around: Around = lambda engine: engine,
    stop_after: int | None = None,
) -> PlayedEpisode:
    """Play an episode. `prepare` gets the Env before the episode begins. `around` wraps the engine.

    `stop_after` aborts and parks the episode after that many turns.
    """
    subject.plays += 1
    env = subject.envs.make()
    trajectory = Trajectory(task, session_id=f"check-{time.monotonic_ns()}")
    episode = PlayedEpisode(env, trajectory, turn_limit=limits_of(subject, turns).turns)
    prepare(env)
    keep_close_errors(env, episode)
    playing = await _episode(subject, episode, speak, turns, around, stop_after)
    began = time.monotonic()
    await playing.run(playing.begin)
    episode.seconds = time.monotonic() - began
    failure = episode.failure
    if failure is not None and (failure.kind, failure.boundary) == ("bug", "engine"):
        raise RuntimeError(f"the player failed: {failure.error}\n{failure.traceback}")
    return episode


async def _episode(
    subject: EnvUnderTest,
    episode: PlayedEpisode,
    speak: Speak,
    turns: int | None,
    around: Around,
    stop_after: int | None,
) -> Episode:
    trajectory, heard = episode.trajectory, LastAnswer(episode.env)

    async def park(parked: Parked) -> None:
        episode.parked = parked

    def is_over() -> bool:
        return stop_after is not None and episode.turns >= stop_after and not any_open(episode)

    hooks = EpisodeHooks(on_turn=heard.note, park=park if stop_after is not None else None, aborted=is_over)
    options = EpisodeOptions(limits=limits_of(subject, turns))
    if subject.cls.seats:
        table = new_table(subject.cls.seats, trajectory.task, trajectory.session_id, options)
        episode.trajectory, *episode.others = (state.trajectory for state in table.seats.values())
        engines = _in_time(speak(trajectory.task, episode.trajectory), table, subject.renderer, around)
        return _seated(subject, episode, table, engines, options, hooks)
    speech = heard.with_summaries(speak(trajectory.task, trajectory))
    engine = ScriptedEngine(speech, subject.renderer, reads=heard.read)
    return Episode.of(
        episode.env,
        EpisodeState(trajectory),
        around(engine),
        subject.renderer,
        options,
        None,
        hooks,
    )


def any_open(episode: PlayedEpisode) -> bool:
    return any(trajectory.segment.open for trajectory in (episode.trajectory, *episode.others))


def _seated(
    subject: EnvUnderTest,
    episode: PlayedEpisode,
    table: Table,
    engines: Mapping[str, Engine],
    options: EpisodeOptions,
    hooks: EpisodeHooks,
) -> SeatedEpisode:
    engine = engines[table.seat]
    return SeatedEpisode.around(episode.env, table, engine, subject.renderer, engines, options, None, hooks)


def _in_time(speech: Speech, table: Table, renderer: Renderer, around: Around) -> dict[str, Engine]:
    """An engine for each seat. A single player writes the turns of all seats, in the order in which seats act."""
    is_started = False

    def take(trajectory: Trajectory) -> Speech:
        nonlocal is_started
        while True:
            read = takewhile(lambda message: message["role"] != "assistant", reversed(trajectory.messages))
            heard = "\n".join(str(message["content"]) for message in reversed([*read]))
            if trajectory.segment.request:
                yield heard.rpartition(trajectory.segment.request)[0]  # the summary, which the player reads next
                continue
            turn = speech.send(heard) if is_started else next(speech)
            is_started = True
            yield turn

    return {
        seat: around(ScriptedEngine(take(state.trajectory), renderer, reads=lambda: None))
        for seat, state in table.seats.items()
    }


async def go_on(subject: EnvUnderTest, parked: Parked, turns: Sequence[Turn]) -> PlayedEpisode:
    """Continue a parked episode in a fresh Env. Raises ResumeError if the Env does not reach the same state."""
    env = parked.env or subject.envs.make()
    episode = PlayedEpisode(env, parked.episode.trajectory)
    keep_close_errors(env, episode)
    heard = LastAnswer(env)
    heard.note(parked.episode.trajectory)
    if (table := parked.episode.table) is not None:
        episode.others = [state.trajectory for state in table.seats.values() if state is not parked.episode]
        engines = _in_time(talk(turns), table, subject.renderer, lambda engine: engine)
        await resume_seats(
            parked,
            env,
            engine=engines[table.seat],
            renderer=subject.renderer,
            players=engines,
            options=EpisodeOptions(limits=limits_of(subject, None)),
        )
        return episode
    engine = ScriptedEngine(heard.with_summaries(talk(turns)), subject.renderer, reads=heard.read)
    options = EpisodeOptions(limits=limits_of(subject, None))
    await resume_episode(
        parked, env, engine=engine, renderer=subject.renderer, options=options, hooks=EpisodeHooks(on_turn=heard.note)
    )
    return episode


def limits_of(subject: EnvUnderTest, turns: int | None) -> Limits:
    from dataclasses import replace

    return subject.limits if turns is None else replace(subject.limits, turns=turns)


def keep_close_errors(env: Env, episode: PlayedEpisode) -> None:
    """Store the errors of closing the Env; an episode only logs such errors."""
    env_runtime = runtime(env)
    original = env_runtime.close

    async def close(hook: Callable[[], Any]) -> None:
        try:
            await original(hook)
        except Exception as exc:
            episode.close_errors.append(exc)
            raise

    env_runtime.close = close  # type: ignore[method-assign]


def talk(turns: Sequence[Turn]) -> Speech:
    """A player that takes these turns, then only empty turns."""
    for turn in turns:  # noqa: UP028 - `yield from` would send the answers to the list
        yield turn
    while True:
        yield NOTHING


def saying(turns: Sequence[Turn]) -> Speak:
    return lambda task, trajectory: talk(turns)


def by(player: Player) -> Speak:
    """A player that the Env's author wrote. After the player's end, the turns are empty."""

    def speak(task: Task, trajectory: Trajectory) -> Speech:
        yield from player(own_task(task))
        yield from talk(())

    return speak


def recording(speak: Speak, turns: list[Turn]) -> Speak:
    """The player `speak`, whose turns are appended to the list `turns`."""

    def again(task: Task, trajectory: Trajectory) -> Speech:
        speech, heard = speak(task, trajectory), ""
        try:
            turn = next(speech)
            while True:
                turns.append(turn)
                heard = yield turn
                turn = speech.send(heard)
        except StopIteration:
            return

    return again


def without_rest(played_turns: Sequence[Turn]) -> list[Turn]:
    """The turns of a player, without the empty turns that were added after the player's end."""
    turns = list(played_turns)
    while len(turns) > 1 and turns[-1] == NOTHING:
        turns.pop()
    return turns


async def quiet_cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for the end."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
