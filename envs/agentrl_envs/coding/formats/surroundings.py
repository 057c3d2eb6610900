"""What the tests of a repository run under: the image's own interpreter, and no settings that the work brought."""

from __future__ import annotations

from shlex import quote

from agentrl.sandbox import Sandbox
from agentrl_envs.coding.formats.apart import program

_PLACE = "/tmp/.agentrl-tests"
_KNOWN = "/tmp/.agentrl-known"
RESULTS = f"{_PLACE}/results"
"""Where pytest notes how tests ended, under NOTED_RESULTS."""

NOTE_NAMES = f"ls -A . src lib 2>/dev/null > {_KNOWN} || true"
"""A command of a step's setup: notes which modules the work folder has before the agent begins."""

OWN_FIRST = f'export PYTHONPATH="{_PLACE}${{PYTHONPATH:+:$PYTHONPATH}}"; '
"""In front of a command that runs tests, once `settle` was called: modules of the work folder replace none of the
image's."""
NOTED_RESULTS = 'export PYTEST_ADDOPTS="-p agentrl_results $PYTEST_ADDOPTS"; '
NO_USER_SITE = "export PYTHONNOUSERSITE=1; "
NO_MONITOR = (
    "export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=core.fsmonitor GIT_CONFIG_VALUE_0=false "
    "GIT_CONFIG_KEY_1=safe.directory GIT_CONFIG_VALUE_1='*'; "
)
"""git starts no program that a repository or a home folder names as its monitor."""
NO_GIT_SETTINGS = f"{NO_MONITOR}export GIT_CONFIG_GLOBAL=/dev/null; "

SETTINGS = (
    *("sitecustomize.py", "usercustomize.py", "*.pth", "*.egg-link", "*.egg-info", "*.dist-info", "*-packages"),
    *(".gitconfig", ".gitattributes", ".local", ".config", ".bashrc", ".bash_profile", ".bash_login", ".profile"),
)
"""Names of files and folders that programs obey wherever they find them. They are not carried to a clean sandbox."""


async def settle(box: Sandbox, workdir: str, *, user: str | None = None) -> None:
    """Place what OWN_FIRST names, as a user whose files the work cannot change."""
    text = program("own_first.py").replace("@WORK@", workdir).replace("@KNOWN@", _KNOWN)
    await box.exec(f"rm -rf {quote(_PLACE)}", user=user, check=True)
    await box.write_file(f"{_PLACE}/sitecustomize.py", text, user=user)
    plugin = program("results.py").replace("@RESULTS@", RESULTS)
    await box.write_file(f"{_PLACE}/agentrl_results.py", plugin, user=user)
