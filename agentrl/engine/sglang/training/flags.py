"""The command line of a server that a trainer starts, and the server's environment variables."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from agentrl.engine.sglang.training.weights import Adapter
from agentrl.errors import ConfigError

_CPU = shlex.split(
    "--device cpu --attention-backend torch_native --disable-cuda-graph --disable-overlap-schedule "
    "--skip-server-warmup --sleep-on-idle --grammar-backend xgrammar --mem-fraction-static 0.8 --max-total-tokens 16384"
)
"""Flags for a server on a CPU. The memory fraction applies to the machine's free memory, which other programs share.
The number of tokens is an upper bound. Without sleep-on-idle, the scheduler would occupy a core that the trainer
needs."""
_FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Environment variables that would show the packages of this interpreter to a different interpreter."""
IMAGE_CACHE = "SGLANG_VLM_CACHE_SIZE_MB"
"""The name of the environment variable for the size of SGLang's cache of image features. The cache survives an update
of the weights, so features of a known image would come from old weights. The size 0 turns the cache off."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The settings that determine a server's command line."""

    python: str
    model: Path
    """The folder with the weights before training, and the tokenizer."""
    name: str
    """The unique name of the model on the server."""
    dtype: str
    device: str
    adapter: Adapter | None
    sleeps: bool
    memory: float | None
    """The share of the device's free memory that the server takes for weights, keys and values. None: SGLang
    decides."""
    args: Sequence[str] = ()

    def command(self, port: int) -> list[str]:
        """The command line. The flags of the user come last, so that these flags override the other flags."""
        command = [self.python, "-m", "sglang.launch_server", "--model-path", str(self.model)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", self.name]
        command += ["--dtype", self.dtype]
        if self.device == "cpu":
            command += _CPU
        elif self.memory is not None:
            command += ["--mem-fraction-static", f"{self.memory:.3f}"]
        if self.sleeps and self.device != "cpu":  # on a CPU the endpoints answer without the flag, and free no memory
            command.append("--enable-memory-saver")
            if self.adapter is not None:  # the base model is never sent again
                command.append("--enable-weights-cpu-backup")
        if self.adapter is not None:
            command += ["--enable-lora", "--max-lora-rank", str(self.adapter.rank)]
            command += ["--max-loras-per-batch", "2", "--max-loaded-loras", "3"]
            command += ["--lora-backend", "torch_native"] if self.device == "cpu" else []
            command += ["--lora-target-modules", *self.adapter.modules]
        return [*command, *self.args]


def read_args(args: str | Sequence[str]) -> tuple[str, ...]:
    """The flags of the user, from a string or a list. Raises ConfigError."""
    if isinstance(args, str):
        return tuple(shlex.split(args))
    if not isinstance(args, Sequence) or not all(isinstance(arg, str | int | float) for arg in args):
        raise ConfigError(f"engine_config.args is {args!r}; write SGLang's flags as one string, or as a list of words")
    return tuple(map(str, args))


def fixed_port(args: Sequence[str]) -> int | None:
    """The port in the flags of the user. None without such a flag."""
    for flag, value in pairwise([*args, ""]):
        name, equals, after = flag.partition("=")
        if name == "--port":
            text = after if equals else value
            if not text.isdecimal():
                raise ConfigError(
                    f"engine_config.args: --port {text or 'without a number'}; leave it out, or write a number"
                )
            return int(text)
    return None


def variables(python: str, device: str, *, image_side: bool = False) -> Mapping[str, str]:
    """The environment variables of the server: those of this process, except variables that concern this interpreter
    alone. `image_side`: the weights that read pixels are trained."""
    environment = dict(os.environ)
    if python != sys.executable:
        for name in _FOREIGN:
            environment.pop(name, None)
    if image_side:
        environment[IMAGE_CACHE] = "0"
    if device == "cpu":
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
        # Trainer and server take turns, but on shared machines spinning threads cost more than they gain.
        environment.setdefault("OMP_NUM_THREADS", "1")
        environment.setdefault("OMP_WAIT_POLICY", "passive")
    return environment
