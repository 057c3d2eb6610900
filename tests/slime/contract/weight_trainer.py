"""slime's own code that sends weights, as a program: its updaters, its process groups, and its client of an engine.

    weight_trainer.py URL FOLDER

The weights of FOLDER are sent over a process group and then, plus 1, as tensors. Ray's calls run in threads, and
Megatron has a single rank; both are stood in for. The rest is slime's.
"""

from __future__ import annotations

import importlib
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
from safetensors.torch import load_file

from tests.doubles import sglang_package

SOURCE = os.environ["SLIME_SRC"]
STOOD_IN = ("megatron", "ray", "sglang", "torch_memory_saver", "tqdm", "httpx")


class Mocks(ModuleType):
    """A module whose every name is a mock."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, mock := MagicMock(name=name))
        return mock


class StandIns(MetaPathFinder, Loader):
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in STOOD_IN else None

    def create_module(self, spec):
        return Mocks(spec.name)

    def exec_module(self, module):
        pass


@dataclass
class ServerArgs:
    host: str = ""
    port: int = 0
    node_rank: int = 0
    enable_memory_saver: bool = False


class Actor:
    """An object whose methods run in threads, called as those of Ray's actors."""

    def __init__(self, target):
        self._target, self._threads = target, ThreadPoolExecutor(4)

    def __getattr__(self, name):
        method = getattr(self._target, name)
        return SimpleNamespace(remote=lambda *args, **kwargs: self._threads.submit(method, *args, **kwargs))


def get(refs):
    return refs.result(60) if isinstance(refs, Future) else [ref.result(60) for ref in refs]


def slimes(module):
    return importlib.import_module(f"slime.{module}")


def stand_in():
    sys.meta_path.insert(0, StandIns())
    sys.path.insert(0, SOURCE)
    import ray
    from megatron.core import mpu

    server_args, utils, tensor_bucket = (
        importlib.import_module(f"sglang.srt.{name}") for name in ("server_args", "utils", "weight_sync.tensor_bucket")
    )
    ray.get = get
    ray._private = SimpleNamespace(services=SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1"))
    for name in ("data_parallel", "tensor_model_parallel", "pipeline_model_parallel"):
        setattr(mpu, f"get_{name}_rank", lambda **_: 0)
    server_args.ServerArgs = ServerArgs
    utils.MultiprocessingSerializer = sglang_package.MultiprocessingSerializer
    tensor_bucket.FlattenedTensorBucket = sglang_package.FlattenedTensorBucket
    package = sys.modules["slime.backends.megatron_utils"] = ModuleType("slime.backends.megatron_utils")
    package.__path__ = [f"{SOURCE}/slime/backends/megatron_utils"]  # without the patches of Megatron in __init__


def engine_of(url):
    """slime's client of an engine that it did not start, after slime's check of the server's arguments."""
    host, _, port = url.removeprefix("http://").partition(":")
    args = SimpleNamespace(
        **dict.fromkeys(("colocate", "debug_rollout_only", "fp16", "use_rollout_routing_replay"), False),
        **{f"sglang_{kind}_size": 1 for kind in ("pp", "dp", "ep")},
        rollout_external=True,
        rollout_num_gpus_per_engine=1,
        num_gpus_per_node=1,
        actor_num_gpus_per_node=1,
        actor_num_nodes=1,
        hf_checkpoint="tiny",
        seed=0,
        offload_rollout="--offload" in sys.argv,
        sglang_router_ip=None,
        sglang_router_port=None,
    )
    engine = slimes("backends.sglang_utils.sglang_engine").SGLangEngine(args, rank=0)
    engine.init(f"{host}:{port}", int(port), None, host=host)
    return engine


def main(url, folder):
    stand_in()
    accelerator = slimes("utils.accelerator")
    accelerator.weight_update_backend = lambda: "gloo"
    accelerator.current_device = lambda: torch.device("cpu")
    accelerator.resolve_visible_device_id = lambda device: device
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    slimes("utils.distributed_utils").set_gloo_group(dist.group.WORLD)
    engine = engine_of(url)
    actor, lock = Actor(engine), Actor(SimpleNamespace(acquire=lambda: True, release=lambda: None))
    weights = list(load_file(f"{folder}/model.safetensors").items())
    distributed(actor, lock, weights)
    assert engine.get_weight_version() == "1"
    memory(engine)
    tensors(actor, [(name, value + 1) for name, value in weights])
    engine.resume_memory_occupation(["kv_cache", "cuda_graph"])
    assert engine.get_weight_version() == "2"
    checks(engine)


def distributed(actor, lock, weights):
    updates = slimes("backends.megatron_utils.update_weight.update_weight_from_distributed")

    class Updater(updates.UpdateWeightFromDistributed):
        def _iter_non_expert_chunks(self):
            for first in range(0, len(weights), 4):
                yield weights[first : first + 4]

        def _iter_expert_chunks(self):
            yield from ()

    args = SimpleNamespace(rollout_num_gpus_per_engine=1)
    updater = Updater(args, [], dict, model_name="qwen2", quantization_config=None)
    for _ in range(2):  # a second time, as after an engine was restarted
        updater.connect_rollout_engines([actor], lock)
    updater.update_weights()
    updater.disconnect_rollout_engines()


def tensors(actor, weights):
    send = slimes("backends.megatron_utils.update_weight.update_weight_from_tensor")._send_to_colocated_engine
    for part in (weights[::2], weights[1::2], []):
        refs, _ = send(part, ipc_engine=actor, ipc_gather_src=0, ipc_gather_group=dist.group.WORLD, weight_version=2)
        get(refs)


def memory(engine):
    engine.release_memory_occupation()
    engine.resume_memory_occupation(["weights"])


def checks(engine):
    assert engine.health_generate()
    engine.check_weights("snapshot")
    engine.check_weights("compare")
    engine.post_process_weights(restore_weights_before_load=True)
    engine.pause_generation()
    engine.flush_cache()
    engine.continue_generation()


if __name__ == "__main__":
    main(*sys.argv[1:3])
