"""`agentrl slime rehearse`: slime's own training program on this machine, from launch to the last weight update."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from agentrl._util.signals import Terminated
from agentrl.cli._codes import INTERRUPTED
from agentrl.cli._errors import one_line_errors
from agentrl.errors import ConfigError

PROBLEM = 1
"""Exit code if the rehearsal names a problem. A wrong command exits with 2."""


def rehearse(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT | -- COMMAND",
            help="A launch script (run.sh of `agentrl slime init`, or slime's scripts/run-*.sh), or -- python3 "
            "/path/to/slime/train.py ARGS.",
        ),
    ],
    rollouts: Annotated[
        int, typer.Option(min=1, help="Rollouts that are played and trained, before one more after a resume.")
    ] = 2,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Keep the model, batch sizes, lengths and rollouts, for a model that this machine can train.",
        ),
    ] = False,
    out: Annotated[
        Path, typer.Option(help="The folder of logs, model and report.json. An earlier rehearsal's is replaced.")
    ] = Path("rehearsal"),
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one stage may take.")] = 180.0,
    no_resume: Annotated[
        bool, typer.Option("--no-resume", help="Leave out the second start, from the checkpoint.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON on stdout.")] = False,
) -> None:
    """Play a launch of slime on this machine, from the first flag to the last weight update, without a GPU.

    agentrl slime rehearse run.sh

    agentrl slime rehearse -- python3 /path/to/slime/train.py ARGS

    slime's own program runs, with real Ray, router, engines, trainers, weight updates, checkpoints and evaluation. The
    model has the same architecture and tokenizer, but is small and random; batches are small. A table names each
    replaced flag with the reason. Every other flag, your Env, your hooks and your data are used as they are. Your
    folders of slime and Megatron are not changed.

    A script is read with programs that only record: its `ray stop`, `pkill` and `python3` end and start nothing.

    The first call installs Ray, the router and Megatron into an environment of their own (1.6 GB, two minutes).

    The report names the stage that failed and the cause, and compares the log-probs of engine and trainer after each
    weight update. Exit code: 0 good, 1 a problem is named, 2 a wrong command.
    """
    with one_line_errors(lambda: "nothing is left running"), _ended_by_signals():
        from agentrl.rehearse.launch import read
        from agentrl.rehearse.output import console, print_replacements, print_report
        from agentrl.rehearse.run import RehearsalOptions
        from agentrl.rehearse.run import rehearse as run_rehearsal

        if sys.platform != "linux":
            raise ConfigError("agentrl slime rehearse needs Linux, as slime's own packages do")
        screen = console(stderr=as_json)
        options = RehearsalOptions(out, rollouts, full, timeout, not no_resume)
        launch = read(command)
        say = partial(screen.print, highlight=False, markup=False)
        report = run_rehearsal(launch, options, say, lambda plan: print_replacements(screen, plan.replacements))
        if as_json:
            typer.echo(json.dumps(report.to_json(), indent=2))
        else:
            print_report(screen, report)
        if report.interrupted:
            raise typer.Exit(INTERRUPTED)
        if not report.is_good:
            raise typer.Exit(PROBLEM)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the rehearsal as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
