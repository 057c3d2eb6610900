"""LoRA by peft: small matrices of the weights' type are added to the frozen weights of a model. The optimizer has
float32 copies of these matrices; see Learner."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentrl.errors import ConfigError
from agentrl.models.adapter import ACTIVE, has_adapter, import_peft, load_adapter, quiet_peft
from agentrl.models.folder import reads_images
from agentrl.models.hub import SEEDED
from agentrl.train.config import LoRAConfig

_REFERENCE = "reference"
_IMAGE_SIDE = r"(.*\.)?visual\..*"
"""The names of the modules that read pixels, in the models of Qwen-VL's family. LoRA leaves these modules unchanged:
servers of adapters support only the language side."""


def attach(model: Any, config: LoRAConfig | None, *, base: str, seed: int) -> Any:
    """The model to train: `model` itself without `lora`, else a peft model.

    An adapter that was loaded with the model is trained further. A new adapter does not change the outputs yet; `seed`
    decides its first matrices, and `base` is the name of the model without the adapter. Raises ConfigError.
    """
    if has_adapter(model):
        _check_same(model.peft_config[ACTIVE], config, base)
        return model
    return model if config is None else _add(model, config, base=base, seed=seed)


def name_of_base(stored: Path, model: str, source: str) -> str:
    """The name of an adapter's base model: the whole path of a folder, or a name on the Hugging Face Hub.

    tiny and tiny-vl have random weights, so a run stores these models in the folder `stored`.
    """
    if model in SEEDED:
        return str(stored.absolute())
    return str(Path(source).absolute()) if Path(source).is_dir() else source


def _add(model: Any, config: LoRAConfig, *, base: str, seed: int) -> Any:
    peft = import_peft()
    targets, excluded = config.targets, None
    if reads_images(model):
        targets, excluded = _of_language(model) if targets == "all-linear" else targets, _IMAGE_SIDE
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=targets,
        exclude_modules=excluded,
        task_type="CAUSAL_LM",
    )
    outer = [model.get_input_embeddings(), model.get_output_embeddings()]
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(seed)
        try:
            with quiet_peft():
                adapted = peft.get_peft_model(model, settings, autocast_adapter_dtype=False)
        except ValueError as exc:
            raise ConfigError(f"lora.targets: {' '.join(str(exc).split()):.300}") from exc
    if [model.get_input_embeddings(), model.get_output_embeddings()] != outer:
        raise ConfigError("lora.targets: embeddings and head are not adapted; name other layers, or all-linear")
    adapted.peft_config[ACTIVE].base_model_name_or_path = base
    return adapted


def _of_language(model: Any) -> list[str]:
    """The names of the linear layers, such as q_proj, in the language side of a model that reads images."""
    named, head = model.named_modules(), model.get_output_embeddings()
    linear = [name for name, module in named if isinstance(module, torch.nn.Linear) and module is not head]
    return sorted({name.rpartition(".")[2] for name in linear if not re.fullmatch(_IMAGE_SIDE, name)})


def _check_same(of_folder: Any, config: LoRAConfig | None, base: str) -> None:
    described = f"lora.rank={of_folder.r} and lora.alpha={of_folder.lora_alpha:g}"
    if config is None:
        raise ConfigError(
            f"{base} is a LoRA adapter: train it further with {described}, or train all weights after agentrl merge"
        )
    if (config.rank, config.alpha) != (of_folder.r, of_folder.lora_alpha):
        raise ConfigError(f"lora: {base} is an adapter with {described}; give these, or merge it first: agentrl merge")


def changes_nothing(model: Any) -> bool:
    """Whether a model is a peft model with a new adapter. The outputs are then the outputs of the base model."""
    if not has_adapter(model):
        return False
    second = [parameter for name, parameter in model.named_parameters() if f".lora_B.{ACTIVE}." in name]
    return not any(bool(parameter.any()) for parameter in second)


@dataclass(frozen=True, slots=True)
class AdapterReference:
    """The reference of KL without a second copy of the weights: the base model, or a second, frozen adapter of the
    model in training."""

    model: Any
    adapter: str | None = None
    """The name of the reference adapter. None: the reference is the base model."""

    @classmethod
    def load(cls, model: Any, folder: Path) -> AdapterReference:
        """The reference of a run. The reference adapter is in `folder`; without such a folder, the reference is the
        base model."""
        if not folder.exists():
            return cls(model)
        load_adapter(model, folder, _REFERENCE)
        return cls(model, _REFERENCE)

    @contextmanager
    def active(self) -> Iterator[Any]:
        """While the context is open, the model computes as the reference does. The gradients of the trained adapter
        stay."""
        if self.adapter is None:
            with self.model.disable_adapter():
                yield self.model
            return
        self.model.set_adapter(self.adapter, inference_mode=True)
        try:
            yield self.model
        finally:
            self.model.set_adapter(ACTIVE)
