"""The weights of a run: the trained model and its learner, the reference of KL, and the random base model of an
adapter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

from agentrl.models import SEEDED, load_model, load_tokenizer, save_model
from agentrl.models.device import device_of
from agentrl.models.vision import vision_of
from agentrl.train import lora
from agentrl.train.config import TrainConfig
from agentrl.train.learner import Learner
from agentrl.train.lora import AdapterReference
from agentrl.train.memory_advice import memory_lines
from agentrl.train.run_folder import RunFolder, weights_of


def load_weights(config: TrainConfig, source: str) -> Any:
    """The model in a folder, on the run's device and in the run's type."""
    model = load_model(source, device=device_of(config.device), dtype=config.dtype, seed=config.seed)
    for parameter in model.parameters():
        # Weights mapped from a file are not aligned in memory, and BLAS then sums in another order. A resumed run
        # would differ from an uninterrupted one in the last bits.
        parameter.data = parameter.data.clone()
    return model


def load_learner(
    config: TrainConfig, checkpoint: Path | None, base: Path, say: Callable[[str], None]
) -> tuple[Any, Learner]:
    """The tokenizer, and a learner whose weights are those of a checkpoint, or of the model that the configuration
    names."""
    disable_progress_bar()  # transformers' own bars at each load and save would disturb ours
    source = str(checkpoint) if checkpoint else weights_of(config.model)
    tokenizer = load_tokenizer(source)
    for line in memory_lines(config, source, device_of(config.device)):
        say(line)
    base_name = lora.name_of_base(base, config.model, source)
    model = lora.attach(load_weights(config, source), config.lora, base=base_name, seed=config.seed)
    return tokenizer, Learner(model, config, vision_of(model, source))


def load_reference(config: TrainConfig, learner: Learner, folder: RunFolder) -> None:
    """Load the reference of KL from the run folder into the learner."""
    if config.lora is None:
        learner.reference = load_weights(config, str(folder.reference))
    else:
        learner.reference = AdapterReference.load(learner.model, folder.reference)


def save_random_base(config: TrainConfig, learner: Learner, tokenizer: Any, folder: RunFolder) -> None:
    """Save the random model that an adapter is trained on: no other place has this model."""
    if config.lora is not None and config.model in SEEDED and not folder.base.exists():
        base = load_model(config.model, seed=config.seed)
        folder.save_model(folder.base, 0, lambda path: save_model(base, tokenizer, path, learner.vision))
