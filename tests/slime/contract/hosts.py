"""What calls `agentrl.adapt` in production: slime at any commit, and miles, its relative, behind one class.

SLIME_SRC is the root of slime's source (it is not on PyPI); SLIME04_SRC the root of slime 0.4's, which cannot be had
whole: .ci/slime04.txt lists the files that were gathered. MILES_SRC is a folder into which
`pip install --no-deps --target FOLDER miles-rl==0.0.2` was made. MILES_MAIN_SRC is the root of miles' source, for which
SGLang's and Megatron's Python come from MILES_SRC. Their modules need torch, transformers, ray, httpx, aiohttp, sympy,
pylatexenc, tqdm, pillow and requests; miles, and slime before July 2026, also pybase64, sglang-router and packaging.
sglang's server, wandb and polars, which a rollout imports and does not use, are stood in for.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

NAMES = ("slime", "slime04", "miles", "miles_main")
PACKAGES = {"slime": "slime", "slime04": "slime", "miles": "miles", "miles_main": "miles"}
_NEEDS = ("torch", "ray", "httpx", "sympy", "pylatexenc", "tqdm", "PIL", "requests")


class Host:
    """One framework, imported. Its modules keep the names that it gives them; what differs is said here."""

    manager_module = "ray.rollout"
    more_args: Mapping[str, Any] = {}
    """Arguments that only this host has."""
    keeps_aborted = True
    """Whether its fully-async rollout sends an aborted sample again with the sample's tokens."""
    loops = 2
    """Event loops on which fully-async rollout and evaluation are played."""

    def __init__(self, key: str, source: Path) -> None:
        name = PACKAGES[key]
        self.name, self.source, self.label = name, source, label(key, source)
        self._stand_in()
        self.rollout = importlib.import_module(f"{name}.rollout.sglang_rollout")
        manager = importlib.import_module(f"{name}.{self.manager_module}")
        self.manager = manager.RolloutManager.__ray_metadata__.modified_class
        self.ray = manager.ray
        self.Sample = importlib.import_module(f"{name}.utils.types").Sample
        self.Status = self.Sample.Status
        self.batch_builder = self._optional(f"{name}.data.batch_builder")
        self.takes_lists = self.batch_builder is not None
        """Whether its fully-async rollout takes an episode that is a list of samples, as from 0.4 on."""
        self.data_source = (
            self._optional(f"{name}.data.data_source") or importlib.import_module(f"{name}.rollout.data_source")
        ).RolloutDataSourceWithBuffer
        self.http = importlib.import_module(f"{name}.utils.http_utils")
        self.eval_dataset = importlib.import_module(f"{name}.utils.eval_config").EvalDatasetConfig
        self.run = importlib.import_module(f"{name}.utils.async_utils").run
        self.run(_log_without_traceback())
        self.load_function = importlib.import_module(f"{name}.utils.misc").load_function
        found = [self.rollout, self._optional(f"{name}.rollout.generate_turn")]
        self.turns = next((module for module in found if hasattr(module, "generate_turn")), None)
        self.fully_async = self._optional(f"{name}.rollout.fully_async_rollout")
        self.fully_async_path = f"{name}.rollout.fully_async_rollout.generate_rollout_fully_async"
        # slime moved its metrics out of ray/rollout.py in summer 2026.
        self.metrics = self._optional(f"{name}.observability.rollout_metrics") or manager
        if control := self._optional(f"{name}.backends.sglang_utils.server_control"):
            control.abort_server_until_idle.__defaults__ = (0.05,)  # seconds between two looks, instead of 3

    def _stand_in(self) -> None:
        importlib.import_module(f"{self.name}.utils.processing_utils")  # transformers, which looks for wandb: first
        stand_in(_stand_ins(self.source))

    def run_of(self, args: SimpleNamespace, engine: Any) -> Run:
        """Its RolloutManager for these arguments."""
        return Run(self, args, engine)

    @staticmethod
    def _optional(module: str) -> ModuleType | None:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as exc:
            if exc.name and module.startswith(exc.name):
                return None
            raise

    def has(self, field: str) -> bool:
        """Whether this host's Sample has the field."""
        return field in self.Sample.__dataclass_fields__

    @staticmethod
    def session(sample: Any) -> Any:
        """What its router gets of the sample."""
        return getattr(sample, "session_id", None) or sample.routing_key

    def need(self, present: object, what: str) -> None:
        """Skip the test where the host lacks what it is about; the table of results shows the words."""
        if not present:
            pytest.skip(f"the host has no {what}")

    def reset(self) -> None:
        """Forget all that the last scenario left in the host's singletons."""
        if self.fully_async:
            worker = self.fully_async._global_worker
            self.fully_async._stop_global_worker()  # which waits for five seconds; a busy worker makes new singletons
            if worker is not None and worker.worker_thread is not None:
                worker.worker_thread.join(60)
        self.run(_end_tasks())
        if self.http._http_client is not None:
            self.run(self.http._http_client.aclose())
        self.http._http_client = None
        type(self.rollout.GenerateState)._instances.clear()
        self.rollout.EVAL_PROMPT_DATASET.clear()


