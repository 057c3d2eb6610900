"""Each planted defect is found at its line, and the same Env without it passes.

A defect's lines are marked "found here". By default only those checks run on it that can find it, and a third of the
twins are played, some of them in full. `AGENTRL_CHECK=all` runs every check on every one:

    AGENTRL_CHECK=all python -m pytest tests/check
"""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from pathlib import Path

import pytest

from agentrl._util.loading import load_object
from agentrl.check import CheckInputs, cancelling, check
from agentrl.env.env import Env
from agentrl.env.factory import EnvFactory
from agentrl.types import Task

HERE = Path(__file__).parent
MARK = "found here"
ALL = os.environ.get("AGENTRL_CHECK") == "all"
FOUND_BY = {
    "blocking": ("blocking_sleep", "busy_loop", "runs_a_program"),
    "cancellation": ("half_opened", "lock_not_released", "returns_in_finally", "shielded", "swallowed_cancel"),
    "determinism": ("global_random", "not_deterministic", "order_of_a_set", "session_id"),
    "leaks": (
        "held_sandbox",
        "leaked_file",
        "leaked_folder",
        "leaked_process",
        "leaked_task",
        "leaked_thread",
        *("executor_left", "never_awaited"),
    ),
    "lifecycle": (
        *("close_needs_reset", "closed_twice", "division_by_zero", "nan_reward", "text_without_a_call"),
        "third_message",
    ),
    "players": ("gold_scores_zero", "nothing_is_rewarded"),
    "prompt": ("ignores_its_task", "label_in_prompt"),
    "resuming": ("forgetful_snapshot", "random_begins_again", "restore_without_reset", "snapshot_of_a_lock"),
    "reward": ("hundred_points", "score_changes_trajectory", "score_uses_up"),
    "robustness": ("infra_for_anything", "key_error", "returns_a_set", "takes_arguments_for_granted", "unknown_tool"),
    "schemas": ("docstring_names_another", "no_description", "wrong_schema"),
    "sizes": ("repeats_itself", "whole_book"),
    "state": (*("cache_handed_out", "class_list", "module_global", "shared_counter"),),
    "tasks": ("other_tasks_each_time",),
}
NAMES = sorted(name for names in FOUND_BY.values() for name in names)
OTHER_PROCESS = ("order_of_a_set",)
SLOW_TWINS = ("blocking_sleep", "busy_loop", "runs_a_program")
TWINS = NAMES if ALL else [name for name in NAMES[::3] if name not in SLOW_TWINS]
IN_FULL = NAMES if ALL else TWINS[::4]


def test_every_defect_is_listed() -> None:
    assert sorted(file.stem for file in (HERE / "defects").glob("*.py")) == NAMES
    assert sorted(file.stem for file in (HERE / "mended").glob("*.py")) == NAMES


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the garbage of a leaked process
@pytest.mark.parametrize("name", NAMES)
def test_a_defect_is_found_at_its_line(renderer, name, monkeypatch) -> None:
    if name == "lock_not_released":
        monkeypatch.setattr(cancelling, "PATIENCE_S", 0.5)
    file = HERE / "defects" / f"{name}.py"
    kind = next(kind for kind, names in FOUND_BY.items() if name in names)
    report = checked(file, renderer, () if ALL else (kind,))
    marked = {at for at, line in enumerate(file.read_text().splitlines(), 1) if MARK in line}
    found = {one.place.line for one in report.mistakes}
    assert found, "nothing was found"
    assert found <= marked, report.mistakes
    assert all(one.place.file == str(file) for one in report.mistakes)


@pytest.mark.parametrize("name", TWINS)
def test_its_twin_passes(renderer, name) -> None:
    kind = next(kind for kind, names in FOUND_BY.items() if name in names)
    report = checked(HERE / "mended" / f"{name}.py", renderer, () if name in IN_FULL else (kind,))
    assert report.mistakes == []


def checked(file: Path, renderer, only=()):
    cls = env_of(file)
    envs = EnvFactory(cls)
    made = zip(range(3), cls.tasks(envs.config, "eval"), strict=False)
    tasks = [Task(**{**fields(task), "id": f"{n}"}) for n, task in made]
    gold = getattr(load_module(file), "gold", None)
    process = ALL or file.stem in OTHER_PROCESS
    given = CheckInputs(
        env=f"{file}:{cls.__name__}", tasks=tasks, renderer=renderer, gold=gold, only=only, process=process
    )
    with warnings.catch_warnings():  # what a defect leaves open must not end a later test
        warnings.simplefilter("ignore", ResourceWarning)
        report = asyncio.run(check(given))
        gc.collect()
    return report


def load_module(file: Path):
    import sys

    return sys.modules[env_of(file).__module__]


def env_of(file: Path) -> type[Env]:
    name = next(line for line in file.read_text().splitlines() if line.endswith("(Env):")).split()[1].partition("(")[0]
    return load_object(f"{file}:{name}", Env)


def fields(task: Task) -> dict:
    return {name: getattr(task, name) for name in Task.__dataclass_fields__}
