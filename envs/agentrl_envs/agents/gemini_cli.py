"""gemini-cli on a prompt."""

from __future__ import annotations

import json

from agentrl import Endpoint
from agentrl_envs.agents.coding import CodingAgent
from agentrl_envs.agents.start import PATIENCE_S, Start
from agentrl_envs.agents.versions import CLIENTS

_SETTINGS = {
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    "privacy": {"usageStatisticsEnabled": False},
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "telemetry": {"enabled": False},
}
_FLAGS = {"flags": [{"flagId": 45773134, "intValue": str(PATIENCE_S)}]}
"""Experiment flags of gemini-cli. This flag has the seconds that the client waits for the headers of a response. No
other setting changes the default of 60 seconds."""
_WITH_FILES = (
    'mkdir -p "$HOME/.gemini" && printf %s "$0" > "$HOME/.gemini/settings.json" && '
    'export GEMINI_EXP="$HOME/.gemini/flags.json" && printf %s "$1" > "$GEMINI_EXP" && shift && exec "$@"'
)


def command(endpoint: Endpoint, instruction: str, *options: str, program: str = "gemini") -> Start:
    """The command that runs gemini-cli on an instruction. The program asks for no input, and sends data only to the
    model."""
    argv = [program, "-p", instruction, "-m", endpoint.model, "--yolo", *options]
    return Start(
        ["sh", "-c", _WITH_FILES, json.dumps(_SETTINGS), json.dumps(_FLAGS), *argv],
        {
            **endpoint.variables(),
            "GEMINI_CLI_TRUST_WORKSPACE": "true",  # else it asks whether the folder may be trusted
        },
    )


class GeminiCli(CodingAgent):
    """A coding task, solved by gemini-cli. The image has Node, 20 or newer, and the package's `gemini` on its PATH."""

    program = "gemini"
    tested = (CLIENTS["gemini-cli"].version,)

    def start(self, endpoint: Endpoint, instruction: str) -> Start:
        return command(endpoint, instruction, program=self.path)
