"""The end of a command that cannot continue: a line on stderr and an exit code."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from agentrl._util.loading import own_frames
from agentrl._util.signals import Terminated
from agentrl.cli._codes import BUG, CANARY, DISK_FULL, INTERRUPTED, TERMINATED, USAGE_ERROR
from agentrl.errors import BugError, CanaryError, ConfigError, InfraError


@contextmanager
def one_line_errors(
    interrupted: Callable[[], str] = lambda: "nothing was written; run the command again",
) -> Iterator[None]:
    """Turn exceptions into a line on stderr and an exit code: a ConfigError into `error: ...` and 2, a full disk into
    1, a CanaryError into `stopped: ...` and 3, Ctrl-C into 130, SIGTERM into 143. For the last four, the line ends with
    the text of `interrupted`, which explains how to resume.

    An InfraError gets here only if it concerns all episodes: a shared requirement is missing, such as a container
    engine. The InfraError is reported as a ConfigError is, with the text of `interrupted`.

    A bug in the user's Env gives exit code 1, and a traceback of the user's code only. Any other exception is a bug
    of agentrl, and keeps the traceback.
    """
    try:
        yield
    except ConfigError as exc:
        _end(f"error: {exc}", USAGE_ERROR)
    except InfraError as exc:
        _end(f"error: {exc}; {interrupted()}", USAGE_ERROR)
    except BugError as exc:
        if frames := own_frames(exc.failure.traceback):
            typer.echo(frames, err=True, nl=False)
        _end(f"error: {exc.summary}; fix it; {interrupted()}", BUG)
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _end(f"error: {exc.strerror}: {exc.filename or 'the disk'}; free some space; {interrupted()}", DISK_FULL)
    except CanaryError as exc:
        _end(f"stopped: {exc}; {interrupted()}", CANARY)
    except Terminated:
        _end(f"terminated: {interrupted()}", TERMINATED)
    except KeyboardInterrupt:
        _end(f"interrupted: {interrupted()}", INTERRUPTED)


def _end(message: str, code: int) -> None:
    typer.echo(" ".join(message.split()), err=True)
    raise typer.Exit(code)
