"""An Env in tinker-cookbook's training on SkyRL's local server of the Tinker API, from a model's folder to a folder.

The server trains LoRA by JAX on the CPU. The trained model is the model with the adapter that the server saved.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from tinker_cookbook.checkpoint_utils import get_last_checkpoint
from tinker_cookbook.rl import train as cookbook
from transformers import AutoModelForCausalLM, AutoTokenizer
from uv import find_uv_bin

from agentrl.engine.sglang.training.process import free_port
from agentrl.hosts.tinker import TinkerDataset, TinkerGroupBuilder, TinkerRollouts
from tests.hosts.training.arguments import GROUP, LIMITS, PROMPTS, UPDATES, Run

LEARNING_RATE = 1e-3
"""Of two rates, none of which is steady: with 3e-3 seeds 0 and 1 ended at .80 and .54, with 1e-3 seeds 0 to 2 at .64,
.85 and .86."""
RANK = 32
STARTS_IN_S = 300
IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""The folder of the server's database, where a commit waits for no disk. All episodes of a step write at the same time,
and on a machine with a load of 14 SkyRL's engine waited 30 s for its turn, and ended: "database is locked"."""


@dataclass(slots=True)
class CountedGroup(TinkerGroupBuilder):
    """Counts the sampled tokens of all groups."""

    sampled: dict[str, int] | None = None

    async def compute_group_rewards(self, trajectory_group, env_group):
        turns = (turn for trajectory in trajectory_group for turn in trajectory.transitions)
        self.sampled["tokens"] += sum(len(turn.ac.tokens) for turn in turns)
        return await TinkerGroupBuilder.compute_group_rewards(self, trajectory_group, env_group)


class Counted:
    """Batches until enough tokens are sampled. The cookbook skips empty batches."""

    def __init__(self, dataset: TinkerDataset, tokens: int) -> None:
        self.dataset, self.tokens, self.steps, self.sampled = dataset, tokens, 0, {"tokens": 0}

    def __len__(self) -> int:
        return len(self.dataset)

    def get_batch(self, index):
        if self.sampled["tokens"] >= self.tokens:
            return []
        self.steps += 1
        groups = self.dataset.get_batch(index)
        return [CountedGroup(group.hosted, group.task, group.group_size, sampled=self.sampled) for group in groups]


def train(run: Run) -> tuple[int, int]:
    """Returns the number of updates and of sampled tokens."""
    with server(run.model) as (url, checkpoints):
        return train_at(url, checkpoints, run)


def train_at(url: str, checkpoints: Path, run: Run) -> tuple[int, int]:
    torch.manual_seed(run.seed)
    rollouts = TinkerRollouts(
        run.env,
        model=run.model,
        limits={**LIMITS, "context": 512},
        batch_size=PROMPTS,
        group_size=GROUP,
        epochs=100,
        seed=run.seed,
    )
    dataset = Counted(rollouts.dataset("train"), run.tokens)

    async def datasets():
        return dataset, None

    config = cookbook.Config(
        model_name=run.model,
        recipe_name="weather",
        dataset_builder=datasets,
        learning_rate=run.learning_rate,
        lora_rank=RANK,
        num_substeps=UPDATES,
        max_tokens=LIMITS["max_tokens_per_turn"],
        log_path=f"{run.out}-log",
        base_url=url,
        eval_every=0,
        save_every=0,
    )
    asyncio.run(cookbook.main(config))
    write_merged(run.model, archive(final_adapter(run), checkpoints), run.out)
    return dataset.steps * UPDATES, dataset.sampled["tokens"]


def final_adapter(run: Run) -> str:
    """The server's name of the trained adapter."""
    return get_last_checkpoint(f"{run.out}-log", "sampler_path").sampler_path


def archive(name: str, checkpoints: Path) -> Path:
    """The server's file of an adapter."""
    model, *_, step = name.removeprefix("tinker://").split("/")
    return checkpoints / model / "sampler_weights" / f"{step}.tar.gz"


@contextmanager
def server(model: str) -> Iterator[tuple[str, Path]]:
    """The URL of a server of SkyRL with a model, and the folder of the checkpoints."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=IN_MEMORY) as memory:
        port, tools = free_port(), Path(sys.executable).parent
        variables = {**os.environ, "VIRTUAL_ENV": str(tools.parent), "JAX_PLATFORMS": "cpu", "UV_OFFLINE": "1"}
        # The host's environment has no `uv` of its own where the project's has it.
        variables["PATH"] = os.pathsep.join([str(tools), str(Path(find_uv_bin()).parent), os.environ["PATH"]])
        settings = {"max_lora_adapters": 8, "max_lora_rank": RANK, "train_micro_batch_size": PROMPTS * GROUP}
        # SkyRL reads the command line of its parent process, and accepts `uv run` alone.
        command = ["uv", "run", "--active", "--no-project", "-m", "skyrl.tinker.api"]
        command += ["--base-model", model, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--checkpoints-base", folder, "--database-url", f"sqlite:///{memory}/server.db"]
        command += ["--backend-config", json.dumps({**settings, "sample_max_num_sequences": PROMPTS * GROUP})]
        log = Path(folder, "server.log")
        with log.open("wb") as output:
            running = subprocess.Popen(
                command, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            wait_for(f"http://127.0.0.1:{port}/api/v1/healthz", running, log)
            os.environ.setdefault("TINKER_API_KEY", "tml-unused")
            yield f"http://127.0.0.1:{port}", Path(folder)
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def wait_for(url: str, running: subprocess.Popen, log: Path) -> None:
    last = time.monotonic() + STARTS_IN_S
    while running.poll() is None and time.monotonic() < last:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    sys.exit(f"SkyRL's server does not answer:\n{log.read_text(errors='replace')[-3000:]}")


def write_merged(model: str, packed_adapter: Path, out: str) -> None:
    """Write the model with the server's adapter added to its weights."""
    whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if whole.config.tie_word_embeddings:  # the adapter of the embeddings does not count in the head
        whole.lm_head.weight = torch.nn.Parameter(whole.lm_head.weight.detach().clone())
        whole.config.tie_word_embeddings = False
    weights = dict(whole.named_parameters())
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(packed_adapter) as packed:
            packed.extractall(folder, filter="data")
        (adapter,) = Path(folder).rglob("adapter_model.safetensors")
        config = json.loads(adapter.with_name("adapter_config.json").read_text(encoding="utf-8"))
        tensors = load_file(adapter)
    with torch.no_grad():
        for name, a in tensors.items():
            module, _, kind = name.removeprefix("base_model.model.").partition(".lora_")
            if kind == "A.weight":
                b = tensors[name.replace(".lora_A.", ".lora_B.")]
                product = a @ b if module.endswith("embed_tokens") else b @ a
                weights[f"{module}.weight"] += config["lora_alpha"] / config["r"] * product
    whole.save_pretrained(out)
    AutoTokenizer.from_pretrained(model).save_pretrained(out)


if __name__ == "__main__":
    Run.of_command(LEARNING_RATE).write(train)
