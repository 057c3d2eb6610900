"""Who owns a sandbox: a dead owner is found, a living one never called gone, and nobody out of sight is judged."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from agentrl._util import owners as processes
from agentrl_sandbox import owners
from agentrl_sandbox.owners import Owner, current, heartbeat, is_gone, run_name

SAY = "import sys; from agentrl_sandbox.owners import current; print(current(), flush=True); sys.stdin.read()"


@pytest.fixture
def own():
    return Owner.parse(current())


@pytest.fixture
def process():
    """Another process of this machine: itself, and its owner text."""
    with subprocess.Popen([sys.executable, "-c", SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        yield it, it.stdout.readline().strip()
        it.kill()


def test_this_process_lives(own):
    assert own.pid == os.getpid()
    assert str(own) == current()
    assert not is_gone(current())


def test_a_process_that_was_killed_is_gone_even_before_it_is_reaped(process):
    other, owner = process
    assert not is_gone(owner)
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(owner), "a zombie"
    other.wait()
    assert is_gone(owner)


def test_a_process_id_that_was_given_out_again(own):
    assert is_gone(str(replace(own, start="1")))


@pytest.mark.thorough
def test_a_child_that_was_forked_is_an_owner_of_its_own():
    code = (
        "import os; from agentrl_sandbox.owners import current; current(); child = os.fork(); "
        "child and os.waitpid(child, 0); print(current(), flush=True)"  # one after the other, or lines may mix
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout
    assert len({Owner.parse(line).pid for line in said.split()}) == 2


def test_a_process_that_proc_hides_is_not_gone(own, monkeypatch):
    monkeypatch.setattr(processes, "_process", lambda pid: ("", ""))
    assert not is_gone(str(own))


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": "4026599999"},  # in a container of this machine
        {"namespace": ""},
        {"boot": ""},
        {"host": "other-12345678", "boot": "00ff"},
        {"namespace": "4026599999", "boot": "00ff"},  # containers of two machines may have the same name
    ],
)
def test_who_is_out_of_sight_is_not_judged_before_the_deadline(own, change):
    other = str(replace(own, pid=2**22 + 1, **change))
    assert not is_gone(other)
    assert not is_gone(other, time.time() + 60)
    assert is_gone(other, time.time() - 1)


@pytest.mark.parametrize("text", ["", "somebody", "host~~~x~", "a~b~c", "../x~00~1~1~1"])
def test_an_owner_in_a_format_of_others_is_not_judged(text):
    assert Owner.parse(text) is None
    assert not is_gone(text)


def test_after_a_reboot_the_owners_of_this_machine_are_gone(own, monkeypatch):
    monkeypatch.setattr(processes, "_INITIAL", own.namespace)
    assert is_gone(str(replace(own, boot="00ff")))
    assert not is_gone(str(replace(own, boot="00ff", host="other-12345678")))


@pytest.mark.thorough
def test_an_owner_in_another_pid_namespace_of_this_machine(own):
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", SAY]
    try:
        said = subprocess.run(unshare, input="", capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"this user cannot make a pid namespace: {exc}")
    owner = Owner.parse(said.strip())
    assert owner.boot == own.boot
    assert owner.namespace not in ("", own.namespace)
    assert not is_gone(str(owner)), "from here it cannot be seen"


def test_heartbeats_decide_about_owners_out_of_sight(own, monkeypatch, tmp_path):
    monkeypatch.setenv("AGENTRL_OWNERS", str(tmp_path / "shared"))
    with heartbeat():
        assert [file.name for file in (tmp_path / "shared").iterdir()] == [current()]
    other = str(replace(own, host="other-12345678", boot="00ff"))
    assert not is_gone(other), "it may use another folder, or none"
    file = tmp_path / "shared" / other
    file.touch()
    assert not is_gone(other)
    with monkeypatch.context() as wrong:  # the folder's own clock decides, not this machine's
        wrong.setattr(time, "time", lambda now=time.time: now() + 3600)
        assert not is_gone(other)
    silent = time.time() - 600
    os.utime(file, (silent, silent))
    assert is_gone(other)
    dead = time.time() - 30 * 86400
    os.utime(file, (dead, dead))
    with heartbeat():
        pass
    assert not file.exists()


def test_the_heart_goes_on_beating(monkeypatch, tmp_path):
    monkeypatch.setenv("AGENTRL_OWNERS", str(tmp_path))
    monkeypatch.setattr(owners, "BEAT_S", 0.01)
    with heartbeat():
        file = tmp_path / current()
        os.utime(file, (0, 0))
        until = time.monotonic() + 10
        while not file.stat().st_mtime:
            assert time.monotonic() < until
            time.sleep(0.005)


def test_a_folder_that_cannot_be_written_is_said_and_harms_nothing(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("AGENTRL_OWNERS", str(tmp_path / "file" / "x"))
    with heartbeat():
        assert not is_gone("other-1~00ff~1~1~1")
    assert "AGENTRL_OWNERS: no heartbeat can be written" in caplog.text


def test_the_name_of_the_run(monkeypatch):
    monkeypatch.setenv("AGENTRL_RUN", "my run / 7")
    assert run_name() == "my-run-7"
    monkeypatch.delenv("AGENTRL_RUN")
    monkeypatch.setattr(sys, "argv", ["/usr/bin/train.py"])
    assert run_name() == "train"
