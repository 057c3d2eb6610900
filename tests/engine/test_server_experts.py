"""The server returns the experts that a model chooses, for a trainer that replays them."""

from __future__ import annotations

import base64
from array import array

import pytest

torch = pytest.importorskip("torch")

from agentrl.engine.local import LocalEngine  # noqa: E402
from agentrl.engine.sglang import SGLangEngine  # noqa: E402
from agentrl.engine.sglang.server import running_server  # noqa: E402
from agentrl.errors import RequestError  # noqa: E402
from agentrl.models.tiny import tiny_model, tiny_tokenizer  # noqa: E402

LAYERS, TOPK = 2, 2
PROMPT = [5, 6, 7]
PARAMS = {"max_new_tokens": 4, "temperature": 1.0, "sampling_seed": 1}


@pytest.fixture
def model():
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=1024,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=8,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=TOPK,
        max_position_embeddings=128,
        initializer_range=0.5,
    )
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture
async def url(model):
    async with LocalEngine(model, tiny_tokenizer()) as engine, running_server(engine) as address:
        yield address


def experts(generation):
    numbers = array("i", base64.b64decode(generation.meta["routed_experts"]))
    width = LAYERS * TOPK
    assert len(numbers) % width == 0
    return [list(numbers[start : start + width]) for start in range(0, len(numbers), width)]


async def test_the_experts_of_all_tokens_but_the_last(url, model):
    async with SGLangEngine(url, extra={"return_routed_experts": True}) as engine:
        generation = await engine.generate(PROMPT, PARAMS)
    tokens = [*PROMPT, *generation.tokens]
    rows = experts(generation)
    assert len(rows) == len(tokens) - 1
    chosen: list[list[int]] = [[] for _ in rows]

    def note(_module, _inputs, output):
        for row, ids in zip(chosen, output[2].tolist(), strict=True):
            row.extend(ids)

    hooks = [layer.mlp.gate.register_forward_hook(note) for layer in model.model.layers]
    with torch.no_grad():
        model(torch.tensor([tokens[:-1]]))
    for hook in hooks:
        hook.remove()
    assert rows == chosen


async def test_only_later_tokens(url):
    async with SGLangEngine(url, extra={"return_routed_experts": True}) as engine:
        whole = experts(await engine.generate(PROMPT, PARAMS))
    async with SGLangEngine(url, extra={"return_routed_experts": True, "routed_experts_start_len": 2}) as engine:
        assert experts(await engine.generate(PROMPT, PARAMS)) == whole[2:]


async def test_a_wrong_start_is_refused(url):
    async with SGLangEngine(url, extra={"return_routed_experts": True, "routed_experts_start_len": -1}) as engine:
        with pytest.raises(RequestError, match="routed_experts_start_len must be"):
            await engine.generate(PROMPT, PARAMS)


async def test_a_model_without_experts_refuses_the_field():
    async with (
        LocalEngine(tiny_model(), tiny_tokenizer()) as local,
        running_server(local) as url,
        SGLangEngine(url, extra={"return_routed_experts": True}) as engine,
    ):
        with pytest.raises(RequestError, match="return_routed_experts"):
            await engine.generate(PROMPT, PARAMS)
