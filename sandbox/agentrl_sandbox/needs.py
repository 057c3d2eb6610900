"""The needs of sandboxes on a machine, in words: for `Env.needs`, printed by `agentrl check slime`."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

from agentrl_sandbox import machine
from agentrl_sandbox.spec import SandboxSpec

_SOCKET = "/var/run/docker.sock"


def needs(backend: str, spec: SandboxSpec, episodes: int, size: int | None = None) -> list[str]:
    """The requirements of a SandboxPool for this many parallel episodes, in words. `size` is the `size` of the pool."""
    sandboxes = min(episodes, size or episodes)
    both = sandboxes + max(1, (size or sandboxes) // 4)
    cores, memory_mb = machine.needed(spec, both)
    text = (
        f"for {episodes} episodes at a time {sandboxes} sandboxes, and {both - sandboxes} more to grade in, each of up "
        f"to {spec.total_cpus:g} cores and {spec.total_memory_mb} MiB: {cores} cores and "
        f"{math.ceil(memory_mb / 1024)} GiB"
    )
    if _runs_here(backend) and (here := machine.room(spec)) < both:
        text += f"; a machine like this one holds {here}, and the other episodes wait for one"
    return [*_programs(backend), text]


def _runs_here(backend: str) -> bool:
    """Whether the sandboxes run on this machine, as far as known without asking an engine."""
    remote = not (os.environ.get("DOCKER_HOST") or "unix://").startswith("unix://")
    if backend.startswith("docker:"):
        return "unix://" in backend
    return backend != "e2b" and not backend.startswith("hosted:") and not (backend in ("docker", "auto") and remote)


def _programs(backend: str) -> list[str]:
    engine = os.environ.get("DOCKER_HOST") or f"unix://{_SOCKET}"
    has_engine = _is_there(engine.removeprefix("unix://"))
    has_bwrap = shutil.which("bwrap") is not None
    docker = f"a container engine at {engine} (DOCKER_HOST names another){'' if has_engine else '; here is none'}"
    bubblewrap = f"the system packages bubblewrap and libseccomp2{'' if has_bwrap else '; here they are not installed'}"
    if backend.startswith("hosted:"):
        return [f"an account with the service of {backend.removeprefix('hosted:')}, and access to it"]
    if backend.startswith("docker:"):
        return [f"a container engine on each of {backend.removeprefix('docker:').replace(',', ', ')}"]
    return {
        "docker": [docker],
        "e2b": [f"a key in E2B_API_KEY, and access to the service at {os.environ.get('E2B_API_URL') or 'E2B_DOMAIN'}"],
        "bubblewrap": [bubblewrap],
        "auto": [f"{docker}, or else {bubblewrap}"],
        "local": ["nothing to run commands, as sandboxes of the back end local isolate nothing; for trusted code only"],
    }.get(backend, [f"what the sandbox back end {backend} needs"])


def _is_there(address: str) -> bool:
    """Whether the Unix socket of an address exists. An engine on a remote machine is assumed to exist."""
    return "://" in address or Path(address).is_socket()
