"""`agentrl check WHAT`: what is wrong with an environment, tasks, a chat template, records, sandboxes or a launch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from agentrl._util.findings import Finding, Level, Report
from agentrl._util.loading import load_object, search_current_folder
from agentrl._util.signals import run
from agentrl.cli._errors import failed_document, one_line_errors, only_the_document
from agentrl.cli._session import visible
from agentrl.cli.check_env import Data, Gold, Limit, Noop, Seconds, Settings, check_env
from agentrl.cli.check_tasks import Backend, Base, Concurrency, Deadline, Installed, Keep, check_tasks
from agentrl.cli.check_template import check_template
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.view.audit import Decode
    from agentrl.view.model import EpisodeRecord
    from agentrl.view.sources import Source

What: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="WHAT...",
        help="my_env.py:MyEnv or a name (agentrl envs); coding tasks, a folder or JSONL; a run's folder, or files of "
        "episodes; template MODEL [FILE.jinja]; sandbox [BACKEND]; slime -- COMMAND, or slime FILE.yaml.",
    ),
]
Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Of an environment: the model that gives the chat template; tiny by default. Of records: the model whose "
        "tokenizer shows whether text was encoded again; the run's by default.",
    ),
]

FAILED = 1
"""Exit code if the check reports an error. A wrong command exits with 2."""
_COLOURS = {Level.ERROR: "red", Level.WARNING: "yellow", Level.UNCHECKED: "magenta", Level.NOTE: "blue"}
_COMMON = frozenset({"what", "strict", "as_json"})
_SUFFIXES = (".json", ".jsonl", ".parquet", ".pt")
_MOST_TEXT = 1 << 20
"""The most characters of a file that are read to recognize it."""


def check(
    context: typer.Context,
    what: What,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 for warnings, too, and for a part that cannot be checked.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a report as JSON on stdout.")] = False,
    model: Model = None,
    data: Data = None,
    gold: Gold = None,
    noop: Noop = None,
    limit: Limit = 3,
    seconds: Seconds = 20.0,
    settings: Settings = None,
    backend: Backend = "auto",
    base: Base = None,
    installed: Installed = False,
    keep: Keep = False,
    concurrency: Concurrency = 2,
    deadline: Deadline = 600.0,
) -> None:
    """Find what is wrong before a model meets it.

    agentrl check my_env.py:MyEnv --gold my_env.py:gold (an environment, played without a model)

    agentrl check humaneval.jsonl (coding tasks: doing nothing must score 0, the task's own solution 1)

    agentrl check runs/first (every sampled token: is it trained, masked with a reason, or lost?)

    agentrl check template Qwen/Qwen3-4B (can the chat template be continued token for token?)

    agentrl check sandbox (which back ends work here, and what do they enforce?)

    agentrl check slime -- python3 train.py ... (a launch of slime, before it takes a GPU)

    Exit code: 0 no error, 1 an error, 2 a wrong command.
    """
    with one_line_errors(lambda: "nothing was changed", failed_document if as_json else None):
        kind, words = recognize(what)
        _refuse_other_options(context, kind)
        if kind != "slime":  # slime runs elsewhere, so its modules must be found without this folder
            search_current_folder()
        with only_the_document(as_json):
            report = _CHECKS[kind](words, context.params)
        report.sort()
        if as_json:
            typer.echo(json.dumps(report.to_json(strict=strict), indent=1))
        else:
            _print(report)
        if not report.passes(strict=strict):
            raise typer.Exit(FAILED)


def recognize(what: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The kind of the subject (a key of `_CHECKS`), and the words of the subject. Raises ConfigError."""
    first, *others = what
    if first in ("template", "sandbox", "slime"):
        return first, others
    if Path(first).exists():
        kinds = {place: _kind_of_file(Path(place)) for place in what}
        if len({*kinds.values()}) > 1:
            raise ConfigError(f"{' and '.join(kinds)} are of different kinds; check them one by one")
        return kinds[first], what
    if others:
        raise ConfigError(f"{' '.join(others)}: an environment is checked alone; give {first} only")
    file, colon, _ = first.partition(":")
    if not colon and ("/" in file or Path(file).suffix in _SUFFIXES):
        model = "" if Path(file).suffix in _SUFFIXES else f"; for a model write: agentrl check template {first}"
        raise ConfigError(f"{first}: no such file or folder{model}")
    return "environment", what


def _kind_of_file(place: Path) -> str:
    """`tasks` or `records`. For a file or folder of another kind, raises ConfigError with the command to use."""
    if not place.exists():
        raise ConfigError(f"{place}: no such file or folder")
    if place.is_dir():
        return _kind_of_folder(place)
    remedies = {
        ".py": f"name its class: agentrl check {place}:MyEnv",
        ".yaml": f"for slime's configuration: agentrl check slime {place}",
        ".yml": f"for slime's configuration: agentrl check slime {place}",
        ".sh": "write `agentrl check slime --` before the command in it that starts train.py, and run it",
        ".jinja": f"name the model, too: agentrl check template MODEL {place}",
    }
    if remedy := remedies.get(place.suffix):
        raise ConfigError(f"{place} holds no tasks and no episodes; {remedy}")
    row = _first_row(place)
    if "format" in (row.get("metadata") or {}):
        return "tasks"
    if "prompt" in row and not {"response", "tokens", "messages", "segments"} & row.keys():
        raise ConfigError(f"{place} holds tasks; check them in their environment: agentrl check ENV --data {place}")
    return "records"


def _kind_of_folder(place: Path) -> str:
    if (place / "trajectories").is_dir():
        return "records"
    if (place / "config.json").is_file() or (place / "tokenizer.json").is_file():
        raise ConfigError(f"{place} is a model's folder; write: agentrl check template {place}")
    patterns = ("task.toml", "*_test.py", "test_*.py")
    return "tasks" if any(True for pattern in patterns for _ in place.rglob(pattern)) else "records"


def _first_row(place: Path) -> Mapping[str, Any]:
    """The first row of a JSONL file; empty for another file."""
    try:
        with place.open(encoding="utf-8") as file:
            line = next((line for line in iter(lambda: file.readline(_MOST_TEXT), "") if line.strip()), "")
            row = json.loads(line)
    except (OSError, ValueError):
        return {}
    return row if isinstance(row, dict) else {}


def _refuse_other_options(context: typer.Context, kind: str) -> None:
    """Raises ConfigError for an option that does not apply to subjects of `kind`."""
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for name, flag in flags.items():
        source = context.get_parameter_source(str(name))
        is_given = source is not None and source.name == "COMMANDLINE"
        if is_given and name not in _COMMON | _OPTIONS.get(kind, set()):
            raise ConfigError(f"{flag} is not for {kind}; leave it out")


def _check_records(paths: Sequence[str], options: Mapping[str, Any]) -> Report:
    from agentrl.view.audit import audit
    from agentrl.view.sources import open_source

    report, accounts = Report(), []
    for source in [open_source(Path(path)) for path in paths]:
        decode = _decoder(options["model"] or source.model)
        for name in source.listing():
            path = f"{source.name}/{name}" if source.kind != "file" else name
            account = audit(path, _episodes(source, name, path), decode)
            figures = account.to_json()
            del figures["findings"]  # the report has the findings of all files
            accounts.append(figures)
            report.findings += account.findings
            report.checked[path] = str(account)
    report.figures["files"] = accounts
    return report


def _episodes(source: Source, name: str, path: str) -> Iterator[tuple[str, EpisodeRecord]]:
    from agentrl.view.files import NotKeptError

    file = source.file(name)
    for number in range(file.refresh()):
        try:
            yield f"{path} #{number}", file.episode(number)
        except NotKeptError:
            continue


def _decoder(model: str | None) -> Decode | None:
    if model is None:
        return None
    from agentrl.models import load_tokenizer

    tokenizer = load_tokenizer(model)
    return lambda ids: str(tokenizer.decode(list(ids)))


def _check_sandbox(names: Sequence[str], options: Mapping[str, Any]) -> Report:
    survey, report = "agentrl_sandbox.survey", Report()  # by dotted path, as agentrl imports no back end
    results = [run(load_object(f"{survey}:check")(name)) for name in names or load_object(f"{survey}:NAMES")]
    is_error = all(result.problem for result in results)
    for result in results:
        if result.problem:
            level = Level.ERROR if is_error else Level.WARNING
            report.findings.append(Finding(level, result.problem, check=result.name))
            continue
        enforced = f"; enforced: {', '.join(result.enforced)}" if result.enforced else ""
        report.checked[result.name] = f"a first command had run after {result.seconds:.2f} s{enforced}"
        if result.missing:
            message = f"not enforced: {', '.join(result.missing)}"
            report.findings.append(Finding(Level.WARNING, message, check=result.name))
    report.figures["backends"] = [asdict(result) for result in results]
    return report


def _check_slime(words: Sequence[str], options: Mapping[str, Any]) -> Report:
    from agentrl.slime.check import check, read_argument

    return Report(check(read_argument(words)))


_CHECKS: Mapping[str, Callable[[Sequence[str], Mapping[str, Any]], Report]] = {
    "environment": check_env,
    "tasks": check_tasks,
    "records": _check_records,
    "template": check_template,
    "sandbox": _check_sandbox,
    "slime": _check_slime,
}
"""Kind of the subject -> the function that checks the subject."""
_OPTIONS: Mapping[str, Set[str]] = {
    "environment": {"model", "data", "gold", "noop", "limit", "seconds", "settings"},
    "tasks": {"backend", "base", "installed", "keep", "concurrency", "deadline"},
    "records": {"model"},
}
"""Kind of the subject -> names of the options that apply to this kind alone."""


def _print(report: Report) -> None:
    for finding in report.findings:
        line = visible(" ".join(str(finding).split("\n")))
        coloured = typer.style(finding.level, fg=_COLOURS[finding.level])
        typer.echo(line.replace(f"{finding.level}: ", f"{coloured}: ", 1))
    for name, extent in report.checked.items():
        typer.echo(visible(f"checked {name}: {extent}"))
    typer.echo(report.summary())
