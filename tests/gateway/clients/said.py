"""What the model says in a session, in raw text, and the oddities with which it says it.

A script chooses by what the prompt shows, as a model would: a sub-agent's opening, a request for a summary, else the
next turn of the main line. So it plays any number of branches at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

MAIN = "MAIN-TASK: see what is there, then report."
"""The prompt of the main line. It keeps a sub-agent's opening apart from its own."""

_ASSISTANT, _USER = "<|im_start|>assistant", "<|im_start|>user"


@dataclass(frozen=True, slots=True)
class Say:
    """One turn, as tokens spell it: arguments are JSON text, well formed or not."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    thought: str = "\nhm\n"

    def raw(self) -> str:
        calls = [f'<tool_call>\n{{"name": "{name}", "arguments": {given}}}\n</tool_call>' for name, given in self.calls]
        return f"<think>{self.thought}</think>\n\n" + "\n".join(filter(None, [self.text, *calls]))


Turns = Sequence[Say] | Callable[[int, str], Say | Exception]
"""Turns in order, or a function of the turn's number (from 1) and the prompt."""


@dataclass
class Script:
    """`openings` play where the first user messages hold their mark, `endings` where the last one does."""

    main: Turns
    openings: Mapping[str, Turns] = field(default_factory=dict)
    endings: Mapping[str, Turns] = field(default_factory=dict)
    played: list[str] = field(default_factory=list)
    """Of each turn so far, its branch: a mark, or "main"."""

    def next(self, prompt: str) -> Say:
        opening = prompt.split(_ASSISTANT, 1)[0]
        ending = prompt.rsplit(_USER, 1)[-1]
        branch, turns = "main", self.main
        for mark, own in self.endings.items():
            if mark in ending:
                branch, turns = mark, own
        for mark, own in self.openings.items():
            if mark in opening and MAIN not in opening:
                branch, turns = mark, own
        self.played.append(branch)
        number = self.played.count(branch)
        said = turns(number, prompt) if callable(turns) else turns[number - 1]
        if isinstance(said, Exception):
            raise said
        return said


@dataclass(frozen=True, slots=True)
class Shell:
    """How a client's tool for commands is called."""

    name: str
    key: str
    more: Mapping[str, object] = field(default_factory=dict)
    quoted: str = ""
    """JSON text of more arguments, with escapes, where the key order is turned round."""

    def run(self, command: str, **spelling: str) -> tuple[str, str]:
        return self.name, json.dumps({self.key: command, **self.more})

    def turned(self, command: str) -> tuple[str, str]:
        """The keys in another order, with more spaces, and a letter as an escape."""
        pairs = [f'"{key}":  {json.dumps(value)}' for key, value in self.more.items()]
        return self.name, "{" + ", ".join([*pairs, f'"{self.key}" :"echo caf\\u00e9 {command}"']) + "}"

    def twice(self, command: str) -> tuple[str, str]:
        return self.name, f'{{"{self.key}": "echo not this", "{self.key}": "{command}"' + "".join(
            f', "{key}": {json.dumps(value)}' for key, value in self.more.items()
        ) + "}"


BASH = Shell("Bash", "command", {"description": "look"})
EXEC = Shell("exec_command", "cmd")
MINI = Shell("bash", "command")
SEARCH = Shell("search", "query")
OPENCODE = Shell("bash", "command", {"description": "look"})
GEMINI = Shell("run_shell_command", "command", {"description": "look"})
QWEN = Shell("run_shell_command", "command", {"is_background": False})


def odd(shell: Shell, *, more: Sequence[Say] = (), last: Say | None = None, unknown: bool = True) -> list[Say]:
    """Nine turns, each with an oddity of its own."""
    turns = [
        Say("  I begin with spaces. \n", (shell.run("echo one"),), "\n  a thought with spaces around  \n\n"),
        Say("", (shell.turned("two"),)),
        Say("Two at once.", (shell.run("sleep 0.3; echo slow"), shell.run("echo fast"))),
        Say("", (shell.twice("echo twice"),)),
        Say("Large.", (shell.run("seq 1 27000"),)),
        Say(" ", (shell.run("echo last"),)),
        Say("", (shell.run("echo 'no thought'"),), ""),
        *([Say("An unknown tool.", (("no_such_tool", '{"x": 1}'),))] if unknown else []),
        *more,
    ]
    broken = Say("Broken.", ((shell.name, f'{{"{shell.key}": "echo broken", oops'),))
    return [*turns, *([last] if last else [broken])]
