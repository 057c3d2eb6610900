"""One line for each mistake in a configuration: the file and line, or the key, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any, TypedDict

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from agentrl import ConfigError
from agentrl._util.config_errors import keys_of, problems, unknown
from agentrl._util.yaml_files import read_yaml
from agentrl.errors import did_you_mean
from agentrl.train.config import TrainConfig


class Leaf(BaseModel):
    model_config = ConfigDict(extra="forbid")
    colour: str = ""
    width: int = 1


class Branch(BaseModel):
    model_config = ConfigDict(extra="forbid")
    leaf: Leaf | None = None
    leaves: list[Leaf] = []
    length: float = 1.0


class Tree(BaseModel):
    model_config = ConfigDict(extra="forbid")
    branch: Branch = Branch()
    by_name: dict[str, Leaf] = {}
    height: int
    kind: str | None = None


@dataclass
class Bush:
    leaf: Leaf
    height: int = 1


class Seed(TypedDict):
    weight: int


def said(given: Any, kind: Any = Tree) -> str:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(given)
    return problems(caught.value, kind, "the tree")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "height is missing"),
        ({"heigth": 2}, "height is missing; unknown key heigth; did you mean height?"),
        ({"height": 1, "Kind": "oak"}, "unknown key Kind; did you mean kind?"),
        ({"height": 1, "qqq": 1}, "unknown key qqq; the keys are branch, by_name, height, kind"),
        ({"height": 1, "branch": {"leaf": {"color": "red"}}}, "unknown key branch.leaf.color; did you mean colour?"),
        (
            {"height": 1, "branch": {"leaves": [{}, {"widht": 1}]}},
            "unknown key branch.leaves.1.widht; did you mean width?",
        ),
        ({"height": 1, "by_name": {"a": {"widht": 1}}}, "unknown key by_name.a.widht; did you mean width?"),
        ({"height": 1, "length": 2}, "unknown key length; did you mean length under branch?"),
        ({"height": 1, "branch.length": 2}, "unknown key branch.length; did you mean length under branch?"),
        ({"height": 1, "branch": {"kind": "a"}}, "unknown key branch.kind; did you mean kind at the top level?"),
        ({"height": 1, "branch": [1]}, "branch must be a mapping of keys to values (leaf, leaves, length), not [1]"),
        ({"height": 1, "by_name": None}, "by_name must be a mapping of keys to values (colour, width), not None"),
        ([1], "the tree must be a mapping of keys to values, not [1]"),
        ({"height": "tall"}, "height must be a valid integer, not 'tall'"),
        ({"height": 1, "kind": 3}, "kind must be a valid string, not 3"),
    ],
)
def test_a_wrong_key_is_named_with_its_remedy(given, line):
    assert said(given) == line


def test_what_is_shown_of_a_value_is_short():
    assert said({"height": "x" * 9999}) == "height must be a valid integer"


def test_dataclasses_and_typed_dicts_have_keys_too():
    assert list(keys_of(Bush)) == ["leaf", "height"]
    assert list(keys_of(Seed | None)) == ["weight"]
    assert list(keys_of({"a": Bush})) == ["a"]
    assert keys_of(int) == keys_of(list[int]) == keys_of(None) == {}
    assert said({"leaf": 3}, make_dataclass("Pot", [("leaf", Leaf)])).startswith(
        "leaf must be a mapping of keys to values"
    )
    named = create_model("Named", user=(str, Field(alias="userName")))
    assert unknown(["username"], named) == "unknown key username; did you mean userName?"
    assert unknown(["hight"], Bush) == "unknown key hight; did you mean height?"


def _inner(kind: Any, place: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    keys = keys_of(kind)
    return [place, *(found for key in keys for found in _inner(keys[key], (*place, key)))] if keys else []


@pytest.mark.parametrize("place", _inner(TrainConfig), ids=".".join)
def test_a_slip_in_any_key_of_a_run_is_answered_with_the_key(place):
    """In every section, each key with a letter too many."""
    kind: Any = TrainConfig
    for name in place:
        kind = keys_of(kind)[name]
    for key in keys_of(kind):
        given: dict[str, Any] = {f"{key}z": 1}
        for name in reversed(place):
            given = {name: given}
        with pytest.raises(ConfigError) as caught:
            TrainConfig.parse("x.yaml", {"env": "e:E", "out": "o", **given})
        wrong = ".".join([*place, f"{key}z"])
        assert f"unknown key {wrong}; did you mean {key}?" in str(caught.value)


def test_a_key_of_a_run_that_is_in_the_wrong_section():
    def line(**given):
        with pytest.raises(ConfigError) as caught:
            TrainConfig.parse("x.yaml", {"env": "e:E", "out": "o", **given})
        return str(caught.value)

    assert line(turns=3) == "x.yaml: unknown key turns; did you mean turns under limits?"
    assert line(rank=3) == "x.yaml: unknown key rank; did you mean rank under lora?"
    assert line(lora={"seed": 3}) == "x.yaml: unknown key lora.seed; did you mean seed at the top level?"
    assert line(lr=3) == "x.yaml: unknown key lr; did you mean learning_rate?"
    assert line(max_tokens=3) == "x.yaml: unknown key max_tokens; did you mean tokens under limits?"
    assert line(lora=3) == "x.yaml: lora must be a mapping of keys to values (rank, alpha, targets) or null, not 3"
    assert line(limits=[1]).startswith(
        "x.yaml: limits must be a mapping of keys to values (turns, tokens, max_tokens_per_turn, "
    )
    assert line(enviroment=1) == "x.yaml: unknown key enviroment; did you mean env?"
    assert line(eval=1) == "x.yaml: unknown key eval; did you mean eval_data?"
    assert "unknown key nope; the keys are env, env_config, " in line(nope=1)


def test_names_that_come_close():
    assert did_you_mean("LOCL", ["local", "sglang"]) == "; did you mean local?"
    assert did_you_mean("x", ["local", "sglang"], "; use {}") == "; use local, sglang"
    assert did_you_mean("aa1", ["aa2", "aa3", "b"], most=2) == "; did you mean aa3, aa2?"
    assert did_you_mean("x", []) == did_you_mean("x", ["y"]) == ""


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "c.yaml: the file is empty; write `k: v`"),
        (b"# steps: 3\n", "c.yaml: the file is empty; write `k: v`"),
        (b"- 1\n", "c.yaml: not a mapping of keys to values; write `k: v`"),
        (b"steps\n", "c.yaml: not a mapping of keys to values; write `k: v`"),
        (b"1: 2\n", "c.yaml: the key 1 is not text; put it in quotes"),
        (b"a:\n\tb: 1\n", "c.yaml:2: not YAML: found character '\\t' that cannot start any token; indent with spaces"),
        (b"a: 1\nb: 2\na: 3\n", "c.yaml:3: not YAML: the key a is written twice; leave one of them out"),
        (b"a:\n  b: 1\n  b: 2\n", "c.yaml:3: not YAML: the key b is written twice; leave one of them out"),
        (b"a: 1\nb: c: 2\n", "c.yaml:2: not YAML: mapping values are not allowed here; fix that line, or put its"),
        (b"a: 1\nb: [1\n\n\n", "c.yaml:2: not YAML: expected ',' or ']', but got '<stream end>'; close each bracket"),
        (b"a: 1\nb: \xff\n", "c.yaml:2: not UTF-8 text; save it as UTF-8"),
        (b"a: \x00\n", "c.yaml: not YAML: "),
        (b"a: 2026-13-45\n", "c.yaml: not YAML: month must be in 1..12; "),
        (b"[" * 5000, "c.yaml: not YAML: "),
        (b"a: !!python/object:os.system {}\n", "c.yaml:1: not YAML: could not determine a constructor"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path, monkeypatch, content, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_yaml("c.yaml", "--config", "k: v")
    found = str(caught.value)
    assert found.startswith(f"--config {line}")
    assert "\n" not in found


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text("a: 1")
    (tmp_path / "runs").mkdir()
    for file, line in {
        "train.yml": "train.yml: no such file; did you mean train.yaml?",
        "other.yaml": f"other.yaml: no such file; give its path from here, {tmp_path}",
        "nowhere/train.yaml": f"nowhere/train.yaml: no such file; give its path from here, {tmp_path}",
        "runs": "runs: it is a folder; name a file in it",
    }.items():
        with pytest.raises(ConfigError) as caught:
            read_yaml(file)
        assert str(caught.value) == line


def test_what_yaml_allows_is_read(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_bytes(b"\xef\xbb\xbfbase: &base {a: 1, b: 2}\nown: {<<: *base, b: 3}\n1e: \xc3\xa4\n")
    assert read_yaml(file) == {"base": {"a": 1, "b": 2}, "own": {"a": 1, "b": 3}, "1e": "ä"}
