"""Train LLM agents by reinforcement learning in multi-turn environments.

Write an `Env`, or an `AgentEnv` around an existing agent. Run episodes with `run_episode` or the `agentrl` command.
Train with the embedded trainer, or under slime with `--custom-generate-function-path agentrl.adapt`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentrl.engine.base import Engine
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
from agentrl.image import Image
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

if TYPE_CHECKING:
    from agentrl.engine.local import LocalEngine
    from agentrl.engine.sglang import SGLangEngine
    from agentrl.gateway.agent import AgentEnv, Endpoint, SessionOptions
    from agentrl.render import Renderer, load_renderer
    from agentrl.slime.adapt import adapt

__version__ = "0.1.0"

_LATER = {
    "AgentEnv": "agentrl.gateway.agent",
    "Endpoint": "agentrl.gateway.agent",
    "SessionOptions": "agentrl.gateway.agent",
    "LocalEngine": "agentrl.engine.local",
    "SGLangEngine": "agentrl.engine.sglang",
    "Renderer": "agentrl.render",
    "load_renderer": "agentrl.render",
    "adapt": "agentrl.slime.adapt",
}
"""Public name -> module. These modules import slow packages (torch, aiohttp, transformers), so the first use of the
name imports the module."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


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
