"""The models that slime has a file for (scripts/models/NAME.sh at 624b824a8), their sizes, and how they are split.

Larger models need pipeline parallelism: start from slime's own script for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.slime.sizes import Sizes, rotary_base


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model is split over GPUs."""

    tensor: int = 1
    context: int = 1
    expert: int = 1
    engine: int = 1
    """GPUs of one SGLang engine."""
    engine_expert: int = 1
    """--sglang-expert-parallel-size: whole experts are spread over this many GPUs of the engine."""
    tokens: int = 9216
    """--max-tokens-per-gpu"""


@dataclass(frozen=True, slots=True)
class Model:
    sizes: Sizes
    layout: Layout
    rotary_base: float


_SMALL = Layout()  # run-qwen2.5-0.5B-reproducibility.sh
_4B = Layout(tensor=2, engine=2)  # run-qwen3-4B.sh
_MIMO = Layout(tensor=2, engine=1)  # run-mimo-7B-rl-eagle.sh
_9B = Layout(tensor=2, context=2, engine=2, tokens=4608)  # run-glm4-9B.sh
_27B = Layout(tensor=4, engine=2, tokens=8192)  # run-qwen3.5-27B.sh, without its pipeline
_32B = Layout(tensor=8, engine=8, tokens=20480)  # run-qwen3-32B.sh
_30B_A3B = Layout(tensor=4, expert=8, engine=8, tokens=20480)  # run-qwen3-30B-A3B.sh
_35B_A3B = Layout(tensor=2, expert=8, engine=8, tokens=8192)  # run-qwen3.5-35B-A3B-sft.sh
_MOONLIGHT = Layout(tensor=4, expert=8, engine=8, tokens=8192)  # run-moonlight-16B-A3B.sh


def _dense(layout: Layout, base: float, *numbers: int, untied: bool = True) -> Model:
    layers, hidden, ffn, heads, groups, channels, vocab = numbers
    return Model(Sizes(layers, hidden, ffn, heads, groups, channels, vocab, untied), layout, base)


_QWEN3_4B = _dense(_4B, 1e6, 36, 2560, 9728, 32, 8, 128, 151936, untied=False)
MODELS: Mapping[str, Model] = {
    "glm4-9B": _dense(_9B, 1e4, 40, 4096, 13696, 32, 2, 128, 151552),
    "glm4-32B": _dense(_32B, 1e4, 64, 6144, 23040, 48, 8, 128, 151552),
    "llama3.1-8B-Instruct": _dense(_9B, 5e5, 32, 4096, 14336, 32, 8, 128, 128256),
    "llama3.2-3B-Instruct": _dense(_4B, 5e5, 28, 3072, 8192, 24, 8, 128, 128256, untied=False),
    "mimo-7B-rl": _dense(_MIMO, 640000, 36, 4096, 11008, 32, 8, 128, 151680),
    "qwen2.5-0.5B": _dense(_SMALL, 1e6, 24, 896, 4864, 14, 2, 64, 151936, untied=False),
    "qwen2.5-1.5B": _dense(_4B, 1e4, 28, 1536, 8960, 12, 2, 128, 151936, untied=False),
    "qwen2.5-3B": _dense(_4B, 1e6, 36, 2048, 11008, 16, 2, 128, 151936, untied=False),
    "qwen2.5-7B": _dense(_9B, 1e6, 28, 3584, 18944, 28, 4, 128, 152064),
    "qwen2.5-32B": _dense(_32B, 1e6, 64, 5120, 27648, 40, 8, 128, 152064),
    "qwen3-0.6B": _dense(_SMALL, 1e6, 28, 1024, 3072, 16, 8, 128, 151936, untied=False),
    "qwen3-1.7B": _dense(_4B, 1e6, 28, 2048, 6144, 16, 8, 128, 151936, untied=False),
    "qwen3-4B": _QWEN3_4B,
    "qwen3-4B-Instruct-2507": replace(_QWEN3_4B, rotary_base=5e6),
    "qwen3-8B": _dense(_9B, 1e6, 36, 4096, 12288, 32, 8, 128, 151936),
    "qwen3-14B": _dense(_32B, 1e6, 40, 5120, 17408, 40, 8, 128, 151936),
    "qwen3-32B": _dense(_32B, 1e6, 64, 5120, 25600, 64, 8, 128, 151936),
    "qwen3.5-0.8B": _dense(_4B, 1e7, 24, 1024, 3584, 8, 2, 256, 248320, untied=False),
    "qwen3.5-4B": _dense(_4B, 1e7, 32, 2560, 9216, 16, 4, 256, 248320, untied=False),
    "qwen3.5-9B": _dense(_9B, 1e7, 32, 4096, 12288, 16, 4, 256, 248320),
    "qwen3.5-27B": _dense(_27B, 1e7, 64, 5120, 17408, 24, 4, 256, 248320),
    "moonlight": Model(
        Sizes(27, 2048, 11264, 16, 16, 128, 163840, True, 64, 1408, shared_ffn=2816, dense=1, rank=512, rope=64),
        _MOONLIGHT,
        5e4,
    ),
    "qwen3-30B-A3B": Model(Sizes(48, 2048, 6144, 32, 4, 128, 151936, True, 128, 768), _30B_A3B, 1e6),
    "qwen3.5-35B-A3B": Model(Sizes(40, 2048, 512, 16, 2, 256, 248320, True, 256, 512, 512), _35B_A3B, 1e7),
}
"""Models by the name of slime's file."""

