"""Attacks through the files that travel between a sandbox and this machine: paths, links, special files, archives."""

import asyncio
import gzip
import io
import os
import tarfile
import time

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox import Snapshot
from tests.sandbox.attacks.arena import SERVED, own_memory

pytestmark = pytest.mark.parametrize("backend", SERVED, indirect=True)

MB = 1 << 20
_ANSWER_S = 60.0

HOSTILE_TOOLS = r"""
mkdir -p bin
for name in tar cat head wc find mkdir chmod ls sh bash gzip sleep python3; do
  printf '#!/bin/sh\necho "$0 $*" >> /work/used\nprintf "hostile\\n"\n' > bin/$name
  chmod +x bin/$name 2>/dev/null || /bin/chmod +x bin/$name
done
echo 'touch /work/sourced; PATH=/work/bin; tar() { echo hostile; }; alias cat="echo hostile"; exec >/dev/null' > evil
for name in .bashrc .profile .bash_profile .bash_login .bash_logout .inputrc .tarrc .shrc; do cp evil $name; done
"""
"""PATH of the sandbox begins with /work/bin, as for a virtual environment in the work folder."""


async def outcome(asked) -> str:
    """What something answers within its time, as text."""
    begun = time.monotonic()
    try:
        said = repr(await asked)[:80]
    except (OSError, SandboxError) as exc:
        said = f"{type(exc).__name__}: {exc}"
    assert time.monotonic() - begun < _ANSWER_S, said
    return said


async def test_paths(field, tmp_path, note):
    """A path leads nowhere else than inside, as the sandbox's own user."""
    before = {path: os.stat(path).st_mtime_ns for path in ("/etc/passwd", "/etc/hosts")}
    said = {}
    for path in (
        "../../../../etc/passwd",
        "/../../etc/passwd",
        f"/usr/{field.token}",
        "/proc/1/root/etc/passwd",
        "/proc/sys/kernel/core_pattern",
        "/dev/null/x",
        "a\0b",
        "x" * 300,
        "/".join(["y" * 200] * 25),
        "",
        "-rf",
        "$(touch pwned)",
        "`touch pwned`;touch pwned",
    ):
        said[path[:30]] = await outcome(field.box.write_file(path, field.token))
    names = (await field.box.exec("ls -A | grep -v yyy")).stdout
    note(str(said))
    assert {path: os.stat(path).st_mtime_ns for path in before} == before
    assert field.token not in (await field.box.read_file("/etc/passwd"))
    assert names.splitlines() == ["$(touch pwned)", "-rf", "`touch pwned`;touch pwned"]
    refused = [path for path, answer in said.items() if answer == "None"]
    assert refused == ["-rf", "$(touch pwned)", "`touch pwned`;touch pwned"]


async def test_special_files(field, tmp_path, note):
    """Reading and writing what is no file answers, soon."""
    await field.box.exec(
        "mkfifo pipe; ln -s /dev/zero zero; ln -s loop loop; ln -s /proc/self/environ environ; ln -s / root; "
        "mkdir sub; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'"
    )
    said = {}
    for path in ("pipe", "zero", "/dev/zero", "/dev/tty", "/dev/stdin", "loop", "sock", "sub", "/proc/kmsg", "root"):
        said[f"read {path}"] = await outcome(field.box.read_file(path))
        said[f"write {path}"] = await outcome(field.box.write_file(path, "x"))
        if path != "root":  # it is refused as too long, which takes a while
            said[f"download {path}"] = await outcome(field.box.download(path, tmp_path / "got", max_bytes=MB))
    note(str(said))
    assert not [answer for answer in said.values() if "root:x:0" in answer]
    through = [name for name, answer in said.items() if not answer.split(":")[0].endswith("Error")]
    # /dev/stdin is the transfer's own pipe; a folder that can be read is one that may be downloaded.
    assert set(through) <= {"read /dev/stdin", "write /dev/stdin", "download /dev/stdin", "download sub"}, said


async def test_links_in_what_is_downloaded(field, tmp_path, note):
    secret = tmp_path / "secret"
    secret.write_text("the machine's")
    said = {}
    for name, command in {
        "absolute": f"ln -s {secret} x",
        "relative": "ln -s ../../../../../../../etc/passwd x",
        "folder": "ln -s /etc x",
        "chain": "ln -s b a; ln -s .. b; ln -s a/a/a x",
        "pipe": "mkfifo x",
        "self": "ln -s . x/self; ln -s x x",
        "device": "ln -s /dev/zero x",
    }.items():
        target = tmp_path / name
        await field.box.exec(f"mkdir {name}; cd {name}; {command}")
        said[name] = await outcome(field.box.download(name, target))
        for folder, names, files in os.walk(target):
            for entry in names + files:
                path = os.path.realpath(os.path.join(folder, entry))  # noqa: ASYNC240 - quick
                assert path.startswith(f"{target}/") or path == str(target), (name, path)
    note(str(said))
    assert sum(answer.startswith("SandboxError") for answer in said.values()) >= 5


async def test_folder_that_changes_while_it_is_downloaded(field, tmp_path, note):
    """A link in place of a folder, again and again: no file of this machine is ever read or written."""
    await field.box.exec(
        "mkdir -p tree/sub; echo own > tree/sub/hosts; "
        "(while :; do mv -T tree/sub tree/old; ln -s /etc tree/sub; rm tree/sub; mv -T tree/old tree/sub; done) "
        "> /dev/null 2>&1 &"
    )
    said = []
    for number in range(5):
        target = tmp_path / str(number)
        said.append((await outcome(field.box.download("tree", target))).split(":")[0])
        own = target / "sub" / "hosts"
        assert not own.exists() or own.read_text() == "own\n"
    note(str(said))


