"""Snapshots: the files of the writable folders, as they were."""

import pickle

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import Snapshot
from tests.sandbox.backends.inside import ISOLATED, REAL

real = pytest.mark.parametrize("backend", REAL, indirect=True)

LIST = "find . -mindepth 1 -printf '%p %y %m %l %T@\\n' | sort; find . -type f -exec md5sum {} + | sort"
MAKE = r"""
set -e; umask 022
mkdir -p 'a/b c' empty; echo one > 'a/b c/file'; echo two > ./-rf; echo odd > $'line\nbreak'; echo bad > $'caf\xe9'
ln -s a/nowhere dangling; ln -s /etc/passwd out; ln -- -rf second; mkfifo pipe
chmod 640 ./-rf; mkdir locked; echo in > locked/file; ln -s /etc locked/out; chmod 500 locked
chmod 4755 second; touch -d @12345 a
"""


async def test_what_was_written_afterwards_is_gone(box):
    await box.write_file("kept/file", "as it was")
    snapshot = await box.snapshot()
    await box.write_file("kept/file", "changed")
    await box.write_file("new", "x")
    await box.restore(snapshot)
    assert await box.read_file("kept/file") == "as it was"
    with pytest.raises(FileNotFoundError):
        await box.read_file("new")


async def test_it_can_be_pickled_and_restored_elsewhere(box, backend, spec):
    await box.write_file("file", "travels")
    snapshot = pickle.loads(pickle.dumps(await box.snapshot()))
    if backend.name == "fake":
        return await box.restore(snapshot)
    async with backend.sandbox(box.spec) as other:
        await other.write_file("gone", "x")
        await other.restore(snapshot)
        assert await other.read_file("file") == "travels"
        with pytest.raises(FileNotFoundError):
            await other.read_file("gone")
    return None


@pytest.mark.thorough
@real
async def test_modes_times_links_and_odd_names_are_what_they_were(box):
    await box.exec(MAKE, check=True)
    before = await box.exec(LIST, check=True)
    assert "./locked d 500" in before.stdout
    assert "./out l 777 /etc/passwd" in before.stdout
    snapshot = await box.snapshot()
    await box.exec("chmod 700 locked; rm -rf ./* ; mkdir a; chmod 0 a; echo > b", check=True)
    await box.restore(snapshot)
    assert await box.exec(LIST, check=True) == before
    assert (await box.exec("[ ./-rf -ef second ]")).exit_code == 0


@real
async def test_what_is_closed_to_its_owner_is_emptied_too(box):
    snapshot = await box.snapshot()
    await box.exec("mkdir -p a/b/c; echo > a/b/c/file; chmod 0 a/b/c a/b a", check=True)
    await box.restore(snapshot)
    assert (await box.exec("ls -A")).stdout == ""


@real
async def test_an_empty_sandbox_has_a_snapshot_too(box):
    await box.restore(await box.snapshot())
    assert await box.exec("echo still > works", check=True)


@real
async def test_a_snapshot_of_other_folders_is_refused(box):
    with pytest.raises(ConfigError, match="holds /elsewhere"):
        await box.restore(Snapshot(b"", ("/elsewhere",)))


@real
async def test_a_broken_snapshot_is_said(box):
    snapshot = await box.snapshot()
    with pytest.raises(SandboxError, match="a snapshot failed"):
        await box.restore(Snapshot(b"no archive", snapshot.folders))


@pytest.mark.parametrize("backend", ISOLATED, indirect=True)
async def test_a_file_that_cannot_be_read_is_named(box):
    await box.exec("mkdir a; echo > a/closed; chmod 0 a/closed", check=True)
    with pytest.raises(SandboxError, match="a/closed"):
        await box.snapshot()


@pytest.mark.parametrize("backend", ISOLATED, indirect=True)
async def test_both_writable_folders_are_in_it(box):
    await box.exec("echo work > /work/file; echo tmp > /tmp/file", check=True)
    snapshot = await box.snapshot()
    assert snapshot.folders == ("/work", "/tmp")
    await box.exec("rm /work/file /tmp/file; echo > /tmp/new", check=True)
    await box.restore(snapshot)
    assert (await box.exec("cat /work/file /tmp/file; ls /tmp")).stdout == "work\ntmp\nfile\n"
