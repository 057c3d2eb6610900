"""A shell in a sandbox. The current folder and exported variables last from a command to the next command."""

from __future__ import annotations

import asyncio
import posixpath
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from shlex import quote

from agentrl.errors import ConfigError
from agentrl.sandbox import ExecResult, Sandbox

_LARGEST_ENVIRONMENT = 32 << 10
"""The most characters of exported variables that are stored. All stored variables are sent with every command."""

_REPORT_ROOM = 4 * _LARGEST_ENVIRONMENT
"""The most bytes that are stored of each stream. The last half always includes the report at the end of a command."""

_NOT_KEPT = frozenset({"_", "PWD", "SHLVL", "SHELLOPTS", "BASHOPTS", "UID", "EUID", "PPID"})
"""Variables set by bash itself. Variables of a back end, AGENTRL_..., may differ from command to command."""

_NO_SUCH_COMMAND = 127

# Builtins only, since a command may have changed PATH. A single line, so line numbers in bash's messages are the
# command's own. stderr is the way back for the report; the command's stderr goes to stdout, in order.
_SETUP = (
    "exec 42>&2 2>&1; "
    "agentrl_report() {{ {{ set +eux; }} 2>/dev/null; local agentrl_names agentrl_name agentrl_line agentrl_size=0; "
    "builtin printf '{nonce}%s' \"$PWD\" >&42; builtin mapfile -t agentrl_names < <(builtin compgen -e); "
    'for agentrl_name in "${{agentrl_names[@]}}"; do agentrl_line="$agentrl_name=${{!agentrl_name}}"; '
    "(( (agentrl_size += ${{#agentrl_line}}) > {most} )) && builtin printf '\\0{nonce}!' >&42 && return; "
    "builtin printf '\\0%s' \"$agentrl_line\" >&42; done; "
    "builtin printf '\\0{nonce}.' >&42; }}; "
)


@dataclass(frozen=True, slots=True)
class ShellState:
    """The state of a Shell, as plain data. It is valid in any sandbox with the same image."""

    cwd: str = "."
    """The folder in which the next command starts. The path is relative if it is below the start folder of commands."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Exported variables whose values differ from the sandbox's environment."""
    unset: tuple[str, ...] = ()
    """Variables of the sandbox's environment that commands have unset."""


class Shell:
    """Runs commands one after the other, as if they were typed into a single bash.

    The current folder and exported variables survive a command. Functions, aliases, shell options and variables that
    are not exported do not survive, nor do exported variables beyond 32 KiB. A command that is killed, that replaces
    the shell (`exec`), or that removes the shell's EXIT trap leaves the state unchanged.

    The state is stored on this machine and handed to each command, so no process has to stay alive. A command could
    send a false state, but only a state that `cd` and `export` could also produce.
    """

    def __init__(self, box: Sandbox, state: ShellState | None = None, *, user: str | None = None) -> None:
        self.box = box
        self.state = state or ShellState()
        """The state after the last command. Pickle the state with the sandbox's snapshot to continue elsewhere."""
        self._user = user
        self._start: str | None = None
        self._base: Mapping[str, str] = {}
        self._one_at_a_time = asyncio.Lock()

    async def run(self, cmd: str, *, timeout: float = 120, max_output: int = 1 << 20) -> ExecResult:
        """Run a command where the last command left off. `stdout` also holds stderr, in the order written.

        Raises ConfigError if the sandbox has no bash, and the errors of `Sandbox.exec`.
        """
        async with self._one_at_a_time:
            nonce = secrets.token_hex(16)
            result = await self.box.exec(
                f"exec bash --norc --noprofile -c {quote(self._script(nonce, cmd))}",
                user=self._user,
                timeout=timeout,
                max_output=max(max_output, _REPORT_ROOM),
                idempotent=False,
            )
            return self._remember(nonce, result)

    def path(self, path: str) -> str:
        """A path as commands of this shell understand it (relative to the current folder, with `~`), for the sandbox's
        file methods."""
        if path == "~" or path.startswith("~/"):
            path = self.state.env.get("HOME", self._base.get("HOME", "")) + path[1:]
        joined = posixpath.normpath(posixpath.join(self.state.cwd, path))
        return self._relative(joined)

    def _script(self, nonce: str, cmd: str) -> str:
        state, parts = self.state, [_SETUP.format(nonce=nonce, most=_LARGEST_ENVIRONMENT)]
        if self._start is None:
            parts.append("agentrl_report; ")
        if state.cwd != ".":
            gone = f"bash: the folder {state.cwd} is gone; the working directory is now"
            parts.append(f'cd -- {quote(state.cwd)} 2>/dev/null || builtin echo {quote(gone)} "$PWD"; ')
        if state.unset:
            parts.append(f"unset -v {' '.join(state.unset)}; ")
        parts += [f"export {name}={quote(value)}; " for name, value in state.env.items()]  # after `cd`, for OLDPWD
        parts.append(f"trap agentrl_report EXIT; eval {quote(cmd)}")
        return "".join(parts)

    def _remember(self, nonce: str, result: ExecResult) -> ExecResult:
        """Take the state out of stderr, and append the rest of stderr to stdout."""
        report = re.compile(rf"{nonce}(.*?)\0{nonce}([.!])", re.DOTALL)
        found = [(_read(body), end == ".") for body, end in report.findall(result.stderr)]
        rest = report.sub("", result.stderr).partition(nonce)[0]
        if not found and self._start is None and result.exit_code == _NO_SUCH_COMMAND:
            raise ConfigError(f"sandbox {self.box.sandbox_id} has no bash; use an image that has it")
        if found and self._start is None:
            (self._start, self._base), _ = found.pop(0)
        if found:
            (cwd, env), whole = found[-1]
            self._update(cwd, env if whole else None)
            if not whole:
                rest += "bash: the environment is too large: this command's changes to it are forgotten\n"
        return ExecResult(
            result.exit_code, result.stdout + rest, timed_out=result.timed_out, truncated=result.truncated
        )

    def _update(self, cwd: str, env: Mapping[str, str] | None) -> None:
        kept = self.state
        cwd = kept.cwd if "\ufffd" in cwd else self._relative(cwd)
        if env is None:
            self.state = ShellState(cwd, kept.env, kept.unset)
            return
        changed = {name: value for name, value in env.items() if self._base.get(name) != value}
        self.state = ShellState(cwd, changed, tuple(name for name in self._base if name not in env))

    def _relative(self, path: str) -> str:
        """A path, relative to the start folder of commands if it is below this folder."""
        start = self._start
        if start is None or not posixpath.isabs(path) or not (path + "/").startswith(start.rstrip("/") + "/"):
            return path
        return posixpath.relpath(path, start)


def _read(body: str) -> tuple[str, dict[str, str]]:
    """The folder and the variables in a report. A value with invalid UTF-8 cannot be sent, and is left out."""
    cwd, *lines = body.split("\0")
    pairs = [(name, value) for name, _, value in (line.partition("=") for line in lines)]
    kept = {name: value for name, value in pairs if name not in _NOT_KEPT and "\ufffd" not in value}
    return cwd, {name: value for name, value in kept.items() if not name.startswith("AGENTRL_")}
