"""Small models: the same architecture, and flags that are wrong afterwards where they were wrong before."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.rehearse.launch import Flags, captured
from agentrl.rehearse.model import config_from_flags, read_config, shrink, write_config, write_weights

SOURCE = os.environ.get("SLIME_SRC", "")

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "vocab_size": 1024,
    "eos_token_id": 2,
    "max_window_layers": 28,
}
QWEN2 = {**QWEN3, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "head_dim": 64}
LLAMA = {**QWEN3, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": 64}
GLM = {**QWEN3, "architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "num_key_value_heads": 2, "pad_token_id": 0}
MOE = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
DEEPSEEK = {
    **QWEN3,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "head_dim": 64,
    "num_key_value_heads": 16,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "n_group": 8,
    "topk_group": 4,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
FAMILIES = {"qwen2": QWEN2, "qwen3": QWEN3, "qwen3_moe": MOE, "llama": LLAMA, "glm4": GLM, "deepseek_v3": DEEPSEEK}
SIZES = [
    *("--num-layers", "28", "--hidden-size", "1024", "--ffn-hidden-size", "3072"),
    *("--num-attention-heads", "16", "--num-query-groups", "8"),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_small_model_of_each_family_runs(family, tmp_path):
    """transformers makes it, and it has all kinds of layers."""
    from transformers import AutoConfig

    shrunk = shrink(FAMILIES[family], Flags())
    write_config(shrunk.config, tmp_path, None)
    write_weights(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.model_type == family
    assert config.num_hidden_layers == 2
    assert config.hidden_size == 128
    assert (tmp_path / "model.safetensors").stat().st_size < 2_000_000


def test_the_model_ends_its_turns(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    write_config(shrink(QWEN3, Flags()).config, tmp_path, None)
    write_weights(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        share = model(torch.randint(0, 1024, (4, 64))).logits.softmax(-1)[..., 2].mean().item()
    assert 1 / 60 < share < 1 / 10, "without this a turn would go on to its limit"


def test_flags_follow_the_model():
    shrunk = shrink(QWEN3, Flags.of([*SIZES, "--kv-channels", "128", "--vocab-size", "1024"]))
    assert shrunk.problems == []
    assert shrunk.flags == {
        "--num-layers": "2",
        "--hidden-size": "128",
        "--ffn-hidden-size": "256",
        "--num-attention-heads": "4",
        "--num-query-groups": "2",
        "--kv-channels": "64",  # heads are wider than the hidden state, as before
        "--vocab-size": "1024",
    }


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--num-layers", "36"), ("--hidden-size", "2048"), ("--num-query-groups", "16"), ("--kv-channels", "64")],
)
def test_a_wrong_size_stays_wrong_and_is_named(flag, value):
    shrunk = shrink(QWEN3, Flags.of([*SIZES, "--kv-channels", "128", flag, value]))
    assert [problem.startswith(f"{flag} {value}") for problem in shrunk.problems] == [True]
    assert shrunk.flags[flag] == value


def test_a_flag_that_the_launch_lacks_is_not_added():
    assert "--kv-channels" not in shrink(QWEN3, Flags.of(SIZES)).flags


def test_each_pipeline_stage_gets_a_layer():
    assert shrink(QWEN3, Flags(), stages=4).config["num_hidden_layers"] == 4


def test_each_kind_of_layer_is_kept():
    config = {**QWEN3, "layer_types": ["linear_attention"] * 3 + ["full_attention"] + ["linear_attention"] * 24}
    shrunk = shrink(config, Flags()).config
    assert shrunk["layer_types"] == ["linear_attention"] * 3 + ["full_attention"]


def test_layers_with_and_without_experts():
    flags = Flags.of(["--moe-layer-freq", "[0]*1+[1]*27", "--moe-shared-expert-intermediate-size", "2816"])
    shrunk = shrink(DEEPSEEK, flags)
    assert shrunk.flags == {"--moe-layer-freq": "[0,1]", "--moe-shared-expert-intermediate-size": "128"}
    assert shrunk.problems == []
    assert shrink(DEEPSEEK, Flags.of(["--moe-layer-freq", "[1]*28"])).problems
    assert shrink(DEEPSEEK, Flags.of(["--moe-layer-freq", "[0]*1+[1]*20"])).problems


def test_parts_for_a_gpu_are_dropped():
    config = {**QWEN3, "quantization_config": {"quant_method": "fp8"}, "torch_dtype": "float16"}
    shrunk = shrink(config, Flags()).config
    assert "quantization_config" not in shrunk
    assert shrunk["dtype"] == "bfloat16"


def test_tokenizer_and_template_are_copied_weights_are_not(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in (
        "tokenizer.json",
        "chat_template.jinja",
        "model-00001-of-2.safetensors",
        "model.safetensors.index.json",
    ):
        (source / name).write_text("{}")
    (source / "config.json").write_text(json.dumps(QWEN3))
    write_config(shrink(read_config(source), Flags()).config, tmp_path / "small", source)
    assert {file.name for file in (tmp_path / "small").iterdir()} == {
        "tokenizer.json",
        "chat_template.jinja",
        "config.json",
    }
    assert read_config(tmp_path / "small")["hidden_size"] == 128


def test_a_folder_without_a_configuration(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        read_config(tmp_path)


def test_without_folder_and_sizes_there_is_no_model():
    with pytest.raises(ConfigError, match="no sizes of a model"):
        config_from_flags(Flags.of(["--hf-checkpoint", "/root/Qwen3-4B"]))


@pytest.mark.skipif(not SOURCE, reason="SLIME_SRC is not set: give the root of slime's source")
@pytest.mark.parametrize(
    ("script", "family"),
    [
        ("run-qwen3-4B.sh", "qwen3"),
        ("run-glm4-9B.sh", "glm4"),
        ("run-qwen3-30B-A3B.sh", "qwen3_moe"),
        ("run-moonlight-16B-A3B.sh", "deepseek_v3"),
        ("run-qwen2.5-0.5B-gb10-smoke.sh", "qwen2"),
    ],
)
def test_a_model_as_slimes_flags_describe_it(script, family, tmp_path):
    flags = captured(Path(SOURCE, "scripts", script)).flags
    config, kind = config_from_flags(flags)
    shrunk = shrink(config, flags, vocabulary=1024)
    assert kind == family
    assert shrunk.problems == []
    assert shrunk.flags["--vocab-size"] == "1024"
    write_config(shrunk.config, tmp_path, None)
    write_weights(tmp_path)
