"""The few commands that tests give to FakeSandbox too, and its replies, which are a shell's."""

import asyncio
from pathlib import PurePath

from agentrl.sandbox import CANNOT_RUN, ExecResult
from agentrl_sandbox import ExecCall

BOTH = "echo out; echo err >&2; exit 3"
CAT = "cat"
SHOW = 'printf "%s" "$GREETING"'
PWD = 'basename "$PWD"'
SLOW = "echo begun; sleep 30"
LOUD = "printf %010d 0"
LONG = "true " + "x" * (200 << 10)
NUL = "echo a\0b"


async def fake_shell(call: ExecCall) -> ExecResult:
    """The commands above, as a shell would answer them."""
    if call.cmd == SLOW:
        await asyncio.sleep(30)
    elif call.cmd in (LONG, NUL):
        return ExecResult(CANNOT_RUN, stderr="cannot run the command")
    return {
        BOTH: ExecResult(3, "out\n", "err\n"),
        CAT: ExecResult(0, (call.stdin or b"").decode(errors="replace")),
        SHOW: ExecResult(0, call.env.get("GREETING", "")),
        PWD: ExecResult(0, f"{PurePath(call.cwd or '/work').name}\n"),
        LOUD: ExecResult(0, "0" * 10),
        "true": ExecResult(0),
    }[call.cmd]
