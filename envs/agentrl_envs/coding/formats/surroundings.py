"""Prepare the environment of a repository's tests: the image's Python, without settings from the agent's files."""

from __future__ import annotations

import secrets

from agentrl.sandbox import Sandbox
from agentrl_envs.coding.formats.apart import program

_KNOWN = "/tmp/.agentrl-known"

NOTE_NAMES = f"ls -A . src lib 2>/dev/null > {_KNOWN} || true"
"""A command of a step's setup that records the modules of the work folder before the agent begins."""

NOTED_RESULTS = 'export PYTEST_ADDOPTS="-p agentrl_results $PYTEST_ADDOPTS"; '
NO_USER_SITE = "export PYTHONNOUSERSITE=1; "
NO_MONITOR = (
    "export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=core.fsmonitor GIT_CONFIG_VALUE_0=false "
    "GIT_CONFIG_KEY_1=safe.directory GIT_CONFIG_VALUE_1='*'; "
)
"""Shell words that keep git from starting a monitor program that a repository or a home folder names."""
NO_GIT_SETTINGS = f"{NO_MONITOR}export GIT_CONFIG_GLOBAL=/dev/null; "

SETTINGS = (
    *("sitecustomize.py", "usercustomize.py", "*.pth", "*.egg-link", "*.egg-info", "*.dist-info", "*-packages"),
    *(".gitconfig", ".gitattributes", ".local", ".config", ".bashrc", ".bash_profile", ".bash_login", ".profile"),
)
"""Names of settings files and folders that programs read in any folder. These are not copied to a clean sandbox."""


def removal(path: str) -> str:
    """A command that removes a file or folder. If that fails, the command moves the path away: root in a sandbox may
    not be able to empty a folder of the agent."""
    return f"{{ rm -rf -- {path} 2>/dev/null || mv -- {path} {path}.{secrets.token_hex(8)}; }}"


async def settle(box: Sandbox, workdir: str, *, user: str | None = None) -> str:
    """Write agentrl's modules for tests (`own_first` and `results`) into a new folder, as a user whose files the agent
    cannot change. Returns the folder."""
    place = f"/tmp/.agentrl-tests-{secrets.token_hex(8)}"  # a name that the agent cannot have taken
    text = program("own_first.py").replace("@WORK@", workdir).replace("@KNOWN@", _KNOWN)
    await box.write_file(f"{place}/sitecustomize.py", text, user=user)
    plugin = program("results.py").replace("@RESULTS@", results_in(place))
    await box.write_file(f"{place}/agentrl_results.py", plugin, user=user)
    return place


def own_first(place: str) -> str:
    """A prefix for a command that runs tests: modules of the work folder then do not replace modules of the image."""
    return f'export PYTHONPATH="{place}${{PYTHONPATH:+:$PYTHONPATH}}"; '


def results_in(place: str) -> str:
    """The file in which pytest records results, under NOTED_RESULTS."""
    return f"{place}/results"
