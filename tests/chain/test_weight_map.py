"""The example's Megatron-Core model is the Hugging Face model: names, logits and gradients."""

from __future__ import annotations

import importlib
import os
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="Megatron-Core needs torch")

pytestmark = pytest.mark.filterwarnings("ignore")  # Megatron's own are not ours to fix

SIZES = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "initializer_range": 0.2}
ARCHITECTURES = {
    "qwen2": {"num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen2 untied, a head a group": {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False},
    "llama": {"num_attention_heads": 6, "num_key_value_heads": 3, "tie_word_embeddings": False, "rope_theta": 500.0},
    "llama tied, one group": {"num_attention_heads": 6, "num_key_value_heads": 1, "tie_word_embeddings": True},
}


@pytest.fixture(scope="module")
def megatron(example):
    """The module, with Megatron-Core joined to a group of one process for as long as the tests last."""
    current_device = torch.cuda.current_device
    module, device = importlib.import_module("megatron_model"), importlib.import_module("device")
    device.choose("cpu")
    device.join(0, 1, 0)
    with device.training():
        yield module
    torch.cuda.current_device = current_device
    importlib.import_module("megatron.core.parallel_state").destroy_model_parallel()
    torch.distributed.destroy_process_group()
    del os.environ[device.VARIABLE]


@pytest.fixture(params=ARCHITECTURES)
def theirs(request):
    """A random Hugging Face model, biases included."""
    import transformers

    kind = "Qwen2" if request.param.startswith("qwen2") else "Llama"
    config = getattr(transformers, f"{kind}Config")(**SIZES, **ARCHITECTURES[request.param])
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def forward(model, megatron, sequences):
    tokens, params = megatron.packed(sequences)
    logits = model(input_ids=tokens, position_ids=None, attention_mask=None, packed_seq_params=params)
    return logits[0].split([len(sequence) for sequence in sequences])


def sequences(seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, SIZES["vocab_size"], (length,), generator=generator) for length in (7, 1, 33)]


def test_round_trip(megatron, theirs):
    given = dict(theirs.named_parameters())
    ours = megatron.build_model(theirs.config, theirs.state_dict())
    back = megatron.to_hugging_face(dict(ours.named_parameters()), theirs.config)
    assert back.keys() == given.keys()
    assert all(torch.equal(back[name], given[name]) for name in given)


def test_logits(megatron, theirs):
    ours = megatron.build_model(theirs.config, theirs.state_dict())
    for sequence, logits in zip(sequences(), forward(ours, megatron, sequences()), strict=True):
        torch.testing.assert_close(logits, theirs(sequence[None]).logits[0], rtol=1e-4, atol=1e-4)


def test_gradients(megatron, theirs):
    """Of the same loss, through the map: every parameter is trained, and in the direction that Hugging Face's takes."""
    ours = megatron.build_model(theirs.config, theirs.state_dict())
    torch.autograd.backward(torch.cat(forward(ours, megatron, sequences())).logsumexp(-1).sum())
    torch.autograd.backward(sum(theirs(sequence[None]).logits.logsumexp(-1).sum() for sequence in sequences()))
    mapped = {name: parameter.grad for name, parameter in ours.named_parameters()}
    for name, gradient in megatron.to_hugging_face(mapped, theirs.config).items():
        wanted = dict(theirs.named_parameters())[name].grad
        # A key's bias moves all of a query's scores alike: its gradient is zero but for rounding.
        assert wanted.abs().max() > 0 or name.endswith("k_proj.bias")
        torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-4)


def test_packed_sequences_do_not_see_one_another(megatron, theirs):
    ours = megatron.build_model(theirs.config, theirs.state_dict())
    first, second, third = sequences()
    before = forward(ours, megatron, [first, second, third])
    after = forward(ours, megatron, [first.flip(0), second, third])
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert torch.equal(before[2], after[2])


def test_slimes_converter_agrees(megatron, theirs):
    """slime's map from Megatron to Hugging Face, which knows the layer norms by TransformerEngine's names."""
    source = os.environ.get("SLIME_SRC")
    if not source:
        pytest.skip("SLIME_SRC is not set: give the root of slime's source to run this test")
    sys.path.insert(0, source)
    try:
        importlib.import_module("device").register()
        module = importlib.import_module(f"slime.backends.megatron_utils.megatron_to_hf.{theirs.config.model_type}")
    finally:
        sys.path.remove(source)
    convert = getattr(module, f"convert_{theirs.config.model_type}_to_hf")
    hf = theirs.config
    args = SimpleNamespace(
        hidden_size=hf.hidden_size,
        num_attention_heads=hf.num_attention_heads,
        num_query_groups=hf.num_key_value_heads,
        kv_channels=hf.hidden_size // hf.num_attention_heads,
    )
    ours = dict(megatron.build_model(hf, theirs.state_dict()).named_parameters())
    found = {}
    for name, parameter in ours.items():
        name = name.replace(".input_layernorm.", ".self_attention.linear_qkv.layer_norm_")
        name = name.replace(".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_")
        found.update(convert(args, f"module.module.{name}", parameter))
    back = megatron.to_hugging_face(ours, hf)
    assert found.keys() == back.keys()
    assert all(torch.equal(found[name], back[name]) for name in back)


def test_other_models_are_refused(megatron, theirs):
    theirs.config.model_type = "gpt2"
    with pytest.raises(ValueError, match="gpt2: the weight map knows qwen2 and llama"):
        megatron.build_model(theirs.config, theirs.state_dict())
