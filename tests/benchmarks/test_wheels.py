"""The wheels for a machine without a network: the list fits the project, and what is missing is said."""

from __future__ import annotations

import re
import tomllib

import pytest

from benchmarks import wheels
from benchmarks.wheels import Wheel, said, wanted

ROOT = wheels.LIST.parent.parent
EXTRAS = ("train", "search", "smollm2", "lora")


def name_of(requirement):
    return wheels._key(re.match(r"[\w.-]+", requirement)[0])


def test_the_list_has_what_the_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = {name_of(one) for one in project["dependencies"]} | {
        name_of(one) for extra in EXTRAS for one in extras.get(extra, ())
    }
    assert asked - {wheel.key for wheel in wanted()} == {"torch"}


def test_its_versions_are_those_that_the_tests_ran_with():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pins = {wheels._key(name): version for name, version in pins.items()}
    assert {wheel.key: wheel.version for wheel in wanted() if pins.get(wheel.key, wheel.version) != wheel.version} == {}


def test_a_line_that_is_not_understood_is_named(tmp_path):
    file = tmp_path / "wheels.txt"
    file.write_text("# a comment\nnumpy==2.4.6  # 16.9 MB\nray\n")
    with pytest.raises(ValueError, match=r"wheels.txt:3: 'ray' is not"):
        wanted(file)


@pytest.fixture
def folder(tmp_path):
    """With one of two wheels."""
    (tmp_path / "Not_There-1.0-py3-none-any.whl").write_bytes(b"x" * 2_000_000)
    return tmp_path


def test_what_is_missing_is_said(folder):
    here, there = Wheel("not-there", "1.0", 2.0, None), Wheel("nor.this", "1.0", 3.0, "chain")
    text, missing = said([here, there, Wheel("pytest", "1", 1.0, None)], folder)
    assert missing == [there]
    assert text.splitlines() == [
        "not-there 1.0: 2.0 MB, in the folder, 2.0 MB",
        "nor.this 1.0 (chain): 3.0 MB, missing",
        f"3 packages are wanted; this Python lacks 2 (5 MB); {folder} lacks 1 of them (3 MB)",
    ]


def test_of_another_version_it_is_missing(folder):
    assert Wheel("not-there", "1.1", 2.0, None).file(folder) is None


@pytest.mark.parametrize(("least", "found"), [((8, 3), True), ((1000,), False)])
def test_a_package_that_is_too_old_is_not_there(monkeypatch, least, found):
    monkeypatch.setattr(wheels, "_minima", lambda: {"pytest": least})
    assert Wheel("pytest", "9.2.0", 1.0, None).installed() is found


def test_without_the_wheels_nothing_is_installed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wheels, "wanted", lambda: [Wheel("not-there", "1.0", 2.0, None)])
    monkeypatch.setattr(wheels.subprocess, "run", lambda *_, **__: pytest.fail("something was started"))
    monkeypatch.setattr("sys.argv", ["wheels", str(tmp_path), "--install", str(tmp_path / "venv")])
    assert wheels.main() == 2
    assert "lacks not-there: make gpu-wheels" in capsys.readouterr().err