LARGER = (
    "deepseek-v3",
    "glm4.5-106B-A12B",
    "glm4.5-355B-A32B",
    "glm4.7-30B-A3B",
    "glm5-744B-A40B",
    "glm5.2-744B-A40B",
    "kimi-k2",
    "minimax-m2",
    "qwen3-235B-A22B",
    "qwen3-next-80B-A3B",
)
"""Models that slime has a file for, but that have no layout here."""
_PUBLISHED = {"moonlight": "moonlight-16b-a3b", "qwen3-4B-Instruct-2507": "qwen3-4b-(instruct|thinking)-2507"}
"""Patterns of published names that differ from the name of slime's file."""
_OTHER_KINDS = re.compile(r"-(vl|vision|omni|audio|awq|gptq|gguf|mlx|embedding|reranker|reward|prm)\b")


def model_name(given: str) -> str:
    """The key of MODELS for a model's published name, such as Qwen/Qwen3-4B-Instruct. Raises ConfigError."""
    name = re.sub(r"^(?:meta-)?(glm|llama)-(\d)", r"\1\2", Path(given).name.lower())
    for key in sorted((*MODELS, *LARGER), key=len, reverse=True):
        pattern = _PUBLISHED.get(key) or re.escape(key.lower().removesuffix("-instruct"))
        if name == key.lower() or (re.fullmatch(rf"{pattern}(-.*)?", name) and not _OTHER_KINDS.search(name)):
            if key in LARGER:
                raise ConfigError(
                    f"--model {given}: agentrl has no layout with pipeline parallelism for it; start from "
                    "slime's own script for it, and add the flags that `agentrl slime check` asks for"
                )
            return key
    raise ConfigError(
        f"--model {given}: neither a folder with config.json nor the name of a model of slime; give the folder, or the "
        f"nearest of {', '.join(MODELS)}"
    )


def model_of(config: Mapping[str, Any], given: str) -> tuple[str, float | None]:
    """The key of MODELS for a config.json, and its rotary base if slime's file has another one. Raises ConfigError."""
    sizes, base = Sizes.of_config(config), rotary_base(config)
    alike = [key for key, model in MODELS.items() if sizes and not model.sizes.differs(sizes)]
    if not alike:
        found = f"{sizes.layers} layers of {sizes.hidden}, {sizes.heads} heads" if sizes else "no sizes"
        raise ConfigError(
            f"--model {given}: slime has no model file for the sizes in its config.json ({found}); write one like its "
            "scripts/models/*.sh, and a script around it"
        )
    for key in alike:
        if base is None or base == MODELS[key].rotary_base:
            return key, None
    return alike[0], base
