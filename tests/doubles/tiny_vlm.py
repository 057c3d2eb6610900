"""Folders of tiny Qwen2.5-VL and Qwen3-VL models with random weights, which transformers and SGLang load.

The tokenizer has 256 bytes, a few merges (so that decoding and encoding again changes tokens), and Qwen's markers. The
template writes images of users as Qwen's do, and takes a list of parts from a tool, too.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

MARKERS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
_MERGES = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("Ġ", "the"), ("l", "o"), ("u", "s"), ("us", "e")]
_PARTS = (
    "{% macro shown(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.text is defined %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endmacro %}"
)
TEMPLATE = (
    _PARTS + "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'Call as <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "<|im_start|>user\n<tool_response>\n{{ shown(m.content) }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ shown(m.content) }}"
    "{% for call in m.tool_calls or [] %}{% if m.content or not loop.first %}\n{% endif %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def folder(kind: str = "qwen2_5_vl", *, weights: bool = False) -> Path:
    """The folder of a tiny model, made once in a process. Without weights, only tokenizer and image processor."""
    made = Path(mkdtemp(prefix="agentrl-vlm-"))
    build(kind, made, weights=weights)
    return made


def build(kind: str, made: Path, *, weights: bool) -> None:
    from tokenizers import pre_tokenizers
    from transformers import Qwen2Tokenizer

    pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(pair) for pair in _MERGES]
    tokenizer = Qwen2Tokenizer(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=_MERGES,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
        chat_template=TEMPLATE,
        model_max_length=8192,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKERS)})
    tokenizer.save_pretrained(made)
    ids = {marker: tokenizer.convert_tokens_to_ids(marker) for marker in MARKERS}
    patch = 14 if kind == "qwen2_5_vl" else 16
    side = 2 * patch
    processor = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen2_5_VLProcessor" if kind == "qwen2_5_vl" else "Qwen3VLProcessor",
        "patch_size": patch,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 4 * side**2, "longest_edge": 1280 * side**2},
    }
    (made / "preprocessor_config.json").write_text(json.dumps(processor))
    config = _config(kind, ids, (len(tokenizer) + 63) // 64 * 64)
    config.save_pretrained(made)
    if weights:
        _model(kind, config, ids).save_pretrained(made)


def _config(kind: str, ids: dict[str, int], size: int):
    from transformers import Qwen2_5_VLConfig, Qwen3VLConfig

    marks = {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }
    text = {
        "vocab_size": size,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
        "initializer_range": 0.1,
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    sight = {"hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 128}
    sight |= {"spatial_merge_size": 2, "temporal_patch_size": 2, "initializer_range": 0.1}
    if kind == "qwen2_5_vl":
        text["rope_parameters"] = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e6}
        sight |= {"depth": 2, "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [1]}
        config = Qwen2_5_VLConfig(text_config=text, vision_config=sight, tie_word_embeddings=False, **marks)
        config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
        return config
    rope = {"rope_type": "default", "mrope_section": [8, 4, 4], "mrope_interleaved": True, "rope_theta": 1e6}
    text |= {"head_dim": 32, "rope_parameters": rope}
    sight |= {"depth": 3, "patch_size": 16, "num_position_embeddings": 256, "deepstack_visual_indexes": [0, 1]}
    config = Qwen3VLConfig(text_config=text, vision_config=sight, tie_word_embeddings=False, **marks)
    config.architectures = ["Qwen3VLForConditionalGeneration"]
    return config


def _model(kind: str, config, ids: dict[str, int]):
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen3VLForConditionalGeneration

    torch.manual_seed(0)
    cls = Qwen2_5_VLForConditionalGeneration if kind == "qwen2_5_vl" else Qwen3VLForConditionalGeneration
    model = cls(config)
    model.generation_config.eos_token_id = ids["<|im_end|>"]
    return model
