"""Train an Env with slime and Megatron-Core on a single device: roll out, convert, split, train, load the new weights.

    SLIME_SRC=/path/to/slime python examples/slime_on_one_device/run.py --steps 200

The README in this folder tells what this program proves.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

# slime compiles parts of its loss, and shows progress bars: the one costs a minute, the others the view.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import device
import torch
import torch.distributed as dist
from engine import Handover, served
from host import Host, load_slime, rollout_args, slime_args
from trainer import Trainer
from transformers.utils.logging import disable_progress_bar

from agentrl.models import load_model

HERE = Path(__file__).parent
Rewards: TypeAlias = list[float] | None
"""The rewards of the held-out tasks; None if they were not played."""
FACT_SEARCH = "agentrl_envs.fact_search:FactSearch"


def main() -> None:
    options = parse()
    options.began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.model is None:
        options.model = warm_start(options)
    port = free_port()
    context = torch.multiprocessing.get_context("spawn")
    others = [context.Process(target=work, args=(rank, port, options), daemon=True) for rank in range(1, options.dp)]
    for process in others:
        process.start()
    lead(port, options)
    for process in others:
        process.join()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out = Path("runs/slime_on_one_device")
    parser.add_argument("--out", type=Path, default=out, help=f"metrics, rollouts and weights ({out})")
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: the GPU if there is one"
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="(float32 on a CPU, bfloat16 on a GPU)")
    parser.add_argument("--model", type=Path, help="Hugging Face folder to start from (none: warm-start the tiny one)")
    parser.add_argument("--data", type=Path, default=Path("runs/demo/data"), help="train.jsonl and held_out.jsonl")
    parser.add_argument("--env", default=FACT_SEARCH, help=f"the environment ({FACT_SEARCH})")
    parser.add_argument("--reward", help="path of a reward function that replaces the environment's")
    parser.add_argument("--steps", type=int, default=200, help="rollouts")
    parser.add_argument("--prompts", type=int, default=16, help="prompts of a rollout")
    parser.add_argument("--group", type=int, default=8, help="episodes of a prompt")
    parser.add_argument("--updates", type=int, default=2, help="optimiser steps of a rollout")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--dp", type=int, default=1, help="data-parallel processes")
    parser.add_argument("--engine", help="URL of an SGLang router that serves --model (none: agentrl's engine)")
    parser.add_argument("--replay", type=Path, help="train on the rollouts that another run recorded in this folder")
    parser.add_argument("--slime-train", action="store_true", help="slime's own training actor (README.md)")
    parser.add_argument("--record", action="store_true", help="write the rollouts to OUT/rollouts, as slime does")
    parser.add_argument("--seconds", type=float, help="stop behind the step in which they pass; repeated, it goes on")
    options = parser.parse_args()
    if not os.environ.get("SLIME_SRC"):
        parser.error("SLIME_SRC is not set: give the root of slime's source (github.com/THUDM/slime)")
    if options.seconds and options.slime_train:
        parser.error("--seconds: slime's own trainer would not go on where it stopped; leave one of the two out")
    try:
        options.device = device.choose(options.device)
    except ValueError as exc:
        parser.error(str(exc))
    options.dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    return options


def warm_start(options: argparse.Namespace) -> Path:
    """Write the demo's data, and let the model imitate a mediocre player: RL cannot start from a model that never
    scores."""
    data, run = options.data, options.out / "warm_start"
    if not (run / "model").exists():
        demonstrations = data / "demonstrations.jsonl"
        agentrl = [sys.executable, "-m", "agentrl"]
        play = ["--player", "agentrl_envs.fact_search:mediocre", "--data", data / "train.jsonl"]
        config = HERE.parent / "fact_search/train.yaml"
        files = ["--data", data / "train.jsonl", "--eval-data", data / "held_out.jsonl", "--warm-start", demonstrations]
        if (run / "config.yaml").exists():
            subprocess.run([*agentrl, "train", "--resume", "--out", run], check=True)
            return run / "model"
        subprocess.run([sys.executable, "-m", "agentrl_envs.fact_search", data], check=True)
        subprocess.run([*agentrl, "play", FACT_SEARCH, *play, "--out", demonstrations], check=True)
        own = ["--set", f"device={options.device}", "--steps", "0", "--out", run]
        subprocess.run([*agentrl, "train", "--config", config, *files, *own], check=True)
    return run / "model"


def work(rank: int, port: int, options: argparse.Namespace) -> None:
    """Run a data-parallel rank other than the first: train on each share that arrives, until no share arrives."""
    trainer = make_trainer(rank, port, options)
    while (share := scatter(None)) is not None:
        gather(trainer.train(share))


def lead(port: int, options: argparse.Namespace) -> None:
    """Run the first rank, which also rolls out, and sends the weights to the engine."""
    trainer = make_trainer(0, port, options)
    with ExitStack() as stack:
        # Recorded rollouts need no engine.
        url = options.engine or (None if options.replay else stack.enter_context(served(options.model, options.dtype)))
        host = make_host(trainer, url or "http://127.0.0.1:0", options)
        handover = Handover(options.model, options.out / "model", url, options.dtype)
        stopped = Stopped.read(options)
        if stopped is not None:
            trainer.optimizer.load_state_dict(stopped.optimizer)
            host.manager.data_source.load(stopped.step)
        number = stopped.step if stopped else 0
        handover(trainer.weights(), number)
        before = stopped.before if stopped else None if options.replay else host.evaluate(0)
        say(f"held-out reward before: {mean(before)}")
        with (options.out / "metrics.jsonl").open("a" if stopped else "w", encoding="utf-8") as log:
            while number < options.steps:
                log.write(json.dumps(step(number, host, trainer, handover)) + "\n")
                log.flush()
                number += 1
                if options.seconds is not None and time.monotonic() - options.began > options.seconds:
                    break
        scatter([None] * options.dp)
        if number < options.steps:
            host.manager.data_source.save(number)
            Stopped(number, before, settings(options), trainer.optimizer.state_dict()).write(options)
            say(f"stopped after step {number} of {options.steps}; the same command continues")
            return
        after = None if options.replay else host.evaluate(options.steps)
        Stopped.remove(options)
        steps = [json.loads(line) for line in (options.out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        summary = summarise(before, after, steps)
        (options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        say(json.dumps({name: value for name, value in summary.items() if name != "held_out_rewards"}, indent=1))


@dataclass(frozen=True, slots=True)
class Stopped:
    """The state of a run that --seconds has ended. Its weights are in OUT/model."""

    step: int
    before: Rewards
    settings: dict[str, str]
    optimizer: Any

    @classmethod
    def read(cls, options: argparse.Namespace) -> Stopped | None:
        """Read the state in OUT. Ends the program if OUT has a run with other settings."""
        file = cls.file(options)
        if not file.exists():
            return None
        # Onto the CPU: Adam takes its moments from there to the GPU, but wants its count of steps where it was.
        found = cls(**torch.load(file, map_location="cpu", weights_only=False))
        changed = [key for key, value in settings(options).items() if found.settings[key] != value]
        if changed:
            key = changed[0]
            sys.exit(
                f"{options.out} holds a run with --{key} {found.settings[key]}: repeat that, or choose another --out"
            )
        return found

    def write(self, options: argparse.Namespace) -> None:
        torch.save({name: getattr(self, name) for name in self.__slots__}, self.file(options))

    @classmethod
    def remove(cls, options: argparse.Namespace) -> None:
        cls.file(options).unlink(missing_ok=True)

    @staticmethod
    def file(options: argparse.Namespace) -> Path:
        return Path(options.out / "stopped.pt")


def settings(options: argparse.Namespace) -> dict[str, str]:
    """The settings that must be the same when a run continues."""
    kept = ("model", "data", "env", "reward", "prompts", "group", "updates", "learning_rate", "dp", "dtype")
    return {name: str(getattr(options, name)) for name in kept}


def step(number: int, host: Host, trainer: Trainer, handover: Handover) -> dict[str, Any]:
    """Roll out, train, and send the weights to the engine. Returns the metrics of the step."""
    began = time.monotonic()
    shares = host.generate(number)
    collected = time.monotonic()
    metrics = merged(gather(trainer.train(scatter(shares))))
    trained = time.monotonic()
    handover(trainer.weights(), number + 1)
    metrics = {
        "step": number,
        "reward": host.reward,
        "weight_versions": host.weight_versions,
        **metrics,
        "rollout_s": collected - began,
        "train_s": trained - collected,
        "handover_s": time.monotonic() - trained,
        "sampled_tokens": sum(int(mask.sum()) for share in shares for mask in share["loss_masks"]),
        "read_tokens": sum(len(tokens) for share in shares for tokens in share["tokens"]),
        "peak_gib": device.peak_gib(),
    }
    say(
        "step {step:3d}  reward {reward:.3f}  loss {losses}  grad norm {norms}  |engine - trainer| mean {gap_mean:.1e} "
        "max {gap_max:.1e}  weights {versions}  {rollout_s:.1f} + {train_s:.1f} s".format(
            **metrics,
            losses=" ".join(f"{loss:+.4f}" for loss in metrics["loss"]),
            norms=" ".join(f"{norm:.2f}" for norm in metrics["grad_norm"]),
            versions=",".join(metrics["weight_versions"]),
        )
    )
    return metrics


def make_trainer(rank: int, port: int, options: argparse.Namespace) -> Trainer:
    # Threads of torch spin while they wait: beside those of the engine they slow one another down.
    torch.set_num_threads(1)
    disable_progress_bar()
    device.join(rank, options.dp, port)
    source = options.out / "model" if Stopped.file(options).exists() else options.model
    slime, model = load_slime(os.environ["SLIME_SRC"]), load_model(str(source), dtype=options.dtype)
    if options.slime_train:
        from slime_trainer import SlimeTrainer  # needs megatron.training

        own = {"lr": options.learning_rate, "num_rollout": options.steps, "actor_num_gpus_per_node": options.dp}
        own |= {"hf_checkpoint": options.model, "prompt_data": options.data / "train.jsonl"}
        return SlimeTrainer(slime, {**sizes(options), **own}, model)
    return Trainer(slime, slime_args(**sizes(options)), model, options.learning_rate)


def sizes(options: argparse.Namespace) -> dict[str, int]:
    """The sizes of a rollout, with slime's names."""
    return {
        "rollout_batch_size": options.prompts,
        "n_samples_per_prompt": options.group,
        "global_batch_size": options.prompts * options.group // options.updates,
    }