class Conversion:
    """A host's way from samples to train data and the ranks' shares: methods of its manager; in 0.4, of its builder."""

    def __init__(self, host: Host, args: Any, hook: Any = None, manager: Any = None) -> None:
        self._host = host
        self._manager = made = manager or object.__new__(host.manager)
        made.args = args
        if host.batch_builder:
            args = SimpleNamespace(**{**ARGS, **vars(args)})
            made.batch_builder, made.servers = host.batch_builder.BatchBuilder(args), {}
        owner = self._owner = made.batch_builder if host.batch_builder else made
        owner.custom_reward_post_process_func, owner.custom_convert_samples_to_train_data_func = hook, None
        made.set_train_parallel_config(dict(PARALLEL))

    def post_process(self, samples: list[Any]) -> Any:
        """Raw rewards, and rewards relative to their baseline."""
        return self._owner._post_process_rewards(samples)

    def convert(self, samples: list[Any]) -> dict[str, Any]:
        if self._host.batch_builder:
            return self._owner.convert(samples)
        return self._owner._convert_samples_to_train_data(samples)

    def split(self, data: dict[str, Any]) -> list[Any]:
        if self._host.batch_builder:
            return [box.inner for box in self._owner.split_by_dp(data)]
        sizes = () if self._host.name == "slime" else (PARALLEL["dp_size"],)
        return [box.inner for box in self._owner._split_train_data_by_dp(data, *sizes)]


