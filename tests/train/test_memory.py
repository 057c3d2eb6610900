"""The arithmetic of memory, against models, against what autograd keeps, and against figures made by hand."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from agentrl._util.memory import free_ram
from agentrl.models.adapter import quiet_peft
from agentrl.train import TrainConfig, Trainer, memory_advice
from agentrl.train.memory import MemoryEstimate, MemoryInputs, Shape
from agentrl.train.memory_advice import free_memory, lines_about, memory_lines, ways_to_fit
from tests.train.qwen3 import qwen3

GB = 10**9
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 512,
}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2}


def small(kind: str, **more: Any) -> Any:
    return CONFIG_MAPPING[kind](**{**SMALL, **more})


@pytest.fixture(scope="module")
def shapes() -> dict[str, Shape]:
    return {size: Shape.of(qwen3(size)) for size in ("0.6B", "1.7B", "4B")}


def config(**values: Any) -> TrainConfig:
    given = {"env": "my_env.py:MyEnv", "data": "tasks.jsonl", "out": "run", "model": "Qwen/Qwen3", "dtype": "bfloat16"}
    return TrainConfig.make(**{**given, "limits": {"context": 16384}, **values})


def need(shape: Shape, *, on_gpu: bool = True, **values: Any) -> MemoryEstimate:
    return MemoryEstimate.of(shape, MemoryInputs.of(config(**values), shape, on_gpu=on_gpu))


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 32}),
        ("mistral", {}),
        ("gemma2", {"head_dim": 16}),
        ("gemma3_text", {"head_dim": 16}),
        ("qwen3_moe", {**EXPERTS, "head_dim": 16}),
        ("mixtral", EXPERTS),
        ("olmoe", EXPERTS),
    ],
)
def test_parameters_are_those_of_the_model(kind: str, more: dict[str, Any]) -> None:
    before = torch.get_rng_state()
    shape = Shape.of(small(kind, **more))
    assert torch.equal(torch.get_rng_state(), before), "a run with a seed stays the same run"
    model = AutoModelForCausalLM.from_config(small(kind, **more))
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    peft = pytest.importorskip("peft", reason="adapters need the extra `lora`")
    for targets in ("all-linear", ["q_proj", "v_proj"], r".*\.o_proj"):
        with quiet_peft():
            adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets))
        trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
        assert shape.adapter(4, targets) == trained
        model = adapted.unload()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rank", [0, 16])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_layer_keeps_what_autograd_keeps(kind: str, rank: int, dtype: torch.dtype) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 8, "num_key_value_heads": 4}
    two, three = (small(kind, **sizes, head_dim=32, num_hidden_layers=layers) for layers in (2, 3))
    found = (kept_bytes(three, rank, dtype) - kept_bytes(two, rank, dtype)) / 128
    gradients = dtype.itemsize * (3 * 768 + 2 * 256)
    assert Shape.of(two).layer_bytes(dtype.itemsize, rank) - gradients == pytest.approx(found, rel=0.02)


def kept_bytes(model_config: Any, rank: int, dtype: torch.dtype) -> int:
    """Bytes that a forward pass over 128 tokens keeps for the backward pass, parameters aside."""
    model = AutoModelForCausalLM.from_config(model_config).to(dtype)
    if rank:
        peft = pytest.importorskip("peft", reason="adapters need the extra `lora`")
        with quiet_peft():
            settings = peft.LoraConfig(r=rank, target_modules="all-linear")
            model = peft.get_peft_model(model, settings, autocast_adapter_dtype=False)
        model.enable_input_require_grads()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    body = (model.get_base_model() if rank else model).base_model
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        body(input_ids=torch.arange(128)[None], use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for pointer, tensor in kept.items() if pointer not in own)


def test_qwen3_by_hand(shapes: dict[str, Shape]) -> None:
    """0.6B: 151,936 x 1,024 embeddings; 28 layers of 4 x 1,024 x 2,048 (q, o, and half of it each for k and v), of
    3 x 1,024 x 3,072, and of two norms of 1,024 and two of 128; a norm of 1,024."""
    layer = 1024 * (2048 + 1024 + 1024 + 2048) + 3 * 1024 * 3072 + 2 * 1024 + 2 * 128
    assert shapes["0.6B"].parameters == 151936 * 1024 + 28 * layer + 1024 == 596_049_920
    assert [shape.parameters for shape in shapes.values()] == [596_049_920, 1_720_574_976, 4_022_468_096]
    assert [shape.cache_bytes(2) // 1024 for shape in shapes.values()] == [112, 112, 144]
    assert shapes["0.6B"].adapter(16, "all-linear") == 28 * 16 * (3 * 3072 + 2 * 2048 + 3 * 4096) - 28 * 16 * 3072
    assert [round(shape.adapter(16, "all-linear") / 1e6) for shape in shapes.values()] == [10, 17, 33]


def test_bytes_a_parameter(shapes: dict[str, Shape]) -> None:
    """In bfloat16: weight 2, float32 copy 4, Adam 8 (2 in 8 bits), gradient 2, and the largest one in float32 while the
    optimizer steps. With LoRA 2, and 16 of the adapter."""
    largest = {"0.6B": 151936 * 1024, "1.7B": 151936 * 2048, "4B": 151936 * 2560}
    for size, full, lora in (("0.6B", 9.5, 1.35), ("1.7B", 27.5, 3.7), ("4B", 64.4, 8.6)):
        parameters = shapes[size].parameters
        states = need(shapes[size])
        assert states.resident + states.stepping - states.fixed == 16 * parameters + 4 * largest[size]
        assert states.resident + states.gradients - states.fixed == 16 * parameters
        assert 16 * parameters / GB == pytest.approx(full, abs=0.05)
        eight = need(shapes[size], optimizer="adamw_8bit")
        assert eight.resident + eight.gradients - eight.fixed == 10 * parameters
        adapted = need(shapes[size], lora={"rank": 16})
        added = shapes[size].adapter(16, "all-linear")
        assert adapted.resident + adapted.gradients - adapted.fixed == 2 * parameters + 16 * added
        assert adapted.stepping - adapted.gradients == min(4 * added, 64 << 20), "float32 copies, a few at a time"
        assert (adapted.resident + adapted.gradients - adapted.fixed) / GB == pytest.approx(lora, abs=0.06)
    exact = need(shapes["0.6B"], dtype="float32")
    assert exact.resident + exact.stepping - exact.fixed == 16 * shapes["0.6B"].parameters


def test_activations_with_and_without_checkpointing(shapes: dict[str, Shape]) -> None:
    shape = shapes["4B"]
    layer = shape.layer_bytes(2, 0)
    assert need(shape).activations == 16384 * (36 * 2560 * 2 + layer), "the inputs of 36 layers, and one layer"
    assert need(shape, gradient_checkpointing=False).activations == 16384 * 36 * layer
    shared = 4 * 2 * 1024 * 2
    assert shape.shared_bytes(2) == shared, "keys and values of four rows"
    assert need(shape, limits={"context": 2048}).activations == 2048 * (36 * 2560 * 2 + layer + shared)
    packed = need(shape, limits={"context": 2048}, micro_batch_tokens=8192)
    assert packed.activations == 8192 * (36 * 2560 * 2 + layer + shared)
    assert need(shape, limits={}).activations == 40960 * (36 * 2560 * 2 + layer), "as long as the model can read"


def test_on_a_gpu_the_allocators_gaps_are_counted(shapes: dict[str, Shape]) -> None:
    """As measured on an H100 where the card was full: 17 % of what comes and goes."""
    shape = shapes["4B"]
    found, on_cpu = need(shape, lora={"rank": 16}), need(shape, lora={"rank": 16}, on_gpu=False)
    assert found.gaps == int(0.17 * found.backward)
    assert found.learning == found.resident + found.backward + found.gaps
    assert on_cpu.gaps == 0
    assert found.fits(found.learning)
    assert not found.fits(found.learning - 1)
    assert "reserved in gaps" in told(shape, 80, lora={"rank": 16})[0]
    assert "reserved" not in next(lines_about(config(lora={"rank": 16}), shape, 80 * GB, on_gpu=False))


def test_the_engine_is_counted_where_it_is(shapes: dict[str, Shape]) -> None:
    shape = shapes["4B"]
    inside = need(shape, lora={"rank": 16})
    sleeping = need(shape, lora={"rank": 16}, engine="sglang")
    beside = need(shape, lora={"rank": 16}, engine={"kind": "sglang", "sleep": False})
    elsewhere = need(shape, lora={"rank": 16}, engine={"kind": "sglang", "url": "http://127.0.0.1:30000"})
    weights, cache = 2 * shape.parameters, 16384 * 144 * 1024
    assert sleeping.learning == inside.learning == elsewhere.learning == beside.learning - weights - cache
    assert sleeping.rollout == beside.rollout == inside.rollout + weights
    assert elsewhere.rollout < inside.rollout - cache
    on_cpu = need(shape, on_gpu=False, lora={"rank": 16}, engine="sglang")
    assert not on_cpu.asleep, "a CPU's memory is not given back"
    assert (sleeping.episodes(24 * GB), sleeping.episodes(25 * GB)) == (1, 2)
    assert beside.peak < 80 * GB
    apart = need(shape, lora={"rank": 16}, staleness=1)
    assert (apart.learning, apart.rollout) == (beside.learning, beside.rollout), (
        "separate weights, and it keeps playing"
    )
    assert apart.fits(apart.learning + apart.prefill) > beside.fits(apart.learning + apart.prefill), "no share"
    assert apart.episodes(apart.learning + apart.prefill + 2 * cache) == 3
    assert not need(shape, engine="sglang", staleness=1).asleep
    kl = need(shape, kl_coef=0.1)
    assert kl.reference == weights
    assert need(shape, kl_coef=0.1, lora={"rank": 16}).reference == 0


@pytest.mark.parametrize(
    ("size", "free", "values", "remedy"),
    [
        ("0.6B", 24, {"gradient_checkpointing": False}, ["gradient_checkpointing=true"]),
        ("4B", 24, {"lora": {"rank": 16}, "engine": {"kind": "sglang", "sleep": False}}, ["engine_config.sleep=true"]),
        ("4B", 24, {"lora": {"rank": 16}, "staleness": 1}, ["staleness=0"]),
        ("4B", 24, {"lora": {"rank": 16}, "engine": "sglang", "staleness": 1}, ["staleness=0"]),
        ("4B", 60, {}, ["optimizer=adamw_8bit"]),
        ("4B", 24, {}, ["lora.rank=16"]),
        ("4B", 24, {"dtype": "float32"}, ["lora.rank=16", "dtype=bfloat16"]),
        ("1.7B", 11, {"dtype": "float32", "lora": {"rank": 16}}, ["dtype=bfloat16"]),
        ("4B", 14, {"lora": {"rank": 16}}, ["limits.context=8192"]),
        ("4B", 14, {}, ["lora.rank=16", "limits.context=8192"]),
        ("4B", 8, {}, []),
    ],
)
def test_the_first_option_that_makes_it_fit(
    shapes: dict[str, Shape], size: str, free: int, values: dict[str, Any], remedy: list[str]
) -> None:
    assert not need(shapes[size], **values).fits(free * GB)
    assert ways_to_fit(config(**values), shapes[size], free * GB, on_gpu=True) == remedy


def test_on_a_cpu_no_option_of_a_gpu_is_proposed(shapes: dict[str, Shape]) -> None:
    assert ways_to_fit(config(engine="sglang"), shapes["4B"], 60 * GB, on_gpu=False) == ["lora.rank=16"]


def told(shape: Shape, free: float, **values: Any) -> list[str]:
    return list(lines_about(config(**values), shape, int(free * GB), on_gpu=True))


def test_what_is_said(shapes: dict[str, Shape]) -> None:
    shape = shapes["4B"]
    first, second = told(shape, 23.5)
    assert first.startswith("memory, by arithmetic: learning 76.1 GB (optimizer 32.2, float32 weights 16.1, ")
    assert "playing one episode of 16,384 tokens" in first
    assert first.endswith("; 23.5 GB free on this GPU")
    assert second == "warning: this model does not fit on this GPU: lora.rank=16 would make it fit"
    _, second = told(shape, 25, lora={"rank": 16}, engine="sglang")
    assert second == "memory: room for 2 episodes of 16,384 tokens at once; more wait"
    _, second = told(shape, 23.5, lora={"rank": 16})
    assert second == "memory: room for 5 episodes of 16,384 tokens at once: if all become that long, set concurrency=5"
    assert len(told(shape, 23.5, concurrency=4, lora={"rank": 16})) == 1
    _, second = told(shape, 4)
    assert second == "warning: this model does not fit on this GPU: no option makes it fit; take a smaller one"


@pytest.mark.thorough
def test_nothing_is_said_about_little_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(Shape.of(small("llama")), 4) == []
    monkeypatch.setattr(memory_advice, "free_memory", lambda _: 0)
    for unknown in (CONFIG_MAPPING["gpt2"](n_layer=1, n_embd=64, n_head=2, vocab_size=100), object()):
        monkeypatch.setattr(memory_advice, "load_config", lambda _, unknown=unknown: unknown)
        assert memory_lines(config(), "Qwen/Qwen3", "cuda") == [], "it has other names for its sizes, or none"


def test_a_run_says_it_before_it_loads_the_model(make_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_advice, "_WORTH_SAYING", 0)
    monkeypatch.setattr(memory_advice, "free_memory", lambda _: 10**6)
    monkeypatch.setattr("agentrl.train.weights.load_weights", lambda *_: pytest.fail("loaded"))
    console = Console(file=io.StringIO(), width=80)
    with pytest.raises(pytest.fail.Exception, match="loaded"):
        asyncio.run(Trainer(make_config(), console=console).setup())
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "memory, by arithmetic: learning 0.1 GB" in said
    assert "in RAM: no option makes it fit" in said


def test_free_memory_of_this_machine(tmp_path: Path) -> None:
    assert 0 < free_memory("cpu") < 1 << 50
    machine = free_ram(tmp_path / "no container")
    assert machine > 4000
    files = {"memory.max": "9000\n", "memory.current": "7000\n", "memory.stat": "anon 5000\ninactive_file 2000\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert free_ram(tmp_path) == 4000, "cached files are dropped where programs need the room"
    (tmp_path / "memory.max").write_text("max\n")
    assert free_ram(tmp_path) > 4000
