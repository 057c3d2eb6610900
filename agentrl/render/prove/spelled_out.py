"""Prove that special tokens within messages can be encoded as text, and that no other token changes."""

from __future__ import annotations

from dataclasses import replace

from agentrl.errors import TemplateError
from agentrl.render.cache import Cache, key_of
from agentrl.render.learn.probe import QUESTION
from agentrl.render.markers import GUARD, Spelling
from agentrl.render.template import Template

_PROVED: Cache[bool] = Cache(64)


def spelling_out(template: Template, tokenizer: str) -> Template:
    """A template that encodes special tokens within messages as text. `tokenizer` is a key that identifies the
    tokenizer.

    Raises TemplateError if the tokenizer has no spelling of special tokens as text.
    """

    def encode(text: str, after: str) -> list[int]:
        return template.encode(text, after=after)

    spelled = replace(template, spelling=Spelling(template.markers, encode, template.name, tokenizer))
    _PROVED.get(key_of(tokenizer, template.source, template.kwargs), lambda: _proved(template, spelled))
    return spelled


def _proved(template: Template, spelled: Template) -> bool:
    """Raises TemplateError if a question that quotes all markers gets other special tokens than the template's own, or
    loses text."""
    ids = spelled.markers.ids
    quoted = {**QUESTION, "content": " ".join([QUESTION["content"], *ids, *(f"{text}x{text}" for text in ids)])}
    rendered = spelled.render([quoted], generation_prompt=True)
    tokens = spelled.encode(rendered)
    special_ids, text = set(ids.values()), spelled.decode(tokens)
    expected = [
        token for token in template.encode(template.render([QUESTION], generation_prompt=True)) if token in special_ids
    ]
    actual = [token for token in tokens if token in special_ids]
    lost = [marker for marker in ids if marker in rendered.replace(GUARD, "") and marker not in text]
    wrong = lost or ([spelled.decode([token]) for token in actual] if actual != expected else [])
    if wrong:
        raise TemplateError(
            f'special_tokens "as_text": {template.name} cannot encode {wrong[0]!r} as text in a message; '
            'set special_tokens to "keep"'
        )
    return True
