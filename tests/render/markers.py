"""A tokenizer for any chat template: a small byte-level BPE whose special tokens are the template's own markers.

A template means nothing without the special tokens that it writes. Where the real tokenizer is not at hand, its
markers are read from the template's text and from what it renders, and the end-of-sequence token is the marker with
which a rendered assistant's turn ends.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any

from jinja2 import TemplateError as JinjaError
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

HERE = Path(__file__).parent / "templates"
GIVEN = "AGENTRL_TEST_DATA"
"""Names a folder with `chat_templates/*.jinja` and `tokenizers/NAME/` beside those of the repository."""

CONTROL = re.compile(
    r"<\|[^|<>\s'\"{}]+\|?>|<[a-z_]+\|>|<｜[^｜<>\s'\"{}]+｜>"  # <|im_end|>, <|turn>, <turn|>, <｜User｜>
    r"|<(?:start|end)_of_[a-z_]+>|<seed:[a-z]+>|</?s>|<[bs]op>"  # <start_of_turn>, <seed:eos>, </s>, <sop>
    r"|\[/?[A-Z_]{4,}\]|\[e~\[|\]~!?b[\]\[]|\]<\]minimax\[>\["  # [INST], and MiniMax's
)
END = re.compile(r"(?i)end.of|[a-z]_end|\|end\||eo[st]|return|turn\||e~|/s")
"""The markers that end a turn, rather than a part of it, say so in their name."""

ANY_END = re.compile(r"\s*(<[^<>\s]+>)")
"""Behind an answer, whatever looks like a marker ends it: `</assistant>`, `<SPECIAL_12>`, `<sep>`."""

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Single tokens in most vocabularies, yet not control tokens."""

REAL = {"Qwen-Qwen3-0.6B": "qwen3", "deepseek-ai-DeepSeek-V3.1": "deepseek_v3"}
"""Templates whose own tokenizer may be in the folder that was given."""

TOOL = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Book a seat.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string", "description": "Where to."}}},
    },
}

SENTENCES = (
    "The train to Oslo leaves at 9:45 from platform 3, and arrives in the evening.",
    '{"name": "book", "arguments": {"from": "Bergen", "seats": 2, "window": true}}',
    "# Tools\n\nYou may call one or more functions to help with the question. system user assistant tool\n\n",
)
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def data_folder() -> Path | None:
    """A folder with more chat templates and with real tokenizers, if one was given."""
    return Path(os.environ[GIVEN]) if os.environ.get(GIVEN) else None


def template_files() -> list[Path]:
    """Real chat templates: those of the repository, and those of the folder that was given."""
    given = data_folder()
    found = {path.stem: path for path in (HERE / "real").glob("*.jinja")}
    more = (given / "chat_templates").glob("*.jinja") if given else ()
    return sorted({**{path.stem: path for path in more}, **found}.values(), key=lambda path: path.stem)


def made_files() -> list[Path]:
    """Chat templates that were written for these tests."""
    return sorted((HERE / "made").glob("*.jinja"))


@functools.cache
def tokenizer_of(path: Path) -> Any:
    """A tokenizer with this template: the real one where it is at hand. One per template and process."""
    given = data_folder()
    if path.stem in REAL and given and (given / "tokenizers" / REAL[path.stem]).is_dir():
        tokenizer = AutoTokenizer.from_pretrained(given / "tokenizers" / REAL[path.stem])
        tokenizer.chat_template = path.read_text(encoding="utf-8")
        return tokenizer
    return small_tokenizer(path.read_text(encoding="utf-8"))


def small_tokenizer(source: str, vocabulary: str = "") -> Any:
    """A tokenizer that knows the markers of the template `source`, and has it as its own.

    `vocabulary` is the JSON of another tokenizer to begin with, such as a real one.
    """
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(vocabulary or _bpe()),
        bos_token="<s>",
        eos_token="</s>",
        chat_template=source,
    )
    answered = [_answered(tokenizer), _answered(tokenizer, {"role": "user", "content": "more"})]
    markers = {marker for text in (source, *answered) for marker in CONTROL.findall(text)}
    tokenizer.add_tokens(sorted(markers), special_tokens=True)
    tokenizer.add_tokens([tag for tag in TAGS if tag in source])
    behind = [text.rpartition("zqanswer")[2] for text in answered]
    ends = [marker for text in behind for marker in CONTROL.findall(text) if END.search(marker)]
    ends += [found[1] for text in behind if (found := ANY_END.match(text))]
    tokenizer.add_tokens(ends[:1], special_tokens=True)
    tokenizer.eos_token = ends[0] if ends else "</s>"
    return tokenizer


def _answered(tokenizer: Any, *more: dict[str, str]) -> str:
    messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "zqanswer"}, *more]
    try:
        return tokenizer.apply_chat_template(messages, tools=[TOOL], tokenize=False)
    except (JinjaError, TypeError, KeyError, AttributeError):  # some want what no tokenizer gives them
        return ""


@functools.cache
def _bpe() -> str:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer.to_str()
