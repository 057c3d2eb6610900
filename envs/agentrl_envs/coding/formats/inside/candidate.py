"""Holds the agent's code and calls its functions for `check.py`, which runs in another process and trusts nothing here.

Arguments: the folder of the code, and a descriptor each for requests and replies: JSON, one to a line.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

PLAIN = (bool, int, float, str, type(None))


def encode(value: Any) -> Any:
    """Plain data as JSON that keeps tuples, sets and keys apart. Anything else is only named: ["o", its type]."""
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
    """The value of what `encode` made."""
    tag, held = data
    if tag == "d":
        return {decode(key): decode(item) for key, item in held}
    if tag in ("l", "t", "s"):
        return {"l": list, "t": tuple, "s": set}[tag](decode(item) for item in held)
    return held.encode("latin-1") if tag == "b" else complex(*held) if tag == "c" else held


def answer(request: Any) -> Any:
    """The reply to ["get", module, name] or ["call", module, name, arguments, keywords]."""
    verb, module, name, *arguments = request
    found = getattr(importlib.import_module(module), name)
    if verb == "call":
        return encode(found(*decode(arguments[0]), **decode(arguments[1])))
    if isinstance(found, type):
        bases = [base.__name__ for base in found.__mro__ if base.__module__ == "builtins"]
        return ["x", bases] if issubclass(found, Exception) else ["o", "class"]
    return ["f", name] if callable(found) else encode(found)


def main() -> None:
    folder, requests, replies = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.path.insert(0, folder)
    os.chdir(folder)
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
