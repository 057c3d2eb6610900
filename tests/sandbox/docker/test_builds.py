"""Dockerfiles that need BuildKit: built by the command `docker`, against a real engine."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import sys
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl_sandbox.docker import DockerBackend, addresses, builds, children, context
from tests.sandbox.docker.conftest import SMALL
from tests.sandbox.doubles.registry import Registry

NEEDS = [
    ("RUN true\nRUN <<EOF\necho hi\nEOF\n", "the here-document <<EOF"),
    ("RUN true && \\\n  # why\n\n  cat <<-'END' > /x\nFROM x\n\tEND\n", "the here-document <<END"),
    ("copy <<end.txt /x\nhello there\nend.txt\n", "the here-document <<end.txt"),
    ("RUN --mount=type=cache,target=/c true\n", "--mount"),
    ("RUN \\\n  --network=none \\\n  true\n", "--network"),
    ("COPY --link Dockerfile /x\n", "--link"),
    ("COPY --from=x --chown=1:1 --chmod=755 Dockerfile /x\n", "--chmod"),
    ("ONBUILD ADD --checksum=sha256:0 http://x/y /x\n", "--checksum"),
    ("FROM --platform=$BUILDPLATFORM x\n", "the variable BUILDPLATFORM"),
    ("ARG TARGETARCH\n", "the variable TARGETARCH"),
    ("RAN true\n", ""),
    ("# RUN <<EOF \\\nRUN cat <<<EOF\nEOF\n", ""),
    ("RUN echo ' <<EOF '\n", ""),
    ("RUN bash -c $'cat <<EOF\\nEOF'\nCOPY --from=x --chown=1 --chown=2 a --link\n", ""),
    ("# RUN --mount=type=cache\nRUN a --mount=b && \\\n  RUN --mount=c\n", ""),
    ("ARG TARGETARCH=amd64\nARG TARGETARCHES\nFROM --platform=$P x\n# syntax=docker/dockerfile:1\n", ""),
]


@pytest.mark.parametrize(("lines", "needs"), NEEDS)
def test_what_needs_buildkit(tmp_path, lines, needs):
    (tmp_path / "Dockerfile").write_text(f"FROM base\n{lines}")
    assert context.needs_buildkit(tmp_path) == needs


def test_the_images_that_a_dockerfile_begins_from(tmp_path):
    lines = ["ARG V=1", "from a.io/b:1 as o", "FROM O", "FROM scratch", "FROM x:$V", "FROM --platform=p y", "FROM z"]
    (tmp_path / "Dockerfile").write_text("\n".join([*lines, "# FROM w", "RUN echo FROM v"]))
    assert context.bases(tmp_path) == ["a.io/b:1", "z"]


def write(folder, base, lines):
    """A Dockerfile that no engine has built before."""
    (folder / "Dockerfile").write_text(f"FROM {base}\nLABEL of={secrets.token_hex()}\n{lines}")


async def is_built(docker, folder):
    return await docker.parts[1].has(str(folder))


async def knows(docker, since):
    """Whether the engine's own BuildKit is at least that of this version of Docker."""
    return int((await docker.engine.docker.version())["Version"].partition(".")[0]) >= since


