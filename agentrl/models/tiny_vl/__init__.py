"""The model `tiny-vl`: a Qwen3-VL with 0.9 million random parameters, which can learn from images on a CPU.

The files beside this module are the configurations of the model and the image processor. An image of 64 x 64 pixels has
4 tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.models.tiny import tiny_tokenizer

FOLDER = Path(__file__).parent
"""The folder with the configurations, without weights and without a tokenizer."""
MARKERS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_PARTS = (
    "{%- macro shown(content) -%}{%- if content is string -%}{{- content -}}{%- else -%}{%- for part in content -%}"
    "{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- part.text -}}{%- endif -%}{%- endfor -%}{%- endif -%}{%- endmacro -%}\n"
)
"""The part of the chat template that writes the content of a message: text, or a list of texts and images."""


def tiny_vl_tokenizer() -> Any:
    """tiny's tokenizer with Qwen's markers of images, and tiny's template with images of users and of tools."""
    tokenizer = tiny_tokenizer(MARKERS)
    tokenizer.chat_template = _PARTS + tokenizer.chat_template.replace(
        "message.content ~ '", "shown(message.content) ~ '"
    )
    return tokenizer


def tiny_vl_config() -> Any:
    """The Qwen3VLConfig of the model."""
    from transformers import Qwen3VLConfig

    return Qwen3VLConfig.from_pretrained(FOLDER)


def tiny_vl_model(seed: int = 0) -> Any:
    """A Qwen3VLForConditionalGeneration of random parameters, in float32. Equal seeds give equal parameters."""
    import torch
    from transformers import Qwen3VLForConditionalGeneration

    config = tiny_vl_config()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = config.text_config.eos_token_id
    return model
