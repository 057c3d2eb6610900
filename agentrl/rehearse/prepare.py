"""Makes a rehearsal's model, data and folders, for the launch that is rehearsed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import ConfigError
from agentrl.models.hub import cached_folder
from agentrl.rehearse.launch import Flags, SlimeLaunch
from agentrl.rehearse.model import TINY_TOKENS, config_from_flags, read_config, shrink, text_config, write_config
from agentrl.rehearse.packages import Packages
from agentrl.rehearse.plan import Choices, Replacement, sliced, written_words
from agentrl.rehearse.standins import ENGINE, SITE

MARK = ".agentrl-rehearsal"
"""Name of a file that marks a folder as an earlier rehearsal's, and of the folder of checkpoints below --save."""
_PATHS = ("--hf-checkpoint", "--prompt-data", "--ref-load", "--custom-config-path")
_CHECKPOINTS = ("--load", "--ref-load", "--opd-teacher-load")
WRITTEN = "as-written"
"""The folder below --out for the check of the launch as it is written."""
_SLICE = re.compile(r"@\[-?\d*:-?\d*\]$")
_ROWS = 8
_HIDDEN = ("RAY_ADDRESS", "RAY_NAMESPACE", "RAY_JOB_CONFIG_JSON_ENV_VAR", "PYTHONHOME", "CUDA_VISIBLE_DEVICES")
"""Variables of the user's shell that would lead to another Ray or Python."""


@dataclass(slots=True)
class Prepared:
    choices: Choices
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    """The launch's own arguments, with a model and data that are on this machine."""
    weights: Path | None = None
    """The folder that needs random weights. None if the launch's own are taken."""
    remove: list[Path] = field(default_factory=list)
    """Folders that are removed at the end."""
    remove_if_empty: list[Path] = field(default_factory=list)


def claim(out: Path) -> None:
    """Make the folder of a rehearsal, and empty an earlier rehearsal's. Raises ConfigError for any other folder."""
    try:
        if out.is_dir() and any(out.iterdir()):
            if not (out / MARK).exists():
                raise ConfigError(f"--out {out} is not empty, and no rehearsal wrote it; name another folder")
            shutil.rmtree(out)
        out.mkdir(parents=True, exist_ok=True)
        (out / MARK).touch()
    except (FileExistsError, NotADirectoryError, PermissionError) as exc:
        raise ConfigError(f"--out {out} cannot be written to: {exc.strerror}; name another folder") from exc


def prepare(launch: SlimeLaunch, out: Path, *, rollouts: int, full: bool) -> Prepared:
    """Write the model's configuration and the data. The weights follow later. Raises ConfigError."""
    flags = launch.flags
    away = is_elsewhere(launch)
    prepared = Prepared(Choices(rollouts=rollouts, full=full, random=not full, out=out))
    folder = model_folder(launch)
    model = _full_model(prepared, flags, folder) if full else _small_model(prepared, launch, folder, away)
    _add_save(prepared, launch, away)
    data = tuple(_data(launch, out, away)) if not full or away else ()
    prepared.choices = replace(prepared.choices, data=data)
    weights = (Replacement(flag, "", after, "") for flag, after in _checkpoints_elsewhere(model) if flags.has(flag))
    # slime judges this flag by the architecture, which is a guess for a model of another machine
    guessed = Replacement("--allgather-cp", "", None, "")
    prepared.written = written_words(flags, model, [*data, *weights, guessed] if away else ())
    if not away:
        prepared.problems += [*_missing_checkpoints(launch), *_broken_rows(launch)]
    return prepared


def _checkpoints_elsewhere(model: Path) -> Iterator[tuple[str, str | None]]:
    """Flags of folders with weights, and their values where none of these is on this machine."""
    return ((flag, None if flag == "--load" else shlex.quote(str(model))) for flag in _CHECKPOINTS)


