"""Learn the form of messages that a template takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from agentrl.errors import TemplateError
from agentrl.render.ids import named_id
from agentrl.render.learn.probe import ASKED, QUESTION, SAID, THOUGHT, assistant
from agentrl.render.template import REASONING_FIELDS, Forms, Template, breaks
from agentrl.types import ToolCall


def detect_message_form(template: Template) -> Template:
    """The template with its `forms` set to the learned form of messages.

    Raises TemplateError if the template fails while writing a call. A template that refuses calls by raise_exception,
    or leaves calls out, counts as a template without calls.
    """
    return with_reasoning(_with_calls(template))


def _with_calls(template: Template) -> Template:
    """The template with the first form of calls that the template writes. Unchanged without such a form."""
    errors, forms = list[TemplateError](), list(product(_FORMS, ("", SAID)))
    for form, content in forms:
        tried = replace(template, forms=form)
        try:
            text = tried.render([QUESTION, assistant(content, [ASKED])])
        except TemplateError as exc:
            errors.append(exc)
            continue
        as_python = "{'query'" in text  # a mapping written with Python's quotes is not JSON
        if ASKED in text and not as_python:
            return _with_nulls(_with_ids(tried))
    broken = [error for error in errors if breaks(error)]
    if broken and len(errors) == len(forms):
        raise broken[0]
    return template


def with_reasoning(template: Template) -> Template:
    """The template with `forms.reasoning_field` set to the message key from which the template writes thoughts.

    The keys of `REASONING_FIELDS` are tried in order. Without a key that works, the template is returned unchanged.
    """
    for name in REASONING_FIELDS:
        tried = replace(template, forms=replace(template.forms, reasoning_field=name))
        for turn in (assistant(SAID), assistant("", [ASKED])):
            if THOUGHT in (tried.try_render([QUESTION, {**turn, name: THOUGHT}]) or ""):
                return tried
    return template


def _with_ids(template: Template) -> Template:
    """The template with the form of ids: whether a call's id is written in place of its name or counted by the
    template, or whether ids other than nine letters and digits are refused."""

    def rendered(content: str, call_id: str) -> str | None:
        turn = assistant(content, [ASKED], [ToolCall(call_id, "zqcallname", {})])
        return template.try_render([QUESTION, turn])

    for content in ("", SAID):
        text = rendered(content, "zqcallid0") or ""
        if ASKED in text:
            makes = named_id("zqcallname", 0) in text
            in_id = ("zqcallid0" in text and "zqcallname" not in text) or makes
            plain = rendered(content, "call_zqcallid0") is None
            return replace(
                template, forms=replace(template.forms, name_in_id=in_id, numbers_calls=makes, plain_ids=plain)
            )
    return template


def _with_nulls(template: Template) -> Template:
    """The template with the information whether null arguments are left out."""
    for content in ("", SAID):
        turn = assistant(content, [ASKED])
        turn["tool_calls"][0]["function"]["arguments"]["zqnull"] = None
        text = template.try_render([QUESTION, turn]) or ""
        if ASKED in text:
            return replace(template, forms=replace(template.forms, no_nulls="zqnull" not in text))
    return template


_FORMS = (Forms(False, ""), Forms(False, None), Forms(True, ""), Forms(True, None))
"""The forms of calls to try, the most likely form first."""