class Run:
    """A host's RolloutManager without its Ray actor and its servers."""

    def __init__(self, host: Host, args: SimpleNamespace, engine: Any) -> None:
        self.host, self.args, self.engine = host, args, engine
        manager = self.manager = object.__new__(host.manager)
        path = args.custom_reward_post_process_path
        self.conversion = Conversion(host, args, host.load_function(path) if path else None, manager)
        self.data_source = manager.data_source = host.data_source(args)
        manager.generate_rollout = host.rollout.generate_rollout
        if args.rollout_function_path:
            manager.generate_rollout = host.load_function(args.rollout_function_path)
        manager.use_experimental_refactor = False

    def samples(self, rollout_id: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """One rollout: the samples that go to training, and the rollout's own metrics."""
        samples, metrics = self.manager._get_rollout_data(rollout_id)
        return samples, metrics or {}

    def convert(self, samples: list[Any]) -> tuple[dict[str, Any], list[Any]]:
        """Train data, and the ranks' shares of it."""
        data = self.conversion.convert(samples)
        return data, self.conversion.split(data)

    def train(self, rollout_id: int = 0) -> tuple[list[Any], dict[str, Any], list[Any]]:
        """One rollout as RolloutManager.generate does it."""
        samples, _ = self.samples(rollout_id)
        return (samples, *self.convert(samples))

    def evaluate(self) -> dict[str, Any]:
        """An evaluation's rewards, truncated flags and samples."""
        output = self.host.rollout.generate_rollout(self.args, 0, self.data_source, evaluation=True)
        return output.data["held_out"]


def absent(name: str) -> str:
    """Why a host cannot be tested here; empty if it can."""
    for variable in (f"{name.upper()}_SRC", *(["MILES_SRC"] if name == "miles_main" else [])):
        if not os.environ.get(variable):
            return f"{variable} is not set (docs/slime.md says how)"
    missing = [module for module in _NEEDS if importlib.util.find_spec(module) is None]
    return f"{name} needs {', '.join(missing)}" if missing else ""


@contextmanager
def imported(name: str) -> Iterator[Host]:
    """The host's modules, until the end."""
    source = Path(os.environ[f"{name.upper()}_SRC"]).resolve()
    before = set(sys.modules)
    folders = [str(source), *([os.environ["MILES_SRC"]] if name == "miles_main" else [])]
    sys.path[:0] = folders
    try:
        if name == "miles_main":
            from tests.slime.contract.class_host import ClassHost

            yield ClassHost(name, source)
        else:
            yield Host(name, source)
    finally:
        for folder in folders:
            sys.path.remove(folder)
        for module in set(sys.modules) - before:
            if module.partition(".")[0] in (PACKAGES[name], "sglang", "wandb", "megatron", "polars"):
                del sys.modules[module]


def stand_in(modules: dict[str, dict[str, Any]]) -> None:
    for module, values in modules.items():
        found = sys.modules.setdefault(module, ModuleType(module))
        vars(found).update({"__spec__": ModuleSpec(module, None), **values})


def _stand_ins(source: Path) -> dict[str, dict[str, Any]]:
    kinds = ("CUDA_GRAPH", "KV_CACHE", "WEIGHTS")
    bundled = source / "sglang"  # miles brings SGLang's Python; what of it loads without CUDA is the real one
    return {
        "wandb": {},
        "sglang": {"__path__": [str(bundled)] if bundled.is_dir() else []},
        "sglang.srt": {"__path__": [str(bundled / "srt")] if bundled.is_dir() else []},
        "sglang.srt.constants": {f"GPU_MEMORY_TYPE_{kind}": kind.lower() for kind in kinds},
        "sglang.srt.server_args": {"ServerArgs": object},
        "sglang.srt.utils": {"kill_process_tree": None},
    }


def label(name: str, source: Path) -> str:
    """What the column of the table is headed with: `slime 624b824a8`, `miles 0.0.2`."""
    if commit := os.environ.get(f"{name.upper()}_COMMIT"):
        return f"{PACKAGES[name]} {commit}"
    if name == "slime04":
        return "slime 0.4, gathered"
    if name == "miles_main":
        return "miles main"
    if (source / ".git").exists():
        asked = ["git", "-C", str(source), "rev-parse", "--short=9", "HEAD"]
        return f"{name} {subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()}"
    versions = [d.version for d in distributions(path=[str(source)]) if name in d.metadata["Name"]]
    return f"{name} {versions[0]}" if versions else name


async def _log_without_traceback() -> None:
    """Of tasks that nobody asks for their exception. Python 3.11 cannot print a traceback from within ast.parse, where
    the garbage collector may find such a task."""
    log = logging.getLogger(__name__)
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: log.error("%s: %r", context["message"], context.get("exception"))
    )


async def _end_tasks() -> None:
    """What asyncio.run does at its end; a host's loop never ends.

    Tasks that start a process and connect its pipes are left alone: they end by themselves, and cancelled they would
    wait for that process forever (CPython's issue 125502, not mended in 3.11).
    """
    starting = ("subprocess_exec", "_connect_pipes")
    tasks = {t for t in asyncio.all_tasks() if t.get_coro().__name__ not in starting} - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        _, left = await asyncio.wait(tasks, timeout=60)
        for task in left:
            task.print_stack()
        assert not left, f"cancelled, but still there: {left}"


