"""Files are written whole or not at all, and what is no file is left as it is."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentrl import ConfigError
from agentrl._util import files
from agentrl._util.files import append_line, only_writer, write_atomically


def test_a_symbolic_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "real.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(target)
    for text in ("one\n", "two\n"):  # the target is made by the first
        write_atomically(link, text)
        assert (link.is_symlink(), target.read_text()) == (True, text)
    assert sorted(os.listdir(tmp_path)) == ["disk", "link.jsonl"]
    assert os.listdir(tmp_path / "disk") == ["real.jsonl"]


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_atomically(pipe, "one\n")
    reader.join(10)
    assert read == ["one\n"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_a_device():
    write_atomically(Path("/dev/null"), "one\n")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(OSError, match="No space left") as full:
        write_atomically(Path("/dev/full"), "one\n")
    assert full.value.errno == errno.ENOSPC


def test_the_mode_of_a_file_is_kept(tmp_path):
    file = tmp_path / "r.jsonl"
    file.write_text("")
    file.chmod(0o640)
    write_atomically(file, "one\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


@pytest.mark.parametrize("before", [None, "before\n"])
def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch, before):
    file = tmp_path / "r.jsonl"
    if before is not None:
        file.write_text(before)

    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "sync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(file, "after\n")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == ({"r.jsonl": before} if before else {})


@pytest.mark.thorough
def test_a_line_that_does_not_fit_is_not_appended(tmp_path):
    """A limit of the file's size cuts a write as a full disk does: the first part is written."""
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from agentrl._util.files import append_line\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "append_line(Path(sys.argv[1]), 'one')\n"
        "try:\n    append_line(Path(sys.argv[1]), 'a' * 50)\nexcept OSError as exc:\n    print(exc.strerror)\n"
        "append_line(Path(sys.argv[1]), 'two')\n"
    )
    file = tmp_path / "r.jsonl"
    ran = subprocess.run([sys.executable, "-c", program, file], capture_output=True, text=True, check=True)
    assert (ran.stdout, file.read_text()) == ("File too large\n", "one\ntwo\n")


def test_appended_lines_follow_each_other(tmp_path):
    append_line(tmp_path / "r.jsonl", "eins")
    append_line(tmp_path / "r.jsonl", "zwei \u00e4")
    assert (tmp_path / "r.jsonl").read_text(encoding="utf-8") == "eins\nzwei \u00e4\n"


def test_one_command_writes_to_a_file_at_a_time(tmp_path):
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "r.jsonl")
    with only_writer(tmp_path / "r.jsonl"):
        for name in ("r.jsonl", "link.jsonl"):
            said = f"{name}: another command is writing to it; wait for its end"
            with pytest.raises(ConfigError, match=said), only_writer(tmp_path / name):
                pass
        with only_writer(tmp_path / "other.jsonl"):
            pass
    with only_writer(tmp_path / "r.jsonl"):
        pass
    assert os.listdir(tmp_path) == ["link.jsonl"], "no lock stays"


def test_a_file_system_without_locks_gets_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with only_writer(tmp_path / "r.jsonl"):
        assert "cannot be locked (No locks available)" in caplog.text
    assert os.listdir(tmp_path) == []


def test_a_killed_command_locks_nobody_out(tmp_path):
    (tmp_path / ".r.jsonl.lock").write_text("")
    with only_writer(tmp_path / "r.jsonl"):
        pass
