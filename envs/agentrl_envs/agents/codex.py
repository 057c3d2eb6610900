"""Codex, as `codex exec`."""

from __future__ import annotations

from agentrl import Endpoint
from agentrl_envs.agents.coding import CodingAgent
from agentrl_envs.agents.start import PATIENCE_S, Start
from agentrl_envs.agents.versions import CLIENTS

_KEY = "AGENTRL_KEY"


def command(endpoint: Endpoint, instruction: str, *options: str, program: str = "codex") -> Start:
    """The command that runs Codex on an instruction, with the endpoint as the model provider. `options` follow
    `exec`."""
    provider: dict[str, str | int] = {
        "name": "agentrl",
        "base_url": endpoint.openai,
        "env_key": _KEY,
        "wire_api": "responses",
        "request_max_retries": 8,
        "stream_max_retries": 8,
        "stream_idle_timeout_ms": 1000 * PATIENCE_S,
    }
    values: dict[str, str | int] = {"model": endpoint.model, "model_provider": "agentrl"}
    values |= {f"model_providers.agentrl.{key}": value for key, value in provider.items()}
    settings = [part for key, value in values.items() for part in ("-c", f"{key}={_toml(value)}")]
    unasked = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return Start(
        [program, *settings, "exec", *options, *unasked, instruction], {**endpoint.variables(), _KEY: endpoint.key}
    )


def _toml(value: str | int) -> str:
    return str(value) if isinstance(value, int) else f'"{value}"'


class Codex(CodingAgent):
    """A coding task, solved by Codex. The image has `codex` on its PATH: the npm package is a single binary."""

    program = "codex"
    tested = (CLIENTS["codex"].version,)

    def start(self, endpoint: Endpoint, instruction: str) -> Start:
        return command(endpoint, instruction, program=self.path)
