"""Credit by turn beside credit by episode, on a task with a reward for each turn: python -m benchmarks.credit

The world names a letter in each of six turns, and a turn is rewarded if it says the next one of a, b, c, d. One model,
which was taught the format by demonstrations that guess, learns with each kind of credit. The figure is the mean reward
of the last steps; equal seeds have equal demonstrations and tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from agentrl import Action, Env, StepResult, Task

LETTERS, TURNS, LAST = "abcd", 6, 5
KINDS: dict[str, dict[str, Any]] = {
    "episode": {"credit": "episode"},
    "turn": {"credit": "turn"},
    "return": {"credit": "return", "discount": 0.1},
}


class Letters(Env):
    """A letter in each turn; the right answer is the next one, and d is followed by a."""

    deterministic = True

    @classmethod
    def tasks(cls, config: object, split: str) -> Any:
        return (Task(id=f"{split}-{number}") for number in range(10_000))

    def reset(self, task: Task) -> str:
        self.turn, self.letter = 0, self.rng.choice(LETTERS)
        return self.letter

    def step(self, action: Action) -> StepResult:
        right = LETTERS[(LETTERS.index(self.letter) + 1) % len(LETTERS)]
        self.turn, self.letter = self.turn + 1, self.rng.choice(LETTERS)
        return StepResult(self.letter, reward=float(action.content == right) / TURNS, done=self.turn == TURNS)


def guess(messages: Any, tools: Any) -> str:
    """Any letter; the same in each run."""
    return Random(str(messages)).choice(LETTERS)


def small_model(folder: Path, seed: int) -> Path:
    """A model like `tiny` with a tenth of its parameters."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from agentrl.models import load_tokenizer, save_model

    tokenizer = load_tokenizer("tiny")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    save_model(Qwen2ForCausalLM(config), tokenizer, folder)
    return folder


async def learn(out: Path, seed: int, steps: int, model: Path, **values: Any) -> list[float]:
    """The mean reward of each step."""
    from agentrl.train import TrainConfig, Trainer

    config = TrainConfig.make(
        env=f"{__file__}:Letters",
        model=str(model),
        out=out,
        seed=seed,
        steps=steps,
        prompts_per_step=4,
        group_size=8,
        eval_tasks=1,
        learning_rate=1e-3,
        checkpoint_every=max(steps, 1),
        save_groups=0,
        device="cpu",
        canaries=None,
        limits={"turns": TURNS, "max_tokens_per_turn": 3, "context": 200},
        **values,
    )
    async with Trainer(config) as trainer:
        await trainer.run()
        return [step["reward_mean"] for step in trainer.folder.read_metrics()]


def taught(folder: Path, seed: int, demonstrations: Path) -> Path:
    """A run that has learned to say letters, and nothing else."""
    warm = {"demonstrations": demonstrations, "steps": 150, "batch_size": 16, "learning_rate": 3e-3}
    made, run = small_model(folder / f"model-{seed}", seed), folder / f"taught-{seed}"
    asyncio.run(learn(run, seed, 0, made, warm_start=warm))
    return run


def main() -> None:
    from agentrl.cli import app

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        demonstrations = folder / "demonstrations.jsonl"
        played = ["play", f"{__file__}:Letters", "--player", f"{__file__}:guess", "--episodes", "400"]
        app([*played, "--out", str(demonstrations)], standalone_mode=False)
        models = {seed: taught(folder, seed, demonstrations) for seed in args.seeds}
        found = {
            kind: [
                asyncio.run(learn(folder / f"{kind}-{seed}", seed, args.steps, model, **values))
                for seed, model in models.items()
            ]
            for kind, values in KINDS.items()
        }
    print(f"mean reward of the last {LAST} of {args.steps} steps, and of all steps, by seed; 0.25 is guessing")
    for kind, runs in found.items():
        ends = "  ".join(f"{fmean(rewards[-LAST:]):.2f} ({fmean(rewards):.2f})" for rewards in runs)
        print(f"{kind:8}  {ends}")


if __name__ == "__main__":
    main()
