"""slime's own trainer instead of `trainer.Trainer`: its arguments, model provider, optimiser, schedule and actor.

    pip install --no-deps --target FOLDER miles-rl==0.0.2     # brings megatron.training; README.md names its needs
    PYTHONPATH=FOLDER SLIME_SRC=... python examples/slime_on_one_device/run.py --slime-train ...

This code of slime runs unchanged: `parse_args` (utils/arguments.py), `setup_model_and_optimizer` with its model
provider and Megatron's `get_model` (backends/megatron_utils/model.py), `MegatronTrainRayActor.train` (actor.py), and
below it `forward_only` and `train`. The actor's `init` does not run, as it needs numpy 1, a GPU's index from Ray and a
checkpoint in Megatron's format. The attributes that `init` sets on the actor are set here instead.
"""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import device
import torch
from megatron.core import mpu
from megatron_model import bare, to_megatron
from trainer import Trainer, parity

# Stand-ins for imports of slime's own engines and of weight transfers that are not used here.
_STAND_INS: Mapping[str, Mapping[str, Any]] = {
    "torch_memory_saver": {"torch_memory_saver": None},
    "zstandard": {},
    "sglang.srt.utils": {"__path__": [], "MultiprocessingSerializer": None},
    "sglang.srt.utils.patch_torch": {"monkey_patch_torch_reductions": None},
    "sglang.srt.weight_sync": {"__path__": []},
    "sglang.srt.weight_sync.tensor_bucket": {"FlattenedTensorBucket": None},
    "sglang_router": {"__path__": []},
    "sglang_router.launch_router": {"RouterArgs": object},
}


class SlimeTrainer(Trainer):
    """Trains with slime's MegatronTrainRayActor, including slime's model and optimiser."""

    def __init__(self, slime: SimpleNamespace, flags: Mapping[str, Any], hf_model: Any) -> None:
        for name, values in _STAND_INS.items():
            vars(sys.modules.setdefault(name, ModuleType(name))).update(values)
        self.slime, self.hf = slime, hf_model.config
        self.args = args = parse_args(flags, self.hf)
        args.params_dtype = hf_model.dtype
        args.bf16 = hf_model.dtype == torch.bfloat16  # slime sets it, whatever the model
        importlib.import_module("slime.utils.data").ray = SimpleNamespace(get=lambda data: data)
        importlib.import_module("megatron.training.global_vars").set_args(args)
        setup = importlib.import_module("slime.backends.megatron_utils.model").setup_model_and_optimizer
        with device.training(), device.building():
            (self.model,), self.optimizer, scheduler = setup(args)
            bare(self.model).load_state_dict(to_megatron(hf_model.state_dict(), self.hf), strict=False)
            self.optimizer.reload_model_params()
        self.timer = importlib.import_module("slime.observability.timer").Timer()
        self.compared: dict[str, Any] = {}
        self.rollouts = 0
        self.logged: list[dict[str, Any]] = []
        sys.modules["wandb"].log = self.logged.append  # type: ignore[attr-defined]
        args.use_wandb = True
        actor = importlib.import_module("slime.backends.megatron_utils.actor").MegatronTrainRayActor
        self.actor = object.__new__(actor)
        vars(self.actor).update(
            args=args,
            role="actor",
            model=[self.model],
            optimizer=self.optimizer,
            opt_param_scheduler=scheduler,
            weights_backuper=SimpleNamespace(backup_tags=["actor"], restore=_nothing, backup=_nothing),
            _active_model_tag="actor",
            prof=SimpleNamespace(step=_nothing),
            rollout_data_postprocess=self._compare,
            weight_updater=SimpleNamespace(pop_metrics=dict),
        )

    def train(self, share: dict[str, Any]) -> dict[str, Any]:
        rank, world = mpu.get_data_parallel_rank(), mpu.get_data_parallel_world_size()
        box = self.slime.Box(share)
        self.timer.start("train_wait")
        self.logged.clear()
        with device.training():
            self.actor.train(self.rollouts, [box if other == rank else None for other in range(world)])
        self.timer.end("train_wait")
        self.rollouts += 1
        steps = [entry for entry in self.logged if "train/loss" in entry]  # of the first rank only
        names = {"loss": "train/loss", "clipped": "train/pg_clipfrac", "grad_norm": "train/grad_norm"}
        return {**self.compared, **{ours: [float(step[theirs]) for step in steps] for ours, theirs in names.items()}}

    def _compare(self, args: Namespace, rollout_id: int, data: dict[str, Any]) -> None:
        """slime's hook between advantages and training. Computes the log-probs if slime does not, as for a single
        update."""
        self.compared = parity(data if "log_probs" in data else {**data, **self.log_probs(data)})


def _nothing(*_: Any, **__: Any) -> None:
    """Replaces functions that manage a GPU's memory."""


def parse_args(flags: Mapping[str, Any], hf: Any) -> Namespace:
    """Parse a command line like that of a launch script, with the parsers and checks of slime and Megatron."""
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    named |= {
        "num-layers": hf.num_hidden_layers,
        "hidden-size": hf.hidden_size,
        "ffn-hidden-size": hf.intermediate_size,
        "num-attention-heads": hf.num_attention_heads,
        "num-query-groups": hf.num_key_value_heads,
        "vocab-size": hf.vocab_size,
        "load": flags["hf_checkpoint"],  # only that there is one is looked at
        "actor-num-nodes": 1,
        "max-tokens-per-gpu": 2048,
        "rollout-max-response-len": 300,
        "advantage-estimator": "grpo",
        "eps-clip-high": 0.28,
        "normalization": "RMSNorm",
        "norm-epsilon": hf.rms_norm_eps,
        "rotary-base": int(hf.rope_parameters["rope_theta"]),
        "position-embedding-type": "rope",
        "seq-length": 1024,
        "make-vocab-size-divisible-by": 1,  # Megatron's padding rows would count in the trainer's softmax only
        "transformer-impl": "local",
        "attention-backend": "unfused",
        "attention-dropout": 0.0,
        "hidden-dropout": 0.0,
        "adam-beta2": 0.95,
        "weight-decay": 0.0,
        "lr-decay-style": "constant",
    }
    switches = "debug-train-only group-query-attention swiglu disable-bias-linear use-dynamic-batch-size"
    switches += " use-cpu-initialization no-persist-layer-norm no-rope-fusion no-gradient-accumulation-fusion"
    switches += " no-bias-swiglu-fusion no-bias-dropout-fusion no-masked-softmax-fusion"
    switches += " accumulate-allreduce-grads-in-fp32"
    switches += " add-qkv-bias" if hf.model_type == "qwen2" else ""
    switches += "" if hf.tie_word_embeddings else " untie-embeddings-and-output-weights"
    line = ["run.py", *(f"--{name}" for name in switches.split()), "--spec", "megatron_model", "packed_layers"]
    line += [part for name, value in named.items() for part in (f"--{name}", str(value))]
    with mock.patch.object(sys, "argv", line):
        return importlib.import_module("slime.utils.arguments").parse_args()
