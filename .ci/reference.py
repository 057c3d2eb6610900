"""The pages of the reference, from what the code holds: commands, configurations, and the public names of `agentrl`."""

from __future__ import annotations

import ast
import html
import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import agentrl
from agentrl._util.loading import load_object
from agentrl.cli import app

PINNED = Path(__file__).resolve().parent.parent / "tests" / "public_api.txt"

NAMES = {
    "environments.md": (
        "Environments",
        "What an environment is written with. The guide is [environments](../environments.md).",
        "Env tool Task Observation Message Image Raw ToolSpec tool_specs tools_of Action ToolCall ToolResult "
        "StepResult TurnOptions Reward BadCallPolicy BadCall uncounted",
    ),
    "agents.md": (
        "Agents",
        "An existing agent as an environment. The guide is [agents](../agents.md).",
        "AgentEnv Endpoint SessionOptions",
    ),
    "episodes.md": (
        "Episodes",
        "Playing an environment from Python. [Environments](../environments.md#episodes-in-python) has an example.",
        "run_episode resume_episode run_seats resume_seats EnvFactory EpisodeOptions EpisodeHooks Limits "
        "SamplingParams StopReason",
    ),
    "trajectories.md": (
        "Trajectories",
        "The record of an episode. [Masked tokens](../masked.md) explains the reasons of the ledger.",
        "Trajectory Span Ledger Failure",
    ),
    "engines.md": (
        "Engines and templates",
        "What samples the tokens, and what turns messages into tokens.",
        "Engine Generation LocalEngine SGLangEngine Renderer load_renderer adapt",
    ),
    "errors.md": (
        "Errors",
        "Who is to blame for a failed episode: the policy, the environment, the engine, or a bug.",
        "AgentRLError ToolError CallError InfraError EngineError SandboxError ConfigError TemplateError RequestError "
        "ResumeError CanaryError LedgerError",
    ),
}
"""The pages of the API: file -> title, a sentence, and the names in the order shown."""

MODULES = {
    "rewards.md": ("agentrl.rewards", "Graders. The guide is [rewards](../rewards.md)."),
    "testing.md": (
        "agentrl.testing",
        "Episodes without a model: [players and tests](../environments.md#players-and-tests).",
    ),
    "chat.md": ("agentrl.chat", "Models that read messages. The guide is [evaluating](../evaluating.md)."),
    "sandboxes.md": ("agentrl_sandbox", "Isolated machines. The guide is [sandboxes](../sandboxes.md)."),
}
"""Pages of whole modules: file -> module and a sentence. Its `__all__` is shown."""

CONFIGS = {
    "Training": (
        "agentrl.train.config:TrainConfig",
        "agentrl.train.config:WarmStartConfig",
        "agentrl.train.config:ColumnsConfig",
        "agentrl.train.config:FailureConfig",
        "agentrl.train.config:LoRAConfig",
        "agentrl.train.config:TeacherConfig",
        "agentrl.monitor.canaries:CanaryConfig",
        "agentrl.monitor.numerics:NumericsConfig",
    ),
    "Every trainer and host": (
        "agentrl.types:Limits",
        "agentrl.errors:BadCallPolicy",
        "agentrl.types:TurnOptions",
        "agentrl.gateway.agent:SessionOptions",
        "agentrl.episode.gateway_config:GatewayConfig",
    ),
    "slime": (
        "agentrl.slime.config:SlimeConfig",
        "agentrl.episode.host_config:ParkingConfig",
        "agentrl.episode.gateway_config:GatewayConfig",
    ),
    "Simulated users and judges": ("agentrl.chat.client:SpeakerConfig", "agentrl.chat.simulation:UserConfig"),
    "Sandboxes": (
        "agentrl_sandbox.spec:SandboxSpec",
        *(
            "agentrl_sandbox.services:ServiceGroup",
            "agentrl_sandbox.services:Service",
            "agentrl_sandbox.services:Placed",
        ),
        *("agentrl_sandbox.services:Mount", "agentrl_sandbox.services:HealthCheck"),
    ),
    "Environments": (
        "agentrl_envs.fact_search.env:FactSearchConfig",
        "agentrl_envs.search_r1.env:SearchR1Config",
        "agentrl_envs.coding.env:CodingConfig",
        "agentrl_envs.agents.coding:CodingAgentConfig",
        "agentrl_envs.adapters.mcp:McpServerConfig",
        "agentrl_envs.adapters.mcp:MCPConfig",
        "agentrl_envs.adapters.reasoning_gym:ReasoningGymConfig",
        "agentrl_envs.adapters.games:GameConfig",
        "agentrl_envs.adapters.gymnasium:GymnasiumConfig",
        "agentrl_envs.adapters.openenv:OpenEnvConfig",
    ),
}
"""The sections of the page of configurations: title -> classes whose keys a user writes."""


def pages() -> dict[str, str]:
    """File -> text. Raises ValueError for a public name on no page or on two, and for an option or key without help."""
    named = [name for *_, names in NAMES.values() for name in names.split()]
    if wrong := set(agentrl.__all__) ^ set(named) or {name for name in named if named.count(name) > 1}:
        raise ValueError(f"NAMES in .ci/reference.py must have each public name once: {', '.join(sorted(wrong))}")
    api = {
        file: f"# {title}\n\n{sentence}\n\n" + "\n\n".join(f"::: agentrl.{name}" for name in names.split()) + "\n"
        for file, (title, sentence, names) in NAMES.items()
    }
    modules = {
        file: f"# {module}\n\n{sentence}\n\n" + "\n\n".join(f"::: {name}" for name in _public(module)) + "\n"
        for file, (module, sentence) in MODULES.items()
    }
    return {"commands.md": commands(), "configuration.md": configuration(), **api, **modules}


