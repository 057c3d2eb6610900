"""A folder that a run saves means the same to other engines: tokens, angles, and where a turn ends."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentrl.models import load_model, load_tokenizer, save_model, set_ends, tiny_tokenizer
from agentrl.models.portable import save_tokenizer
from agentrl.render import load_renderer
from agentrl.render.ends import turn_ends
from tests.conftest import REQUIRED
from tests.render.markers import HERE, tokenizer_of

QUESTION = "What is it?"
LOAD = Path(__file__).with_name("load_elsewhere.py")
OLD = os.environ.get("AGENTRL_TRANSFORMERS_457", "")
"""A folder with transformers 4.57, as `.ci/transformers.sh` makes it."""


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return base_model(tmp_path / "base")


def base_model(folder: Path) -> Path:
    """A base model as it lies on the Hub: its configuration names the end of a text, and has the old names."""
    torch = pytest.importorskip("torch", reason="models need the extra `train`")
    from transformers import LlamaConfig, LlamaForCausalLM

    words = tiny_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 123456.0},
        bos_token_id=None,
        eos_token_id=words.convert_tokens_to_ids("<|endoftext|>"),
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    saved = read(folder / "config.json")
    saved |= {"rope_theta": saved.pop("rope_parameters")["rope_theta"], "rope_scaling": None}
    saved["torch_dtype"] = saved.pop("dtype")
    (folder / "config.json").write_text(json.dumps(saved))
    words.backend_tokenizer.save(str(folder / "tokenizer.json"))
    special = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**special, "chat_template": words.chat_template}))
    return folder


def test_the_files_of_a_tokenizer_are_copied(base: Path, tmp_path: Path) -> None:
    (base / "merges.txt").write_text("#version: 0.2\n")
    save_tokenizer(load_tokenizer(str(base)), tmp_path / "copy")
    for name in ("tokenizer.json", "merges.txt"):
        assert (tmp_path / "copy" / name).read_bytes() == (base / name).read_bytes()
    assert read(tmp_path / "copy" / "tokenizer_config.json") == read(base / "tokenizer_config.json")


def test_a_template_of_ones_own_goes_with_the_files(base: Path, tmp_path: Path) -> None:
    other = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    save_tokenizer(load_tokenizer(str(base), chat_template=other), tmp_path / "copy")
    assert read(tmp_path / "copy" / "tokenizer_config.json")["chat_template"] == other
    assert load_tokenizer(str(tmp_path / "copy")).chat_template == other
    assert (tmp_path / "copy" / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()


def test_a_tokenizer_that_has_changed_is_written_anew(base: Path, tmp_path: Path) -> None:
    words = load_tokenizer(str(base))
    words("some text", padding="max_length", max_length=8, truncation=True)  # is no change
    save_tokenizer(words, tmp_path / "same")
    assert (tmp_path / "same" / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    words.add_tokens(["<|new|>"], special_tokens=True)
    save_tokenizer(words, tmp_path / "changed")
    again = load_tokenizer(str(tmp_path / "changed"))
    assert again.convert_tokens_to_ids("<|new|>") == len(words) - 1
    assert read(tmp_path / "changed" / "tokenizer_config.json")["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_extra_tokens_have_the_name_that_all_versions_read(base: Path, tmp_path: Path) -> None:
    words = load_tokenizer(str(base))
    words.add_special_tokens({"additional_special_tokens": ["<|a|>", "<|b|>"]})
    save_tokenizer(words, tmp_path / "new")
    config = read(tmp_path / "new" / "tokenizer_config.json")
    assert config["additional_special_tokens"] == ["<|a|>", "<|b|>"]
    assert "extra_special_tokens" not in config


def test_the_angles_have_their_old_names_and_the_weights_their_type(base: Path, tmp_path: Path) -> None:
    model = load_model(str(base), dtype="bfloat16")
    save_model(model, load_tokenizer(str(base)), tmp_path / "saved")
    config = read(tmp_path / "saved" / "config.json")
    assert (config["rope_theta"], config["rope_scaling"], config["torch_dtype"]) == (123456.0, None, "bfloat16")
    assert load_model(str(tmp_path / "saved")).config.rope_parameters == model.config.rope_parameters
    save_model(load_model("tiny"), load_tokenizer("tiny"), tmp_path / "tiny")
    assert read(tmp_path / "tiny" / "config.json")["rope_theta"] == 10000.0


def test_scaled_angles_are_scaled_under_the_old_name_too(base: Path, tmp_path: Path) -> None:
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    (base / "config.json").write_text(json.dumps({**read(base / "config.json"), "rope_scaling": scaled}))
    model = load_model(str(base))
    save_model(model, load_tokenizer(str(base)), tmp_path / "saved")
    config = read(tmp_path / "saved" / "config.json")
    assert (config["rope_theta"], config["rope_scaling"]["factor"]) == (123456.0, 4.0)
    assert load_model(str(tmp_path / "saved")).config.rope_parameters == model.config.rope_parameters


def test_the_tokens_that_end_a_turn_are_named_before_the_end_of_a_text(base: Path) -> None:
    model, words = load_model(str(base)), load_tokenizer(str(base))
    ends = turn_ends(load_renderer(words))
    set_ends(model, ends)
    turn, text = words.convert_tokens_to_ids("<|im_end|>"), words.convert_tokens_to_ids("<|endoftext|>")
    assert ends == {turn}
    assert model.config.eos_token_id == model.generation_config.eos_token_id == [turn, text]
    set_ends(model, ends)
    assert model.config.eos_token_id == [turn, text]


def test_a_model_that_names_them_keeps_its_configuration() -> None:
    model = load_model("tiny")
    set_ends(model, turn_ends(load_renderer(load_tokenizer("tiny"))))
    assert model.config.eos_token_id == 2


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("Qwen3-Coder", ["<|im_end|>"]),
        ("openai-gpt-oss-120b", ["<|call|>", "<|return|>"]),
        ("GLM-4.6", ["<|observation|>", "<|user|>"]),
    ],
)
def test_the_ends_of_a_turn_of_real_templates(name: str, ends: list[str]) -> None:
    words = tokenizer_of(HERE / "real" / f"{name}.jinja")
    assert sorted(map(words.convert_ids_to_tokens, turn_ends(load_renderer(words)))) == ends


def old_transformers() -> str:
    """The folder with transformers 4.57; skips the test without it."""
    if not OLD and "transformers457" not in REQUIRED:
        pytest.skip("transformers 4.57 is not here: .ci/transformers.sh FOLDER installs it and runs this test")
    assert (Path(OLD) / "transformers").is_dir(), "AGENTRL_TRANSFORMERS_457 names no folder with transformers"
    return OLD


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of supervised learning that begins with a base model."""
    pytest.importorskip("torch", reason="models need the extra `train`")
    from agentrl.train import train
    from agentrl.train.sft import sft_config

    folder = tmp_path_factory.mktemp("run")
    chat = {"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "It is a fox."}]}
    (folder / "chat.jsonl").write_text(json.dumps(chat) + "\n")
    values = {"model": str(base_model(folder / "base")), "out": folder / "out", "seed": 1}
    taught = {"steps": 60, "batch_size": 1, "learning_rate": 0.01}
    config = sft_config(folder / "chat.jsonl", None, {**values, "warm_start": taught})
    train(config, console=Console(file=io.StringIO()))
    return folder / "out" / "model"


def generated(folder: Path, *first: str) -> dict[str, Any]:
    """What plain transformers, found in the folders `first` or else the present one, generates greedily."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(first), "HF_HUB_OFFLINE": "1"}
    asked = [sys.executable, str(LOAD), str(folder), QUESTION]
    done = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.thorough
def test_plain_transformers_generates_the_runs_answer_to_its_end(learned: Path) -> None:
    found = generated(learned)
    assert found["version"].startswith("5.")
    assert found["text"] == "It is a fox.<|im_end|>"


@pytest.mark.thorough
def test_transformers_4_57_generates_the_runs_answer_to_its_end(learned: Path) -> None:
    found = generated(learned, old_transformers())
    assert found["version"].startswith("4.57.")
    assert found == {**generated(learned), "version": found["version"]}
    assert found["text"] == "It is a fox.<|im_end|>"