def make_host(trainer: Trainer, url: str, options: argparse.Namespace) -> Host:
    rollouts = "rollouts/{rollout_id}.pt"
    args = rollout_args(
        trainer.slime,
        url=url,
        model=options.model,
        data=options.data,
        env=options.env,
        reward=options.reward,
        over_sampling_batch_size=options.prompts,
        **sizes(options),
        save=str(options.out),
        load=str(options.out),
        save_debug_rollout_data=str(options.out / rollouts) if options.record else None,
        load_debug_rollout_data=str(options.replay / rollouts) if options.replay else None,
    )
    return Host(trainer.slime, args, options.dp)


def scatter(shares: list[Any] | None) -> Any:
    """Receive this rank's share. Only the first rank has `shares`."""
    received: list[Any] = [None]
    dist.scatter_object_list(received, shares, src=0)
    return received[0]


def gather(metrics: dict[str, Any]) -> list[Any]:
    """The metrics of all ranks. Every rank must call this."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, metrics)
    return found


def merged(of_ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The metrics of all ranks together. Each rank already has the loss of all ranks; the comparison of log-probs is of
    each rank's share alone."""
    tokens = sum(rank["compared"] for rank in of_ranks)
    return {
        "loss": of_ranks[0]["loss"],
        "grad_norm": of_ranks[0]["grad_norm"],
        "clipped": of_ranks[0]["clipped"],
        "compared": tokens,
        "gap_mean": sum(rank["gap_sum"] for rank in of_ranks) / max(tokens, 1),
        "gap_max": max(rank["gap_max"] for rank in of_ranks),
    }


def summarise(before: Rewards, after: Rewards, steps: list[dict[str, Any]]) -> dict[str, Any]:
    tokens = sum(step["compared"] for step in steps)
    return {
        "held_out_before": mean(before),
        "held_out_after": mean(after),
        "held_out_rewards": {"before": before, "after": after},
        "reward_first": steps[0]["reward"],
        "reward_last": steps[-1]["reward"],
        "steps": len(steps),
        "tokens_compared": tokens,
        "gap_mean": sum(step["gap_mean"] * step["compared"] for step in steps) / max(tokens, 1),
        "gap_max": max(step["gap_max"] for step in steps),
        "seconds": sum(step[part] for step in steps for part in ("rollout_s", "train_s", "handover_s")),
    }


def mean(rewards: Rewards) -> float | None:
    return sum(rewards) / len(rewards) if rewards else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
