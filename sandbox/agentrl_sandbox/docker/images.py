"""Get images onto an engine: build a Dockerfile, import a root file system, or pull a name.

The name of a built or imported image has the hash of the content, so equal content is built once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from importlib import resources
from pathlib import Path
from typing import IO, Any, Literal

from aiodocker import DockerError
from aiodocker.containers import DockerContainer

from agentrl._util.concurrency import is_cancelled
from agentrl.errors import ConfigError, SandboxError
from agentrl_sandbox.docker import builds, context
from agentrl_sandbox.docker.container import Image, identity, labels
from agentrl_sandbox.docker.engine import DockerClient
from agentrl_sandbox.docker.registries import ImageName, credentials
from agentrl_sandbox.spec import SandboxSpec

NAMES = READY, BUILT, IMPORTED = "agentrl-ready", "agentrl-build", "agentrl-import"
"""The repositories of agentrl's images; the tag is the hash of the content. READY: with a prepared work folder. BUILT:
from a Dockerfile. IMPORTED: from a root file system."""

BASE = "AGENTRL_BASE_IMAGE"
"""The environment variable that names the image for a SandboxSpec without an image."""

SOWN = "sown"
"""The text that the command of `sowing` prints at its end."""

_UNCHANGED = 3
_SEED = "/.agentrl-seed"
_SEEDED = "agentrl.seed"
_USER = "agentrl.user"
_OWN = """
changed=
case $2 in
  *:*) ;;
  *) user=$(id -u -- "$2") && group=$(id -g -- "$2") || exit 1
     set -- "$1" "$user:$group" "$3"
     changed=1 ;;
esac
if ! [ -d "$1" ] || [ "$(stat -c %u:%g -- "$1")" != "$2" ]; then
  mkdir -p -- "$1" && chown -R -- "$2" "$1" && changed=1 || exit 1
fi
if [ "$2" = 1000:1000 ] && ! grep -q '^[^:]*:[^:]*:1000:' /etc/passwd; then
  mkdir -p /etc && echo "agent:x:1000:1000:agent:$1:/bin/sh" >> /etc/passwd && changed=1 || exit 1
fi
if [ -n "$3" ] && [ -n "$(ls -A -- "$1")" ]; then
  cp -al -- "$1" "$3" 2>/dev/null || { rm -rf -- "$3"; cp -a -- "$1" "$3"; } || exit 1
  chown -R -- "$2" "$3" && changed=1 || exit 1
