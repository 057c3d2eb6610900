"""Grammars decide on the allowed next tokens. xgrammar, also used by SGLang, is imported with the first grammar."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from agentrl.engine.local.sampling import Sampling
from agentrl.errors import EngineError, RequestError
from agentrl.render.read.lexer import is_tag

CACHE_BYTES = 256 << 20
"""Memory for compiled grammars."""
_NO_TEXT = b"\xff"
"""No character in UTF-8 begins with this byte. A mark with this byte before the text is never part of a string
in JSON.
"""


class GrammarState:
    """The position of one answer in the grammar."""

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher

    @property
    def ended(self) -> bool:
        """Whether a token has ended the answer."""
        return bool(self.matcher.is_terminated())

    def write(self, words: torch.Tensor, row: int) -> bool:
        """Write the allowed tokens as bits into a row of `words`. False if all tokens are allowed."""
        return bool(self.matcher.fill_next_token_bitmask(words, row))

    def take(self, token: int) -> None:
        """Go on by one token. Raises EngineError for a token outside the grammar."""
        if not self.matcher.accept_token(token):
            raise EngineError(f"token {token} was sampled, which the grammar of its request excludes")


@dataclass(frozen=True, slots=True)
class _Compiling:
    """The xgrammar objects of one tokenizer."""

    compiler: Any
    matcher: Any
    """The class of states."""
    marks: frozenset[int]


class Grammars:
    """Compiles structural tags of xgrammar for one model, and caches the results. Threads may share the cache.

    A mark such as `<tool_call>` follows only where a grammar names the mark's token, or in free text (`any_text`). In
    other places, a reader of the answer would take plain text for a mark.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, eos: frozenset[int]) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._eos = frozenset(token for token in eos if token < vocabulary)
        self._making = threading.Lock()
        self._compiling: _Compiling | None = None
        self._keeping = threading.Lock()
        self.cache: OrderedDict[str, Any] = OrderedDict()
        """Compiled grammars by tag. The most recently used tag is last."""

    def begin(self, sampling: Sampling) -> GrammarState:
        """The state of an answer without tokens.

        Where the grammar allows an end, eos and stop tokens may follow. A stop token made of text, or named by the
        grammar, may only follow as part of the form, and cuts off the form.

        Compiles the request's tag, if new. Raises RequestError for a tag not accepted by xgrammar, and without xgrammar
        installed.
        """
        tools = self.tools()
        tag = sampling.structural_tag or ""
        try:
            compiled = self.compiled(tools, tag)
            named = set(_named(json.loads(tag)))
            ends = self._eos | (sampling.stop_token_ids & tools.marks - named)
            if not ends:
                raise RequestError("a grammar needs a token that ends the answer, and the model has none")
            return GrammarState(tools.matcher(compiled, override_stop_tokens=sorted(ends)))
        except (RuntimeError, ValueError, TypeError) as exc:
            raise RequestError(f"xgrammar refuses this structural_tag: {_words(exc)}") from exc

    def compiled(self, tools: _Compiling, tag: str) -> Any:
        with self._keeping:
            if (compiled := self.cache.get(tag)) is not None:
                self.cache.move_to_end(tag)
                return compiled
        compiled = tools.compiler.compile_structural_tag(tag)
        with self._keeping:
            self.cache[tag] = compiled
            self.cache.move_to_end(tag)
            size = sum(entry.memory_size_bytes for entry in self.cache.values())
            while size > CACHE_BYTES and len(self.cache) > 1:
                size -= self.cache.popitem(last=False)[1].memory_size_bytes
        return compiled

    def tools(self) -> _Compiling:
        with self._making:
            if self._compiling is None:
                self._compiling = self._make()
        return self._compiling

    def _make(self) -> _Compiling:
        try:
            import xgrammar
        except ImportError as exc:
            raise RequestError(
                "LocalEngine samples under a grammar with xgrammar, which is not installed: pip install "
                "'agentrl-sdk[grammar]', or without CUDA pip install --no-deps xgrammar apache-tvm-ffi"
            ) from exc
        info = xgrammar.TokenizerInfo
        try:
            tokenizer_info = info.from_huggingface(self._tokenizer, vocab_size=self._vocabulary, stop_token_ids=[0])
        except (RuntimeError, ValueError) as exc:
            raise RequestError(f"xgrammar cannot read this model's tokenizer: {_words(exc)}") from exc
        texts = list(tokenizer_info.decoded_vocab)
        marks = frozenset(
            token
            for token, added in self._tokenizer.added_tokens_decoder.items()
            if token < self._vocabulary and (added.special or is_tag(added.content))
        )
        for token in marks:
            texts[token] = _NO_TEXT + texts[token]
        ends = sorted(self._eos) or [0]
        marked_info = info(texts, vocab_type=xgrammar.VocabType.RAW, vocab_size=self._vocabulary, stop_token_ids=ends)
        # xgrammar's own cache mixes up tags that name different tokens (0.2.7).
        compiler = xgrammar.GrammarCompiler(marked_info, max_threads=torch.get_num_threads(), cache_enabled=False)
        return _Compiling(compiler, xgrammar.GrammarMatcher, marks)


def allowed(states: Sequence[GrammarState | None], logits: torch.Tensor) -> tuple[list[int], torch.Tensor]:
    """The rows with tokens excluded by a grammar now, and the tokens allowed there, [rows, vocabulary]."""
    grammar_rows = [row for row, state in enumerate(states) if state is not None]
    words = torch.full((len(grammar_rows), -(-logits.shape[-1] // 32)), -1, dtype=torch.int32)
    binding = [
        index
        for index, row in enumerate(grammar_rows)
        if (state := states[row]) is not None and state.write(words, index)
    ]
    bits = words[binding].to(logits.device)[:, :, None] >> torch.arange(32, dtype=torch.int32, device=logits.device)
    return [grammar_rows[index] for index in binding], (bits & 1).bool().flatten(1)[:, : logits.shape[-1]]


def _named(form: Any) -> Iterator[int]:
    """The tokens named as parts of a form."""
    if isinstance(form, dict):
        if form.get("type") == "token" and isinstance(form.get("token"), int):
            yield form["token"]
        form = list(form.values())
    for part in form if isinstance(form, list) else ():
        yield from _named(part)


def _words(exc: Exception) -> str:
    """An xgrammar error without the place in xgrammar's source."""
    return str(exc).strip().partition("is false: ")[2] or str(exc).strip().rpartition("] ")[2].partition(": ")[2]
