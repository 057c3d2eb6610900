"""All hooks of a rehearsal."""

from __future__ import annotations

from agentrl.rehearse.standins import accelerator, imports, megatron, network, probes, stages, torch_cuda, unused

MODULES = (accelerator, megatron, network, probes, stages, torch_cuda, unused)
"""Each of these modules registers its hooks when it is imported."""


def install() -> None:
    """Activate the hooks in this process, for modules that are imported from now on."""
    imports.install()
    probes.watch_warnings()