@pytest.mark.parametrize(
    ("lines", "since"),
    [
        ("RUN --mount=type=cache,target=/c echo x >> /c/n\nRUN --mount=type=cache,target=/c grep x /c/n\n", 20),
        ("RUN --mount=type=bind,target=/b --mount=type=tmpfs,target=/t touch /t/x && test -f /b/Dockerfile\n", 20),
        ("RUN --network=none true\n", 23),
        ("COPY --chmod=751 Dockerfile /x\nRUN test $(stat -c %a /x) = 751\n", 20),
        ("ADD --chmod=751 Dockerfile /x\nRUN test $(stat -c %a /x) = 751\n", 20),
        ("ARG TARGETARCH\nRUN test -n $TARGETARCH && uname -m\n", 20),
        ("RUN true\nRUN <<EOF\necho hi > /x\nEOF\nRUN grep hi /x\n", 23),
        ("RUN true && \\\n  cat <<-'END' > /x\nFROM x\nEND\nRUN grep FROM /x\n", 23),
        ("COPY <<EOF /x\nhello there\nEOF\nRUN grep there /x\n", 23),
        ("COPY --link Dockerfile /x\nRUN test -f /x\n", 23),
        ("ADD --checksum=sha256:{sum} http://{address}/v2/ /x\nRUN test $(cat /x) = {{}}\n", 25),
    ],
)
async def test_what_needs_buildkit_is_built_with_it(docker, base, calls, tmp_path, lines, since):
    with Registry() as files:  # its first page is {}
        digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
        lines = lines.format(sum=digest, address=files.address) if "{sum}" in lines else lines
        write(tmp_path, base, lines)
        if await knows(docker, since):
            await docker.prepare(str(tmp_path))
        else:
            with pytest.raises(SandboxError, match=r"(?i)unknown .*begin the Dockerfile with `# syntax=docker/"):
                await docker.prepare(str(tmp_path))
    assert calls.read_text() == "\n"


async def test_the_context_is_that_of_other_builds(docker, base, calls, tmp_path, monkeypatch):
    for name in ("DOCKER_CONTEXT", "BUILDX_BUILDER", "DOCKER_TLS_VERIFY"):
        monkeypatch.setenv(name, "elsewhere")
    write(tmp_path, base, "COPY --chmod=755 . /app/\nRUN test -L /app/link -a -x /app/deep/file\n")
    (tmp_path / ".dockerignore").write_text("*.key\nDockerfile\n.dockerignore\nlocked\n!locked/x\n")
    (tmp_path / "a.key").write_text("secret")
    (tmp_path / "deep").mkdir(mode=0o555)
    (tmp_path / "link").symlink_to("/nowhere")
    (tmp_path / "deep" / "file").write_text("x")
    async with docker.sandbox(SMALL.model_copy(update={"image": str(tmp_path)})) as box:
        assert (await box.exec("ls -A /app", check=True)).stdout == "deep\nlink\n"


async def test_a_build_that_fails_shows_its_last_words(docker, base, calls, tmp_path, caplog):
    caplog.set_level("INFO", logger="agentrl")
    long = "head -c 200000 /dev/zero | tr '\\0' x; echo"
    write(tmp_path, base, f"RUN --mount=type=tmpfs,target=/t {long}; echo the end; exit 7\n")
    with pytest.raises(SandboxError, match=r"Dockerfile cannot be built: .*the end.*exit code: 7") as caught:
        await docker.prepare(str(tmp_path))
    assert len(str(caught.value)) < 1200
    assert "\n" not in str(caught.value)
    assert "RUN --mount=type=tmpfs" in caplog.text


def slow(folder, base):
    """A folder whose build never ends, and the words of its process."""
    words = f"sleep 1000{os.getpid()}"
    write(folder, base, f"COPY --chmod=755 Dockerfile /x\nRUN {words}\n")
    return words


def running(words):
    """The processes of this machine with these words."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if words in file.read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(int(file.parent.name))
        except OSError:
            pass
    return found


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - processes of others
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", ["close", "too long"])
async def test_a_build_that_is_given_up_leaves_nothing(docker, base, calls, tmp_path, monkeypatch, how):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / "folder"
    folder.mkdir()
    words = slow(folder, base)
    if how == "too long":
        monkeypatch.setattr(builds, "_LONGEST_S", 2)
    async with DockerBackend() as another:
        building = asyncio.create_task(another.prepare(str(folder)))
        await until(lambda: running(words) or building.done())
        if how == "too long":
            with pytest.raises(SandboxError, match=r"cannot be built within .* hours"):
                await building
    if how == "close":
        with pytest.raises(SandboxError, match="the back end was closed while it was made"):
            await building
    assert running(str(folder)) == running(str(tmp_path / "agentrl-build")) == []
    await until(lambda: not running(words))
    assert not await is_built(docker, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


async def test_a_command_that_does_not_end_is_killed(docker, base, tmp_path, monkeypatch):
    words = f"sleep 2000{os.getpid()}"
    program(tmp_path, f"trap '' TERM; {words}; {words}", monkeypatch)
    write(tmp_path, base, "COPY --link docker /x\n")
    async with DockerBackend() as another:
        building = asyncio.create_task(another.prepare(str(tmp_path)))
        await until(lambda: running(words))
    assert isinstance(building.exception(), SandboxError)
    await until(lambda: not running(words))


OWNER = """
import asyncio, runpy, sys
children = runpy.run_path(sys.argv[1])

