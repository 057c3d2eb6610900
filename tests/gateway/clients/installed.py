"""The clients on this machine, which `.ci/clients.sh` installs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentrl_envs.agents.versions import CLIENTS

REQUIRED = "clients" in os.environ.get("AGENTRL_REQUIRE", "").split(",")
ALL = os.environ.get("AGENTRL_CLIENTS_PLAYED") == "all"
"""Every client, and sessions that take minutes."""
FOLDER = Path(os.environ["AGENTRL_CLIENTS"]) if "AGENTRL_CLIENTS" in os.environ else None
"""Set by `.ci/clients.sh`. What happens to be installed makes no difference to `make test`."""

_COMMANDS = {
    "claude-code": "claude",
    "claude-code-2.1.197": "claude",
    "qwen-code": "qwen",
    "gemini-cli": "gemini",
    "mini-swe-agent": "mini",
}


def path_of(client: str) -> str:
    """The client's program, or of a library the Python that has it.

    If it is missing, the test skips, or fails where `AGENTRL_REQUIRE` names clients.
    """
    folder = FOLDER / client if FOLDER else None
    if folder is None or not (folder / "installed.txt").exists():
        by = ".ci/clients.sh FOLDER" if CLIENTS[client].quick else ".ci/clients.sh FOLDER all"
        why = f"{client} is not installed: {by} does that, and plays it"
        if REQUIRED and (CLIENTS[client].quick or ALL):
            pytest.fail(why)
        pytest.skip(why)
    if CLIENTS[client].registry == "npm":
        return str(folder / "node_modules" / ".bin" / _COMMANDS.get(client, client))
    return str(folder / "bin" / _COMMANDS.get(client, "python"))


def slow() -> None:
    """Skips a test that takes minutes."""
    if not ALL:
        pytest.skip("takes minutes: make gateway-clients")
