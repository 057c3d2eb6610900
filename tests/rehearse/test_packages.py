from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading

import pytest

from agentrl.errors import ConfigError
from agentrl.rehearse import packages


class Installer:
    """In place of venv and pip: writes the files that they would write, and counts calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fail = ""
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, command, home):
        text = " ".join(command)
        self.calls.append(text)
        self.gate.wait(20)
        if self.fail and self.fail in text:
            raise ConfigError("the disk is full")
        if "-m venv" in text:
            (home / "venv/bin").mkdir(parents=True)
            (home / "site").mkdir()
        elif "purelib" in text:
            return f"{home / 'site'}\n"
        elif "--target" in text:
            for name in ("megatron", "miles", "miles_megatron_plugins", "sglang"):
                (home / "wheel" / name).mkdir(parents=True)
        return ""


@pytest.fixture
def installer(monkeypatch):
    installer = Installer()
    monkeypatch.setattr(packages, "_call", installer)
    return installer


def test_the_environment_is_made_once(installer, tmp_path):
    said: list[str] = []
    first = packages.prepare(said.append, tmp_path)
    assert said
    calls = len(installer.calls)
    assert packages.prepare(said.append, tmp_path) == first
    assert len(installer.calls) == calls
    assert first.python.parent.is_dir()
    (megatron,) = first.paths
    assert {path.name for path in megatron.iterdir()} == {"megatron", "miles", "miles_megatron_plugins"}


def test_the_environment_sees_the_packages_of_this_interpreter(installer, tmp_path):
    home = packages.prepare(print, tmp_path).python.parents[2]
    lines = (home / "site/agentrl_rehearsal.pth").read_text().splitlines()
    folder = os.path.realpath(sysconfig.get_path("purelib"))
    assert any("addsitedir" in line and folder in line for line in lines)


def test_a_link_to_a_virtual_environment_shares_its_packages(installer, tmp_path, monkeypatch):
    (tmp_path / "venv").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "venv")
    folders = []
    for name in ("venv", "link"):
        monkeypatch.setattr(packages.sysconfig, "get_path", lambda kind, name=name: str(tmp_path / name))
        folders.append(packages.prepare(print, tmp_path / "cache").python)
    assert folders[0] == folders[1]


def test_an_installation_that_failed_starts_anew(installer, tmp_path):
    installer.fail = "ray=="
    with pytest.raises(ConfigError, match="the disk is full"):
        packages.prepare(print, tmp_path)
    installer.fail = ""
    home = packages.prepare(print, tmp_path).python.parents[2]
    assert (home / "finished").exists()
    assert sum("-m venv" in call for call in installer.calls) == 2


def test_a_second_process_waits_for_the_first(installer, tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "_WAIT_S", 0.01)
    installer.gate.clear()
    waits = threading.Event()
    first = threading.Thread(target=packages.prepare, args=(lambda line: None, tmp_path))
    first.start()
    while not installer.calls:
        first.join(0.01)
    second = threading.Thread(target=packages.prepare, args=(lambda line: waits.set(), tmp_path))
    second.start()
    assert waits.wait(20)
    installer.gate.set()
    first.join(20)
    second.join(20)
    assert sum("-m venv" in call for call in installer.calls) == 1


_KILLED = """
import os, signal, sys
from pathlib import Path
from agentrl.rehearse import packages
def call(command, home):
    (home / "venv").mkdir(exist_ok=True)
    print("installs", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
packages._call = call
packages.prepare(print, Path(sys.argv[1]))
"""


def test_a_killed_installation_starts_anew(installer, tmp_path):
    killed = subprocess.run([sys.executable, "-c", _KILLED, tmp_path], capture_output=True, text=True, check=False)
    assert killed.returncode == -9, killed.stderr
    (home,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert (home / "venv").is_dir()
    assert packages.prepare(print, tmp_path).python.parents[2] == home
    assert (home / "finished").exists()


def test_other_pins_get_another_folder(installer, tmp_path, monkeypatch):
    first = packages.prepare(print, tmp_path)
    monkeypatch.setattr(packages, "_MEGATRON", "miles-rl==9")
    assert packages.prepare(print, tmp_path).python != first.python


def test_torch_is_installed_where_it_is_missing(installer, tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "_lacks_torch", lambda: True)
    packages.prepare(print, tmp_path)
    assert any(" torch" in call and "whl/cpu" in call for call in installer.calls)


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        ("OSError: [Errno 28] No space left on device", "no space is left"),
        ("NewConnectionError: Failed to establish a new connection: [Errno 101]", "cannot be reached"),
        ("ERROR: No matching distribution found for ray==2.60.0\n", "ERROR: No matching distribution found for ray"),
    ],
)
def test_a_failed_command_is_one_line(tmp_path, stderr, line):
    script = f"import sys; sys.stderr.write({stderr!r}); sys.exit(1)"
    with pytest.raises(ConfigError, match=line) as raised:
        packages._call([sys.executable, "-c", script], tmp_path)
    assert "\n" not in str(raised.value)


def test_a_folder_that_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match="cannot be installed"):
        packages.prepare(print, file / "below")


def test_the_users_pythonpath_does_not_reach_pip(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    script = "import os; print(os.environ.get('PYTHONPATH'))"
    assert packages._call([sys.executable, "-c", script], tmp_path) == "None\n"


def test_the_cache_obeys_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert packages.default_folder() == tmp_path / "agentrl/rehearsal"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert packages.default_folder() == tmp_path / ".cache/agentrl/rehearsal"
