"""Where a tokenizer may come from, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.models import load_tokenizer, tiny_tokenizer
from agentrl.models.tokenizer import RemoteCodeError

CODE = """
from transformers import PreTrainedTokenizerFast

class Own(PreTrainedTokenizerFast):
    own = True
"""


def alone(folder: Path) -> Path:
    tiny_tokenizer().save_pretrained(folder)
    assert not (folder / "config.json").exists()
    return folder


def same(tokenizer: object) -> bool:
    text = "What is the capital of Tonga?<|im_end|>"
    return tokenizer.encode(text) == tiny_tokenizer().encode(text)  # type: ignore[attr-defined]


def test_a_folder_that_holds_a_tokenizer_alone(tmp_path: Path) -> None:
    assert same(load_tokenizer(str(alone(tmp_path))))
    (tmp_path / "tokenizer_config.json").unlink()
    assert same(load_tokenizer(str(tmp_path), chat_template="{{ messages }}")), "a tokenizer.json is enough"


def test_the_tokenizer_of_a_saved_tiny_needs_no_torch(tmp_path: Path) -> None:
    """`agentrl show` opens it for each episode; torch takes two seconds to import."""
    alone(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}', encoding="utf-8")
    code = f"import sys; from agentrl.models import load_tokenizer as load; load({str(tmp_path)!r})"
    out = subprocess.run(
        [sys.executable, "-c", f"{code}; print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert out.stdout.split() == ["False"], out.stderr


def test_a_name_that_the_cache_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    entry = tmp_path / "models--some-org--Model-1.5B"
    alone(entry / "snapshots" / "0123abcd")
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text("0123abcd")
    assert same(load_tokenizer("some-org/Model-1.5B"))
    with pytest.raises(ConfigError, match=r"some-org/Other is not .completely. in the cache .*HF_HUB_OFFLINE is set"):
        load_tokenizer("some-org/Other")


@pytest.mark.parametrize("name", ["", "no/such/folder", "../x", "a b", "org/", "x\ny"])
def test_what_is_no_name_is_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as excinfo:
        load_tokenizer(name)
    assert "\n" not in str(excinfo.value)


def test_a_tokenizer_of_python_code_is_run_where_it_may_be_and_never_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, modules = alone(tmp_path / "model"), tmp_path / "modules"
    config = folder / "tokenizer_config.json"
    config.write_text(
        config.read_text().replace("{", '{"auto_map": {"AutoTokenizer": [null, "own_tokenizer.Own"]},', 1)
    )
    text = config.read_text()
    for known in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        text = text.replace(f'"tokenizer_class": "{known}"', '"tokenizer_class": "Own"')
    config.write_text(text)
    (folder / "own_tokenizer.py").write_text(CODE)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(modules))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(RemoteCodeError, match=r"has its own Python code.*tokenizer.json") as excinfo:
        load_tokenizer(str(folder))
    assert "\n" not in str(excinfo.value)
    trusted = load_tokenizer(str(folder), trust_remote_code=True)
    assert trusted.own
    assert same(trusted)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "tokenizer.json"])
def test_a_damaged_file_is_one_line(tmp_path: Path, file: str) -> None:
    (alone(tmp_path) / file).write_text("{\n")
    with pytest.raises(ConfigError, match=str(tmp_path)) as excinfo:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(excinfo.value)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no tokenizer"):
        load_tokenizer(str(tmp_path))
