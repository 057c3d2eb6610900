"""A good launch for slime, in a folder of its own: the script of `agentrl slime init`, a model, data and an Env.

The model's folder has a configuration of the published size, and the tokenizer of the model `tiny`. There are no
weights: a rehearsal makes random ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

SHAPES = {
    "qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 1000000,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "max_position_embeddings": 40960,
    },
    "qwen2.5-0.5B": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "rope_theta": 1000000,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32768,
    },
}
"""The published configurations, by the name of slime's file of the model."""
ENV = '''"""An Env that a model with random weights solves in about half of its episodes."""

from agentrl import Env, StepResult, Task, Trajectory, TurnOptions, tool


class Parity(Env):
    turn_options = TurnOptions(stop=["s"])

    @tool
    def look(self, word: str) -> str:
        """Look a word up."""
        return word

    async def reset(self, task: Task) -> str:
        self.turns = 0
        return task.prompt

    async def step(self, action) -> StepResult:
        self.turns += 1
        return StepResult("Go on.") if self.turns < 3 else StepResult(done=True)

    def score(self, trajectory: Trajectory) -> float:
        return float(len(trajectory.answer or "") % 2 == self.task.label["parity"])
'''
CONFIG = """agentrl:
  env: my_env:Parity
  limits: {turns: 3, max_tokens_per_turn: 32}
"""
ROWS = 200
"""More rows than `agentrl check slime` reads."""


@dataclass(frozen=True)
class Edit:
    """A change of one file of the launch. `old` must occur in the file; an empty `old` writes the whole file."""

    file: str
    old: str
    new: str

    def apply(self, folder: Path) -> None:
        path = folder / self.file
        if not self.old:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.new, encoding="utf-8")
            return
        text = path.read_text(encoding="utf-8")
        if self.old not in text:
            raise ValueError(f"{self.old!r} is not in {self.file}")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


@dataclass
class Launch:
    """A launch in its folder. `script` is run by `agentrl slime rehearse` in `folder`, with `environment`."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def script(self) -> Path:
        return self.folder / "run.sh"


def write_launch(folder: Path, *, slime: Path, megatron: Path, shape: str = "qwen3-0.6B") -> Launch:
    """Write the good launch into a folder, which must be empty or missing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / "model", shape)
    write_data(folder / "data")
    (folder / "envs").mkdir()
    (folder / "envs/my_env.py").write_text(ENV, encoding="utf-8")
    subprocess.run(
        [
            *(sys.executable, "-m", "agentrl", "slime", "init", str(folder), "--env", "my_env:Parity"),
            *("--model", shape, "--slime", str(slime)),
        ],
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": _joined(folder / "envs", os.environ.get("PYTHONPATH", ""))},
    )
    (folder / "agentrl.yaml").write_text(CONFIG, encoding="utf-8")
    model_file = (slime / f"scripts/models/{shape}.sh").read_text(encoding="utf-8")
    (folder / "model.sh").write_text(f"{model_file}\nMODEL_ARGS+=(--vocab-size {vocabulary()})\n", encoding="utf-8")
    for edit in _SHORTER:
        edit.apply(folder)
    environment = os.environ | {
        "SLIME": str(slime),
        "MEGATRON": str(megatron),
        "MODEL": str(folder / "model"),
        "REF": str(folder / "model"),
        "DATA": str(folder / "data"),
        "GPUS": "8",
        "PYTHONPATH": _joined(folder / "envs", os.environ.get("PYTHONPATH", "")),
    }
    return Launch(folder, environment)


_SHORTER = (
    Edit("run.sh", 'source "${SLIME}/scripts/models/${MODEL_FILE}.sh"', 'source "${HERE}/model.sh"'),
    Edit("run.sh", "--rollout-max-response-len 6144", "--rollout-max-response-len 400"),
    Edit("run.sh", "--rollout-max-context-len 8192", "--rollout-max-context-len 640"),
)


def write_model(folder: Path, shape: str) -> None:
    from agentrl.models import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder)
    config = SHAPES[shape] | {
        "vocab_size": len(tokenizer),
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def write_data(folder: Path) -> None:
    """Rows of one word each, and a label that the Env reads."""
    folder.mkdir()
    for name, rows in (("train", range(ROWS)), ("held_out", range(ROWS, ROWS + 40))):
        write_rows(folder / f"{name}.jsonl", map(row, rows))


def row(number: int) -> dict[str, object]:
    return {
        "prompt": [{"role": "user", "content": f"Write a word of {number} letters."}],
        "label": {"parity": number % 2},
        "metadata": {"number": number},
    }


def write_rows(file: Path, rows: Iterable[object]) -> None:
    file.write_text("".join(f"{json.dumps(line)}\n" for line in rows), encoding="utf-8")


def vocabulary() -> int:
    from agentrl.models import tiny_tokenizer

    return len(tiny_tokenizer())


def _joined(*folders: object) -> str:
    return os.pathsep.join(str(folder) for folder in folders if str(folder))
