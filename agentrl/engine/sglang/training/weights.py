"""The files by which a server on this host gets the weights: whole models, or LoRA adapters."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl._util.memory import free_ram
from agentrl.errors import ConfigError
from agentrl.models import save_model
from agentrl.models.adapter import has_adapter
from agentrl.models.portable import rewrite_config, save_tokenizer
from agentrl.models.vision import Vision

_MEMORY = Path("/dev/shm")
_SPARE = 1.3
"""The free memory that must be available before weights are written to memory, as a multiple of the weights' size."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """The facts about a LoRA adapter that are needed before the server starts."""

    rank: int
    modules: tuple[str, ...]
    """The names of the linear layers that the adapter changes, such as q_proj."""

    @classmethod
    def of(cls, model: Any) -> Adapter | None:
        """Read the adapter of a model, which is then a peft model. Returns None for a model without an adapter.

        Raises ConfigError for an adapter on the image side: SGLang would ignore the image side, without an error.
        """
        if not has_adapter(model):
            return None
        changed = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
        if of_images := [name for name in changed if ".visual." in name]:
            raise ConfigError(
                f"the adapter changes {of_images[0]}, which reads pixels, and SGLang takes adapters of the language "
                "side alone: begin a new one with lora.rank, or use engine: local"
            )
        names = {name.rpartition(".")[2] for name in changed}
        return cls(int(model.peft_config[model.active_adapter].r), tuple(sorted(names)))


def save_whole(model: Any, tokenizer: Any, folder: Path, vision: Vision | None = None) -> None:
    """Write the whole model, without any adapter, in the type of the training. `vision` is the image side."""
    if not has_adapter(model):
        save_model(model, tokenizer, folder, vision)
        return
    base = model.get_base_model()
    state = {name.replace(".base_layer.", "."): value for name, value in base.state_dict().items()}
    base.save_pretrained(folder, state_dict={name: value for name, value in state.items() if ".lora_" not in name})
    rewrite_config(folder, Path(base.config.name_or_path or ""))
    save_tokenizer(tokenizer, folder)
    if vision is not None:
        vision.save(folder)


def size_of(model: Any) -> int:
    """The size of the parameters in bytes."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def scratch_folder(run: Path, size: int, *, in_memory: bool) -> Path:
    """A new folder for weights of `size` bytes. The folder is in memory if `in_memory` is set and the memory suffices,
    else in the run folder.

    Folders that killed runs have left in the run folder are removed. The run is locked against other processes.
    """
    for folder in run.glob(".weights-*"):
        shutil.rmtree(folder, ignore_errors=True)
    if in_memory and os.access(_MEMORY, os.W_OK) and _fits(_SPARE * size):
        return Path(tempfile.mkdtemp(prefix="agentrl-weights-", dir=_MEMORY))
    run.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=".weights-", dir=run))


def _fits(size: float) -> bool:
    """Whether `size` bytes fit into /dev/shm, by the limit of /dev/shm and by the machine's free memory."""
    return min(shutil.disk_usage(_MEMORY).free, free_ram()) > size
