"""Holds the agent's code and calls its functions for `check.py`, which runs in a second sandbox and trusts no reply.

Argument: the folder of the code. Requests come on stdin and replies go to stdout as lines of JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

LONGEST_OUTPUT = 4 << 20
PLAIN = (bool, int, float, str, type(None))


def encode(value: Any) -> Any:
    """Plain data as JSON that preserves tuples, sets and the types of keys. Other values become ["o", type]."""
    kind = type(value)
    if kind in PLAIN:
        return ["v", value]
    for tag, base in (("l", list), ("t", tuple), ("s", (set, frozenset))):
        if isinstance(value, base):
            return [tag, [encode(item) for item in value]]
    if isinstance(value, dict):
        return ["d", [[encode(key), encode(item)] for key, item in value.items()]]
    if isinstance(value, (bytes, bytearray)):
        return ["b", bytes(value).decode("latin-1")]
    if isinstance(value, complex):
        return ["c", [value.real, value.imag]]
    return ["o", kind.__name__]


def decode(data: Any) -> Any:
    """The inverse of `encode`."""
    tag, content = data
    if tag == "d":
        return {decode(key): decode(item) for key, item in content}
    if tag in ("l", "t", "s"):
        return {"l": list, "t": tuple, "s": set}[tag](decode(item) for item in content)
    return content.encode("latin-1") if tag == "b" else complex(*content) if tag == "c" else content


def answer(request: Any) -> Any:
    """The reply to ["get", module, name], ["call", module, name, arguments, keywords] or ["run", file, input]."""
    verb, module, name, *arguments = request
    if verb == "run":
        return output(module, name)
    value = getattr(importlib.import_module(module), name)
    if verb == "call":
        return encode(value(*decode(arguments[0]), **decode(arguments[1])))
    if isinstance(value, type):
        bases = [base.__name__ for base in value.__mro__ if base.__module__ == "builtins"]
        return ["x", bases] if issubclass(value, Exception) else ["o", "class"]
    return ["f", name] if callable(value) else encode(value)


def output(file: str, text: str) -> Any:
    """Run a program on an input. Returns ["v", the output], or ["-", the reason for no output]."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-B", file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    threading.Thread(target=feed, args=(process.stdin, text.encode("utf-8", "replace")), daemon=True).start()
    try:
        printed = process.stdout.read(LONGEST_OUTPUT + 1)
        if len(printed) > LONGEST_OUTPUT:
            return ["-", "the program wrote too much"]
        code = process.wait()
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return ["-", f"the program ended with exit code {code}"] if code else ["v", printed.decode("utf-8", "replace")]


def feed(stdin: Any, data: bytes) -> None:
    with contextlib.suppress(OSError), stdin:  # a program need not read its input
        stdin.write(data)


def main() -> None:
    folder = os.path.abspath(sys.argv[1])
    sys.path.insert(0, folder)
    os.chdir(folder)
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # what the agent's code reads and prints has nothing to do with the protocol
        os.dup2(nothing, descriptor)
    with os.fdopen(requests) as lines, os.fdopen(replies, "w") as out:
        for line in lines:
            try:
                reply = answer(json.loads(line))
                text = json.dumps(reply)
            except BaseException as exc:  # noqa: BLE001 - whatever the agent's code raises is its answer, SystemExit too
                text = json.dumps(["e", [[base.__name__ for base in type(exc).__mro__], encode(exc.args)]])
            out.write(text + "\n")
            out.flush()


if __name__ == "__main__":
    main()