def _public(module: str) -> list[str]:
    return [f"{module}.{name}" for name in import_module(module).__all__]


def anchors() -> set[str]:
    """Where the API's pages must lead: each public name, and each member that tests/public_api.txt pins."""
    found, owner = {name for module, _ in MODULES.values() for name in _public(module)}, ""
    for line in PINNED.read_text(encoding="utf-8").splitlines():
        name = re.match(r"\s*(\w+)", line)[1]
        if line.startswith(" "):
            found.add(f"agentrl.{owner}.{name}")
        else:
            owner = name
            found.add(f"agentrl.{name}")
    return found


# Commands


def commands() -> str:
    """Every command with all its arguments and options, as `--help` knows them."""
    root = typer.main.get_command(app)
    parts = ["# Commands\n\nEverything here is also in `agentrl --help` and `agentrl COMMAND --help`.\n"]
    for path, command in _commands("agentrl", root):
        context = typer.Context(command, info_name=path)
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        parts.append(f"## {path}\n\n    {usage}\n\n{_help(command.help or '')}\n")
        if rows := list(_options(path, command, context)):
            parts.append(_table(("argument or option", "meaning"), rows))
    return "\n".join(parts)


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", {})
    if not children or path.count(" "):
        yield path, command
    for name, child in children.items():
        yield from _commands(f"{path} {name}", child)


def _help(text: str) -> str:
    """A command's help. Its examples, lines that begin with `agentrl`, become code."""
    paragraphs = inspect.cleandoc(text).replace("\b\n", "").split("\n\n")
    return "\n\n".join(textwrap.indent(p, "    ") if p.startswith("agentrl ") else html.escape(p) for p in paragraphs)


def _options(path: str, command: Any, context: typer.Context) -> Iterator[tuple[str, str]]:
    for param in command.get_params(context):
        if param.name == "help" or (record := param.get_help_record(context)) is None:
            continue
        name, told = record
        if not param.help:
            raise ValueError(f"{path}: {name} has no help")
        yield _code(name), _text(re.sub(r"\[default: \((.*)\)\]", r"[default: \1]", told))


# Configurations


def configuration() -> str:
    """Every key of every configuration that a user writes, with its type, default and meaning."""
    parts = [
        "# Configuration\n\nThe keys of `agentrl train --config FILE` and `--set KEY=VALUE`, of slime's `agentrl:` "
        "mapping, and of the environments' `env_config`. A misspelt key is an error that names the nearest one.\n"
    ]
    listed = {load_object(path) for paths in CONFIGS.values() for path in paths}
    if missing := {kind.__name__ for cls in listed for kind in _nested(cls)} - {cls.__name__ for cls in listed}:
        raise ValueError(f"CONFIGS in .ci/reference.py lacks {', '.join(sorted(missing))}, which are types of keys")
    for title, paths in CONFIGS.items():
        parts.append(f"## {title}\n")
        for path in paths:
            cls = load_object(path)
            parts.append(f"### {cls.__name__}\n\n{_text(cls.__doc__ or '')}\n")
            parts.append(_table(("key", "type", "default", "meaning"), list(_keys(cls))))
    return "\n".join(parts)


def _keys(cls: type) -> Iterator[tuple[str, str, str, str]]:
    meanings = meanings_of(cls)
    for name, kind, default in _fields(cls):
        if not meanings.get(name):
            raise ValueError(f"{cls.__module__}.{cls.__name__}.{name} has no docstring: write its meaning under it")
        yield _code(name), _code(_type(kind)), _code(default), _text(meanings[name])


def _fields(cls: Any) -> Iterator[tuple[str, Any, str]]:
    if is_dataclass(cls):
        for field in fields(cls):
            factory = field.default_factory
            default = factory() if factory is not MISSING else field.default
            yield field.name, field.type, "required" if default is MISSING else _value(default)
        return
    for name, field in cls.model_fields.items():
        default = field.get_default(call_default_factory=True)
        yield name, field.annotation, "required" if default is PydanticUndefined else _value(default)


def _nested(cls: Any) -> Iterator[type]:
    """The configurations that are types of its keys."""
    for _, kind, _ in _fields(cls):
        for part in (kind, *getattr(kind, "__args__", ())):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield part


def meanings_of(cls: type) -> dict[str, str]:
    """The docstrings of a class's attributes, those of its bases included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base in (object, BaseModel):
            continue
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError):
            continue
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for node, after in itertools.pairwise(body):
            if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr):
                found[ast.unparse(node.target)] = inspect.cleandoc(str(ast.literal_eval(after.value)))
    return found


def _type(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    short = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text).replace("NoneType", "None")
    return re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace("'", "").replace(", ", " | "), short)


def _value(value: Any) -> str:
    """A default as YAML's flow style writes it, which is JSON."""
    if isinstance(value, BaseModel):
        return type(value).__name__
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        return str(value)


# Markdown


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _code(text: str) -> str:
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>" if text else ""


def _text(text: str) -> str:
    """A docstring as one line that may lie in a table."""
    plain = html.escape(" ".join(text.split()), quote=False).replace("|", "&#124;").replace("*", "&#42;")
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", plain)
