"""Checks a run that continues a checkpoint: Megatron's schedule of the learning rate must be that of the checkpoint."""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl._util.findings import Finding, error, warning
from agentrl.slime.check.setup import Setup

OVERRIDE = "--override-opt_param-scheduler"
_WITHOUT_SCHEDULE = frozenset(
    {"--override-opt-param-scheduler", "--use-checkpoint-opt-param-scheduler", "--finetune", "--no-load-optim"}
)
"""Flags with which Megatron does not compare the schedules. Newer versions of Megatron take them with and without the
underscore."""
_SIZES = ("num_rollout", "rollout_batch_size", "n_samples_per_prompt", "global_batch_size")
"""The arguments from which slime computes the length of the schedule (megatron_utils/model.py)."""


def checkpoint(setup: Setup) -> Iterator[Finding]:
    """Findings about a finished checkpoint in --load, or about a schedule that Megatron would refuse to continue
    (optimizer_param_scheduler.py asserts that both schedules are equal)."""
    args, folder = setup.args, Path(setup.args.load or "")
    rollout, rollouts = _last_rollout(folder), setup.args.num_rollout
    if rollout is None or args.finetune:
        return
    if rollouts is not None and rollout + 1 >= rollouts:
        yield warning(
            f"--load {folder} has rollout {rollout}, so --num-rollout {rollouts} leaves nothing to train: raise it and "
            f"add {OVERRIDE}, or name another folder"
        )
    elif not _WITHOUT_SCHEDULE & {word.replace("_", "-") for word in setup.command.words}:
        saved = _arguments(folder / f"iter_{rollout:07d}" / "common.pt")
        if changed := _changed(saved, {name: getattr(args, name) for name in (*_SIZES, "lr")}):
            flags = " and ".join(f"--{name.replace('_', '-')} {saved[name]}" for name in changed)
            yield error(
                f"--load {folder} was trained with {flags}, and Megatron refuses another schedule of the learning "
                f"rate: add {OVERRIDE}"
            )


def _last_rollout(folder: Path) -> int | None:
    try:
        return int((folder / "latest_checkpointed_iteration.txt").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # "release" marks weights without a schedule
        return None


def _changed(saved: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """The arguments of the schedule that differ. An argument that is unknown counts as equal."""
    present = {name: saved[name] if value is None else value for name, value in present.items() if name in saved}
    different = [name for name in present if present[name] != saved[name]]
    length = len(present.keys() & set(_SIZES)) < len(_SIZES) or _samples(saved) != _samples(present)
    return [name for name in different if length or name == "lr"]


def _samples(sizes: Mapping[str, int]) -> int:
    """The samples of the whole schedule."""
    rollouts, batch, group, step = (sizes[name] for name in _SIZES)
    return rollouts * batch * group // step * step


def _arguments(file: Path) -> Mapping[str, Any]:
    """Numbers among the arguments in a file of torch. The file is not unpickled, because the classes are Megatron's."""
    try:
        with zipfile.ZipFile(file) as archive:
            pickle = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            codes = [(code.name, value) for code, value, _ in pickletools.genops(archive.read(pickle))]
    except (OSError, ValueError, StopIteration, zipfile.BadZipFile):
        return {}
    values: dict[str, Any] = {}
    for (_, name), (_, _), (kind, value) in zip(codes, codes[1:], codes[2:], strict=False):
        if name in (*_SIZES, "lr") and kind.startswith(("BININT", "BINFLOAT")):
            values.setdefault(str(name), value)
    return values
