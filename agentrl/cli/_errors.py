"""The end of a command that cannot continue: a line on stderr and an exit code."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from typing import Any, TypeAlias

import typer

from agentrl._util.loading import cause, own_frames
from agentrl._util.signals import Terminated
from agentrl.cli._codes import BUG, CANARY, DISK_FULL, INTERRUPTED, TERMINATED, USAGE_ERROR
from agentrl.errors import BugError, CanaryError, ConfigError, InfraError

_OF_FILES: Mapping[int | None, str] = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EACCES: "take a place that you may read and write",
    errno.EPERM: "take a place that you may read and write",
    errno.EROFS: "take a place that you may write",
}
"""errno of an error whose cause is the disk or a permission -> the remedy."""
Document: TypeAlias = Callable[[str, int], Mapping[str, Any]]
"""(error message, exit code) -> the JSON document of a command that failed."""


def failed_document(message: str, code: int) -> Mapping[str, Any]:
    """The document of a command that failed before it had a result."""
    return {"error": message, "exit_code": code}


@contextmanager
def only_the_document(as_json: bool) -> Iterator[None]:
    """With `--json`, print everything within `with` on stderr, also the output of an Env: stdout has the document."""
    if not as_json:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


@contextmanager
def one_line_errors(
    interrupted: Callable[[], str] = lambda: "nothing was written; run the command again",
    document: Document | None = None,
) -> Iterator[None]:
    """Turn exceptions into a line on stderr and an exit code: a ConfigError into `error: ...` and 2; a full disk, a
    refused permission and a wrong encoding into 1; a CanaryError into `stopped: ...` and 3, Ctrl-C into 130, SIGTERM
    into 143. For all but the first, the line ends with the text of `interrupted`, which explains how to resume.

    An InfraError gets here only if it concerns all episodes: a shared requirement is missing, such as a container
    engine. The InfraError is reported as a ConfigError is, with the text of `interrupted`.

    `document` makes the JSON document that is printed on stdout beside the line, for `--json`.

    A bug in the user's Env gives exit code 1, and a traceback of the user's code only. Any other exception is a bug
    of agentrl, and keeps the traceback.
    """
    end = partial(_end, document)
    try:
        yield
    except ConfigError as exc:
        end(f"error: {exc}", USAGE_ERROR)
    except InfraError as exc:
        end(f"error: {exc}; {interrupted()}", USAGE_ERROR)
    except BugError as exc:
        if frames := own_frames(exc.failure.traceback):
            typer.echo(frames, err=True, nl=False)
        end(f"error: {exc.summary}; fix it; {interrupted()}", BUG)
    except (OSError, UnicodeError) as exc:
        end(f"error: {_of_file(exc)}; {interrupted()}", DISK_FULL)
    except CanaryError as exc:
        end(f"stopped: {exc}; {interrupted()}", CANARY)
    except Terminated:
        end(f"terminated: {interrupted()}", TERMINATED)
    except KeyboardInterrupt:
        end(f"interrupted: {interrupted()}", INTERRUPTED)


def _of_file(exc: OSError | UnicodeError) -> str:
    """The cause of an error of a file, and the remedy. Raises any other OSError again: it may be a bug."""
    if isinstance(exc, UnicodeEncodeError):
        return f"{exc.object[exc.start : exc.end]!r:.40} cannot be written as {exc.encoding}: set PYTHONUTF8=1"
    if isinstance(exc, UnicodeError):
        return f"a file is not UTF-8: convert the file, such as with iconv ({cause(exc)})"
    if exc.errno not in _OF_FILES:
        raise exc
    return f"{exc.strerror}: {exc.filename or 'the disk'}; {_OF_FILES[exc.errno]}"


def _end(document: Document | None, message: str, code: int) -> None:
    line = " ".join(message.split())
    typer.echo(line, err=True)
    if document is not None:
        typer.echo(json.dumps(document(line, code)))
    raise typer.Exit(code)
