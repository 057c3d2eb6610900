"""Grammars restrict the next token of a response. xgrammar, which SGLang uses, too, is imported with the first
grammar."""

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
"""The most bytes of compiled grammars in the cache."""
_NO_TEXT = b"\xff"
"""A byte with which no UTF-8 character begins. A mark (such as `<tool_call>`) whose text follows this byte is never
part of a string in JSON."""


class GrammarState:
    """The position of a response in its grammar."""

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher

    @property
    def ended(self) -> bool:
        """Whether a token has ended the response."""
        return bool(self.matcher.is_terminated())

    def write(self, words: torch.Tensor, row: int) -> bool:
        """Write the allowed tokens as bits into a row of `words`. Returns False if all tokens are allowed."""
        return bool(self.matcher.fill_next_token_bitmask(words, row))

    def take(self, token: int) -> None:
        """Advance by a token. Raises EngineError for a token that the grammar does not allow."""
        if not self.matcher.accept_token(token):
            raise EngineError(f"token {token} was sampled, which the grammar of its request excludes")


@dataclass(frozen=True, slots=True)
class _Compiling:
    """The xgrammar objects for a tokenizer."""

    compiler: Any
    matcher: Any
    """The xgrammar class of a position in a grammar."""
    marks: frozenset[int]


class Grammars:
    """Compiles structural tags of xgrammar for a model, and caches the results. Threads may share the cache.

    A mark such as `<tool_call>` is allowed only where a grammar names the token of the mark, or in free text
    (`any_text`). In other places, a reader of the response would take plain text for a mark.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, eos: frozenset[int]) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._eos = frozenset(token for token in eos if token < vocabulary)
        self._making = threading.Lock()
        self._compiling: _Compiling | None = None
        self._keeping = threading.Lock()
        self.cache: OrderedDict[str, Any] = OrderedDict()
        """Structural tag -> compiled grammar. The most recently used tag is last."""

    def begin(self, sampling: Sampling) -> GrammarState:
        """The position of a response without tokens.

        Where the grammar allows an end, eos and stop tokens are allowed. A stop token that is plain text, or that the
        grammar names, is allowed only as part of the structure, and ends the response inside the structure.

        A new structural tag is compiled. Raises RequestError for a tag that xgrammar does not accept, and if xgrammar
        is not installed.
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
    """The rows in which a grammar excludes tokens now, and the tokens that are allowed in these rows, [rows,
    vocabulary]."""
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
    """The token ids that a structural tag names as parts of its structure."""
    if isinstance(form, dict):
        if form.get("type") == "token" and isinstance(form.get("token"), int):
            yield form["token"]
        form = list(form.values())
    for part in form if isinstance(form, list) else ():
        yield from _named(part)


def _words(exc: Exception) -> str:
    """The text of an xgrammar error, without the place in xgrammar's source code."""
    return str(exc).strip().partition("is false: ")[2] or str(exc).strip().rpartition("] ")[2].partition(": ")[2]
