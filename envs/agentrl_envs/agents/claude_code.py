"""Claude Code, in print mode."""

from __future__ import annotations

from agentrl import Endpoint
from agentrl_envs.agents.coding import CodingAgent
from agentrl_envs.agents.start import PATIENCE_S, Start
from agentrl_envs.agents.versions import CLIENTS


def command(endpoint: Endpoint, instruction: str, *options: str, program: str = "claude") -> Start:
    """The command that runs Claude Code on an instruction. The program asks for no input, and sends data only to the
    model."""
    patience = str(1000 * PATIENCE_S)
    return Start(
        [program, "-p", instruction, "--model", endpoint.model, "--dangerously-skip-permissions", *options],
        {
            **endpoint.variables(),
            "API_TIMEOUT_MS": patience,
            "CLAUDE_STREAM_IDLE_TIMEOUT_MS": patience,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",  # it asks for no confirmation, also where it runs as root
        },
    )


class ClaudeCode(CodingAgent):
    """A coding task, solved by Claude Code. The image has `claude` on its PATH: the npm package is a single
    binary."""

    program = "claude"
    tested = (CLIENTS["claude-code"].version, CLIENTS["claude-code-2.1.197"].version)

    def start(self, endpoint: Endpoint, instruction: str) -> Start:
        return command(endpoint, instruction, program=self.path)
