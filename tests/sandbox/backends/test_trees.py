"""Folders that travel in and out. Archives that no honest `tar` writes are in tests/sandbox/test_unpack.py."""

import errno
import os
import socket

import pytest

from agentrl.errors import ConfigError, SandboxError
from tests.sandbox.backends.inside import REAL

real = pytest.mark.parametrize("backend", REAL, indirect=True)


def tree(folder):
    """The content of each file, by its path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "deep" / "down").mkdir(parents=True)
    (folder / "deep" / "down" / "a file").write_text("text")
    (folder / "-rf").write_bytes(b"\0\xff")
    (folder / "line\nbreak").write_text("odd")
    return folder


async def test_a_folder_comes_back_as_it_went(box, source, tmp_path):
    await box.upload(source, "there/it is")
    assert await box.read_file("there/it is/deep/down/a file") == "text"
    await box.download("there/it is", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    assert not list(tmp_path.glob(".agentrl*"))


async def test_a_file_is_a_file_again(box, source, tmp_path):
    await box.upload(source / "-rf", "new/place")
    assert await box.read_bytes("new/place") == b"\0\xff"
    await box.download("new/place", tmp_path / "new" / "file")
    assert (tmp_path / "new" / "file").read_bytes() == b"\0\xff"


async def test_the_content_is_merged_on_both_sides(box, source, tmp_path):
    await box.write_file("there/deep/old", "old")
    await box.write_file("there/-rf", "is replaced")
    await box.upload(source, "there")
    (tmp_path / "back" / "deep").mkdir(parents=True)
    (tmp_path / "back" / "deep" / "mine").write_text("mine")
    (tmp_path / "back" / "-rf").write_text("is replaced")
    await box.download("there", tmp_path / "back")
    assert tree(tmp_path / "back") == {**tree(source), "deep/old": b"old", "deep/mine": b"mine"}


@pytest.mark.parametrize("path", ["nowhere", "no/where", "/nowhere"])
async def test_what_is_missing_is_said(box, tmp_path, path):
    with pytest.raises(FileNotFoundError) as caught:
        await box.download(path, tmp_path / "back")
    assert caught.value.filename == path
    with pytest.raises(FileNotFoundError):
        await box.upload(tmp_path / "nowhere", "there")
    assert os.listdir(tmp_path) == []


async def test_more_than_allowed_leaves_nothing(box, tmp_path):
    await box.write_file("there/a", b"x" * 600_000)
    await box.write_file("there/b", b"x" * 600_000)
    with pytest.raises(OSError, match="there") as caught:
        await box.download("there", tmp_path / "back", max_bytes=1_000_000)
    assert caught.value.errno == errno.EFBIG
    assert os.listdir(tmp_path) == []


async def test_a_folder_in_the_way_is_said_before_anything_is_written(box, tmp_path):
    await box.write_file("there/a", "new")
    await box.write_file("there/b", "new")
    (tmp_path / "back" / "b").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="back/b"):
        await box.download("there", tmp_path / "back")
    assert os.listdir(tmp_path / "back") == ["b"]
    with pytest.raises(IsADirectoryError):
        await box.download("there/a", tmp_path / "back")


@pytest.mark.parametrize("link", ["/etc/passwd", "../other", "deep/../../other", "/"])
async def test_a_link_of_an_upload_that_leads_out_is_refused(box, source, link):
    (source.parent / "other").write_text("secret")
    (source / "link").symlink_to(link)
    with pytest.raises(ConfigError, match=r"link links to .* outside of the upload"):
        await box.upload(source, "there")


async def test_a_special_file_of_an_upload_is_refused(box, source):
    with socket.socket(socket.AF_UNIX) as made:
        folder = os.open(source, os.O_DIRECTORY)
        made.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)
    with pytest.raises(ConfigError, match="socket is neither file, folder nor link"):
        await box.upload(source, "there")


@real
async def test_modes_and_links_that_stay_inside_are_kept(box, source, tmp_path):
    (source / "deep" / "link").symlink_to("../-rf")
    (source / "to folder").symlink_to("deep/down")
    (source / "dangling").symlink_to("nothing")
    (source / "-rf").chmod(0o751)
    os.link(source / "-rf", source / "second name")
    (source / "empty").mkdir()
    await box.upload(source, "there")
    shown = await box.exec("stat -c '%n %a %F %N' there/* there/deep/*", check=True)
    assert "there/-rf 751 regular file" in shown.stdout
    assert "there/deep/link 777 symbolic link 'there/deep/link' -> '../-rf'" in shown.stdout
    await box.download("there", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    assert os.readlink(tmp_path / "back" / "deep" / "link") == "../-rf"
    assert os.readlink(tmp_path / "back" / "dangling") == "nothing"
    assert (tmp_path / "back" / "-rf").stat().st_mode & 0o777 == 0o751
    assert (tmp_path / "back" / "empty").is_dir()
    await box.upload(source / "-rf", "single")
    assert (await box.exec("stat -c %a single")).stdout == "751\n"


@real
async def test_an_upload_does_not_write_through_links(box, source):
    await box.exec("mkdir there outside; ln -s ../outside there/deep; echo keep > file; ln -s ../file there/-rf")
    await box.upload(source, "there")
    assert (await box.exec("ls outside; cat file")).stdout == "keep\n"
    assert await box.read_bytes("there/-rf") == b"\0\xff"


@real
@pytest.mark.parametrize("link", ["/etc/passwd", "../other", "down/../../..", "/"])
async def test_a_link_that_leads_out_is_not_downloaded(box, tmp_path, link):
    await box.exec(f"mkdir -p there/down; echo x > there/file; ln -s {link} there/link", check=True)
    with pytest.raises(SandboxError, match=r"'link' links to .*, outside of it"):
        await box.download("there", tmp_path / "back")
    assert os.listdir(tmp_path) == []


@real
async def test_links_that_lead_out_together_are_not_downloaded(box, tmp_path):
    await box.exec("mkdir -p there/deep/down; cd there; ln -s . here; ln -s ../../here/.. deep/down/up", check=True)
    with pytest.raises(SandboxError, match="outside of it"):
        await box.download("there", tmp_path / "back")
    assert os.listdir(tmp_path) == []


@real
async def test_a_special_file_is_not_downloaded(box, tmp_path):
    await box.exec("mkdir there; mkfifo there/pipe", check=True)
    with pytest.raises(SandboxError, match="holds a special file"):
        await box.download("there", tmp_path / "back")
    with pytest.raises(OSError, match="pipe"):
        await box.download("there/pipe", tmp_path / "back")
    assert os.listdir(tmp_path) == []


@real
async def test_a_link_to_a_file_is_downloaded_as_the_file(box, tmp_path):
    await box.exec("echo text > file; ln -s file link", check=True)
    await box.download("link", tmp_path / "back")
    assert not (tmp_path / "back").is_symlink()
    assert (tmp_path / "back").read_text() == "text\n"


@real
async def test_nothing_dangerous_is_left_in_modes(box, tmp_path):
    await box.exec("mkdir there; echo > there/a; chmod 6777 there/a; mkdir there/b; chmod 000 there/b", check=True)
    await box.exec("chmod 500 there/b; mkdir -m 1777 there/c", check=True)
    await box.download("there", tmp_path / "back")
    modes = {path.name: f"{path.stat().st_mode & 0o7777:o}" for path in (tmp_path / "back").iterdir()}
    assert modes == {"a": "755", "b": "700", "c": "755"}


@real
async def test_names_that_are_not_utf8_travel(box, tmp_path):
    await box.exec("mkdir there; echo x > there/$'caf\\xe9'", check=True)
    await box.download("there", tmp_path / "back")
    assert os.listdir(os.fsencode(tmp_path / "back")) == [b"caf\xe9"]
    await box.upload(tmp_path / "back", "again")
    assert (await box.exec("diff -r there again")).exit_code == 0
