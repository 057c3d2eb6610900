"""Find the images of coding tasks, and the images that are missing on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentrl import ConfigError, Task
from agentrl._util.loading import load_object
from agentrl.errors import InfraError
from agentrl_envs.coding.problem import Problem, load_problem
from agentrl_sandbox.services import ServiceGroup
from agentrl_sandbox.spec import SandboxSpec

_SHOWN = 3
"""The most names of missing images in a line."""


def images_of(tasks: Iterable[Task], default: SandboxSpec) -> list[str]:
    """The images of the tasks, without repeats, in order. Blocks. An unreadable task is left out: the play reports the
    task."""
    images: dict[str, None] = {}
    for task in tasks:
        try:
            problem = load_problem(task)
        except (ConfigError, InfraError):
            continue
        images |= dict.fromkeys(_images(problem, default))
    return list(images)


async def missing_lines(backend: str, images: Sequence[str]) -> list[str]:
    """A line for each host that lacks images. None if the back end pulls no images."""
    if backend.partition(":")[0] not in ("docker", "auto") or not images:
        return []
    try:
        missing = await load_object("agentrl_sandbox.docker.backend:missing_images")(backend, images)
    except ConfigError:  # no client of Docker's is installed
        return []
    return [
        f"{len(lacking)} of {len(images)} images are missing on host {host} ({', '.join(lacking[:_SHOWN])}"
        f"{', ...' if len(lacking) > _SHOWN else ''}), and are fetched while episodes wait; to fetch them before, see "
        "docs/sandboxes.md, Images before they are needed"
        for host, lacking in missing.items()
        if lacking
    ]


def _images(problem: Problem, default: SandboxSpec) -> list[str]:
    sandboxes = [step.own for step in problem.steps if step.own is not None]
    groups = [
        ServiceGroup.model_validate(spec["services"])
        for spec in (problem.spec, *(sandbox.spec for sandbox in sandboxes))
        if spec.get("services")
    ]
    return [
        problem.image or str(problem.spec.get("image") or default.image),
        *(sandbox.image for sandbox in sandboxes if sandbox.image),
        *(image for group in groups for image in group.images),
    ]
