"""Files that are unpickled: whose they are, on file systems that show another owner, another mode, or have no locks."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl._util.own_files import check_own, check_owner
from agentrl.episode import saved
from agentrl.episode.parking import Parking
from agentrl.episode.saved import SavedEpisodes
from agentrl.errors import ConfigError
from agentrl.rollout.loop.journal import Journal

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def shown(monkeypatch) -> Callable[..., None]:
    """`shown(folder, uid=, mode=)`: what the file system says about everything in the folder."""

    def show(folder: Path, *, uid: int | None = None, mode: int | None = None) -> None:
        def changed(found: os.stat_result) -> os.stat_result:
            values = list(found)
            values[0] = values[0] if mode is None else (values[0] & ~0o777) | mode
            values[4] = values[4] if uid is None else uid
            return os.stat_result(values)

        def of(name: str) -> None:
            real = getattr(os, name)

            def stat(path: object, *args: object, **kwargs: object) -> os.stat_result:
                found = real(path, *args, **kwargs)
                at = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fspath(path)  # type: ignore[call-overload]
                return changed(found) if str(at).startswith(str(folder)) else found

            monkeypatch.setattr(os, name, stat)

        of("stat")
        of("fstat")

    return show


def test_files_of_nobody_are_ours_if_our_new_files_are_nobodys(tmp_path, shown):
    """As root on a share with root_squash."""
    shown(tmp_path, uid=NOBODY)
    Journal(tmp_path / "j.db").close()
    Journal(tmp_path / "j.db").close()
    assert Parking(str(tmp_path / "parked")).shared
    check_owner(tmp_path / "j.db", "it")


@as_root
def test_another_users_files_are_refused_and_the_remedy_helps(tmp_path):
    file = tmp_path / "j.db"
    Journal(file).close()
    os.chown(file, 12345, 12345)
    with pytest.raises(ConfigError, match=r"j\.db: it belongs to another user \(uid 12345, here 0\).*copy it"):
        Journal(file)
    (tmp_path / "own").mkdir(mode=0o700)
    shutil.copyfile(file, tmp_path / "own" / "j.db")
    os.chmod(tmp_path / "own" / "j.db", 0o600)
    Journal(tmp_path / "own" / "j.db").close()
    os.chown(tmp_path / "own", 12345, 12345)
    with pytest.raises(ConfigError, match=r"parking\.folder .*another user"):
        Parking(str(tmp_path / "own"))
    assert Parking(str(tmp_path / "own" / "new")).shared


def test_a_folder_that_others_can_write_to_is_refused_and_the_remedy_helps(tmp_path):
    folder = tmp_path / "parked"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match=r"others can write to it.*`chmod go-w"):
        Parking(str(folder))
    folder.chmod(0o755)
    assert Parking(str(folder)).shared


def test_where_the_file_system_shows_one_mode_for_all_a_warning_says_so(tmp_path, shown, caplog):
    """chmod has no effect there, so it is no remedy."""
    shown(tmp_path, mode=0o777)
    Journal(tmp_path / "j.db").close()
    assert Parking(str(tmp_path / "parked")).shared
    assert "shows every file as writable for others" in caplog.text


@as_root
def test_a_folder_of_another_users_where_nothing_can_be_made(tmp_path, monkeypatch):
    def read_only(**options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    (tmp_path / "f").write_text("")
    check_own(tmp_path / "f", "f")
    os.chown(tmp_path / "f", NOBODY, NOBODY)
    with pytest.raises(ConfigError, match="another user"):
        check_own(tmp_path / "f", "f")


@as_root
@pytest.mark.thorough
def test_a_process_under_another_uid_takes_its_own_files(tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    share = tmp_path / "share"
    share.mkdir()
    share.chmod(0o777)
    program = (
        "import os\nfrom pathlib import Path\nfrom agentrl.rollout.loop.journal import Journal\n"
        f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        f"for _ in range(2): Journal(Path({str(share)!r}, 'j.db')).close()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    with pytest.raises(ConfigError, match="another user"):
        Journal(share / "j.db")


def test_without_locks_the_journal_is_written_all_the_same(tmp_path, monkeypatch, caplog):
    """SQLite takes an ENOLCK for a lock of another process."""
    Journal(tmp_path / "j.db").close()
    held = sqlite3.connect(tmp_path / "j.db", isolation_level=None)
    held.execute("PRAGMA locking_mode = EXCLUSIVE")
    held.execute("BEGIN EXCLUSIVE")
    with pytest.raises(ConfigError, match="another process writes this journal"):
        Journal(tmp_path / "j.db")

    def no_locks(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    held.close()
    held = sqlite3.connect(tmp_path / "k.db", isolation_level=None)
    held.execute("BEGIN EXCLUSIVE")
    os.chmod(tmp_path / "k.db", 0o600)
    journal = Journal(tmp_path / "k.db")
    journal.note((0, 0, 0), "playing")
    journal.flush()
    journal.close()
    held.close()
    assert "cannot be locked on its file system" in caplog.text


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
static int refused(int command) { return command == F_SETLK || command == F_SETLKW || command == F_GETLK; }
#define SHIM(name) int name(int fd, int command, ...) { va_list list; va_start(list, command); \
  void *argument = va_arg(list, void *); va_end(list); if (refused(command)) { errno = ERRNO; return -1; } \
  return ((int (*)(int, int, ...))dlsym(RTLD_NEXT, #name))(fd, command, argument); }
SHIM(fcntl)
SHIM(fcntl64)
"""
RESTARTED = """
import sys
from pathlib import Path
from agentrl.rollout.loop.journal import Journal
for number in range(2):
    journal = Journal(Path(sys.argv[1]))
    journal.note((number, 0, 0), "playing")
    journal.flush()
    rows = journal._database.execute("SELECT COUNT(*) FROM groups").fetchone()
    journal.close()
print(rows[0])
"""


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc makes the library that refuses locks")
@pytest.mark.parametrize("code", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def test_sqlite_itself_without_locks(tmp_path, code):
    (tmp_path / "shim.c").write_text(SHIM)
    shim = tmp_path / "shim.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", f"-DERRNO={code}", "-o", shim, tmp_path / "shim.c", "-ldl"], check=True, timeout=60
    )
    line = [sys.executable, "-c", RESTARTED, str(tmp_path / "j.db")]
    done = subprocess.run(
        line, env={**os.environ, "LD_PRELOAD": str(shim)}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "2\n", done.stderr
    assert "cannot be locked" in done.stderr


@pytest.fixture
def full_disk(tmp_path) -> Iterator[Path]:
    folder = tmp_path / "full"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_one_line_and_names_the_remedy(full_disk):
    with suppress(OSError):
        (full_disk / "ballast").write_bytes(b"x" * 100_000)
    with pytest.raises(ConfigError, match=r"free some disk") as excinfo:
        Journal(full_disk / "j.db")
    assert "\n" not in str(excinfo.value)
    assert "delete it" not in str(excinfo.value)


def test_a_full_disk_leaves_no_half_of_an_episode(full_disk):
    episodes = SavedEpisodes(full_disk, shared=True)
    with pytest.raises(OSError, match="No space left"):
        episodes.write("a" * 32, b"x" * 100_000, time.time() + 60, "parked")
    assert not list(full_disk.glob("a*"))
    episodes.close()


@pytest.mark.parametrize("ahead_s", [-7200.0, 7200.0])
def test_clocks_that_differ_do_not_expire_an_episode(tmp_path, monkeypatch, ahead_s):
    """Another node, whose clock differs by two hours from the file server's, takes what was parked for a minute."""
    SavedEpisodes(tmp_path, shared=True).write("a" * 32, b"state", time.time() + 60, "parked")
    real = time.time
    monkeypatch.setattr(saved.time, "time", lambda: real() + ahead_s)
    other = SavedEpisodes(tmp_path, shared=True)
    assert other.take("a" * 32, saved.time.time() + 60) == b"state"
    other.write("a" * 32, b"later", saved.time.time() + 60, "parked")
    monkeypatch.setattr(saved.time, "time", real)
    other._swept = float("-inf")
    assert other.take("a" * 32, time.time() + 60) == b"later"
    other.remove("a" * 32)
    other.write("b" * 32, b"old", time.time() - 5, "parked")
    with pytest.raises(saved.ResumeError, match="longer than"):
        other.take("b" * 32, time.time() + 60)
    other.close()
