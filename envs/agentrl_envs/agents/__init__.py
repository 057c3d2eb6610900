"""Existing agents as Envs, by name: `from agentrl_envs.agents import LangGraph`. See docs/harnesses.md.

A name's module is imported on first use, so only the library of that agent is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl_envs.agents.claude_code import ClaudeCode
    from agentrl_envs.agents.codex import Codex
    from agentrl_envs.agents.container import ContainerAgent
    from agentrl_envs.agents.gemini_cli import GeminiCli
    from agentrl_envs.agents.langgraph import LangGraph
    from agentrl_envs.agents.mini_swe_agent import MiniSweAgent
    from agentrl_envs.agents.openai_agents import OpenAIAgents
    from agentrl_envs.agents.strands import StrandsAgents

_HARNESSES = {
    "ClaudeCode": "claude_code",
    "Codex": "codex",
    "ContainerAgent": "container",
    "GeminiCli": "gemini_cli",
    "LangGraph": "langgraph",
    "MiniSweAgent": "mini_swe_agent",
    "OpenAIAgents": "openai_agents",
    "StrandsAgents": "strands",
}


def __getattr__(name: str) -> Any:
    if name not in _HARNESSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_HARNESSES)}")
    return getattr(import_module(f"{__name__}.{_HARNESSES[name]}"), name)


__all__ = [
    "ClaudeCode",
    "Codex",
    "ContainerAgent",
    "GeminiCli",
    "LangGraph",
    "MiniSweAgent",
    "OpenAIAgents",
    "StrandsAgents",
]
