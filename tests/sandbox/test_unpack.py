"""Archives that a hostile sandbox may send: nothing is written outside, and nothing is left."""

import errno
import io
import os
import tarfile

import pytest

from agentrl.errors import SandboxError
from agentrl_sandbox import trees


def entry(name, kind=tarfile.REGTYPE, data=b"", link="", mode=0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size = kind, link, mode, len(data)
    return info, data


def archive(*entries, form=tarfile.GNU_FORMAT):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    file.seek(0)
    return file


def unpack(file, target, max_bytes=1 << 20):
    trees.unpack(file, target, max_bytes, "there")


FOLDER = entry(".", tarfile.DIRTYPE, mode=0o755)
REFUSED = {
    "absolute": [entry("/etc/agentrl", data=b"x")],
    "up": [entry("../x", data=b"x")],
    "hidden up": [entry("a/../../x", data=b"x")],
    "up in the middle": [entry("a/../x", data=b"x")],
    "absolute link": [entry("l", tarfile.SYMTYPE, link="/etc")],
    "link up": [entry("l", tarfile.SYMTYPE, link="..")],
    "links up together": [
        entry("a", tarfile.DIRTYPE, mode=0o755),
        entry("a/here", tarfile.SYMTYPE, link=".."),
        entry("a/l", tarfile.SYMTYPE, link="here/.."),
    ],
    "a file through a link": [entry("l", tarfile.SYMTYPE, link="."), entry("l/x", data=b"x")],
    "a folder over a link": [entry("l", tarfile.SYMTYPE, link="."), entry("l", tarfile.DIRTYPE)],
    "a link over a folder": [entry("l", tarfile.DIRTYPE, mode=0o755), entry("l", tarfile.SYMTYPE, link="/")],
    "a link over a file": [entry("l", data=b"x"), entry("l", tarfile.SYMTYPE, link="x")],
    "a file twice": [entry("l", data=b"x"), entry("l", data=b"y")],
    "a loop": [entry("a", tarfile.SYMTYPE, link="b"), entry("b", tarfile.SYMTYPE, link="a")],
    "hard link out": [entry("h", tarfile.LNKTYPE, link="/etc/passwd")],
    "hard link up": [entry("h", tarfile.LNKTYPE, link="../secret")],
    "hard link to a link": [entry("l", tarfile.SYMTYPE, link="x"), entry("h", tarfile.LNKTYPE, link="l")],
    "pipe": [entry("p", tarfile.FIFOTYPE)],
    "device": [entry("d", tarfile.BLKTYPE)],
    "terminal": [entry("d", tarfile.CHRTYPE)],
    "old sparse": [entry("s", tarfile.GNUTYPE_SPARSE, data=b"x")],
    "unknown": [entry("s", b"Q", data=b"x")],
    "deep": [entry("d/" * 2000 + "x", data=b"x")],
    "long name": [entry("d" * 5000, data=b"x")],
    "the root as a file": [entry(".", data=b"x")],
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_and_leaves_nothing(tmp_path, what):
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(SandboxError, match="there"):
        unpack(archive(FOLDER, entry("fine", data=b"x"), *REFUSED[what]), tmp_path / "back")
    assert os.listdir(tmp_path) == ["secret"]


@pytest.mark.parametrize(
    "file",
    [
        io.BytesIO(b"no archive, but long enough to be taken for one" * 20),
        io.BytesIO(archive(entry("x", data=b"x" * 5000)).getvalue()[:2000]),
        archive(entry("x" * 200, data=b"x"), form=tarfile.PAX_FORMAT),
    ],
    ids=["noise", "cut", "pax"],
)
def test_what_is_no_plain_archive_is_refused(tmp_path, file):
    with pytest.raises(SandboxError, match="there"):
        unpack(file, tmp_path / "back")
    assert os.listdir(tmp_path) == []


def test_nothing_goes_through_a_link_of_the_host(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(FileExistsError):
        unpack(archive(FOLDER, entry("link/x", data=b"x")), tmp_path / "back")
    with pytest.raises(SandboxError, match="outside of it"):
        unpack(archive(FOLDER, entry("mine", tarfile.SYMTYPE, link="link/x")), tmp_path / "back")
    assert os.listdir(tmp_path / "outside") == []
    assert os.listdir(tmp_path / "back") == ["link"]
    unpack(archive(FOLDER, entry("link", data=b"x")), tmp_path / "back")
    assert (tmp_path / "back" / "link").read_bytes() == b"x"


def test_many_entries_are_refused_early(tmp_path, monkeypatch):
    monkeypatch.setattr(trees, "_MOST_ENTRIES", 20)
    with pytest.raises(SandboxError, match="one of too many"):
        unpack(archive(FOLDER, *(entry(f"{n}") for n in range(30))), tmp_path / "back")
    assert os.listdir(tmp_path) == []


def test_the_sum_of_all_files_counts(tmp_path):
    file = archive(FOLDER, *(entry(f"{n}", data=b"x" * 600) for n in range(2)))
    with pytest.raises(OSError, match="there") as caught:
        unpack(file, tmp_path / "back", max_bytes=1199)
    assert caught.value.errno == errno.EFBIG
    assert os.listdir(tmp_path) == []
    unpack(file, tmp_path / "back", max_bytes=1200)


def test_a_bomb_of_links_is_refused_in_time(tmp_path):
    links = [entry(f"l{n}", tarfile.SYMTYPE, link="/".join([f"l{n + 1}"] * 10)) for n in range(39)]
    with pytest.raises(SandboxError, match="outside of it"):
        unpack(archive(FOLDER, *links), tmp_path / "back")
