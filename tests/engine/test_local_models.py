"""Every architecture either agrees with a plain forward pass or is refused: tiny random models of each kind."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the embedded engine needs the extra `train`")

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from agentrl.engine.local import LocalEngine  # noqa: E402
from agentrl.errors import ConfigError  # noqa: E402
from agentrl.models import tiny_model, tiny_tokenizer  # noqa: E402

TOKENIZER = tiny_tokenizer()
_PLAIN: Any = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [3.0] * 4,
    "original_max_position_embeddings": 32,
    "rope_theta": 10000.0,
}
_DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}


def make(kind: str, **changes: Any) -> Any:
    config = AutoConfig.for_model(kind, **{**_PLAIN, **changes})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


RIGHT = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "mistral": {"sliding_window": None},
    "mistral up to its window": {"sliding_window": 96},
    "phi3": {},
    "starcoder2": {"sliding_window": None},
    "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "sliding_window": 96},
    "olmo2": {},
    "llama dynamic": {"rope_scaling": _DYNAMIC},
    "phi3 longrope up to its switch": {"rope_scaling": _LONGROPE, "original_max_position_embeddings": 96},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96},
    "gpt_neox": {},
    "granite": {},
    "qwen2_moe": {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
}

REFUSED = {
    "mistral": ({"sliding_window": 16}, "looks back 16 tokens .sliding_window.: set max_context to 16 or less"),
    "phi3": ({"sliding_window": 16}, "set max_context to 16 or less"),
    "phi3 longrope": (
        {"rope_scaling": _LONGROPE, "original_max_position_embeddings": 32},
        "exceeds 32 tokens .longrope.: set max_context to 32 or less",
    ),
    "starcoder2": ({"sliding_window": 16}, "set max_context to 16 or less"),
    "gemma2": ({"head_dim": 8, "sliding_window": 16}, "set max_context to 16 or less"),
    "gpt_neo": (
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 16},
        "looks back 16 tokens .window_size.",
    ),
    "rwkv": ({"context_length": 96, "attention_hidden_size": 32, "max_position_embeddings": 96}, "Rwkv"),
    "bloom": ({"n_head": 4, "n_layer": 2, "max_position_embeddings": 96}, "Bloom"),
    "mamba": ({"max_position_embeddings": 96}, "layers of linear_attention"),
}  # fmt: skip


def _random_prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(len(TOKENIZER)) for _ in range(length)]


@pytest.mark.parametrize("name", RIGHT)
async def test_log_probs_through_the_engine_are_those_of_a_plain_forward_pass(name: str) -> None:
    model = make(name.split()[0], **RIGHT[name])
    async with LocalEngine(model, TOKENIZER, max_batch=3) as engine:

        async def play(seed: int) -> None:
            rng = random.Random(seed)
            ids = _random_prompt(rng, 5 + 9 * seed)
            for _ in range(2):
                params: Any = {"ignore_eos": True, "max_new_tokens": 8, "sampling_seed": seed}
                answer = await engine.generate(ids, params, session_id=str(seed))
                with torch.inference_mode():
                    logits = model(torch.tensor([[*ids, *answer.tokens]])).logits[0, len(ids) - 1 : -1]
                wanted = torch.log_softmax(logits, -1).gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
                assert list(answer.log_probs) == pytest.approx(wanted.tolist(), abs=2e-4)
                ids = [*ids, *answer.tokens, *_random_prompt(rng, 4)]

        await asyncio.gather(*map(play, range(5)))


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_in_silence_is_refused_with_the_remedy(name: str) -> None:
    changes, says = REFUSED[name]
    model = make(name.split()[0], **changes)
    with pytest.raises(ConfigError, match=says) as caught:
        LocalEngine(model, TOKENIZER)
    assert "serve the model with SGLang" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_windowed_model_is_exact_where_the_remedy_is_taken() -> None:
    model = make("mistral", sliding_window=16)
    async with LocalEngine(model, TOKENIZER, max_context=16) as engine:
        answer = await engine.generate([3, 4, 5], {"ignore_eos": True, "sampling_seed": 1})
    assert len(answer.tokens) == 13
    with torch.inference_mode():
        logits = model(torch.tensor([[3, 4, 5, *answer.tokens]])).logits[0, 2:-1]
    wanted = torch.log_softmax(logits, -1).gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
    assert list(answer.log_probs) == pytest.approx(wanted.tolist(), abs=2e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_no_configuration_tells_is_found_by_comparison(dtype: str) -> None:
    """A window that the configuration does not name, and rounding that is not taken for one."""
    model = tiny_model().to(getattr(torch, dtype))
    LocalEngine(model, TOKENIZER)
    attention = model.model.layers[0].self_attn
    plain = attention.forward

    def look_back_four(hidden_states: Any, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("past_key_values") is None:
            n = hidden_states.shape[1]
            distance = torch.arange(n)[:, None] - torch.arange(n)
            attention_mask = torch.zeros(1, 1, n, n, dtype=hidden_states.dtype).masked_fill(
                (distance < 0) | (distance >= 4), torch.finfo(hidden_states.dtype).min
            )
        return plain(hidden_states, *args, attention_mask=attention_mask, **kwargs)

    attention.forward = look_back_four
    with pytest.raises(ConfigError, match=r"off by .* standard deviations from a plain forward pass"):
        LocalEngine(model, TOKENIZER)


def test_the_comparison_is_cheap() -> None:
    """Milliseconds for tiny; a model of 135 M takes a third of a second (benchmarks/bench_local_engine.py)."""
    calls = 0
    model = tiny_model()

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    model.register_forward_pre_hook(count)
    LocalEngine(model, TOKENIZER)
    assert calls == 5, "one plain pass, one prefill, three tokens"
