"""What slime and Megatron need to take a CPU for their GPUs, and events from slime's own functions.

`SITE` comes first on PYTHONPATH of every process of a rehearsal: the driver, Ray's workers, and the engines that slime
starts. Python imports its `sitecustomize.py` at the start of each process. That module installs the hooks of
`accelerator`, `torch_cuda`, `megatron`, `network` and `stages`, if `AGENTRL_REHEARSAL` names the rehearsal's folder.
`ENGINE` comes next, unless the real SGLang is installed. Nothing of slime, Megatron, Ray or SGLang is edited.
"""

from __future__ import annotations

from pathlib import Path

SITE = Path(__file__).parent / "site"
"""`sitecustomize.py`, and `torch_memory_saver`, whose real package needs CUDA."""
ENGINE = Path(__file__).parent / "engine"
"""`sglang`: the names that slime imports, and agentrl's LocalEngine behind SGLang's endpoints."""
