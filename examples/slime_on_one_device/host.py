"""The rollout part of slime, without Ray: its RolloutManager, data source, conversion and data-parallel split.

slime is not on PyPI: SLIME_SRC names the root of its source, which is used unchanged. Stand-ins replace sglang and
wandb, which `slime.ray.rollout` imports and a rollout does not use, and Ray's object store, whose `put` here returns
its argument.
"""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import device
import yaml

FLAGS = Path(__file__).with_name("flags.yaml")

_STAND_INS: Mapping[str, Mapping[str, Any]] = {
    "wandb": {"log": None},
    "sglang": {"__path__": []},
    "sglang.srt": {"__path__": []},
    "sglang.srt.constants": {f"GPU_MEMORY_TYPE_{kind}": kind.lower() for kind in ("CUDA_GRAPH", "KV_CACHE", "WEIGHTS")},
    "sglang.srt.server_args": {"ServerArgs": object},
    "sglang.srt.utils": {"kill_process_tree": None},
}


def load_slime(source: str) -> SimpleNamespace:
    """slime's modules by short names, on the run's device."""
    sys.path.insert(0, source)
    device.register()
    rollout = importlib.import_module("slime.rollout.sglang_rollout")
    for name, values in _STAND_INS.items():  # only now: transformers looks around for wandb while it is imported
        vars(sys.modules.setdefault(name, ModuleType(name))).update(values)
    manager = importlib.import_module("slime.ray.rollout")
    manager.ray = SimpleNamespace(put=lambda data: data, get=lambda data: data)
    return SimpleNamespace(
        rollout=rollout,
        manager=manager.RolloutManager.__ray_metadata__.modified_class,
        data_source=importlib.import_module("slime.rollout.data_source").RolloutDataSourceWithBuffer,
        eval_config=importlib.import_module("slime.utils.eval_config").EvalDatasetConfig,
        http=importlib.import_module("slime.utils.http_utils"),
        loss=importlib.import_module("slime.backends.megatron_utils.loss"),
        data=importlib.import_module("slime.backends.megatron_utils.data"),
        save_samples=importlib.import_module("slime.observability.rollout_data_utils").save_debug_rollout_data,
        Box=importlib.import_module("slime.utils.misc").Box,
        reduce_metrics=importlib.import_module("slime.observability.train_metric_utils").reduce_train_step_metrics,
    )


def slime_args(**own: Any) -> Namespace:
    """slime's `args`: the flags in `flags.yaml`, and the values that this run sets."""
    return Namespace(**{**yaml.safe_load(FLAGS.read_text(encoding="utf-8")), **own})


def rollout_args(
    slime: SimpleNamespace, *, url: str, model: Path, data: Path, env: str, reward: str | None, **own: Any
) -> Namespace:
    """The flags of slime's command line: checkpoint, data, router and agentrl's own configuration."""
    host, _, port = url.removeprefix("http://").partition(":")
    held_out = slime.eval_config(name="held_out", path=str(data / "held_out.jsonl"), **_GREEDY)
    return slime_args(
        hf_checkpoint=str(model),
        prompt_data=str(data / "train.jsonl"),
        eval_datasets=[held_out],
        sglang_router_ip=host,
        sglang_router_port=int(port),
        agentrl={"env": env, "reward": reward, "limits": {"turns": 4, "max_tokens_per_turn": 48}},
        **own,
    )


_GREEDY: Mapping[str, Any] = {
    "input_key": "prompt",
    "label_key": "label",
    "metadata_key": "metadata",
    "n_samples_per_eval_prompt": 1,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": -1,
    "max_response_len": 300,
}


class Host:
    """slime's RolloutManager, outside of a Ray actor and without its servers."""

    def __init__(self, slime: SimpleNamespace, args: Namespace, data_parallel: int) -> None:
        self.slime, self.args = slime, args
        slime.http.init_http_client(args)
        self.reward = 0.0
        self.weight_versions: list[str] = []
        self.manager = manager = object.__new__(slime.manager)
        manager.args = args
        manager.data_source = slime.data_source(args)
        manager.generate_rollout = slime.rollout.generate_rollout
        manager.custom_reward_post_process_func = manager.custom_convert_samples_to_train_data_func = None
        layout = {"dp_size": data_parallel, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
        manager.set_train_parallel_config(layout)

    def generate(self, rollout_id: int) -> list[dict[str, Any]]:
        """Roll out, and return the share of each data-parallel rank, as `RolloutManager.generate` does without its
        logging."""
        samples, _ = self.manager._get_rollout_data(rollout_id)
        self.slime.save_samples(self.args.save_debug_rollout_data, samples, rollout_id=rollout_id, evaluation=False)
        self.reward = sum(sample.reward for sample in samples) / len(samples)
        self.weight_versions = sorted({version for sample in samples for version in sample.weight_versions})
        data = self.manager._convert_samples_to_train_data(samples)
        return [box.inner for box in self.manager._split_train_data_by_dp(data)]

    def evaluate(self, rollout_id: int) -> list[float]:
        """The rewards of the held-out tasks, which are played greedily."""
        output = self.slime.rollout.generate_rollout(self.args, rollout_id, self.manager.data_source, evaluation=True)
        return list(output.data["held_out"]["rewards"])
