"""One episode on a Ray cluster of two nodes on this machine, through slime 0.4's own distributed worker and queues.

    python -m tests.slime.contract.two_nodes URL CHECKPOINT FOLDER      (slime and what it imports on PYTHONPATH)

The node that plays first sets slime's abort flag in its process after the first turn, and takes no more work. So only
the other one can end the episode. Prints one line of JSON about it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from agentrl import Env, Task, Trajectory, tool
from agentrl.episode.parking import Parking
from tests.slime.contract.hosts import ARGS

ROLLOUT = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"


class Relay(Env):
    """Keeps what was looked up in its snapshot. `log` has a line for each call: the episode's name and the node."""

    async def reset(self, task: Task) -> str:
        self.name, self.lines = uuid4().hex, list[str]()
        return task.prompt

    @tool
    async def lookup(self, country: str) -> str:
        """Look up the capital of a country."""
        folder = Path(self.task.metadata["folder"])
        with (folder / "log").open("a") as log:
            log.write(f"{self.name} {_node()}\n")
        self.lines.append(country)
        try:
            (folder / "first").touch(exist_ok=False)
        except FileExistsError:
            return "Paris"
        _abort_here()
        return "Paris"

    def score(self, trajectory: Trajectory) -> float:
        trajectory.info["name"] = self.name
        return float(len(self.lines))

    def snapshot(self) -> object:
        return self.name, self.lines

    def restore(self, state: tuple[str, list[str]]) -> None:
        self.name, self.lines = state


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _abort_here() -> None:
    """Set slime's abort flag in this process, and take no more work: with the flag up slime ships groups unplayed."""
    from slime.data.queue_data_source import QueueReader
    from slime.rollout.sglang_rollout import GenerateState

    async def nothing(count: int) -> Any:
        await asyncio.Event().wait()

    for reader in [found for found in gc.get_objects() if isinstance(found, QueueReader)]:
        reader.get_samples_async = nothing
    (state,) = type(GenerateState)._instances.values()
    state.aborted = True


def main(url: str, checkpoint: str, folder: str) -> None:
    import ray
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    ray_constants.ENABLE_RAY_CLUSTER = False  # so that the nodes' addresses are on loopback
    place = Path(folder)
    row = {"prompt": "the capital of France?", "label": "Paris", "metadata": {"folder": folder}}
    (place / "data.jsonl").write_text(json.dumps(row) + "\n")
    ip, port = url.removeprefix("http://").split(":")
    args = SimpleNamespace(
        **{
            **ARGS,
            "agentrl": {"env": f"{Path(__file__).resolve()}:Relay", "parking": {"folder": str(place / "parked")}},
            "eval_datasets": [],
            "hf_checkpoint": checkpoint,
            "n_samples_per_prompt": 1,
            "prompt_data": str(place / "data.jsonl"),
            "rollout_batch_size": 2,
            "rollout_data_dir": str(place / "queue"),
            "rollout_data_transport": "straw",
            "rollout_function_path": ROLLOUT,
            "rollout_queue_run_id": "two-nodes",
            "save": str(place / "save"),
            "sglang_router_ip": ip,
            "sglang_router_port": int(port),
            "sglang_server_concurrency": 2,
            "start_rollout_id": 0,
            "use_tensorboard": False,
            "use_wandb": False,
        }
    )
    small = {"num_cpus": 2, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    cluster.add_node(**small)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        print(json.dumps(_played(args, place)))
    finally:
        ray.shutdown()
        cluster.shutdown()


def _played(args: SimpleNamespace, place: Path) -> dict[str, Any]:
    from slime.data.queue_data_source import QueueDataSource
    from slime.data.transport import load_rollout_samples
    from slime.utils.misc import load_function

    source = QueueDataSource(args)
    rollout, resumed = load_function(ROLLOUT), list[Any]()
    for number in range(50):  # the other node plays some before it comes to the aborted one
        output = rollout(args, number, source)
        samples = _flat(output.samples if isinstance(output.samples, list) else load_rollout_samples(output.samples))
        if resumed := [sample for sample in samples if sample.metadata["agentrl"].get("resumes")]:
            break
    source.consumers["fully_async"].close()
    (sample,) = resumed
    log = [line.split() for line in (place / "log").read_text().splitlines()]
    name = sample.metadata["agentrl"]["info"]["name"]
    file = Parking(str(place / "parked")).key(sample.session_id)
    return {
        "status": sample.status.value,
        "reward": sample.reward,
        "account": sample.metadata["agentrl"],
        "trained": sum(sample.loss_mask),
        "log_probs": [p for p, mask in zip(sample.rollout_log_probs, sample.loss_mask, strict=True) if mask],
        "nodes": [node for episode, node in log if episode == name],
        "left": [path.name for path in (place / "parked").iterdir() if path.name.startswith(file)],
    }


def _flat(samples: Any) -> list[Any]:
    return [one for item in samples for one in _flat(item)] if isinstance(samples, list) else [samples]


if __name__ == "__main__":
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    main(*sys.argv[1:])
