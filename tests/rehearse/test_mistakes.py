"""Each planted mistake fits the good launch, and `agentrl check slime` sees as much of it as the list says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rehearse.launch import write_launch
from tests.rehearse.mistakes import MISTAKES, STAGES

SOURCE = os.environ.get("SLIME_SRC", "")
needs_slime = pytest.mark.skipif(not SOURCE, reason="SLIME_SRC is not set: give the root of slime's source")


def test_the_list_is_long_enough():
    assert len(MISTAKES) >= 30
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES)
    assert sum(not mistake.check for mistake in MISTAKES) >= 10
    assert {stage for mistake in MISTAKES for stage in mistake.stages} <= set(STAGES)


@needs_slime
@pytest.mark.thorough
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_the_check_sees_as_much_as_the_list_says(mistake, tmp_path):
    launch = write_launch(tmp_path, slime=Path(SOURCE), megatron=tmp_path / "megatron", shape=mistake.shape)
    for edit in mistake.edits:
        edit.apply(launch.folder)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    with mistake.around(launch):
        checked = subprocess.run(
            ["bash", str(launch.script)],
            cwd=launch.folder,
            env=launch.environment | {"CHECK": "1", "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    findings = [line for line in checked.stdout.splitlines() if re.match(r"error|warning", line)]
    if mistake.check:
        assert any(re.search(mistake.check, line) for line in findings), findings or checked.stderr
    else:
        assert not [line for line in findings if "findings about episodes are valid only" not in line]
