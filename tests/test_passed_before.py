"""CI plays a test once: a later step skips what passed, and is a success where that was all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.thorough
@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_step_whose_tests_all_passed_before(tmp_path, processes):
    passed = tmp_path / "passed"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/trajectory/test_plain.py",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        processes,
    ]

    def play():
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, "AGENTRL_PASSED": str(passed)}, capture_output=True, text=True
        )

    first = play()
    names = passed.read_text().splitlines()
    passed.write_text("".join(f"{name}\n" for name in names[1:]))
    second = play()
    third = play()

    assert first.returncode == second.returncode == third.returncode == 0, third.stdout
    assert f"{len(names)} passed" in first.stdout
    assert f"1 passed, {len(names) - 1} skipped" in second.stdout
    assert f"{len(names)} passed in an earlier step of CI" in third.stdout
    assert sorted(passed.read_text().splitlines()) == sorted(names)
