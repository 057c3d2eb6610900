"""A small model with the architecture, the tokenizer and the template of the launch's model. Its weights are random.

`shrink` changes `config.json` and Megatron's flags together. A flag that contradicts the configuration contradicts the
small configuration, too. `python -m agentrl.rehearse.model FOLDER` writes the weights.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.errors import ConfigError
from agentrl.rehearse.launch import Flags

JSONObject = dict[str, Any]

HIDDEN = 128
TINY_TOKENS = 1024
"""The vocabulary of the tokenizer that stands in where the model's folder is not on this machine."""
_EXPERTS = "--num-experts"
_FREQUENCY = "--moe-layer-freq"


class Size(NamedTuple):
    """A size of a model: Megatron's flag, the names of config.json, and the value in a rehearsal (None: as it is, or
    as `shrink` chooses)."""

    flag: str
    keys: tuple[str, ...]
    small: int | None


SIZES = (
    Size("--num-layers", ("num_hidden_layers",), None),
    Size("--hidden-size", ("hidden_size",), HIDDEN),
    Size("--ffn-hidden-size", ("intermediate_size",), 256),
    Size("--num-attention-heads", ("num_attention_heads",), 4),
    Size("--num-query-groups", ("num_key_value_heads",), 2),
    Size("--kv-channels", ("head_dim",), None),
    Size("--vocab-size", ("vocab_size",), None),
    Size(_EXPERTS, ("num_experts", "n_routed_experts", "num_local_experts"), 4),
    Size("--moe-ffn-hidden-size", ("moe_intermediate_size",), 64),
    Size("--moe-router-topk", ("num_experts_per_tok",), 2),
    Size("--moe-shared-expert-intermediate-size", ("shared_expert_intermediate_size",), 64),
    Size("--moe-router-num-groups", ("n_group",), 1),
    Size("--moe-router-group-topk", ("topk_group",), 1),
    Size("--q-lora-rank", ("q_lora_rank",), 64),
    Size("--kv-lora-rank", ("kv_lora_rank",), 32),
    Size("--qk-head-dim", ("qk_nope_head_dim",), 32),
    Size("--qk-pos-emb-head-dim", ("qk_rope_head_dim",), 16),
    Size("--v-head-dim", ("v_head_dim",), 32),
)
_DROPPED = ("quantization_config", "auto_map", "num_nextn_predict_layers", "mtp_num_hidden_layers")
"""Keys that a rehearsal's model lacks: kernels for a GPU, code of the folder, and layers for speculation."""
_FAMILIES = (
    (r"qwen3.*-a\d+b", "qwen3_moe", "Qwen3MoeForCausalLM"),
    (r"qwen3", "qwen3", "Qwen3ForCausalLM"),
    (r"qwen2|mimo", "qwen2", "Qwen2ForCausalLM"),
    (r"llama", "llama", "LlamaForCausalLM"),
    (r"glm-?4\.[5-9]|glm-?[5-9]", "glm4_moe", "Glm4MoeForCausalLM"),
    (r"glm", "glm4", "Glm4ForCausalLM"),
    (r"deepseek|moonlight|kimi", "deepseek_v3", "DeepseekV3ForCausalLM"),
)
"""The family of a model by the name of its folder, where the folder is not on this machine."""


@dataclass(slots=True)
class Shrunk:
    config: JSONObject
    flags: dict[str, str] = field(default_factory=dict)
    """Flag of a size -> its value in the rehearsal."""
    problems: list[str] = field(default_factory=list)
    """Flags that contradict the configuration, one line each."""


def text_config(config: JSONObject) -> JSONObject:
    """The part of a configuration that describes the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def read_config(folder: Path) -> JSONObject:
    """A folder's config.json. Raises ConfigError."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"--hf-checkpoint {folder}: its config.json cannot be read ({exc})") from exc
    if not isinstance(config, dict):
        raise ConfigError(f"--hf-checkpoint {folder}: its config.json is no JSON object")
    return config


# ---- shrinking


