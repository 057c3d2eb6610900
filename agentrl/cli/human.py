"""`agentrl play ENV` in a terminal: you take the model's place."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

from agentrl._util.files import is_special
from agentrl._util.signals import run
from agentrl.cli._session import visible
from agentrl.cli.api import mask, own_reward, refuse_agents
from agentrl.cli.episodes import PlayConfig, write_trajectories
from agentrl.cli.models import open_renderer
from agentrl.cli.show import render_trajectory
from agentrl.env.factory import EnvFactory
from agentrl.env.tool_calls import new_call
from agentrl.env.tools import tool_name
from agentrl.episode.options import EpisodeHooks
from agentrl.errors import ConfigError
from agentrl.types import JSON, Message, Task, ToolSpec

if TYPE_CHECKING:
    from agentrl.chat.engine import ChatEngine
    from agentrl.render.base import Renderer
    from agentrl.rollout.play.opponents import Seating
    from agentrl.trajectory.trajectory import Trajectory

_FENCE = '"""'
_HELP = """\
A line is your message. Lines between \""" and \""" are one message.
:call TOOL           call a tool; you are asked for its arguments one by one
:call TOOL {...}     call a tool with these arguments, as JSON
:tools               the tools
:tokens              what the model would read, token for token, and which of your tokens would be trained
:help                this
:quit                end; episodes that are finished are kept"""
_STYLES = {"system": "dim", "user": "cyan", "tool": "yellow", "assistant": "green"}


class _QuitError(Exception):
    """The person at the terminal wants to stop."""


