"""`agentrl envs`: the environments that are installed here, by name."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Annotated

import typer

from agentrl._util.loading import cause
from agentrl.cli._errors import one_line_errors
from agentrl.env.config import required
from agentrl.env.env import Env, is_agent, tools_of
from agentrl.env.factory import EnvFactory, load_env
from agentrl.env.registry import OfferedEnv, entries
from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Described:
    """An installed environment in words."""

    name: str
    path: str
    package: str
    summary: str = ""
    tools: list[str] = field(default_factory=list)
    agent: bool = False
    """Whether an agent plays the environment, with the agent's tools."""
    tools_later: bool = False
    """Whether only an episode shows all tools, such as the tools of an MCP server."""
    needs: list[str] = field(default_factory=list)
    """Required keys of env_config, and the machine's requirements for an episode."""
    broken: str = ""
    """Why the environment cannot be used."""

    def line(self) -> str:
        if self.broken:
            return f"broken: {self.broken}"
        tool_names = [*self.tools, *(["each episode names them"] if self.tools_later and not self.tools else [])]
        tools = "an agent's own" if self.agent else ", ".join(tool_names) or "none"
        needs = _short(self.needs[0]) if self.needs else "nothing"
        return f"{_sentence(self.summary)} [tools: {tools}; needs: {needs}]"


def envs(as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False) -> None:
    """List the installed environments: what each is, its tools, and whether it needs an engine, a key or a sandbox.

    Each name can be used wherever a command or a configuration asks for an environment.
    """
    with one_line_errors():
        offered = [described(entry) for entry in entries()]
    if as_json:
        typer.echo(json.dumps([asdict(env) for env in offered], indent=1))
        return
    width = max((len(env.name) for env in offered), default=0)
    for env in offered:
        typer.echo(f"{env.name:<{width}}  {env.line()}")
    if not offered:
        typer.echo("no environment is installed; agentrl init makes one")


def _sentence(text: str) -> str:
    """The first sentence of a text."""
    return re.split(r"(?<=\.) ", text)[0]


def _short(need: str) -> str:
    """A requirement, without details and alternatives."""
    return need if need.startswith("config: ") else re.split(r" at |[(,;]", need)[0].strip()


def described(entry: OfferedEnv) -> Described:
    """Describe an entry; for a broken entry, why it is broken."""
    try:
        cls = load_env(entry.path)
        about = (cls.__doc__ or "no docstring").strip().partition("\n")[0]
        needs = [f"config: {key}" for key in required(cls)] or [*map(str, cls.needs(EnvFactory(cls).config, 1))]
    except ConfigError as exc:
        return Described(entry.name, entry.path, entry.package, broken=str(exc))
    except Exception as exc:  # noqa: BLE001 - the boundary of `needs`
        return Described(entry.name, entry.path, entry.package, broken=f"needs failed: {cause(exc)}")
    tools, later = [*tools_of(cls)], cls.tools is not Env.tools
    return Described(entry.name, entry.path, entry.package, about, tools, is_agent(cls), later, needs)
