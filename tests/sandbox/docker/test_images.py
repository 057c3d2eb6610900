import io
import os
import shutil
import stat
import tarfile

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl_sandbox.docker import DockerBackend, context
from tests.sandbox.docker.conftest import SMALL

BUSYBOX = shutil.which("busybox")


async def shown(docker, cmd, **spec):
    async with docker.sandbox(SMALL.model_copy(update=spec)) as box:
        return (await box.exec(cmd, check=True)).stdout


async def test_a_folder_is_built_once_for_equal_content(docker, base, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Dockerfile").write_text(f"FROM {base}\nWORKDIR /app\nCOPY . /app/\nRUN date +%N > /when\n")
        (tmp_path / name / "file").write_text("content")
        (tmp_path / name / ".dockerignore").write_text("# none\n*.key\nDockerfile\n")
        (tmp_path / name / "a.key").write_text("secret")
    cmd = "ls /app; cat /when"
    first = await shown(docker, cmd, image=str(tmp_path / "one"))
    assert first.startswith("file\n")
    assert await shown(docker, cmd, image=str(tmp_path / "two")) == first
    (tmp_path / "two" / "file").write_text("changed")
    async with DockerBackend() as another:
        assert await shown(another, cmd, image=str(tmp_path / "two")) != first


async def test_the_work_folder_is_the_user_s_with_what_the_image_has_there(docker, base, tmp_path):
    (tmp_path / "Dockerfile").write_text(
        f"FROM {base}\nRUN mkdir -p /app/deep && echo text > /app/deep/file && sed -i /agent/d /etc/passwd\n"
    )
    for read_only in (True, False):
        options = {"image": str(tmp_path), "workdir": "/app", "read_only": read_only}
        said = await shown(
            docker, "pwd; cat deep/file; echo new > deep/file; cat deep/file; id -un; touch x", **options
        )
        assert said == "/app\ntext\nnew\nagent\n"
    said = await shown(docker, "pwd; touch x; ls", image=str(tmp_path), workdir="/not/there")
    assert said == "/not/there\nx\n"


async def test_declared_volumes_are_not_a_way_to_the_disk(docker, base, tmp_path):
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nVOLUME /data\n")
    assert "tmpfs" in await shown(docker, "df /data", image=str(tmp_path))


@pytest.mark.skipif(BUSYBOX is None, reason="needs the package busybox-static")
async def test_a_root_file_system_is_imported(docker, tmp_path):
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        tar.add(BUSYBOX, "bin/busybox")
        for name in ("sh", "ls", "mkdir", "chown", "stat", "grep", "cat", "sleep", "id"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        file = tarfile.TarInfo("hello")
        file.size = 5
        tar.addfile(file, io.BytesIO(b"there"))
    said = await shown(docker, "cat /hello; id -un; pwd", image=str(tmp_path / "root.tar"))
    assert said == "thereagent\n/work\n"


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        ("./no/such", ConfigError, "neither a folder with a Dockerfile nor a file"),
        ("{tmp}", ConfigError, "has no Dockerfile"),
        ("no.such.host.invalid/image", SandboxError, "is not on the engine at .* and cannot be pulled"),
    ],
)
async def test_an_image_that_cannot_be_had_is_an_error_that_says_why(docker, tmp_path, image, error, message):
    with pytest.raises(error, match=message):
        await docker.prepare(image.format(tmp=tmp_path))


async def test_a_build_that_fails_shows_its_last_words(docker, base, tmp_path):
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN exit 7\n")
    with pytest.raises(SandboxError, match=r"Dockerfile cannot be built: .*returned a non-zero code: 7"):
        await docker.prepare(str(tmp_path))


async def test_an_image_without_a_shell_is_named(docker, tmp_path):
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("nothing"))
    with pytest.raises(SandboxError, match=r"root.tar.*/bin/sh"):
        async with docker.sandbox(SMALL.model_copy(update={"image": str(tmp_path / "root.tar")})) as box:
            await box.exec("true")


def test_dockerignore(tmp_path):
    (tmp_path / ".dockerignore").write_text(
        "*.pyc\n**/cache\nnode_modules\n!node_modules/kept\n/top?\n\n# x\ndocs/**\n"
    )
    names = [
        "a.py",
        "a.pyc",
        "b/a.pyc",
        "b/cache/x",
        "cache/y",
        "node_modules/x",
        "node_modules/kept",
        "top1",
        "b/top1",
    ]
    for name in [*names, "docs/a/b", "Dockerfile"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    packed = io.BytesIO()
    context.pack(tmp_path, packed)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        files = {entry.name for entry in tar if not entry.isdir()}
    assert files == {".dockerignore", "Dockerfile", "a.py", "b/a.pyc", "node_modules/kept", "b/top1"}
