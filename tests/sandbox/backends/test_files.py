"""Single files: what every back end does alike, FakeSandbox too."""

import errno

import pytest

from agentrl.errors import InfraError, SandboxError
from tests.sandbox.backends.inside import ISOLATED, REAL

real = pytest.mark.parametrize("backend", REAL, indirect=True)


@pytest.mark.parametrize("content", ["", "grüße\n", "x" * 3_000_000])
async def test_text_is_read_as_it_was_written(box, content):
    await box.write_file("/work/deep/down/a file", content)
    assert await box.read_file("/work/deep/down/a file") == content


async def test_bytes_and_host_files_are_written(box, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"\x00from the host")
    await box.write_file("a", source)
    await box.write_file("b", b"bytes \xff")
    assert await box.read_file("a") == "\x00from the host"
    assert await box.read_file("b") == "bytes \ufffd"
    assert await box.read_bytes("b") == b"bytes \xff"


async def test_a_write_replaces_the_file(box):
    await box.write_file("a", "a longer text")
    await box.write_file("a", "short")
    assert await box.read_file("a") == "short"


async def test_text_that_utf8_cannot_hold_is_written_with_a_mark(box):
    await box.write_file("a", "a\ud800b")
    assert await box.read_file("a") == "a?b"


@pytest.mark.parametrize("path", ["a/b", "/work/a/b", "//work/./a/b", "/work/a/../a/b", "../../work/a/b"])
async def test_paths_name_one_file(box, path):
    await box.write_file("/work/a/b", "here")
    assert await box.read_file(path) == "here"


@pytest.mark.parametrize("name", ["-n", "--help", "$(id)", "a b", "a\nb", "a'\"b", "é", "*", "~", "[a]", "a\\b"])
async def test_any_name_will_do(box, name):
    await box.write_file(name, "here")
    assert await box.read_file(name) == "here"
    assert await box.read_file(f"/work/{name}") == "here"


@pytest.mark.parametrize("path", ["/nowhere", "nowhere", "/no/where", "/nul\0here"])
async def test_a_missing_file_is_not_an_infrastructure_error(box, path):
    for read in (box.read_file, box.read_bytes):
        with pytest.raises(FileNotFoundError) as caught:
            await read(path)
        assert not isinstance(caught.value, InfraError)
        assert caught.value.filename == path


async def test_a_missing_host_file_is_said(box, tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        await box.write_file("a", tmp_path / "absent")
    with pytest.raises(FileNotFoundError):
        await box.read_file("a")


async def test_a_folder_is_no_file(box):
    await box.write_file("folder/file", "x")
    with pytest.raises(IsADirectoryError, match="folder"):
        await box.read_file("folder")
    with pytest.raises(IsADirectoryError, match="folder"):
        await box.write_file("folder", "x")


async def test_a_file_is_no_folder(box):
    await box.write_file("file", "x")
    with pytest.raises(NotADirectoryError, match="file/below"):
        await box.write_file("file/below", "x")
    with pytest.raises((NotADirectoryError, FileNotFoundError)):
        await box.read_file("file/below")


async def test_a_file_longer_than_allowed_is_not_cut(box):
    await box.write_file("a", b"x" * 1000)
    assert await box.read_bytes("a", max_bytes=1000) == b"x" * 1000
    with pytest.raises(OSError, match="a") as caught:
        await box.read_bytes("a", max_bytes=999)
    assert caught.value.errno == errno.EFBIG


@real
async def test_commands_and_methods_see_the_same_files(box):
    await box.write_file("in", "hello")
    await box.exec("tr a-z A-Z < in > out", check=True)
    assert await box.read_file("/work/out") == "HELLO"


@pytest.mark.thorough
@real
async def test_an_endless_file_is_not_read_for_ever(box):
    await box.exec("truncate -s 200M big", check=True)
    with pytest.raises(OSError, match="big") as caught:
        await box.read_file("big")
    assert caught.value.errno == errno.EFBIG


@real
async def test_a_link_within_is_followed(box):
    await box.exec("mkdir a; echo text > a/file; ln -s a b; ln -s a/file c", check=True)
    assert await box.read_file("b/file") == "text\n"
    await box.write_file("c", "other")
    assert await box.read_file("a/file") == "other"


@real
async def test_what_is_no_file_is_refused_at_once(box):
    await box.exec("mkfifo pipe; ln -s loop loop", check=True)
    for path in ("pipe", "loop"):
        with pytest.raises(OSError, match=path):
            await box.read_file(path)
        with pytest.raises(OSError, match=path):
            await box.write_file(path, "x")


@real
@pytest.mark.parametrize("spec", [{"file_mb": 8}], indirect=True)
async def test_a_file_too_large_for_the_limit_is_said(box, spec):
    with pytest.raises(OSError, match="big") as caught:
        await box.write_file("big", b"x" * ((spec.file_mb << 20) + 1))
    assert caught.value.errno == errno.EFBIG


@real
@pytest.mark.parametrize("spec", [{"file_mb": 1}], indirect=True)
async def test_a_command_learns_that_its_file_is_too_large(box):
    result = await box.exec("head -c 3000000 /dev/zero > big")
    assert result.exit_code
    assert (await box.exec("wc -c < big")).stdout.strip() == str(1 << 20)


@pytest.mark.parametrize("backend", ISOLATED, indirect=True)
@pytest.mark.parametrize("spec", [{"disk_mb": 16}], indirect=True)
async def test_a_full_disk_is_said_and_is_the_sandboxs_own(box):
    with pytest.raises(OSError, match="big") as caught:
        await box.write_file("big", b"x" * (20 << 20))
    assert caught.value.errno == errno.ENOSPC
    await box.exec("rm big", check=True)
    await box.write_file("small", "there is room again")


@pytest.mark.parametrize("backend", ISOLATED, indirect=True)
@pytest.mark.parametrize("path", ["/usr/bin/new", "/new", "/etc/passwd", "/nowhere/new"])
async def test_nothing_is_written_outside_the_writable_folders(box, path):
    with pytest.raises(PermissionError, match=path):
        await box.write_file(path, "x")
    assert (await box.exec('echo x > "$F"', env={"F": path})).exit_code


@pytest.mark.parametrize("backend", ISOLATED, indirect=True)
async def test_a_file_that_the_user_cannot_read_is_said(box):
    await box.exec("echo x > closed; chmod 0 closed", check=True)
    with pytest.raises(PermissionError, match="closed"):
        await box.read_file("closed")
    with pytest.raises(PermissionError, match="closed"):
        await box.write_file("closed", "y")


@real
async def test_a_transfer_needs_its_programs(box):
    box.tool_path = "/nowhere"
    with pytest.raises(SandboxError, match=r"needs a program that its image lacks|cannot start"):
        await box.read_file("a")
