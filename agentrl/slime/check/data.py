"""The first rows of the data files, read as slime's Dataset reads them (slime/utils/data.py at 624b824a8)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentrl.errors import ConfigError
from agentrl.slime.check.finding import Finding, error, note, warning
from agentrl.slime.check.flags import Flags
from agentrl.slime.check.setup import Setup, open_env
from agentrl.slime.task import from_sample

ROWS = 100
"""How many rows of a file are read."""
_SLICE = re.compile(r"(.*)@\[-?\d*:-?\d*\]")


def data(setup: Setup) -> Iterator[Finding]:
    flags = setup.flags
    if "--data-source-path" in flags or "--disable-rollout-global-dataset" in flags:
        yield note("the data was not checked: it comes from a data source of your own")
    elif any(flags.hidden(f"--{name}-key") for name in ("input", "label", "metadata", "tool")):
        return  # which has been said
    elif path := flags.text("--prompt-data"):
        yield from _file(
            setup, path, {name: flags.text(f"--{name}-key") for name in ("input", "label", "metadata", "tool")}
        )
    elif "--prompt-data" not in flags:
        yield error("add --prompt-data FILE.jsonl: slime has no prompts without it")
    for path in filter(None, _eval_files(flags)):
        keys = {
            name: flags.text(f"--eval-{name}-key") or flags.text(f"--{name}-key") for name in ("input", "label", "tool")
        }
        yield from _file(setup, path, {**keys, "metadata": flags.text("--metadata-key")})
    if "--eval-config" in flags:
        yield note("the data sets of --eval-config were not checked")


def _eval_files(flags: Flags) -> Sequence[str | None]:
    values = flags.values("--eval-prompt-data")
    return values if len(values) == 1 else values[1::2]


def _file(setup: Setup, path: str, keys: Mapping[str, str | None]) -> Iterator[Finding]:
    try:
        rows = list(islice(_rows(path), ROWS))
    except ConfigError as exc:
        yield error(str(exc))
        return
    except ModuleNotFoundError:
        yield note(f"{path} was not checked: pyarrow is not installed")
        return
    if not rows:
        yield error(f'{path}: no row in it; write one JSON object a line, such as {{"{keys["input"]}": "..."}}')
        return
    for number, row in enumerate(rows, 1):
        if problem := _problem(setup, row, keys):
            yield error(f"{path}, row {number}: {problem}")
            return
    if keys["label"] is None and "label" in rows[0]:
        yield warning(f"{path} has labels, which slime does not read; add --label-key label")
    yield from _named_envs(setup, path, rows, keys)


def _rows(path: str) -> Iterator[Any]:
    """Raises ConfigError for a file that slime could not read, ModuleNotFoundError where Parquet needs pyarrow."""
    file = Path(found[1] if (found := _SLICE.fullmatch(path)) else path)
    if not file.is_file():
        raise ConfigError(f"{file}: no such data file; give its path from {Path.cwd()}, or make it first")
    if file.suffix == ".parquet":
        yield from _parquet_rows(file)
    elif file.suffix != ".jsonl":
        raise ConfigError(f"{file}: slime reads .jsonl and .parquet only; rename or convert it")
    else:
        yield from _json_lines(file)


def _parquet_rows(file: Path) -> Iterator[Any]:
    parquet = import_module("pyarrow.parquet")  # not among agentrl's own needs
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
        raise ConfigError(f"{where}: not JSON ({exc.msg}), and slime would skip the row; mend it") from exc


def _problem(setup: Setup, row: Any, keys: Mapping[str, str | None]) -> str | None:
    """Why this row gives no Task."""
    if not isinstance(row, dict):
        return 'not an object; write {"prompt": ...}'
    for name in ("input", "label"):
        if (key := keys[name]) is not None and key not in row:
            return f"no key {key!r} (it has: {', '.join(map(str, row))}); set --{name}-key to the right one"
    metadata = row.get(keys["metadata"] or "") or {}
    if not isinstance(metadata, dict):
        return f"{keys['metadata']!r} is no object; write {{}}, or set --metadata-key to another key"
    prompt = row[keys["input"] or "input"]
    sample = SimpleNamespace(prompt=prompt, label=None, metadata=metadata)
    try:
        from_sample(SimpleNamespace(apply_chat_template="--apply-chat-template" in setup.flags), sample)
    except ConfigError as exc:
        return str(exc)
    return None


def _named_envs(setup: Setup, path: str, rows: Sequence[Any], keys: Mapping[str, str | None]) -> Iterator[Finding]:
    """Environments that rows name in metadata["env"]."""
    named = [(row.get(keys["metadata"] or "") or {}).get("env") for row in rows]
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
