"""The weights of a run: the trained model, the reference of KL, and the random base of an adapter."""

from __future__ import annotations

from typing import Any

from agentrl.models import SEEDED, load_model, save_model
from agentrl.train.config import TrainConfig
from agentrl.train.engine_choice import device_of
from agentrl.train.learner import Learner
from agentrl.train.lora import AdapterReference
from agentrl.train.run_folder import RunFolder


def load_weights(config: TrainConfig, source: str) -> Any:
    """The model in a folder, on the run's device and in the run's type."""
    model = load_model(source, device=device_of(config.device), dtype=config.dtype, seed=config.seed)
    for parameter in model.parameters():
        # Weights mapped from a file are not aligned in memory, and BLAS then sums in another order. A resumed run
        # would differ from an uninterrupted one in the last bits.
        parameter.data = parameter.data.clone()
    return model


def load_reference(config: TrainConfig, learner: Learner, folder: RunFolder) -> None:
    """Give the learner the reference of KL from the run folder."""
    if config.lora is None:
        learner.reference = load_weights(config, str(folder.reference))
    else:
        learner.reference = AdapterReference.load(learner.model, folder.reference)


def save_random_base(config: TrainConfig, learner: Learner, tokenizer: Any, folder: RunFolder) -> None:
    """Save the random model that an adapter was trained on: no other place has the model."""
    if config.lora is not None and config.model in SEEDED and not folder.base.exists():
        base = load_model(config.model, seed=config.seed)
        folder.save_model(folder.base, 0, lambda path: save_model(base, tokenizer, path, learner.vision))
