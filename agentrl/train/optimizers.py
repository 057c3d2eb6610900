"""The optimizers by name. bitsandbytes is imported only if the chosen optimizer needs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from agentrl.errors import ConfigError
from agentrl.train.config import OptimizerName

_BETAS = (0.9, 0.95)
_SMALLEST_8BIT = 4096
"""The number of elements of a tensor from which bitsandbytes stores the moments in 8 bits."""
_MUON_MOMENTUM = 0.95


def make_adam(name: OptimizerName, parameters: Sequence[Tensor], rate: float) -> Optimizer:
    """AdamW without weight decay. Raises ConfigError if the optimizer needs bitsandbytes, and it is missing or does not
    work."""
    if name == "adamw":
        return AdamW(parameters, rate, _BETAS, weight_decay=0.0, fused=True)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as exc:
        raise ConfigError(f"optimizer: adamw_8bit needs bitsandbytes ({exc}): pip install 'agentrl-sdk[8bit]'") from exc
    _try_out(AdamW8bit, parameters[0].device)
    optimizer: Optimizer = AdamW8bit(parameters, rate, _BETAS, weight_decay=0.0)
    return optimizer


def _try_out(kind: Any, device: torch.device) -> None:
    """Try an optimizer step on a tensor before the run: only a step makes bitsandbytes report the limits of a
    device."""
    tensor = torch.zeros(_SMALLEST_8BIT, device=device)
    tensor.grad = torch.ones_like(tensor)
    try:
        kind([tensor], 1e-3).step()
    except Exception as exc:  # the boundary of bitsandbytes: a kernel that is not there raises anything
        words = " ".join(f"{type(exc).__name__}: {exc}".split())
        raise ConfigError(f"optimizer: adamw_8bit does not work on {device} ({words:.300}); use adamw") from exc


def make_muon(parameters: Sequence[Tensor], rate: float) -> Optimizer:
    """Muon (Keller Jordan, 2024) for matrices, without weight decay. Raises ConfigError if torch is older than 2.9."""
    if not hasattr(torch.optim, "Muon"):
        raise ConfigError(f"warm_start.optimizer: torch {torch.__version__} has no Muon; use adamw, or torch 2.9")
    slow = any(tensor.device.type == "cpu" for tensor in parameters) and not _bfloat16_is_fast()
    kind = _float32_muon() if slow else torch.optim.Muon
    return kind(parameters, lr=rate, momentum=_MUON_MOMENTUM, weight_decay=0.0, adjust_lr_fn="original")


def _bfloat16_is_fast() -> bool:
    """Whether this processor has instructions for bfloat16 matrices. Other processors take a slow loop."""
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(able.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16"))


@cache
def _float32_muon() -> type[torch.optim.Muon]:
    """torch's Muon with the Newton-Schulz steps in float32.

    torch runs these steps in bfloat16 on every device. On a processor without instructions for bfloat16 matrices that
    took three times as long: 3.1 ms instead of 0.9 ms for a matrix of 128 x 384. The class is created on demand,
    because older torch has no Muon.
    """

    class Float32Muon(torch.optim.Muon):
        @torch.no_grad()
        def step(self, closure: Callable[[], Any] | None = None) -> Any:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, parameter.grad, group)
            return loss

        def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(grad)
            momentum = state["momentum_buffer"].lerp_(grad, 1 - group["momentum"])
            update = grad.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
            update = orthogonal(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
            rows, columns = parameter.shape
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(update, alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))

    return Float32Muon


def orthogonal(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """The matrix with all singular values near 1, by Newton-Schulz steps (https://kellerjordan.github.io/posts/muon)."""
    a, b, c = coefficients
    wide = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    wide = wide / wide.norm().clamp(min=eps)
    for _ in range(steps):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if matrix.size(0) > matrix.size(1) else wide