def _missing_checkpoints(launch: SlimeLaunch) -> Iterator[str]:
    """Folders that slime would load, and that are not here although other paths of the command are."""
    flags = launch.flags
    for flag in _CHECKPOINTS:
        text = flags.text(flag)
        if not text or (launch.folder / text).exists():
            continue
        if flag == "--load" and text.rstrip("/") == flags.text("--save").rstrip("/") and flags.has("--ref-load"):
            continue  # the first start of a run that continues its own checkpoints
        yield (
            f"arguments: {flag} {text}: no such folder, although other paths of the command are here; correct it, or "
            "make a folder (a rehearsal reads no weights from it)"
        )


def is_elsewhere(launch: SlimeLaunch) -> bool:
    """Whether the launch's paths are those of another machine: none of them is here."""
    paths = [_SLICE.sub("", path) for flag in _PATHS for path in launch.flags.values(flag) or ()]
    return not any((launch.folder / path).exists() for path in paths)


def _broken_rows(launch: SlimeLaunch) -> Iterator[str]:
    """The first line of each data file that is no JSON. slime prints such a line's number, and trains without it."""
    for path in launch.flags.values("--prompt-data") or ():
        file = launch.folder / _SLICE.sub("", path)
        if file.suffix != ".jsonl" or not file.is_file():
            continue
        with file.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip() and not _is_json(line):
                    yield f"arguments: {file}:{number} is no JSON: slime leaves the row out; correct or remove it"
                    break


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def model_folder(launch: SlimeLaunch) -> Path | None:
    """The folder of --hf-checkpoint on this machine, in the Hub's cache too. None if it is not here."""
    name = launch.flags.text("--hf-checkpoint")
    if not name:
        raise ConfigError("the command has no --hf-checkpoint; slime needs the model's Hugging Face folder")
    if (folder := launch.folder / name).is_dir():
        return folder
    return cached_folder(name) if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else None


def _full_model(prepared: Prepared, flags: Flags, folder: Path | None) -> Path:
    if folder is None:
        raise ConfigError(f"--hf-checkpoint {flags.text('--hf-checkpoint')}: no such folder; --full trains its weights")
    vocabulary = int(text_config(read_config(folder)).get("vocab_size", 0))
    prepared.choices = replace(prepared.choices, model=folder, vocabulary=vocabulary)
    return folder


def _small_model(prepared: Prepared, launch: SlimeLaunch, folder: Path | None, away: bool) -> Path:
    """Write the small model's configuration. Returns a folder with the configuration of the launch's own model."""
    flags, name = launch.flags, launch.flags.text("--hf-checkpoint")
    vocabulary = None
    if folder is not None:
        config, reason = read_config(folder), "a small model of the same kind and tokenizer, with random weights"
    elif away:
        config, kind = config_from_flags(flags)
        vocabulary = TINY_TOKENS
        reason = f"not on this machine: a small {kind} as the flags describe it, with the tokenizer of `tiny`"
    else:
        raise ConfigError(
            f"--hf-checkpoint {name}: no such folder, although other paths of the command are here; give the model's "
            "folder (config.json and tokenizer are enough)"
        )
    stages = min(2, flags.number("--pipeline-model-parallel-size", 1))
    shrunk = shrink(config, flags, stages=stages, vocabulary=vocabulary)
    prepared.problems += (f"arguments: {problem}" for problem in shrunk.problems)
    written = prepared.choices.out / WRITTEN / "model"
    write_config({key: value for key, value in config.items() if key != "auto_map"}, written, folder)
    prepared.weights = prepared.choices.out / "model"
    write_config(shrunk.config, prepared.weights, folder)
    prepared.choices = replace(
        prepared.choices,
        model=prepared.weights,
        model_reason=reason,
        sizes=tuple(shrunk.flags.items()),
        vocabulary=int(text_config(shrunk.config).get("vocab_size", 0)),
    )
    return written


def _add_save(prepared: Prepared, launch: SlimeLaunch, away: bool) -> None:
    """Choose the folder of checkpoints: below the launch's own, to learn whether that one can be written."""
    text = launch.flags.text("--save")
    if not text:
        prepared.notes.append("the launch has no --save: no checkpoint and no resume are rehearsed")
        return
    if away or prepared.choices.full:
        reason = "not on this machine: a folder of the rehearsal" if away else "a folder of the rehearsal"
        prepared.choices = replace(prepared.choices, save=prepared.choices.out / "checkpoints", save_reason=reason)
        return
    folder = launch.folder / text
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    prepared.remove.append(folder / MARK)
    prepared.remove_if_empty += missing
    prepared.choices = replace(prepared.choices, save=folder / MARK, save_reason="a subfolder, which is removed again")