def play_yourself(
    envs: EnvFactory,
    tasks: Sequence[Task],
    model: str,
    config: PlayConfig,
    out: Path | None,
    finished: list[Trajectory],
) -> None:
    """Play tasks in order, until `:quit` or Ctrl-C, and write the finished episodes. Raises ConfigError.

    Each finished episode is appended to `played`.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(
            "playing yourself needs a terminal; name a player (--player file.py:function), or use agentrl eval"
        )
    refuse_agents(envs)
    own_reward(config)
    renderer, _ = open_renderer(model)
    try:
        terminal = _Terminal(Console(highlight=False, markup=False))
        run(_play(envs, tasks, renderer, config, terminal, out, finished))
    finally:
        if out is not None and finished:
            write_trajectories(out, finished)
            typer.echo(f"{len(finished)} written to {out}; look at the first with: agentrl show {quote(str(out))}")


async def _play(
    envs: EnvFactory,
    tasks: Sequence[Task],
    renderer: Renderer,
    config: PlayConfig,
    terminal: _Terminal,
    out: Path | None,
    finished: list[Trajectory],
) -> None:
    """Play the tasks, and append each episode to `played`. The file has the episode before the next episode begins."""
    from agentrl.errors import BugError
    from agentrl.rollout.play.opponents import open_fixed

    opponents = open_fixed(config.opponents)
    terminal.say("You are the model. :help lists what you can do.", "bold")
    async with envs:
        for number, task in enumerate(tasks, 1):
            terminal.say(f"\ntask {number} of {len(tasks)}: {task.id}", "bold")
            try:
                seating = opponents.seating(envs.cls.seats, number - 1) if envs.cls.seats else None
                episodes = await _episodes(envs, task, renderer, config, terminal, seating)
                for episode in episodes:
                    if episode.failure is not None and episode.failure.kind == "bug":
                        raise BugError(episode.failure, episode.session_id)
                finished += episodes
                if out is not None and not is_special(out):
                    write_trajectories(out, finished)
                for episode in episodes:
                    terminal.over(episode)
                if number < len(tasks):
                    await terminal.go_on(partial(terminal.tokens, episodes[0], renderer))
            except _QuitError:
                break


async def _episodes(
    envs: EnvFactory,
    task: Task,
    renderer: Renderer,
    config: PlayConfig,
    terminal: _Terminal,
    seating: Seating | None,
) -> list[Trajectory]:
    """Play an episode. Returns its trajectory; in an Env with seats, the trajectory of each seat of the person.

    Raises _QuitError.
    """
    if seating is not None:
        return await _seats(envs, task, renderer, config, terminal, seating)
    return [await _episode(envs, task, renderer, config, terminal)]


async def _seats(
    envs: EnvFactory, task: Task, renderer: Renderer, config: PlayConfig, terminal: _Terminal, seating: Seating
) -> list[Trajectory]:
    from agentrl.chat.engine import ChatEngine
    from agentrl.episode.seats import SeatedEpisode, new_table

    options, humans = config.options(), dict[str, _Human]()
    table = new_table(envs.cls.seats, task, f"you-{task.id}", options)
    players = seating.players(renderer, task.seed or 0)
    for seat in seating.trained:
        trajectory = table.seats[seat].trajectory
        show = partial(terminal.tokens, trajectory, renderer)
        human = humans[seat] = _Human(terminal, show, trajectory, config.limits.turns)
        players[seat] = human.engine = ChatEngine(human, renderer, by={"model": "you"})
    has_quit = EpisodeHooks(aborted=lambda: any(human.quit for human in humans.values()))
    engine, reward = players[seating.trained[0]], own_reward(config)
    episode = SeatedEpisode.around(envs.make(), table, engine, renderer, players, options, reward, has_quit)
    await episode.run(episode.begin)
    if any(human.quit for human in humans.values()):
        raise _QuitError
    trajectories = [episode.trajectories[seat] for seat in seating.trained]
    for trajectory in trajectories:
        mask(trajectory, trained=True)
        if trajectory.failure is not None:
            trajectory.mask("env_failure")
    return trajectories


async def _episode(
    envs: EnvFactory, task: Task, renderer: Renderer, config: PlayConfig, terminal: _Terminal
) -> Trajectory:
    """Raises _QuitError."""
    from agentrl.chat.engine import ChatEngine
    from agentrl.episode.run import Episode
    from agentrl.episode.state import EpisodeState
    from agentrl.trajectory.trajectory import Trajectory

    trajectory = Trajectory(task, session_id=f"you-{task.id}")
    speaker = _Human(terminal, lambda: terminal.tokens(trajectory, renderer), trajectory, config.limits.turns)
    engine = speaker.engine = ChatEngine(speaker, renderer, by={"model": "you"})
    options, hooks = config.options(), EpisodeHooks(aborted=lambda: speaker.quit)
    state, reward = EpisodeState(trajectory, None), own_reward(config)
    episode = Episode.of(envs.make(), state, engine, renderer, options, reward, hooks)
    episode_trajectory = await episode.run(episode.begin)
    if speaker.quit:
        raise _QuitError
    mask(episode_trajectory, trained=True)
    if episode_trajectory.failure is not None:
        episode_trajectory.mask("env_failure")
    return episode_trajectory


@dataclass(slots=True)
class _Terminal:
    """Reads lines from a terminal without blocking the event loop: a tool's connections stay open while you think."""

    console: Console
    _read: bytearray = field(default_factory=bytearray)

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style))

    async def line(self, prompt: str) -> str:
        """Read a line. Raises _QuitError at the end of the input."""
        self.console.file.write(prompt)
        self.console.file.flush()
        while b"\n" not in self._read:
            data = await _readable()
            if not data:
                self.say("")
                raise _QuitError
            self._read += data
        line, _, rest = bytes(self._read).partition(b"\n")
        self._read[:] = rest
        return line.decode(errors="replace").rstrip("\r")

    async def go_on(self, show_tokens: Callable[[], None]) -> None:
        """Wait for Enter. The finished episode can still be looked at. Raises _QuitError."""
        while line := (await self.line("Enter: the next task. :quit: end > ")).strip():
            match line:
                case ":quit":
                    raise _QuitError
                case ":tokens":
                    show_tokens()
                case ":help":
                    self.say(f"{_HELP}\nThis episode is over: only :tokens, :help and :quit still work.")
                case _:
                    self.say(f"this episode is over: {line!r:.60} was not sent", "red")

    def message(self, message: Message) -> None:
        role, content = str(message.get("role")), message.get("content")
        name = f" {message['name']}" if message.get("name") else ""
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        self.console.print(Text.assemble((f"{role}{name}: ", "bold"), (visible(text), _STYLES.get(role, ""))))

    def tools(self, tools: Sequence[ToolSpec]) -> None:
        for tool in tools:
            function = tool.get("function", tool)
            described = str(function.get("description") or "").partition("\n")[0]
            self.say(f"  {tool_name(tool)}({', '.join(_parameters(tool))})  {described}")

    def tokens(self, trajectory: Trajectory, renderer: Renderer) -> None:
        self.console.print(render_trajectory(trajectory, renderer.decode))

    def step_reward(self, trajectory: Trajectory) -> None:
        """Show the reward of the last turn, if the Env gave a reward."""
        if trajectory.turns and trajectory.turns[-1].reward is not None:
            self.say(f"reward of this step: {trajectory.turns[-1].reward:g}", "bold")

    def over(self, trajectory: Trajectory) -> None:
        for message in trajectory.messages[len(trajectory.messages) - trajectory.unread :]:
            self.message(message)
        self.step_reward(trajectory)
        reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
        parts = "".join(f", {name} {value:g}" for name, value in trajectory.reward_parts.items())
        failed = f"; {trajectory.failure.boundary} failed: {trajectory.failure.error}" if trajectory.failure else ""
        seat = f"{trajectory.seat} " if trajectory.seat else ""
        self.say(f"over: {seat}{trajectory.stop}, reward {reward}{parts}{failed}", "bold")


