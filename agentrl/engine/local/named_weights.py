"""A model's weights by name, and the checks of new values: for a whole state dict, or for a part of a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from agentrl.errors import EngineError, RequestError

_GATE_UP, _DOWN = ".experts.gate_up_proj", ".experts.down_proj"
"""The ends of the names of tensors that hold all experts of a layer. A checkpoint has a tensor for each expert."""


class NamedWeights:
    """The weights of a model by the names of its checkpoint.

    A trainer sends a checkpoint in several requests of the same version. So values of tied tensors, such as the
    embeddings and the output layer, may arrive in different requests.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._sent: dict[int, tuple[str | None, set[str]]] = {}
        """Address of a tied tensor -> the version of its value, and the names under which the value was sent."""

    def parameters(self) -> dict[str, torch.Tensor]:
        """The model's own tensors, by name, or by a name for each expert. Tied parameters appear once."""
        return _by_part({name: parameter.detach() for name, parameter in self._model.named_parameters()})

    def copy(self, weights: Mapping[str, torch.Tensor], version: str | None) -> set[str]:
        """Copy `weights` into the model, and return the names by which `parameters` has them.

        Raises RequestError, without any change, if a name is unknown, a shape or a type is wrong, or if a value differs
        from the value of a tied tensor in `weights` or in an earlier request of the same version.
        """
        state = self._model.state_dict()
        tensors = _by_part(state)
        if strange := [name for name in weights if name not in tensors]:
            raise RequestError(f"weights for {strange[0]} ({len(strange)} such): the model has no such tensor")
        for name, weight in weights.items():
            _check_value(name, weight, tensors[name])
        for names in _tied(state):
            self._check_tied([name for name in names if name in weights], weights, state, version)
        for name, weight in weights.items():
            tensors[name].copy_(weight)
        self._remember(weights, state, version)
        addresses = {tensors[name].data_ptr() for name in weights}
        return {name for name, tensor in self.parameters().items() if tensor.data_ptr() in addresses}

    def _check_tied(
        self,
        names: Sequence[str],
        weights: Mapping[str, torch.Tensor],
        state: Mapping[str, torch.Tensor],
        version: str | None,
    ) -> None:
        """`names` are those names of a tied tensor that have a new value."""
        for name in names:
            _check_same(names[0], name, weights[names[0]], weights[name])
            tensor = state[name]
            earlier_version, earlier_names = self._sent.get(tensor.data_ptr(), (None, set[str]()))
            if version is not None and version == earlier_version and name not in earlier_names:
                _check_same(min(earlier_names), name, tensor, weights[name].to(tensor))

    def _remember(self, names: Collection[str], state: Mapping[str, torch.Tensor], version: str | None) -> None:
        for tied in _tied(state):
            if new := {name for name in tied if name in names}:
                address = state[tied[0]].data_ptr()
                earlier_version, earlier_names = self._sent.get(address, (None, set[str]()))
                again = earlier_version != version or bool(new & earlier_names)
                self._sent[address] = version, new if again else new | earlier_names


def check_whole(weights: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises EngineError unless `weights` has a value for each of the model's tensors, and no further values. A value
    under a single name is enough for tied tensors."""
    if strange := [name for name in weights if name not in tensors]:
        raise EngineError(f"weights for {strange[0]} ({len(strange)} such): the model has no such tensor")
    names_of: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names_of.setdefault(tensor.data_ptr(), []).append(name)
    for tied in names_of.values():
        names = [name for name in tied if name in weights]
        if not names:
            shape = tuple(tensors[tied[0]].shape)
            raise EngineError(f"weights for {tied[0]}: found nothing, the model has shape {shape}")
        for name in names:
            _check_shape(name, weights[name], tensors[name])
        for name in names[1:]:
            _check_same(names[0], name, weights[names[0]], weights[name])


def _check_value(name: str, weight: torch.Tensor, tensor: torch.Tensor) -> None:
    _check_shape(name, weight, tensor)
    plain = weight.is_floating_point() and weight.dtype.itemsize > 1
    if tensor.is_floating_point() and not plain:
        raise RequestError(
            f"weights for {name}: the type {weight.dtype} is that of quantised weights; "
            "let the trainer send bfloat16, float16 or float32"
        )


def _check_shape(name: str, weight: torch.Tensor, tensor: torch.Tensor) -> None:
    if weight.shape != tensor.shape:
        raise RequestError(
            f"weights for {name}: found shape {tuple(weight.shape)}, the model has shape {tuple(tensor.shape)}"
        )


def _check_same(first: str, name: str, value_of_first: torch.Tensor, value: torch.Tensor) -> None:
    if not torch.equal(value_of_first, value):
        raise RequestError(f"weights for {name} and {first} differ, and this model ties them: load an untied model")


def _tied(state: Mapping[str, torch.Tensor]) -> Iterator[list[str]]:
    """The names of each tensor that has several names."""
    names_of: dict[int, list[str]] = {}
    for name, tensor in state.items():
        if tensor.numel():
            names_of.setdefault(tensor.data_ptr(), []).append(name)
    yield from (names for names in names_of.values() if len(names) > 1)


def _by_part(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of `state`, with a view for each expert in place of a tensor that holds all experts."""
    return {name: view for whole, tensor in state.items() for name, view in _experts(whole, tensor)}


def _experts(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if tensor.dim() != 3 or not name.endswith((_GATE_UP, _DOWN)):
        yield name, tensor
        return
    layer = name.rpartition(".")[0]
    for expert, weights in enumerate(tensor):
        if name.endswith(_DOWN):
            yield f"{layer}.{expert}.down_proj.weight", weights
        else:
            gate, up = weights.chunk(2)
            yield f"{layer}.{expert}.gate_proj.weight", gate
            yield f"{layer}.{expert}.up_proj.weight", up
