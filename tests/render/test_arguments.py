"""Values without quotes: the tool's schema says whether a text is a string."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import TemplateError
from agentrl.types import ToolCall
from tests.render.markers import made_files, template_files
from tests.render.opened_calls import NULL, NUMBER, STRING, opened, tool

WRITTEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "optional text": (
        {"anyOf": [STRING, NULL]},
        {"0": "0", "true": "true", "1.50": "1.50", "null": None, "[1]": "[1]"},
    ),
    "one of two": ({"oneOf": [{"type": "integer"}, STRING]}, {"007": "007", "7": "7"}),
    "a list of types": ({"type": ["string", "null"]}, {"12": "12", "none": "none", "null": None}),
    "nullable": ({"type": "string", "nullable": True}, {"12": "12", "null": None}),
    "values of text": ({"enum": ["0", "1"]}, {"0": "0", "5": "5"}),
    "values of two types": ({"enum": ["auto", 0, 1, None]}, {"0": 0, "auto": "auto", "5": "5", "null": None}),
    "one value": ({"const": "1"}, {"1": "1"}),
    "a reference": ({"$ref": "#/$defs/Code"}, {"12": "12", "true": "true"}),
    "a reference or null": ({"anyOf": [{"$ref": "#/$defs/Level"}, NULL]}, {"1": "1", "null": None}),
    "all of": ({"allOf": [{"$ref": "#/$defs/Code"}], "description": "A code."}, {"12": "12"}),
    "nothing said": ({}, {"12": "12", "false": "false", '{"a": 1}': '{"a": 1}', "null": "null"}),
    "a description only": ({"description": "Any."}, {"3.0": "3.0"}),
    "text": (STRING, {"null": "null", "12": "12", '{"a": 1}': '{"a": 1}', '"x"': '"x"'}),
    "text or a list": ({"anyOf": [STRING, {"type": "array", "items": STRING}]}, {"12": "12", '["a", "b"]': ["a", "b"]}),
    "text or an object": ({"anyOf": [STRING, {"$ref": "#/$defs/Point"}]}, {"[1]": "[1]", '{"x": 1}': {"x": 1}}),
    "a whole number": ({"type": "integer"}, {"12": 12, "007": 7, "+5": 5, '"5"': 5, "x": "x", "1e400": "1e400"}),
    "a number or null": ({"anyOf": [NUMBER, NULL]}, {"1.50": 1.5, "2": 2, "null": None, "x": "x"}),
    "a truth": ({"type": "boolean"}, {"true": True, "False": False, "TRUE": True, "maybe": "maybe"}),
    "a list": ({"type": "array"}, {'["1", 2]': ["1", 2], "['1', None, true]": ["1", None, True], "(1, 2)": [1, 2]}),
    "an object by reference": ({"$ref": "#/$defs/Point"}, {'{"x": 1}': {"x": 1}, "{'x': True}": {"x": True}}),
    "an object by its keys": ({"properties": {"x": NUMBER}}, {'{"x": 1}': {"x": 1}}),
}
"""A schema, and what each text means under it."""
CALLS = {
    "Qwen3-Coder": "<tool_call>\n<function=find>\n<parameter=code>\n{}\n</parameter>\n</function>\n</tool_call>"
    "<|im_end|>",
    "GLM-4.6": "<tool_call>find\n<arg_key>code</arg_key>\n<arg_value>{}</arg_value>\n</tool_call><|observation|>",
    "ByteDance-Seed-OSS": "<seed:tool_call>\n<function=find>\n<parameter=code>{}</parameter>\n</function>\n"
    "</seed:tool_call><seed:eos>",
    "StepFun3.5-Flash": "<tool_call>\n<function=find>\n<parameter=code>\n{}\n</parameter>\n</function>\n</tool_call>"
    "<|im_end|>",
    "MiniMax-M2": '<minimax:tool_call>\n<invoke name="find">\n<parameter name="code">{}</parameter>\n</invoke>\n'
    "</minimax:tool_call>[e~[",
}


def calls_in(name: str, text: str, schema: Any, **more: Any) -> tuple[ToolCall, ...]:
    renderer, tokenizer = opened(name)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    return renderer.bind([tool(schema, **more)]).parse(tokens, "stop", tokens[-1]).calls


@pytest.mark.parametrize("case", WRITTEN)
@pytest.mark.parametrize("name", CALLS)
def test_a_value_is_what_the_schema_allows(name: str, case: str) -> None:
    schema, texts = WRITTEN[case]
    for text, wanted in texts.items():
        (call,) = calls_in(name, CALLS[name].replace("{}", text), schema)
        assert (call.error, call.arguments) == (None, {"code": wanted}), text
        assert type(call.arguments["code"]) is type(wanted), text


@pytest.mark.parametrize("path", [*made_files(), *template_files()], ids=lambda path: path.stem)
def test_what_a_template_writes_of_a_union_comes_back(path: Any) -> None:
    """As `certify` proves it, with values of another kind and of each template."""
    try:
        renderer, _ = opened(path.stem)
    except TemplateError as exc:
        pytest.skip(f"refused: {exc}"[:100])
    if not renderer.certificate.capabilities["calls"]:
        pytest.skip("no calls")
    union = {"anyOf": [STRING, NULL]}
    given = {"code": "0", "way": "true", "what": "[1]"}
    renderer = renderer.bind([tool(union, way={"anyOf": [NULL, STRING]}, what={"$ref": "#/$defs/Code"})])
    written = [{"id": "w3r7y1k2m", "type": "function", "function": {"name": "find", "arguments": given}}]
    tokens = renderer.encode({"role": "assistant", "content": "", "tool_calls": written})
    (call,) = renderer.parse(tokens, "stop", tokens[-1], thinking=renderer.prompt("Go.").thinking).calls
    assert (call.error, call.arguments) == (None, given)


@pytest.mark.parametrize(("name", "wanted"), [("Qwen3-Coder", None), ("GLM-4.6", "None")])
def test_the_word_for_null_is_the_templates(name: str, wanted: str | None) -> None:
    """Qwen3-Coder's template writes null as Python does; GLM's writes JSON, so that there `None` is a text."""
    (call,) = calls_in(name, CALLS[name].replace("{}", "None"), {"anyOf": [STRING, NULL]})
    assert call.arguments == {"code": wanted}


def test_an_argument_that_the_tool_lacks_stays_text() -> None:
    text = CALLS["Qwen3-Coder"].replace("=code", "=other").replace("{}", "12")
    (call,) = calls_in("Qwen3-Coder", text, STRING)
    assert call.arguments == {"other": "12"}


QWEN = "<tool_call>\n<function=find>\n{}\n</function>\n</tool_call><|im_end|>"
UNCLOSED = {
    "the next one on its line": ("<parameter=code>\n1\n<parameter=way>\n2\n</parameter>", {"code": "1", "way": "2"}),
    "two of them": (
        "<parameter=code>\n1\n<parameter=way>\n2\n<parameter=x>\n3\n</parameter>", {"code": "1", "way": "2", "x": 3},
    ),
    "an empty one": ("<parameter=code>\n<parameter=way>\n2\n</parameter>", {"code": "", "way": "2"}),
    "the next one beside it": ("<parameter=code>1<parameter=way>2</parameter>", None),
    "the last argument": ("<parameter=code>\n1\n", None),
    "markup in a text": (
        "<parameter=code>\nsee <parameter=way>2</parameter> there\n</parameter>",
        {"code": "see <parameter=way>2</parameter> there"},
    ),
    "markup of no argument": ("<parameter=code>\n<parameter=other>\n</parameter>", {"code": "<parameter=other>"}),
}  # fmt: skip


@pytest.mark.parametrize("case", UNCLOSED)
def test_an_argument_without_its_close_swallows_no_other(case: str) -> None:
    text, wanted = UNCLOSED[case]
    (call,) = calls_in("Qwen3-Coder", QWEN.replace("{}", text), STRING, way=STRING, x={"type": "integer"})
    if wanted is None:
        assert "not closed" in (call.error or "")
    else:
        assert (call.error, call.arguments) == (None, wanted)


@pytest.mark.parametrize(
    "name", ["Qwen3-Coder", "GLM-4.6", "key_tags", "tool_as_tag", "prefixed_key_tags", "cdata_pairs"]
)
def test_an_argument_without_its_close_swallows_no_other_call(name: str) -> None:
    renderer, tokenizer = opened(name)
    renderer = renderer.bind([tool(STRING)])
    written = [
        {"id": f"w3r7y{i}k2m", "type": "function", "function": {"name": "find", "arguments": {"code": f"zq{i}"}}}
        for i in range(2)
    ]
    whole = renderer.decode(renderer.encode({"role": "assistant", "content": "", "tool_calls": written}))
    head, _, rest = whole.partition("zq0")
    close = rest[: rest.index("zq1")]
    lost = next(piece for piece in (close[: close.find(">") + 1], close) if piece)
    tokens = tokenizer.encode(head + "zq0" + rest[len(lost) :], add_special_tokens=False)
    action = renderer.parse(tokens, "stop", tokens[-1])
    assert action.calls[0].error
    assert [call.arguments for call in action.calls if call.error is None] in ([], [{"code": "zq1"}])


THE_SCHEMA_REFUSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a whole number": (
        {"type": "integer"},
        {"1,000": "1,000", "1,234,567": "1,234,567", "2,5": "2,5", "1e3": 1000, "4.0": 4, "12.5": "12.5"}
        | {"true": "true", "null": "null", "[1]": "[1]", "(1, 2)": "(1, 2)", "2024-10-11": "2024-10-11"},
    ),
    "a number": (NUMBER, {"1,000.5": "1,000.5", "1e3": 1e3, "50%": "50%", "NaN": "NaN", "{}": "{}", '"2.5"': 2.5}),
    "a truth": ({"type": "boolean"}, {"1": "1", "0": "0", "yes": "yes", "True, False": "True, False"}),
    "a list": ({"type": "array", "items": STRING}, {"a,b": "a,b", "12": "12", '{"a": 1}': '{"a": 1}', "1, 2": [1, 2]}),
    "an object": ({"type": "object"}, {"[1]": "[1]", "a: 1": "a: 1", '"x"': '"x"', "1,000": "1,000"}),
    "numbers of a list": ({"enum": [1, 2]}, {"2": 2, "1,2": "1,2", "5": "5", "two": "two"}),
    "text or a list": ({"anyOf": [STRING, {"type": "array"}]}, {"1,000": "1,000", "a, b": "a, b", "[1, 0]": [1, 0]}),
    "a number or a list": ({"type": ["integer", "array"]}, {"1,000": "1,000", "[1]": [1], "7": 7}),
    "a whole number or null": ({"type": ["integer", "null"]}, {"1,000": "1,000", "null": None, "none": "none"}),
    "text or a number": ({"type": ["integer", "string"]}, {"1,000": "1,000", "1,5": "1,5"}),
    "nothing said": ({}, {"1,000": "1,000"}),
}  # fmt: skip
"""Texts that Python reads as another value than the schema allows."""


@pytest.mark.parametrize("case", THE_SCHEMA_REFUSES)
@pytest.mark.parametrize("name", CALLS)
def test_a_value_that_the_schema_refuses_stays_text(name: str, case: str) -> None:
    schema, texts = THE_SCHEMA_REFUSES[case]
    for text, wanted in texts.items():
        (call,) = calls_in(name, CALLS[name].replace("{}", text), schema)
        assert (call.error, call.arguments) == (None, {"code": wanted}), text
        assert type(call.arguments["code"]) is type(wanted), text


def test_a_typed_value_is_one_that_the_schema_allows() -> None:
    """DeepSeek's markup says `string="false"` beside a value."""
    opening = '<｜DSML｜function_calls>\n<｜DSML｜invoke name="find">\n'
    written = opening + '<｜DSML｜parameter name="code" string="false">{}</｜DSML｜parameter>\n'
    written += "</｜DSML｜invoke>\n</｜DSML｜function_calls><｜end▁of▁sentence｜>"
    for text, schema, wanted in (("1,000", {"type": "integer"}, "1,000"), ("7", {"type": "integer"}, 7)):
        (call,) = calls_in("dsml", written.replace("{}", text), schema)
        assert (call.error, call.arguments) == (None, {"code": wanted})