async def _readable() -> bytes:
    """Wait for input, and return the available text of stdin."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        await ready.wait()
        return os.read(sys.stdin.fileno(), 1 << 16)
    finally:
        loop.remove_reader(sys.stdin.fileno())


@dataclass(slots=True)
class _Human:
    """A person who writes the model's messages at a terminal."""

    terminal: _Terminal
    show_tokens: Callable[[], None]
    trajectory: Trajectory
    turns: int
    """The most turns of an episode."""
    engine: ChatEngine = field(init=False)
    seen: int = 0
    quit: bool = False

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Message:
        first = self.seen == 0
        if self.trajectory.seat:
            self.terminal.say(f"you are {self.trajectory.seat}", "bold")
        for message in messages[self.seen :]:
            self.terminal.message(message)
        self.seen = len(messages) + 1  # your own answer is not shown again
        self.terminal.step_reward(self.trajectory)
        if first and tools:
            self.terminal.say("tools:", "bold")
            self.terminal.tools(tools)
        remaining = self.turns - len(self.trajectory.turns)
        self.terminal.say(f"turns left: {remaining}" if remaining > 0 else "your last turn", "dim")
        try:
            while True:
                answer = await self._said(tools)
                if answer is not None:
                    return answer
        except _QuitError:
            self.quit = True
            await self.engine.abort()
            return await asyncio.Future()  # the engine gives up waiting

    async def _said(self, tools: Sequence[ToolSpec]) -> Message | None:
        """Read a line, and return the message that it describes; None if the line is empty or a command such as
        `:help`."""
        line = await self.terminal.line("you > ")
        command, _, rest = line.strip().partition(" ")
        match command:
            case "":
                return None
            case ":quit":
                raise _QuitError
            case ":help":
                self.terminal.say(_HELP)
            case ":tools":
                self.terminal.tools(tools)
            case ":tokens":
                self.show_tokens()
            case ":call":
                return await self._call(rest.strip(), tools)
            case _ if command.startswith(":"):
                self.terminal.say(
                    f"{command} is not a command; :help lists them. "
                    f"To begin a message with a colon, put it between lines of {_FENCE}.",
                    "red",
                )
            case _ if line.startswith(_FENCE):
                return {"role": "assistant", "content": await self._text(line.removeprefix(_FENCE))}
            case _:
                return {"role": "assistant", "content": line}
        return None

    async def _text(self, first: str) -> str:
        """Read lines up to the closing fence."""
        lines = [first] if first else []
        while not (lines and lines[-1].endswith(_FENCE)):
            lines.append(await self.terminal.line("... > "))
        return "\n".join(lines).removesuffix(_FENCE).removesuffix("\n")

    async def _call(self, command: str, tools: Sequence[ToolSpec]) -> Message | None:
        name, _, arguments_text = command.partition(" ")
        tool = next((tool for tool in tools if tool_name(tool) == name), None)
        if tool is None:
            names = ", ".join(map(tool_name, tools)) or "none"
            self.terminal.say(f"there is no tool {name!r}; the tools are: {names}", "red")
            return None
        arguments = _read_object(arguments_text) if arguments_text.strip() else await self._arguments(tool)
        if arguments is None:
            self.terminal.say(f"no JSON object: {arguments_text}", "red")
            return None
        return {"role": "assistant", "content": "", "tool_calls": [new_call(name, arguments, f"{self.seen} ")]}

    async def _arguments(self, tool: ToolSpec) -> dict[str, JSON]:
        """Ask for the arguments in order. An empty line leaves out an optional argument."""
        arguments: dict[str, JSON] = {}
        for name, schema in _properties(tool).items():
            required = name in _required(tool)
            while True:
                line = await self.terminal.line(f"  {name} ({_kind(schema)}{'' if required else ', optional'}) > ")
                if not line and not required:
                    break
                try:
                    arguments[name] = _read_value(line, schema)
                    break
                except ValueError:
                    self.terminal.say(f"no {_kind(schema)}: {line}", "red")
        return arguments


def _parameters(tool: ToolSpec) -> list[str]:
    return [name if name in _required(tool) else f"{name}?" for name in _properties(tool)]


def _schema(tool: ToolSpec) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = tool.get("function", tool).get("parameters") or {}
    return schema


def _properties(tool: ToolSpec) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = _schema(tool).get("properties") or {}
    return properties


def _required(tool: ToolSpec) -> Sequence[str]:
    required: Sequence[str] = _schema(tool).get("required") or ()
    return required


def _kind(schema: Mapping[str, Any]) -> str:
    """The type of a tool's argument, in words for the prompt."""
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    return str(schema.get("type", "JSON"))


def _read_value(line: str, schema: Mapping[str, Any]) -> JSON:
    """The argument in a line: a string as typed, anything else as JSON. Raises ValueError."""
    if schema.get("type") == "string":
        return line
    try:
        return json.loads(line)
    except ValueError:
        if "type" in schema and "enum" not in schema:
            raise
        return line


def _read_object(text: str) -> dict[str, JSON] | None:
    try:
        read = json.loads(text)
    except ValueError:
        return None
    return read if isinstance(read, dict) else None