# ---- data


def _data(launch: SlimeLaunch, out: Path, away: bool) -> Iterator[Replacement]:
    flags = launch.flags
    absent = "not on this machine: generated rows"
    if (prompts := flags.values("--prompt-data")) and away:
        files = [_generated(flags, out / "data" / f"prompts{number}.jsonl") for number, _ in enumerate(prompts)]
        yield Replacement("--prompt-data", " ".join(prompts), shlex.join(map(str, files)), absent)
    if pairs := flags.values("--eval-prompt-data"):
        named = list(pairs) if len(pairs) > 1 else ["aime", pairs[0]]
        for number in range(1, len(named), 2):
            held_out = out / "data" / f"evaluation{number}.jsonl"
            named[number] = str(_generated(flags, held_out)) if away else sliced(named[number])
        yield Replacement("--eval-prompt-data", " ".join(pairs), shlex.join(named), absent if away else "few rows")
    if (config := flags.text("--eval-config")) and (launch.folder / config).is_file():
        yield Replacement(
            "--eval-config", config, shlex.quote(str(_shortened(launch.folder / config, out))), "few rows"
        )


def _generated(flags: Flags, file: Path) -> Path:
    """Write a few rows as the launch's keys describe them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    keys = {name: flags.text(flag, default) for name, (flag, default) in _KEYS.items()}
    supervised = "sft" in flags.text("--loss-type") or "sft" in flags.text("--rollout-function-path")
    lines = []
    for number in range(_ROWS):
        question, answer = f"What is {number} plus 4?", str(number + 4)
        talk = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        row: dict[str, Any] = {keys["input"]: talk if supervised else question, keys["label"]: answer}
        lines.append(json.dumps({**row, keys["metadata"]: {}}))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


_KEYS = {
    "input": ("--input-key", "input"),
    "label": ("--label-key", "label"),
    "metadata": ("--metadata-key", "metadata"),
}


def _shortened(file: Path, out: Path) -> Path:
    """A copy of slime's file of evaluation data sets, with few rows of each. A file that is no YAML stays."""
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
        inner = config.get("eval", config)
        sets = inner["datasets"]
    except (AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError):
        return file
    for item in sets.values() if isinstance(sets, Mapping) else sets:
        if isinstance(item, dict) and item.get("path"):
            item["path"] = sliced(str(item["path"]))
            item["n_samples_per_eval_prompt"] = min(2, int(item.get("n_samples_per_eval_prompt", 1)))
    copy = out / "data" / "evaluation.yaml"
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(yaml.safe_dump(config), encoding="utf-8")
    return copy


# ---- the environment


def variables(launch: SlimeLaunch, packages: Packages, out: Path, *, random: bool) -> dict[str, str]:
    """The environment of all processes: the launch's own, with the stand-ins first on PYTHONPATH."""
    env = {name: value for name, value in launch.variables.items() if name not in _HIDDEN}
    return env | {
        "PYTHONPATH": os.pathsep.join(map(str, python_path(launch, packages))),
        "AGENTRL_REHEARSAL": str(out),
        "AGENTRL_REHEARSAL_RANDOM": "1" if random else "",
        "SLIME_ACCELERATOR": "cpu",
        "WANDB_MODE": "offline",
        "TENSORBOARD_DIR": str(out / "tensorboard"),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "TORCHDYNAMO_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


def python_path(launch: SlimeLaunch, packages: Packages) -> Sequence[Path | str]:
    """PYTHONPATH: the stand-ins, slime, the launch's folders, agentrl, and Megatron where the launch has none."""
    from agentrl import __file__ as agentrl_file

    first = [SITE, ENGINE, launch.program.parent]
    has_megatron = any(Path(folder, "megatron", "training").is_dir() for folder in launch.python_path)
    last = [Path(agentrl_file).parents[1], *(() if has_megatron else packages.paths)]
    return [*first, *launch.python_path, *last]
