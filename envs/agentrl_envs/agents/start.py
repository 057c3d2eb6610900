"""Start an agent's program in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from shlex import join

from agentrl.sandbox import ExecResult, Sandbox

PATIENCE_S = 3600
"""Seconds that a client waits for a reply. A trainer may stop all sampling for minutes, so each agent's Env
sets this limit in its client."""
_OUTPUT = 40_000
"""The most bytes of a program's output."""


@dataclass(frozen=True, slots=True)
class Start:
    """How to start a program: the command line and the environment variables."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)

    async def run(self, box: Sandbox, *, timeout: float, activate: str = "") -> ExecResult:
        """Run the program in a sandbox's work folder, with a new home folder unless `env` names a home folder.

        `activate` are bash commands that run first and may change the environment.
        """
        home = "" if "HOME" in self.env else 'export HOME="$(mktemp -d)"; '
        argv = list(self.argv)
        if activate:
            entered = f'{{ {activate}; }} > /dev/null 2>&1; exec "$0" "$@"'
            argv = ["bash", "--norc", "--noprofile", "-c", entered, *argv]
        return await box.exec(f"{home}exec {join(argv)}", env=self.env, timeout=timeout, max_output=_OUTPUT)
