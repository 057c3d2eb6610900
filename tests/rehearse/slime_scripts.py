"""Five of slime's own launch scripts, as a user has them: only the folders are the user's.

A rehearsal must not report a problem for them. Their models have the published sizes and the tokenizer of the model
`tiny`; a model with random weights solves none of the tasks, so all rewards are 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rehearse.launch import SHAPES, write_rows

_GLM = {
    "architectures": ["Glm4ForCausalLM"],
    "model_type": "glm4",
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "vocab_size": 151552,
    "max_position_embeddings": 32768,
}
_QWEN3 = SHAPES["qwen3-0.6B"] | {"vocab_size": 151936}
_QWEN3_4B = _QWEN3 | {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
}
_QWEN3_30B = _QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
_QWEN25 = SHAPES["qwen2.5-0.5B"] | {"vocab_size": 151936}
_MATH = ("dapo-math-17k/dapo-math-17k.jsonl", "aime-2024/aime-2024.jsonl")


@dataclass(frozen=True)
class SlimeScript:
    """A script of slime's folder `scripts`."""

    name: str
    models: Mapping[str, Mapping[str, Any]]
    """Folders below the scripts' /root, each with a configuration and a tokenizer."""
    data: tuple[str, ...] = _MATH
    place: str = "scripts"
    """The folder of the script. slime's folder of models is beside it or below it, as the script expects."""
    environment: Mapping[str, str] = field(default_factory=dict)


SCRIPTS = (
    SlimeScript("run-qwen3-4B.sh", {"Qwen3-4B": _QWEN3_4B, "Qwen3-4B_torch_dist": _QWEN3_4B}),
    SlimeScript("run-glm4-9B.sh", {"GLM-Z1-9B-0414": _GLM, "GLM-Z1-9B-0414_torch_dist": _GLM}),
    SlimeScript("run-qwen3-30B-A3B.sh", {"Qwen3-30B-A3B": _QWEN3_30B, "Qwen3-30B-A3B_torch_dist": _QWEN3_30B}),
    SlimeScript(
        "run-qwen2.5-0.5B-reproducibility.sh",
        {"Qwen2.5-0.5B-Instruct": _QWEN25, "Qwen2.5-0.5B-Instruct_torch_dist": _QWEN25},
        ("gsm8k/train.parquet", "gsm8k/test.parquet"),
        place="",
    ),
    SlimeScript(
        "run-qwen2.5-0.5B-gb10-smoke.sh",
        {"Qwen2.5-0.5B-Instruct": _QWEN25, "Qwen2.5-0.5B-Instruct_torch_dist": _QWEN25},
    ),
)


def write_script(script: SlimeScript, folder: Path, *, slime: Path, megatron: Path) -> Path:
    """Write the script with the user's folders, its models and its data. Returns the script's path.

    The working folder of the script is slime's, because it starts `train.py` from there.
    """
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts/models").symlink_to(slime / "scripts/models")
    for name, config in script.models.items():
        _write_model(folder / name, config)
    for name in script.data:
        _write_tasks(folder / name)
    text = (slime / "scripts" / script.name).read_text(encoding="utf-8")
    for name in ("/root/src/Megatron-LM", "/root/Megatron-LM"):
        text = text.replace(name, str(megatron))
    path = folder / script.place / script.name
    path.write_text(text.replace("/root/slime", str(slime)).replace("/root/", f"{folder}/"), encoding="utf-8")
    return path


def _write_model(folder: Path, config: Mapping[str, Any]) -> None:
    from agentrl.models import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder)
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    whole = {"torch_dtype": "bfloat16", "hidden_act": "silu", **config, **special}
    (folder / "config.json").write_text(json.dumps(whole, indent=1), encoding="utf-8")


def _write_tasks(file: Path) -> None:
    """Sums, in the columns that slime's scripts read."""
    file.parent.mkdir(exist_ok=True)
    rows = []
    for number in range(40):
        messages = [{"role": "user", "content": f"What is {number} + {number}?"}]
        rows.append({"prompt": messages, "messages": messages, "label": str(2 * number)})
    if file.suffix == ".jsonl":
        write_rows(file, rows)
        return
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(rows), file)