fi
echo "$2"
[ -n "$changed" ] || exit 3
""".strip()
"""A shell script that creates a folder which belongs to a user. A user without a name gets a name, which programs such
as git need. If a folder in memory will hide the new folder, the content is also copied to another place."""

_TARS = (".tar", ".tar.gz", ".tgz")
_PIECE = 1 << 20


class Images:
    """The images of an engine. Parallel callers for an image share a single search, build or pull.

    An image is given as
    - "": the image named by AGENTRL_BASE_IMAGE, else an image built from agentrl's Dockerfile (needs a registry);
    - a path beginning with `/`, `./`, `../` or `~`: a folder with a Dockerfile, to be built, or a root file system in a
      tar file, to be imported. The path is read once: a change has an effect only in a new back end;
    - any other text: a name in the form of `docker run`. A missing image is pulled.
    """

    def __init__(self, engine: DockerClient) -> None:
        self._engine = engine
        self._docker = engine.docker
        self._tasks: dict[tuple[str, ...], asyncio.Task[Image]] = {}

    async def ready(self, image: str) -> Image:
        """Get an image onto the engine. Raises SandboxError, which lists the attempts."""
        return await self._once((image,), lambda: self._made(image))

    async def owned(self, spec: SandboxSpec) -> Image:
        """The image of a spec. In the image, the folder where commands start exists and belongs to the
        commands' user.
        """
        image = await self.ready(spec.image)
        key = (image.name, spec.workdir, spec.user, str(spec.read_only))
        return await self._once(key, lambda: self._owned(image, spec))

    async def has(self, image: str) -> bool:
        """Whether the engine has the image already."""
        with self._engine.telling(f"image {image or 'of the spec'!r}"):
            return await self._is_here(await self._known_as(image))

    def forget(self) -> None:
        """Look for each image again at the next call, as an image has disappeared from the engine."""
        self._tasks = {key: task for key, task in self._tasks.items() if not task.done()}

    async def _once(self, key: tuple[str, ...], make: Callable[[], Coroutine[Any, Any, Image]]) -> Image:
        """Run `make` once for all callers with the same key. After a failure, the next caller tries again. A cancelled
        caller does not disturb other callers."""
        task = self._tasks.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._tasks[key] = asyncio.create_task(make())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not is_cancelled():
                raise SandboxError(f"image {key[0]!r}: the back end was closed while it was made") from None
            raise

    async def close(self) -> None:
        """Cancel builds, imports and pulls that have not ended."""
        running = [task for task in self._tasks.values() if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _owned(self, image: Image, spec: SandboxSpec) -> Image:
        """An image with the work folder of the spec. A container creates the folder, and is stored on the engine as a
        new image."""
        user, subject = identity(spec.user), f"image {spec.image or 'of the spec'!r}"
        recipe = "\0".join((image.name, spec.workdir, user, str(spec.read_only), _OWN))
        name = f"{READY}:{hashlib.sha256(recipe.encode()).hexdigest()[:32]}"
        with self._engine.telling(subject):
            if not await self._is_here(name):
                await self._own(image, spec, name, subject)
            inspected = await self._docker.images.inspect(name)
        notes = inspected["Config"]["Labels"] or {}
        return Image(inspected["Id"], image.volumes, notes.get(_USER, user), seed=spec.read_only and _SEEDED in notes)

    async def _own(self, image: Image, spec: SandboxSpec, name: str, subject: str) -> None:
        sandbox_id = f"docker-{secrets.token_hex(8)}"
        body: dict[str, Any] = {
            "Image": image.name,
            "User": "0:0",
            "Entrypoint": ["/bin/sh", "-c", _OWN, "sh"],
            "Cmd": [spec.workdir, identity(spec.user), _SEED if spec.read_only else ""],
            "Labels": labels(spec, sandbox_id),
            "HostConfig": {
                "NetworkMode": "none",
                "CapDrop": ["ALL"],
                "CapAdd": ["CHOWN", "DAC_OVERRIDE", "FOWNER"],
                "SecurityOpt": ["no-new-privileges"],
            },
        }
        repo, _, tag = name.partition(":")
        container = await self._docker.containers.create(body, name=sandbox_id)
        try:
            await container.start()
            code = (await container.wait())["StatusCode"]
            output = "".join(await container.log(stdout=True)).strip()
            complained = "".join(await container.log(stderr=True)).strip()
            if code == _UNCHANGED:
                await self._docker.images.tag(image.name, repo, tag=tag)
            elif code == 0:
                notes = [f"LABEL {_USER}={output.split()[-1]}", *await self._seeded(container)]
                await container.commit(repository=repo, tag=tag, changes=notes)
            else:
                raise SandboxError(
                    f"{subject}: {spec.workdir} cannot be given to {spec.user}: {complained or f'exit code {code}'}"
                )
        finally:
            await container.delete(force=True, v=True)

    async def _made(self, image: str) -> Image:
        with self._engine.telling(f"image {image or 'of the spec'!r}"):
            name = await self._name(image)
            inspected = await self._docker.images.inspect(name)
        volumes = tuple(sorted((inspected["Config"] or {}).get("Volumes") or ()))
        return Image(inspected["Id"], volumes)

    async def _seeded(self, container: DockerContainer) -> list[str]:
        """The settings of the image made from a container."""
        changed = await self._docker._query_json(f"containers/{container.id}/changes")
        return [f"LABEL {_SEEDED}=1"] if any(change["Path"] == _SEED for change in changed or ()) else []

    async def _name(self, image: str) -> str:
        if not image:
            return await self._base()
        if image.startswith(("/", "./", "../", "~")):
            return await self._local(image)
        if not await self._is_here(image):
            await self._pull(image)
        return image

    async def _base(self) -> str:
        if name := os.environ.get(BASE):
            return await self._name(name)
        with resources.as_file(resources.files("agentrl_sandbox.docker") / "base") as folder:
            try:
                return await self._build(folder)
            except SandboxError as exc:
                raise SandboxError(f"{exc}; set {BASE} to an image with bash, git and python3, or name one") from exc

    async def _known_as(self, image: str) -> str:
        """The engine's name for an image, if the image is present."""
        if not image:
            if name := os.environ.get(BASE):
                return await self._known_as(name)
            with resources.as_file(resources.files("agentrl_sandbox.docker") / "base") as folder:
                return await self._known_as(str(folder))
        if not image.startswith(("/", "./", "../", "~")):
            return image
        kind, path = _kind(image)
        if kind == "folder":
            with tempfile.TemporaryFile() as file:
                return f"{BUILT}:{(await asyncio.to_thread(context.pack, path, file))[:32]}"
        return f"{IMPORTED}:{(await asyncio.to_thread(_digest, path))[:32]}"

    async def _local(self, image: str) -> str:
        kind, path = _kind(image)
        return await (self._build(path) if kind == "folder" else self._import(path))

    async def _build(self, folder: Path) -> str:
        if not (folder / "Dockerfile").is_file():
            raise ConfigError(f"{folder} has no Dockerfile; add one, or name an image")
        with tempfile.TemporaryFile() as file:
            digest = await asyncio.to_thread(context.pack, folder, file)
            name = f"{BUILT}:{digest[:32]}"
            if not await self._is_here(name):
                async with builds.alone(self._engine, name):
                    if not await self._is_here(name):
                        if not context.needs_buildkit(folder):
                            await self._pull_private_bases(folder)
                        await builds.build(self._engine, folder, file, name)
        return name

    async def _pull_private_bases(self, folder: Path) -> None:
        """Pull a Dockerfile's base images with this user's credentials, as the engine has none. BuildKit asks for
        credentials itself."""
        for base in await asyncio.to_thread(context.bases, folder):
            if await credentials(ImageName.parse(base).registry) and not await self._is_here(base):
                await self._pull(base)

    async def _import(self, tar: Path) -> str:
        name = f"{IMPORTED}:{(await asyncio.to_thread(_digest, tar))[:32]}"
        if not await self._is_here(name):
            repo, _, tag = name.partition(":")
            try:
                with tar.open("rb") as file:
                    await self._create({"fromSrc": "-", "repo": repo, "tag": tag}, data=_pieces(file))
            except DockerError as exc:
                raise SandboxError(f"{tar} cannot be imported: {_line(exc)}") from exc
        return name

    async def _pull(self, image: str) -> None:
        name = ImageName.parse(image)
        header = await credentials(name.registry)
        try:
            await self._create({"fromImage": str(name)}, headers={"X-Registry-Auth": header} if header else {})
        except DockerError as exc:
            raise SandboxError(
                f"image {image!r} is not on the engine at {self._engine.address} and cannot be pulled: {_line(exc)}; "
                "pull it by hand, or give a folder with a Dockerfile or a tar file"
            ) from exc

    async def _create(self, parameters: dict[str, str], **request: Any) -> None:
        """Make the engine pull or import an image, without a time limit. Raises DockerError."""
        query = self._docker._query("images/create", "POST", params=parameters, timeout=None, **request)
        async with query as response:
            async for line in response.content:
                if error := json.loads(line).get("error"):
                    raise DockerError(500, str(error))

    async def _is_here(self, name: str) -> bool:
        try:
            await self._docker.images.inspect(name)
        except DockerError as exc:
            if exc.status != 404:
                raise
            return False
        return True


def sowing(folder: str) -> list[str]:
    """A command that copies the stored content of the work folder into `folder`, and prints SOWN at its end."""
    return ["/bin/sh", "-c", f'cp -a -- {_SEED}/. "$1"/ && echo {SOWN}', "sh", folder]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _kind(image: str) -> tuple[Literal["folder", "tar"], Path]:
    """The kind of the file at a path, and the path without `~`."""
    path = Path(image).expanduser()
    if path.is_dir():
        return "folder", path
    if path.is_file() and path.name.endswith(_TARS):
        return "tar", path
    raise ConfigError(f"image {image!r} is neither a folder with a Dockerfile nor a file *.tar, *.tar.gz or *.tgz")


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, _PIECE):
        yield piece


def _line(exc: DockerError) -> str:
    return " ".join(exc.message.split())[-400:]