@pytest.mark.parametrize("spec", [{"env": {"PATH": "/work/bin:/usr/local/bin:/usr/bin:/bin"}}], indirect=True)
async def test_tools_replaced_from_inside(field, tmp_path, note):
    """The programs by which files travel are the image's, whatever PATH and the dot files of the agent say."""
    await field.box.exec(HOSTILE_TOOLS)
    await field.box.write_file("deep/file", "true content")
    read = await field.box.read_file("deep/file")
    await field.box.download("deep", tmp_path / "got")
    snapshot = await field.box.snapshot()
    await field.neighbour.restore(snapshot)
    carried = await field.neighbour.exec("/bin/cat deep/file; /bin/rm -rf /work/* /work/.[!.]*")
    await field.neighbour.write_file("mine", field.token[::-1])
    used = await field.box.exec("/bin/cat /work/used; /bin/ls /work/sourced", env={"PATH": "/bin:/usr/bin"})
    note(f"{read!r}; {carried.stdout!r}; {used.stdout!r}")
    assert read == (tmp_path / "got" / "file").read_text() == carried.stdout == "true content"
    assert "tar" not in used.stdout
    assert "sourced" not in used.stdout


def archive(*entries: tarfile.TarInfo, content: bytes = b"hostile") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
        for entry in entries:
            entry.size = len(content) if entry.isreg() else 0
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, mode
    made.devmajor, made.devminor = 1, 1
    return made


async def test_hostile_snapshot(field, note):
    """A snapshot that a sandbox could not have written does nothing outside of the writable folders."""
    folders = (await field.box.snapshot()).folders
    token = field.token
    said = {}
    for name, data in {
        "up": archive(entry(f"../../../usr/{token}")),
        "absolute": archive(entry(f"/usr/{token}")),
        "through a link": archive(entry("work/link", tarfile.SYMTYPE, "/usr"), entry(f"work/link/{token}")),
        "hard link": archive(entry("work/shadow", tarfile.LNKTYPE, "etc/shadow")),
        "device": archive(entry("work/device", tarfile.CHRTYPE, mode=0o666)),
        "setuid": archive(entry("work/setuid", mode=0o6755)),
        "no archive": b"not gzip",
        "bomb": gzip.compress(bytes(200 * MB), 1),
        "large": archive(entry("work/large"), content=bytes(40 * MB)),
    }.items():
        said[name] = await outcome(field.box.restore(Snapshot(data, folders)))
    found = await field.box.exec(
        f"ls -d /usr/{token} /work/device 2>/dev/null; find /work -perm /6000 -user root; echo -"
    )
    note(str(said))
    assert found.stdout == "-\n"
    for name in ("up", "absolute", "device", "no archive", "large"):
        assert "Error" in said[name], said


async def test_snapshot_of_hostile_files(field, note):
    """It is taken or refused soon, whatever lies there, and what it holds is not larger than the folders may be."""
    said = {}
    for name, command in {
        "pipe": "mkfifo pipe",
        "sparse": "truncate -s 8M sparse",
        "names": "touch \"$(printf 'new\\nline')\" \"$(printf '\\xff')\" -- --checkpoint-action=exec=sh",
        "deep": "d=.; for i in $(seq 300); do mkdir $d/d 2>/dev/null || break; d=$d/d; done",
        "growing": "(while :; do head -c 1M /dev/urandom > growing; done) > /dev/null 2>&1 &",
        "unreadable": "mkdir -m 000 closed",
    }.items():
        await field.box.exec(command)
        before = own_memory()
        said[name] = await outcome(field.box.snapshot())
        assert own_memory() - before < 64 * MB
        said[name] = said[name][:12] if said[name].startswith("Snapshot") else said[name]
    note(str(said))
    assert all(said[name].startswith("Snapshot") for name in ("pipe", "sparse", "names"))
    assert said["unreadable"].startswith("SandboxError")
    assert "closed" in said["unreadable"]


async def test_upload_into_hostile_folders(field, tmp_path, note):
    """An upload through links that the agent placed writes nowhere else than the agent itself could."""
    source = tmp_path / "source"
    (source / "etc").mkdir(parents=True)
    (source / "etc" / "file").write_text(field.token)
    (source / "run").write_text(field.token)
    await field.box.exec("mkdir up; ln -s /usr up/etc; ln -s /usr/run up/run; ln -s /usr link; mkfifo fifo")
    said = {
        path: await outcome(field.box.upload(source, path)) for path in ("up", "link", "fifo", "/usr", "/proc/1/cwd")
    }
    found = await field.box.exec("ls /usr/file /usr/run 2>/dev/null; echo -")
    note(str(said))
    assert found.stdout == "-\n"
    assert "Error" in said["link"]
    assert "Error" in said["fifo"]


async def test_background_process_that_holds_the_pipes(field, note):
    """A command that ends while a daemon keeps its output open: the result comes at once, and later ones are true."""
    begun = time.monotonic()
    result = await field.box.exec(
        "(setsid bash -c 'while sleep 0.02; do echo noise; echo noise >&2; done' &) ; echo out"
    )
    took = time.monotonic() - begun
    after = await asyncio.gather(*(field.box.exec(f"echo {number}; exit {number}") for number in range(3)))
    note(f"{took:.1f} s, {result.stdout[:20]!r}; then {after!r}")
    assert took < 30  # else it would be the whole timeout
    assert result.stdout.startswith(("out", "noise"))
    assert [tuple(one) for one in after] == [(number, f"{number}\n", "") for number in range(3)]
