"""Train LLM agents by reinforcement learning in multi-turn environments.

Write an `Env`, or an `AgentEnv` around an existing agent. Run episodes with `run_episode` or the `agentrl` command.
Train with the embedded trainer, or under slime with `--custom-generate-function-path agentrl.adapt`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.engine.base import Engine
    from agentrl.engine.local import LocalEngine
    from agentrl.engine.sglang import SGLangEngine
    from agentrl.env.env import Env, tool_specs, tools_of
    from agentrl.env.factory import EnvFactory
    from agentrl.env.runtime import uncounted
    from agentrl.env.tools import tool
    from agentrl.episode.options import EpisodeHooks, EpisodeOptions
    from agentrl.episode.resume import resume_episode, resume_seats
    from agentrl.episode.run import run_episode
    from agentrl.episode.seats import run_seats
    from agentrl.errors import (
        AgentRLError,
        BadCall,
        BadCallPolicy,
        CallError,
        CanaryError,
        ConfigError,
        EngineError,
        Failure,
        InfraError,
        LedgerError,
        RequestError,
        ResumeError,
        SandboxError,
        TemplateError,
        ToolError,
    )
    from agentrl.gateway.agent import AgentEnv, Endpoint, SessionOptions
    from agentrl.image import Image
    from agentrl.render import Renderer, load_renderer
    from agentrl.slime.adapt import adapt
    from agentrl.trajectory.trajectory import Ledger, Span, Trajectory
    from agentrl.types import (
        Action,
        Generation,
        Limits,
        Message,
        Observation,
        Raw,
        Reward,
        SamplingParams,
        StepResult,
        StopReason,
        Task,
        ToolCall,
        ToolResult,
        ToolSpec,
        TurnOptions,
    )

__version__ = "0.1.0"

_MODULES = {
    "agentrl.engine.base": "Engine",
    "agentrl.engine.local": "LocalEngine",
    "agentrl.engine.sglang": "SGLangEngine",
    "agentrl.env.env": "Env tool_specs tools_of",
    "agentrl.env.factory": "EnvFactory",
    "agentrl.env.runtime": "uncounted",
    "agentrl.env.tools": "tool",
    "agentrl.episode.options": "EpisodeHooks EpisodeOptions",
    "agentrl.episode.resume": "resume_episode resume_seats",
    "agentrl.episode.run": "run_episode",
    "agentrl.episode.seats": "run_seats",
    "agentrl.errors": (
        "AgentRLError BadCall BadCallPolicy CallError CanaryError ConfigError EngineError Failure "
        "InfraError LedgerError RequestError ResumeError SandboxError TemplateError ToolError"
    ),
    "agentrl.gateway.agent": "AgentEnv Endpoint SessionOptions",
    "agentrl.image": "Image",
    "agentrl.render": "Renderer load_renderer",
    "agentrl.slime.adapt": "adapt",
    "agentrl.trajectory.trajectory": "Ledger Span Trajectory",
    "agentrl.types": (
        "Action Generation Limits Message Observation Raw Reward SamplingParams StepResult "
        "StopReason Task ToolCall ToolResult ToolSpec TurnOptions"
    ),
}
"""Module -> public names. The first use of a name imports its module, so that a command, or an import of agentrl,
waits for nothing that it does not use."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Action",
    "AgentEnv",
    "AgentRLError",
    "BadCall",
    "BadCallPolicy",
    "CallError",
    "CanaryError",
    "ConfigError",
    "Endpoint",
    "Engine",
    "EngineError",
    "Env",
    "EnvFactory",
    "EpisodeHooks",
    "EpisodeOptions",
    "Failure",
    "Generation",
    "Image",
    "InfraError",
    "Ledger",
    "LedgerError",
    "Limits",
    "LocalEngine",
    "Message",
    "Observation",
    "Raw",
    "Renderer",
    "RequestError",
    "ResumeError",
    "Reward",
    "SGLangEngine",
    "SamplingParams",
    "SandboxError",
    "SessionOptions",
    "Span",
    "StepResult",
    "StopReason",
    "Task",
    "TemplateError",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "ToolSpec",
    "Trajectory",
    "TurnOptions",
    "adapt",
    "load_renderer",
    "resume_episode",
    "resume_seats",
    "run_episode",
    "run_seats",
    "tool",
    "tool_specs",
    "tools_of",
    "uncounted",
]
