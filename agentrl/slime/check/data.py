"""Checks the first rows of the data files. Reads them as slime's Dataset does (slime/utils/data.py at 624b824a8)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentrl._util.findings import Finding, error, unchecked, warning
from agentrl.episode.config import load_reward
from agentrl.episode.scoring import check_of
from agentrl.errors import ConfigError
from agentrl.slime.check.evaluation import datasets
from agentrl.slime.check.setup import Setup, open_env
from agentrl.slime.task import from_sample, metadata_of
from agentrl.types import Task

ROWS = 100
"""The number of rows of a file that are read."""
KEYS = ("input", "label", "metadata", "tool")
_SLICE = re.compile(r"(.*)@\[-?\d*:-?\d*\]")


def data(setup: Setup) -> Iterator[Finding]:
    args = setup.args
    if _own_source(args.data_source_path) or args.rollout_global_dataset is False:
        yield unchecked("the prompts", "they come from a data source of your own")
    elif args.prompt_data:
        yield from _file(setup, args.prompt_data, {name: getattr(args, f"{name}_key") for name in KEYS})
    else:
        yield error("add --prompt-data FILE.jsonl: slime has no prompts without it")
    for row in datasets(args):
        keys = {name: row.get(f"{name}_key") for name in KEYS}
        if "${" in str(row["path"]):
            yield unchecked(f"the data set {row['name']}", f"slime puts its path {row['path']} together when it starts")
        else:
            yield from _file(setup, row["path"], keys, row.get("metadata_overrides"))


def _own_source(path: str | None) -> bool:
    return path is not None and not path.startswith(("slime.", "miles.", "agentrl."))


def _file(
    setup: Setup, path: str, keys: Mapping[str, str | None], more: Mapping[str, Any] | None = None
) -> Iterator[Finding]:
    try:
        rows = list(islice(_rows(path), ROWS))
    except ConfigError as exc:
        yield error(str(exc))
        return
    except ModuleNotFoundError:
        yield unchecked(path, "pyarrow, which reads it, is not installed here")
        return
    if not rows:
        yield error(f'{path}: no row in it; write one JSON object a line, such as {{"{keys["input"]}": "..."}}')
        return
    grade = _grader_check(setup) if keys["label"] is not None else None
    for number, row in enumerate(rows, 1):
        if problem := _problem(setup, row, keys) or _label_problem(grade, row, keys):
            yield error(f"{path}, row {number}: {problem}")
            return
    if keys["label"] is None and "label" in rows[0]:
        yield warning(f"{path} has labels, which slime does not read; add --label-key label")
    yield from _named_envs(setup, path, rows, keys, more or {})


def _rows(path: str) -> Iterator[Any]:
    """The first rows of a file. Raises ConfigError if slime could not read the file, and ModuleNotFoundError if Parquet
    needs pyarrow."""
    file = Path(match[1] if (match := _SLICE.fullmatch(path)) else path)
    if not file.is_file():
        raise ConfigError(f"{file}: no such data file; give its path from {Path.cwd()}, or make it first")
    if file.suffix == ".parquet":
        yield from _parquet_rows(file)
    elif file.suffix != ".jsonl":
        raise ConfigError(f"{file}: slime reads .jsonl and .parquet only; rename or convert it")
    else:
        yield from _json_lines(file)


def _parquet_rows(file: Path) -> Iterator[Any]:
    parquet = import_module("pyarrow.parquet")  # agentrl does not install it
    try:
        for batch in parquet.ParquetFile(file).iter_batches(ROWS):
            yield from batch.to_pylist()
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{file}: not readable as Parquet: {exc}") from exc


def _json_lines(file: Path) -> Iterator[Any]:
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _row(line, f"{file}:{number}")
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{file}: not UTF-8 text ({exc.reason} at byte {exc.start}); save it as UTF-8 JSONL") from exc


def _row(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as exc:
        raise ConfigError(f"{where}: not JSON ({exc.msg}), and slime would skip the row; fix it") from exc


def _problem(setup: Setup, row: Any, keys: Mapping[str, str | None]) -> str | None:
    """The reason why a row cannot become a Task. None if the row can."""
    if not isinstance(row, dict):
        return 'not an object; write {"prompt": ...}'
    for name in ("input", "label"):
        if (key := keys[name]) is not None and key not in row:
            return f"no key {key!r} (it has: {', '.join(map(str, row))}); set --{name}-key to the right one"
    try:
        metadata = _metadata(row, keys)
    except ConfigError:
        return f"{keys['metadata']!r} is not an object; write {{}}, or set --metadata-key to another key"
    prompt = row[keys["input"] or "input"]
    if isinstance(prompt, str) and not setup.args.apply_chat_template and setup.has_processor:
        return (
            "the checkpoint has a processor for images, and with it slime takes only messages, not text; write "
            f'{{"{keys["input"] or "input"}": [{{"role": "user", "content": ...}}]}}'
        )
    sample = SimpleNamespace(prompt=prompt, label=None, metadata=metadata)
    try:
        from_sample(SimpleNamespace(apply_chat_template=bool(setup.args.apply_chat_template)), sample)
    except ConfigError as exc:
        return str(exc)
    return None


def _grader_check(setup: Setup) -> Callable[[Task], None] | None:
    """The check of labels by the reward function of this run. None if the reward function has no such check."""
    path = setup.config.reward if setup.config is not None else None
    if path is None and setup.args.custom_rm_path:
        path = setup.args.custom_rm_path
    try:
        return check_of(load_reward(path))
    except ConfigError:
        return None  # another rule reports the error


def _label_problem(
    grade: Callable[[Task], None] | None, row: Mapping[str, Any], keys: Mapping[str, str | None]
) -> str | None:
    """The reason why no answer to a row can get a reward. None if an answer can."""
    try:
        if grade is not None:
            grade(Task(label=row[keys["label"] or ""], metadata=_metadata(row, keys)))
    except ConfigError as exc:
        return str(exc)
    return None


def _metadata(row: Mapping[str, Any], keys: Mapping[str, str | None]) -> Mapping[str, Any]:
    """The row's metadata as `adapt` reads them, including JSON text. Raises ConfigError."""
    return metadata_of(SimpleNamespace(metadata=row.get(keys["metadata"] or "") or {}))


def _named_envs(
    setup: Setup, path: str, rows: Sequence[Any], keys: Mapping[str, str | None], more: Mapping[str, Any]
) -> Iterator[Finding]:
    """Check the Envs that rows name in metadata["env"]."""
    named = [more.get("env") or _metadata(row, keys).get("env") for row in rows]
    config = setup.config
    if config is not None and config.env is None and not all(named):
        yield error(
            f"{path}, row {named.index(None) + 1}: no environment: put `env: my_env.py:MyEnv` under `agentrl` in "
            "the file of --custom-config-path, or a path into the row's metadata['env']"
        )
    for env in dict.fromkeys(filter(None, named)):
        if config is not None and isinstance(env, str):
            try:
                open_env(config, env)
            except ConfigError as exc:
                yield error(f"{path}, metadata['env']: {exc}")
