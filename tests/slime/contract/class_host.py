"""miles' main as a host: its rollouts are objects, which keep their own state, and its conversion is functions."""

from __future__ import annotations

import asyncio
import importlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.slime.contract import hosts

SYNC = "miles.rollout.inference_rollout.inference_rollout_common.InferenceRolloutFn"
"""Its default since August 2026."""
ARGS: dict[str, Any] = {
    "async_data_buffer_capacity_factor": 4,
    "async_max_concurrent_samples": None,
    "async_unused_samples_handler": "retry",
    "custom_agent_function_path": None,
    "custom_async_data_buffer_path": None,
    "eval_num_gpus": 0,
    "lora_rank": 0,
    "max_weight_staleness": None,
    "multi_lora": False,
    "recompute_logprobs_via_prefill": False,
    "ci_inject_rollout_data_path": None,
    "rollout_submission_granularity": None,
    "target_modules": None,
    "use_rollout_indexer_replay": False,
    "use_session_server": False,
}


class ClassHost(hosts.Host):
    """miles' main. Its `rollout` has the functions of the other hosts' modules; they use the state of the last run."""

    manager_module = "ray.rollout.rollout_manager"
    more_args = ARGS
    loops, keeps_aborted = 1, False

    def __init__(self, key: str, source: Path) -> None:
        super().__init__(key, source)
        self.train = importlib.import_module("miles.ray.rollout.train_data_conversion")
        self.data = importlib.import_module("miles.ray.rollout.rollout_data_conversion")
        metrics = vars(importlib.import_module("miles.ray.rollout.metrics"))
        public = {name.removeprefix("_"): value for name, value in metrics.items()}
        self.metrics = SimpleNamespace(**public)  # type: ignore[assignment]
        self.types = importlib.import_module("miles.rollout.base_types")
        self.load = importlib.import_module("miles.rollout.inference_rollout.compatibility")
        self.fully_async_path = "miles.rollout.fully_async_rollout.FullyAsyncRolloutFn"
        self.takes_lists = True
        self.runs: list[ClassRun] = []
        common = importlib.import_module("miles.rollout.inference_rollout.inference_rollout_common")
        self.rollout = SimpleNamespace(  # type: ignore[assignment]
            GenerateState=lambda args: self.runs[-1].state,
            generate_and_rm_group=lambda args, group, params, **given: common.generate_and_rm_group(
                self.runs[-1].state, group, params, **given
            ),
            generate_rollout=lambda args, rollout_id, source, evaluation=False: self.runs[-1].play(
                rollout_id, evaluation=evaluation
            ),
        )

    def _stand_in(self) -> None:
        hosts.stand_in(hosts._stand_ins(Path(os.environ["MILES_SRC"])))
        hosts.stand_in(
            {
                "polars": {"__getattr__": lambda name: name},
                "sglang.srt.entrypoints": {"__path__": []},
                "sglang.srt.entrypoints.openai": {"__path__": [], "encoding_dsv4": None},
                "sglang.srt.entrypoints.openai.protocol": {"Tool": dict},
            }
        )

    def run_of(self, args: SimpleNamespace, engine: Any) -> ClassRun:
        return ClassRun(self, args, engine)

    def reset(self) -> None:
        self.run(hosts._end_tasks())
        if self.http._http_client is not None:
            self.run(self.http._http_client.aclose())
        self.http._http_client = None
        self.runs.clear()


class ClassConversion:
    """Its way from samples to train data and the ranks' shares."""

    def __init__(self, host: ClassHost, args: Any, hook: Any) -> None:
        self._host, self._args, self._hook = host, args, hook

    def post_process(self, samples: list[Any]) -> Any:
        return self._host.train._post_process_rewards(self._args, samples, self._hook)

    def convert(self, samples: list[Any]) -> dict[str, Any]:
        return self._host.train.convert_samples_to_train_data(self._args, samples, {}, None, self._hook)

    def split(self, data: dict[str, Any]) -> list[Any]:
        train, parallel = self._host.train, dict(hosts.PARALLEL)
        if train.can_schedule_on_rollout_side(self._args, data, parallel):
            return train.split_train_data_by_dp_scheduled_raw(self._args, data, train_parallel_config=parallel)
        return train.split_train_data_by_dp_raw(self._args, data, dp_size=parallel["dp_size"])


class ClassRun(hosts.Run):
    """Its RolloutManager without its Ray actor and its servers."""

    host: ClassHost

    def __init__(self, host: ClassHost, args: SimpleNamespace, engine: Any) -> None:
        args.rollout_function_path = args.rollout_function_path or SYNC
        args.eval_function_path = args.eval_function_path or args.rollout_function_path
        self.host, self.args, self.engine = host, args, engine
        path = args.custom_reward_post_process_path
        self.conversion = ClassConversion(host, args, host.load_function(path))  # type: ignore[assignment]
        self.data_source = host.data_source(args)
        given = host.types.RolloutFnConstructorInput(args=args, data_source=self)
        rollout = host.load.load_rollout_function(given, args.rollout_function_path)
        manager = self.manager = object.__new__(host.manager)
        manager.args, manager.generate_rollout, manager.eval_generate_rollout = args, rollout, rollout
        manager.use_legacy_rollout_v1, manager.weight_version = False, None
        manager.train_parallel_config = dict(hosts.PARALLEL)
        self.rollout = rollout
        host.runs.append(self)

    @property
    def state(self) -> Any:
        return self.rollout.state

    def get_samples(self, count: int) -> Any:
        """Of the data source: a test may give the run another one."""
        return self.data_source.get_samples(count)

    def add_samples(self, samples: Any) -> None:
        self.data_source.add_samples(samples)

    def play(self, rollout_id: int, *, evaluation: bool = False) -> Any:
        kind = self.host.types.RolloutFnEvalInput if evaluation else self.host.types.RolloutFnTrainInput
        return self.host.load.call_rollout_function(self.rollout, kind(rollout_id=rollout_id))

    def samples(self, rollout_id: int = 0) -> tuple[list[Any], dict[str, Any]]:
        samples, _, metrics = asyncio.run(self.manager._get_rollout_data(rollout_id))
        return samples, metrics or {}

    def evaluate(self) -> dict[str, Any]:
        return self.play(0, evaluation=True).data["held_out"]