async def main():
    process = await children["start"]("docker", "build", "--network=none", sys.argv[2])
    await process.wait()

asyncio.run(main())
"""


async def test_a_killed_owner_s_build_ends(docker, base, calls, tmp_path):
    words = slow(tmp_path, base)
    variables = {**os.environ, "DOCKER_HOST": docker.engine.url, "DOCKER_BUILDKIT": "1"}
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", OWNER, children.__file__, str(tmp_path), env=variables
    )
    try:
        await until(lambda: running(words) or owner.returncode is not None)
        assert running(words)
    finally:
        owner.kill()
        await owner.wait()
    await until(lambda: not running(words) and not running(str(tmp_path)))


async def test_two_at_once_build_once(docker, base, calls, tmp_path):
    write(tmp_path, base, "COPY --chmod=755 Dockerfile /x\n")
    async with DockerBackend() as one, DockerBackend() as two:
        await asyncio.gather(*(backend.prepare(str(tmp_path)) for backend in (one, two, one)))
    assert calls.read_text() == "\n"


def program(folder, lines, monkeypatch):
    """The only command `docker` of PATH."""
    monkeypatch.setenv("PATH", f"{folder}:/bin")
    (folder / "docker").write_text(f"#!/bin/sh\n{lines}\n")
    (folder / "docker").chmod(0o755)


@pytest.mark.parametrize("has_program", [False, True])
async def test_without_buildkit_the_error_has_the_remedy(docker, base, tmp_path, monkeypatch, has_program):
    monkeypatch.setenv("PATH", str(tmp_path))
    if has_program:
        program(tmp_path, "echo ERROR: the buildx component is missing or broken >&2; exit 1", monkeypatch)
    write(tmp_path, base, "COPY --link docker /x\n")
    with pytest.raises(SandboxError, match="cannot be built: --link needs BuildKit, and ") as caught:
        await docker.prepare(str(tmp_path))
    said = str(caught.value)
    assert (f"{tmp_path}/docker has none" if has_program else "has no command `docker`") in said
    assert f"docker build -t NAME {tmp_path}" in said


@pytest.mark.parametrize("flag", ["", "--chmod=755 "], ids=["classic", "buildkit"])
async def test_a_private_image_is_fetched_with_docker_s_credentials(docker, base, calls, tmp_path, monkeypatch, flag):
    if flag and await knows(docker, 23):
        pytest.skip("BuildKit of newer engines speaks TLS only, even on loopback")
    config, plugins = tmp_path / ".docker", addresses.folder() / "cli-plugins"
    config.mkdir()
    if plugins.is_dir():
        (config / "cli-plugins").symlink_to(plugins)
    (tmp_path / ".dockerignore").write_text(".docker\n")
    monkeypatch.setenv("DOCKER_CONFIG", str(config))
    with Registry(login="me:secret") as registry:
        registry.add("mine", {"file": b"there"})
        write(tmp_path, f"{registry.address}/mine", f"COPY {flag}Dockerfile /x\n")
        with pytest.raises(SandboxError, match=r"401|[Aa]uth"):
            await docker.prepare(str(tmp_path))
        auth = base64.b64encode(b"me:secret").decode()
        (config / "config.json").write_text(f'{{"auths": {{"{registry.address}": {{"auth": "{auth}"}}}}}}')
        await docker.prepare(str(tmp_path))
