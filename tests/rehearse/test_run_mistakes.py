"""The runner reads reports as they are written, and slime's scripts keep no folder of their authors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.rehearse.mistakes import Mistake
from tests.rehearse.run_mistakes import is_named, problems
from tests.rehearse.slime_scripts import SCRIPTS, write_script

SOURCE = os.environ.get("SLIME_SRC", "")
HOOK = Mistake("a hook", ("conversion",), "not enough values", ())


@pytest.mark.parametrize(
    ("entry", "is_right"),
    [
        ("conversion failed: ValueError: not enough values to unpack (log.txt:3)", True),
        ({"stage": "conversion", "cause": "ValueError: Not enough values to unpack"}, True),
        ("rollout failed: ValueError: not enough values to unpack", False),
        ("conversion failed: KeyError: 'reward'", False),
        ("not enough values to unpack", True),
    ],
)
def test_a_mistake_is_named_by_its_stage_and_its_cause(entry, is_right):
    assert is_named(HOOK, problems({"problems": [entry]})) is is_right


def test_a_report_that_is_no_report_names_nothing():
    assert problems("Traceback") == []


@pytest.mark.skipif(not SOURCE, reason="SLIME_SRC is not set: give the root of slime's source")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_of_slime_keeps_no_folder_of_its_author(script, tmp_path):
    path = write_script(script, tmp_path / "run", slime=Path(SOURCE), megatron=tmp_path)
    text = path.read_text()
    assert "/root" not in text.replace(str(tmp_path), "").replace(SOURCE, "")
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    for word in text.split():
        if word.startswith(str(tmp_path)) and "_slime" not in word and "--" not in word:
            folder = Path(word.rstrip("/").strip('\\",'))
            assert folder.exists(), word
