"""A folder gives the model that its files describe, or one line that says what is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="models need the extra `train`")

from safetensors.torch import load_file, save_file  # noqa: E402

from agentrl.errors import ConfigError  # noqa: E402
from agentrl.models import load_model, read_weights, save_model, tiny_model, tiny_tokenizer  # noqa: E402

HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tiny_model(), tiny_tokenizer(), tmp_path)
    return tmp_path


def change_weights(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def change_config(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def refused(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_model(str(folder))
    with pytest.raises(ConfigError):
        read_weights(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_missing_weights_are_not_made_up(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_weights(folder, lambda all_: {name: value for name, value in all_.items() if "layers.1" not in name})
    assert "model.layers.1.input_layernorm.weight, model.layers.1.mlp.down_proj.weight" in (said := refused(folder))
    assert "and 9 more missing" in said
    assert not caplog.records, "the report of transformers is replaced by one line"


def test_a_head_that_config_json_unties_and_nobody_wrote_is_missing(folder: Path) -> None:
    change_config(folder, tie_word_embeddings=False)
    assert "lm_head.weight missing" in refused(folder)


def test_weights_of_another_shape_are_not_made_up(folder: Path) -> None:
    change_weights(folder, lambda all_: {**all_, "model.norm.weight": torch.ones(3)})
    assert "model.norm.weight of another shape" in refused(folder)


@pytest.mark.parametrize("name", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.o_proj.bias"])
def test_weights_that_config_json_has_no_place_for_are_not_dropped(folder: Path, name: str) -> None:
    change_weights(folder, lambda all_: {**all_, name: torch.zeros(2)})
    assert f"{name} not of this model" in refused(folder)


def test_other_parts_and_old_buffers_are_left_aside(folder: Path) -> None:
    more = {"visual.blocks.0.weight": torch.zeros(2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}
    change_weights(folder, lambda all_: {**all_, **more})
    assert torch.equal(load_model(str(folder)).model.norm.weight, tiny_model().model.norm.weight)


def test_a_head_of_its_own_is_kept_though_config_json_ties_it(folder: Path) -> None:
    change_weights(folder, lambda all_: {**all_, HEAD: all_[EMBEDDINGS] + 1})
    weights = read_weights(folder)
    assert torch.equal(weights[HEAD], weights[EMBEDDINGS] + 1)


@pytest.mark.thorough
def test_files_that_cannot_be_read_are_one_line(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for content in (whole[:1000], b"version https://git-lfs.github.com/spec/v1\n"):
        weights.write_bytes(content)
        assert "cannot be loaded as a causal LM: SafetensorError" in refused(folder)
    weights.unlink()
    assert "no file named model.safetensors" in refused(folder)
    for config in ("{", "[]", '{"model_type": "no_such"}', '{"model_type": "vit"}'):
        (folder / "config.json").write_text(config)
        assert "cannot be loaded as a causal LM" in refused(folder)


def test_code_of_its_own_is_neither_run_nor_asked_about(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_config(folder, model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
    (folder / "own.py").write_text("raise SystemExit('it was run')")
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked at the terminal"))
    assert "needs its own code" in refused(folder)
