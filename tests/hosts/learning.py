"""README's Weather learns in other trainers: the held-out reward before and after, beside `agentrl train`.

    .ci/hosts.sh FOLDER trl skyrl_server      # installs the hosts
    python -m tests.hosts.learning FOLDER --host trl --host skyrl_server

For each seed, `agentrl train` imitates the quickstart's demonstrations. Then `agentrl train` and the host each learn
from the imitating model, the host until it has sampled as many tokens. `agentrl eval` plays the weights that each saved
on the held-out questions. Finished parts stay in `--out`, so the same command resumes.

The learning rate is the only setting that was chosen for a host; TRL has that of `agentrl train`. SkyRL's models have
no biases, so all train `tiny` without biases; SkyRL's server trains by LoRA.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.house import ROOT

LIMITS = ("--set", "limits.turns=4", "--set", "limits.max_tokens_per_turn=48")
TINY_WARM_START = ("optimizer=muon", "context_weight=1.0", "learning_rate=0.003")
"""The keys of a warm start that `agentrl train` chooses for the model `tiny`."""
HOSTS = ("trl", "skyrl_server")
RL = ("learning_rate=0.0003", "eval_every=0", "warm_start=null")
"""`agentrl train` after the warm start, as it trains `tiny`."""


@dataclass(frozen=True, slots=True)
class Learning:
    """The runs of a host and a seed, in the folder of the quickstart's project. Hosts share the runs of `agentrl`."""

    folder: Path
    host: str
    seed: int
    python: Path
    """The interpreter of the host."""

    @property
    def runs(self) -> Path:
        return self.folder / "runs" / f"seed-{self.seed}"

    def agentrl(self, *words: object) -> str:
        """Run a command of agentrl in the project, and return its output."""
        return finished([sys.executable, "-m", "agentrl", *map(str, words)], self.folder)

    def warm(self) -> Path:
        """The model that imitates."""
        out = self.runs / "warm"
        settings = ["--config", "train.yaml", "--steps", "0", "--seed", self.seed, "--out", out]
        settings += ["--model", without_biases(self.folder / "tiny-without-biases")]
        settings += [word for key in TINY_WARM_START for word in ("--set", f"warm_start.{key}")]
        return out if is_done(out) else marked(out, self.agentrl("train", *settings))

    def beside(self, warm: Path) -> Path:
        """The model that `agentrl train` trains."""
        out = self.runs / "agentrl"
        settings = [word for key in RL for word in ("--set", key)]
        words = ["train", "--config", "train.yaml", "--model", warm, "--seed", self.seed, "--out", out, *settings]
        return out if is_done(out) else marked(out, self.agentrl(*words))

    def hosted(self, warm: Path, tokens: int) -> Path:
        """The model that the host trains on as many sampled tokens."""
        out = self.runs / self.host
        command = [self.python, "-m", f"tests.hosts.training.{self.host}", warm, out]
        command += ["--env", self.folder / "weather" / "env.py:Weather", "--tokens", tokens, "--seed", self.seed]
        return out if is_done(out) else marked(out, finished([*map(str, command)], ROOT))

    def reward(self, model: Path) -> str:
        """The held-out mean reward, with its interval of 95 %."""
        file = self.runs / f"{model.name}.json"
        if not file.exists():
            words = [
                "eval",
                "weather:Weather",
                "--model",
                model,
                "--samples",
                "8",
                "--temperature",
                "1",
                *LIMITS,
                "--json",
            ]
            file.write_text(self.agentrl(*words), encoding="utf-8")
        figures = json.loads(file.read_text(encoding="utf-8"))
        low, high = figures["reward_interval"]
        return f"{figures['reward_mean']:.3f} ({low:.2f} to {high:.2f})"

    def row(self) -> str:
        """A row of the table."""
        warm = self.warm()
        beside = self.beside(warm)
        steps = [json.loads(line) for line in (beside / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        tokens = sum(step["sampled_tokens"] for step in steps)
        hosted = self.hosted(warm, tokens)
        cost = json.loads((hosted / "cost.json").read_text(encoding="utf-8"))
        cells = [self.host, self.seed, self.reward(warm), self.reward(beside), f"{len(steps)}, {tokens:,}"]
        cells += [self.reward(hosted), f"{cost['steps']}, {cost['tokens']:,}", cost["learning_rate"]]
        return f"| {' | '.join(map(str, cells))} | {cost['seconds']:.0f} |"


def finished(command: list[str], folder: Path) -> str:
    """The output of a command that succeeds. Else the program ends with the errors of the command."""
    began = time.monotonic()
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    print(f"{time.monotonic() - began:5.0f} s  {' '.join(command[2:6])}", file=sys.stderr, flush=True)
    return done.stdout


def is_done(out: Path) -> bool:
    return (out / "done.txt").exists()


def marked(out: Path, words: str) -> Path:
    (out / "done.txt").write_text(words, encoding="utf-8")
    return out


def without_biases(folder: Path) -> Path:
    """`tiny` as a Llama model: the same random weights and logits, and no biases."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from agentrl.models import load_model, load_tokenizer

    tiny = load_model("tiny")
    names = [name for name in tiny.config.to_dict() if hasattr(LlamaConfig(), name)]
    values = {name: getattr(tiny.config, name) for name in names if name not in ("model_type", "architectures")}
    llama = LlamaForCausalLM(LlamaConfig(**values))
    missing, _ = llama.load_state_dict(tiny.state_dict(), strict=False)
    assert not missing
    llama.save_pretrained(folder)
    load_tokenizer("tiny").save_pretrained(folder)
    return folder


def quickstart(out: Path) -> Path:
    """The quickstart's project with its demonstrations. A new folder, or that of an earlier call."""
    project = out / "weather"
    if not (project / "demos.jsonl").exists():
        out.mkdir(parents=True, exist_ok=True)
        finished([sys.executable, "-m", "agentrl", "init", "weather"], out)
        player = ["weather:Weather", "--player", "weather:explorer", "--samples", "6", "--out", "demos.jsonl"]
        finished([sys.executable, "-m", "agentrl", "play", *player], project)
    return project


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of .ci/hosts.sh")
    parser.add_argument("--host", choices=HOSTS, action="append")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    args = parser.parse_args()
    project = quickstart(args.out.resolve())
    print("| host | seed | imitation | `agentrl train` | steps, tokens | host | updates, tokens | learning rate | s |")
    print("|" + "---|" * 9)
    for host in args.host or HOSTS:
        python = args.folder.absolute() / host / "bin" / "python"
        for seed in args.seeds:
            print(Learning(project, host, seed, python).row(), flush=True)


if __name__ == "__main__":
    main()
