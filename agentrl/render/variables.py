"""The arguments of a chat template."""

from __future__ import annotations

from functools import lru_cache

from jinja2 import TemplateError, meta

_NOT_ARGUMENTS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})


@lru_cache(maxsize=64)
def arguments_of(source: str) -> frozenset[str]:
    """The names of the variables that a template reads and does not set: `enable_thinking`, `date_string`.

    The conversation, the tools and the functions of transformers are not among the names. A template with a syntax
    error reads none.
    """
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        environment = _compile_jinja_template(source).environment
        names = meta.find_undeclared_variables(environment.parse(source))
    except TemplateError:
        return frozenset()
    return frozenset(name for name in names - set(environment.globals) if not name.endswith("_token")) - _NOT_ARGUMENTS
