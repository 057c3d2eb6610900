"""CI plays a test once. A test that failed beside others has one more try, and few tests may need it. uv installs, with
pip's settings, or pip."""

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


FAILS_FIRST = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("name", {names})
def test_fails_first(name):
    assert name == "steady" or (tried := Path(name)).exists() or tried.touch()

def test_fails():
    assert {passes}
"""


@pytest.mark.thorough
def test_few_tests_pass_only_at_the_second_try(tmp_path):
    environment = {
        **os.environ,
        "AGENTRL_PASSED": str(tmp_path / "passed"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # several plugins take a second
        "PYTEST_ADDOPTS": "-p xdist.plugin",
    }

    def step(*names, passes=True):
        (tmp_path / "test_it.py").write_text(FAILS_FIRST.format(names=names, passes=passes))
        command = [sys.executable, str(ROOT / ".ci" / "again.py"), "-q", "test_it.py"]
        played = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        return played.returncode, played.stdout

    name = "test_it.py::test_fails_first"
    code, printed = step("a", "b", "steady")
    assert code == 0, printed
    assert f"passed only at the second try (2 of at most 4):\n  {name}[a]\n  {name}[b]\n" in printed
    (tmp_path / "passed").touch()  # as a step of CI leaves it
    code, printed = step("c", "d", "e")
    assert code == 1, printed
    five = "".join(f"  {name}[{letter}]\n" for letter in "abcde")
    assert f"again: no second try, because 5 tests would have one:\n{five}" in printed
    (tmp_path / "passed").unlink()  # as CI begins
    code, printed = step("f", passes=False)
    assert code == 1, printed
    assert f"second try (1 of at most 4):\n  {name}[f]\n" in printed


def install(folder, uv, **settings):
    """What `.ci/install.py` does with a `uv` of this text. No package is fetched."""
    (folder / "uv").write_text(f"#!/bin/sh\n{uv}\n")
    (folder / "uv").chmod(0o755)
    paths = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, ".ci/install.py", "no-such-package"]
    environment = {**os.environ, **paths, **settings}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_uv_gets_the_settings_of_pip(tmp_path):
    links = {"PIP_INDEX_URL": "https://mirror.test/simple", "PIP_FIND_LINKS": "/a /b"}
    done = install(tmp_path, 'echo "Installed 1 package from $UV_DEFAULT_INDEX, $UV_FIND_LINKS"', **links)

    assert done.stdout.strip() == "Installed 1 package from https://mirror.test/simple, /a,/b"
    assert done.returncode == 0


def test_where_uv_fails_pip_installs(tmp_path):
    done = install(tmp_path, "echo no way to the index; exit 2", PIP_NO_INDEX="1", PIP_FIND_LINKS="")

    assert "no way to the index\n      pip installs, because uv did not" in done.stdout
    assert "No matching distribution" in done.stdout, "pip was asked, and its lines are shown"
    assert done.returncode == 1