def shrink(config: Mapping[str, Any], flags: Flags, *, stages: int = 1, vocabulary: int | None = None) -> Shrunk:
    """The configuration of a small model, and the values of the launch's flags for its sizes.

    `stages` is the number of pipeline stages: each gets at least one layer. `vocabulary` is the size of another
    tokenizer than the model's.
    """
    shrunk = Shrunk(json.loads(json.dumps(config)))
    text = text_config(shrunk.config)
    layers = _layers(text, stages)
    small = {"--num-layers": layers, "--vocab-size": vocabulary, "--kv-channels": 64 if _is_odd(text) else 32}
    if text.get("num_key_value_heads") == text.get("num_attention_heads"):
        small["--num-query-groups"] = 4
    if "kv_lora_rank" in text:  # latent attention: head_dim is the width of the rotated part
        small["--kv-channels"] = 16
    for size in SIZES:
        _shrink_size(
            shrunk, text, size._replace(small=small.get(size.flag, size.small)), flags, text_config(dict(config))
        )
    _shrink_layer_lists(text, layers)
    _shrink_frequency(shrunk, text, flags, text_config(dict(config)), layers)
    for key in _DROPPED:
        shrunk.config.pop(key, None)
        text.pop(key, None)
    shrunk.config["dtype"] = "bfloat16"
    shrunk.config.pop("torch_dtype", None)
    return shrunk


def _layers(text: JSONObject, stages: int) -> int:
    """As few layers as show each kind of layer."""
    kinds = text.get("layer_types") or []
    last_new = max((kinds.index(kind) for kind in {*kinds}), default=0)
    return int(min(text.get("num_hidden_layers", 2), max(2, stages, last_new + 1)))


def _is_odd(text: JSONObject) -> bool:
    """Whether the heads together are wider or narrower than the hidden state. The small model's heads are, too."""
    width = text.get("head_dim")
    return bool(width) and width * text.get("num_attention_heads", 0) != text.get("hidden_size")


def _shrink_size(shrunk: Shrunk, text: JSONObject, size: Size, flags: Flags, before: Mapping[str, Any]) -> None:
    """Shrink a size in `text` and in the flags. `before` is the configuration of the launch's model."""
    key = next((key for key in size.keys if isinstance(before.get(key), int)), None)
    real = before[key] if key else _implied(before, size)
    if real is None:
        return
    small = real if size.small is None else min(size.small, real)
    if key is None:
        small = _implied(text, size) or small
    values = flags.values(size.flag)
    if values:
        if _is_number(values[0], real):
            shrunk.flags[size.flag] = str(small)
        else:
            where = f"{key} {real}" if key else str(real)
            shrunk.problems.append(f"{size.flag} {values[0]}: the checkpoint has {where}")
            shrunk.flags[size.flag] = values[0]
    if key:
        text[key] = small


def _implied(text: Mapping[str, Any], size: Size) -> int | None:
    """A size that config.json has only through other sizes."""
    if size.flag == "--moe-shared-expert-intermediate-size" and text.get("n_shared_experts"):
        return int(text["n_shared_experts"] * text["moe_intermediate_size"])
    return None


def _is_number(value: str, number: int) -> bool:
    with suppress(ValueError):
        return int(value) == number
    return False


def _shrink_layer_lists(text: JSONObject, layers: int) -> None:
    """Cut the keys that name layers."""
    for key in ("layer_types", "mlp_layer_types"):
        if text.get(key):
            text[key] = text[key][:layers]
    for key in ("mlp_only_layers",):
        if text.get(key):
            text[key] = [layer for layer in text[key] if layer < layers]
    if text.get("first_k_dense_replace"):
        text["first_k_dense_replace"] = 1
    if isinstance(text.get("max_window_layers"), int):
        text["max_window_layers"] = min(text["max_window_layers"], layers)


