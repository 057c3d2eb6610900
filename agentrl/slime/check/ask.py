"""Runs slime's own parser on a command line, in a separate process.

    python -m agentrl.slime.check.ask slime REPORT.json train.py --flag value ...

Side effects of importing slime, Megatron and SGLang stay in the separate process. The report is a JSON object. If the
command line is valid, its keys are `args`, `flags` (all flags of the parsers), and `unfinished` if the last checks need
a GPU. If a parser refuses the command line, the key is `refused`; if a required package is not installed, `absent`.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_NO_GPU = ("cuda", "nvidia", "gpu driver")


def main() -> None:
    host, report, *line = sys.argv[1:]
    Path(report).write_text(json.dumps(ask(host, line), default=plain), encoding="utf-8")


def ask(host: str, line: Sequence[str]) -> dict[str, Any]:
    """Run the parser of `host` (slime or miles) and return the report. All exceptions and exits of the parser become
    part of the report."""
    sys.argv[:] = line
    flags: set[str] = set()
    _record(flags)
    try:
        arguments = importlib.import_module(f"{host}.utils.arguments")
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - named boundary
        return {"absent": _words(exc)}
    try:
        args = vars(arguments.parse_args())
    except SystemExit as exc:
        return {"refused": str(exc.code), "usage": True}
    except Exception as exc:  # noqa: BLE001 - named boundary
        no_gpu = any(word in str(exc).lower() for word in _NO_GPU)
        if no_gpu and (parsed := _parsed(exc)):
            return {"args": vars(parsed), "flags": sorted(flags), "unfinished": _words(exc)}
        return {"absent" if no_gpu or isinstance(exc, ImportError) else "refused": _words(exc)}
    return {"args": args, "flags": sorted(flags)}


def _record(flags: set[str]) -> None:
    """Make every parser of this process add its flags to `flags`."""
    parse = argparse.ArgumentParser.parse_known_args

    def recording(self: argparse.ArgumentParser, *words: Any, **named: Any) -> Any:
        flags.update(option for action in self._actions for option in action.option_strings)
        return parse(self, *words, **named)

    vars(argparse)["ArgumentParser"].parse_known_args = recording


def _parsed(exc: Exception) -> argparse.Namespace | None:
    """The arguments that the host's `parse_args` had parsed when Megatron's final check asked for a GPU; None for an
    exception with another cause."""
    for frame, _ in traceback.walk_tb(exc.__traceback__):
        args = frame.f_locals.get("args")
        if frame.f_globals.get("__name__", "").endswith(".utils.arguments") and isinstance(args, argparse.Namespace):
            return args
    return None


def _words(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {' '.join(str(exc).split())}"


def plain(value: Any) -> Any:
    """A value of slime's arguments for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)


if __name__ == "__main__":
    main()