PARALLEL = {"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
EVAL = {
    "input_key": "prompt",
    "label_key": "label",
    "metadata_key": "metadata",
    "n_samples_per_eval_prompt": 2,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "max_response_len": 200,
}
ARGS: dict[str, Any] = {
    "advantage_estimator": "grpo",
    "apply_chat_template": False,
    "apply_chat_template_kwargs": None,
    "balance_by_flops": False,
    "balance_data": False,
    "buffer_filter_path": None,
    "chat_template_path": None,  # miles
    "ci_test": False,
    "custom_convert_samples_to_train_data_path": None,  # 0.4, as are all lines marked so
    "custom_eval_rollout_log_function_path": None,
    "custom_generate_function_path": "agentrl.adapt",
    "custom_reward_post_process_path": None,
    "custom_rm_path": None,
    "custom_rollout_log_function_path": None,
    "data_source_path": None,  # 0.4
    "debug_rollout_only": False,  # 0.4
    "debug_train_only": False,  # 0.4
    "disable_rollout_trim_samples": False,  # miles
    "dump_details": None,
    "dumper_enable": False,  # miles
    "dumper_inference": None,  # miles
    "dynamic_sampling_filter_path": None,
    "eval_function_path": None,  # 0.4
    "eval_max_context_len": None,
    "eval_max_prompt_len": None,
    "eval_reward_key": None,
    "global_batch_size": 8,
    "group_rm": False,
    "grpo_std_normalization": True,
    "input_key": "prompt",
    "label_key": "label",
    "load": None,  # 0.4
    "load_debug_rollout_data": None,
    "log_passrate": False,
    "log_reward_category": None,
    "mask_offpolicy_in_partial_rollout": False,
    "max_tokens_per_gpu": 1024,
    "metadata_key": "metadata",
    "multimodal_keys": None,
    "n_samples_per_prompt": 2,
    "over_sampling_batch_size": 4,
    "partial_rollout": False,
    "prompt_data": None,
    "reward_key": None,
    "rewards_normalization": True,
    "rm_type": None,
    "rollout_all_samples_process_path": None,
    "rollout_batch_size": 4,
    "rollout_data_dir": None,  # 0.4
    "rollout_data_transport": "object-store",  # 0.4
    "rollout_function_path": None,
    "rollout_global_dataset": True,
    "rollout_max_context_len": None,
    "rollout_max_prompt_len": None,
    "rollout_max_response_len": 200,
    "rollout_num_engines": 1,
    "rollout_num_gpus": 1,
    "rollout_num_gpus_per_engine": 1,
    "rollout_sample_filter_path": None,
    "rollout_seed": 42,
    "rollout_shuffle": False,
    "rollout_skip_special_tokens": False,
    "rollout_stop": None,
    "rollout_stop_token_ids": None,
    "rollout_temperature": 1.0,
    "rollout_top_k": -1,
    "rollout_top_p": 1.0,
    "save": None,  # 0.4
    "save_debug_rollout_data": None,  # 0.4
    "sglang_dp_size": 1,
    "sglang_enable_deterministic_inference": False,
    "sglang_router_policy": None,  # miles
    "sglang_server_concurrency": 64,
    "sglang_speculative_algorithm": None,
    "tool_key": None,
    "use_distributed_post": False,
    "use_dynamic_batch_size": True,
    "use_dynamic_global_batch_size": False,  # miles
    "use_miles_router": False,  # miles
    "use_fault_tolerance": False,  # 0.4
    "use_rollout_routing_replay": False,
    "use_score_centering": False,  # 0.4
    "use_tensorboard": False,
    "use_wandb": False,
    "wandb_always_use_train_step": False,
}