def _shrink_frequency(shrunk: Shrunk, text: JSONObject, flags: Flags, real: Mapping[str, Any], layers: int) -> None:
    """Shrink the pattern of layers with experts. A wrong pattern stays wrong."""
    value = flags.text(_FREQUENCY)
    pattern = _pattern(value)
    if not pattern:
        return
    dense = len(pattern) - len([*_after_zeros(pattern)])
    expected = int(real.get("first_k_dense_replace") or 0)
    if "num_hidden_layers" in real and len(pattern) != real["num_hidden_layers"]:
        shrunk.problems.append(
            f"{_FREQUENCY} names {len(pattern)} layers: the checkpoint has num_hidden_layers "
            f"{real['num_hidden_layers']}"
        )
    elif "first_k_dense_replace" in real and dense != expected:
        shrunk.problems.append(
            f"{_FREQUENCY} begins with {dense} layers without experts: the checkpoint has first_k_dense_replace "
            f"{expected}"
        )
    few = min(dense, 1)
    small = [0] * few + [1] * (layers - few)
    shrunk.flags[_FREQUENCY] = json.dumps(small, separators=(",", ":"))  # Megatron refuses a pattern with spaces


def _after_zeros(pattern: Sequence[int]) -> Iterator[int]:
    rest = False
    for number in pattern:
        rest = rest or number != 0
        if rest:
            yield number


def _pattern(text: str) -> list[int]:
    """The numbers of a text such as `[0]*3+[1]*58`. Empty for any other text."""
    numbers: list[int] = []
    for part in re.sub(r"\s", "", text).split("+"):
        match = re.fullmatch(r"(\[[\d,]*\])(?:\*(\d+))?", part)
        if match is None:
            return []
        numbers += ast.literal_eval(match[1]) * int(match[2] or 1)
    return numbers


# ---- a configuration from flags


