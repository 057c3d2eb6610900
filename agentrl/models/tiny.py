"""The model `tiny`: half a million random parameters, with a tokenizer. The model learns to use a tool in minutes on a
CPU."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
_JSON = ('{"name": "', '", "arguments": {"', '": "', '", "', '"}}')
_CONTEXT = 1024


def tiny_tokenizer(markers: Sequence[str] = ()) -> Any:
    """A tokenizer of 1,024 tokens and more `markers`: bytes, a few hundred whole words, and the markers of a chat and
    of a JSON tool call.

    A common word is a single token, with a blank before the word and without: in a call and at the start of a result,
    no blank precedes. Any other word is spelled letter by letter. So copying an unknown name is a small step that is
    repeated, and an agent mostly copies names from a tool's result. Learned merges would split the same name
    differently in each context, and a small model copies such names much worse. Needs no torch.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = files(__package__).joinpath("tiny_words.txt").read_text(encoding="utf-8").split()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = (*SPECIAL, *letters, *(f"Ġ{word}" for word in words), *words, *markers)
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in (*SPECIAL, *markers)])
    backend.add_tokens([AddedToken(piece, normalized=False) for piece in _JSON])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        chat_template=files(__package__).joinpath("tiny_chat_template.jinja").read_text(encoding="utf-8"),
    )


def tiny_model(seed: int = 0) -> Any:
    """A Qwen2ForCausalLM of 558 k random parameters, in float32. Equal seeds give equal parameters.

    With a standard deviation of 0.05 instead of the usual 0.02, a model of this size learns to copy sooner.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = tiny_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=_CONTEXT,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).eval()