def config_from_flags(flags: Flags) -> tuple[JSONObject, str]:
    """A configuration from the launch's flags, and the assumed family. Raises ConfigError."""
    name = Path(flags.text("--hf-checkpoint").rstrip("/")).name
    kind, architecture = _family(name, flags)
    hidden, heads = flags.number("--hidden-size", 0), flags.number("--num-attention-heads", 0)
    if not (hidden and heads and flags.number("--num-layers", 0)):
        raise ConfigError(
            f"--hf-checkpoint {flags.text('--hf-checkpoint')}: the folder is not on this machine, and the flags "
            "have no sizes of a model (--num-layers, --hidden-size, --num-attention-heads); name a folder with the "
            "model's config.json and tokenizer"
        )
    config: JSONObject = {
        "architectures": [architecture],
        "model_type": kind,
        "num_key_value_heads": flags.number("--num-query-groups", heads),
        "head_dim": flags.number("--kv-channels", hidden // heads),
        "hidden_act": "silu",
        "rms_norm_eps": float(flags.text("--norm-epsilon", "1e-5")),
        "rope_theta": flags.number("--rotary-base", 10000),
        "max_position_embeddings": flags.number("--max-position-embeddings", 32768),
        "tie_word_embeddings": not flags.has("--untie-embeddings-and-output-weights"),
        "attention_bias": flags.has("--add-qkv-bias"),
        "vocab_size": flags.number("--vocab-size", TINY_TOKENS),
        "bos_token_id": None,
        "eos_token_id": 2,  # of the tokenizer of `tiny`, as the next one
        "pad_token_id": 0,
    }
    for size in SIZES:
        if size.keys[0] not in ("head_dim", "num_key_value_heads", "vocab_size") and flags.has(size.flag):
            key = "n_routed_experts" if size.flag == _EXPERTS and kind in ("deepseek_v3", "glm4_moe") else size.keys[0]
            config[key] = flags.number(size.flag, 0)
    _add_details(config, kind, flags)
    return config, kind


def _add_details(config: JSONObject, kind: str, flags: Flags) -> None:
    """Keys that only some families have."""
    if flags.has("--use-rope-scaling"):
        factor = float(flags.text("--rotary-scaling-factor", "8"))
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    if flags.has("--rotary-percent"):
        config["partial_rotary_factor"] = float(flags.text("--rotary-percent"))
    if kind == "qwen3_moe":
        config |= {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    if kind in ("deepseek_v3", "glm4_moe"):
        dense = _pattern(flags.text(_FREQUENCY))
        shared = flags.number("--moe-shared-expert-intermediate-size", 0)
        config |= {
            "first_k_dense_replace": len(dense) - len([*_after_zeros(dense)]),
            "n_shared_experts": shared // max(1, flags.number("--moe-ffn-hidden-size", 1)),
            "routed_scaling_factor": float(flags.text("--moe-router-topk-scaling-factor", "1.0")),
            "use_qk_norm": flags.has("--qk-layernorm"),
            "norm_topk_prob": True,
        }
        config.pop("shared_expert_intermediate_size", None)
        config.setdefault("n_group", 1)
        config.setdefault("topk_group", 1)


def _family(name: str, flags: Flags) -> tuple[str, str]:
    if flags.has("--multi-latent-attention"):
        return "deepseek_v3", "DeepseekV3ForCausalLM"
    for pattern, kind, architecture in _FAMILIES:
        if re.match(pattern, name.lower()):
            return kind, architecture
    by_flag = {
        _EXPERTS: ("qwen3_moe", "Qwen3MoeForCausalLM"),
        "--qk-layernorm": ("qwen3", "Qwen3ForCausalLM"),
        "--add-qkv-bias": ("qwen2", "Qwen2ForCausalLM"),
    }
    return next((family for flag, family in by_flag.items() if flags.has(flag)), ("llama", "LlamaForCausalLM"))


# ---- writing


def write_config(config: JSONObject, folder: Path, tokenizer: Path | None) -> None:
    """Write config.json, and copy the small files of `tokenizer`. Without it the tokenizer of `tiny` is written."""
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is None:
        from agentrl.models.tiny import tiny_tokenizer

        tiny_tokenizer().save_pretrained(folder)
    else:
        for file in tokenizer.iterdir():
            if (
                file.is_file()
                and file.suffix not in (".safetensors", ".bin", ".pt", ".gguf")
                and "index" not in file.name
            ):
                shutil.copy(file, folder / file.name)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


_SHAKEN = 0.1
"""The deviation added to one-dimensional weights. Without it a lost bias or norm would not show."""
_TURN = 24
"""The mean number of tokens after which the model ends a turn. Without it a turn would never end."""


def write_weights(folder: Path, seed: int = 0) -> None:
    """Write random weights for the folder's config.json."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * _SHAKEN)
        _end_turns(model, _end_tokens(folder, config))
    model.to(torch.bfloat16).save_pretrained(folder)


def _end_tokens(folder: Path, config: Any) -> list[int]:
    """The ids of the tokens that end a turn."""
    with suppress(OSError, ValueError):
        text = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
        if isinstance(end := text.get("eos_token_id"), (int, list)):
            return [end] if isinstance(end, int) else end
    from transformers import AutoTokenizer

    end = AutoTokenizer.from_pretrained(folder).eos_token_id
    if end is None:
        end = getattr(config, "eos_token_id", None)
    return [] if end is None else [end] if isinstance(end, int) else list(end)


def _end_turns(model: Any, ends: Sequence[int]) -> None:
    """Make the tokens that end a turn likelier: one in `_TURN` on average.

    All embeddings get a common direction, which reaches the last hidden state. The output rows of the end tokens are
    moved along the mean of that state. The move is found by bisection.
    """
    import torch

    embeddings, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    rows = [end for end in ends if end < len(output)]
    if not rows:
        return
    direction = torch.randn(embeddings.shape[1])
    direction /= direction.norm()
    embeddings.add_(0.2 * direction)
    sample = torch.randint(0, len(embeddings), (8, 32))
    hidden = model.base_model(sample).last_hidden_state[:, 16:].reshape(-1, embeddings.shape[1])
    mean = hidden.mean(0)
    mean /= mean.norm()
    logits, along = hidden @ output.T, (hidden @ mean)[:, None]
    ends_logits = logits[:, rows].clone()
    logits[:, rows] = -torch.inf
    rest = logits.logsumexp(-1)
    low, high = 0.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        share = ((ends_logits + middle * along).logsumexp(-1) - rest).sigmoid().mean()
        low, high = (middle, high) if share < 1 / _TURN else (low, middle)
    output[rows] += high * mean


if __name__ == "__main__":
    write_weights(Path(sys.argv[1]))
