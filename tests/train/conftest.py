from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl import EnvFactory, Trajectory, run_episode
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeOptions
from agentrl.models import save_model
from agentrl.train import TrainConfig
from agentrl.types import Limits, Task

TOY = Path(__file__).with_name("toy_env.py")
LIMITS = {"turns": 3, "max_tokens_per_turn": 6, "context": 200}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are no faster with more, and much slower where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """The folder of a model like `tiny` with a tenth of its parameters, for runs whose model makes no difference."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    folder = tmp_path_factory.mktemp("models") / "small"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_model(Qwen2ForCausalLM(config), tokenizer, folder)
    return folder


@pytest.fixture(autouse=True)
def no_curve(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Drawing takes longer than a short run; a test marked `curve` draws it."""
    if "curve" not in request.keywords:
        monkeypatch.setattr("agentrl.train.report.draw_curve", lambda metrics, evals, file: True)


@pytest.fixture
def demonstrations(tmp_path, renderer) -> Path:
    """Twenty episodes that say what they are asked to."""

    async def play(i: int) -> Trajectory:
        async with EnvFactory(f"{TOY}:Toy") as envs:
            task = Task(prompt=f"say {i}", label=0.0, id=str(i))
            engine = ScriptedEngine([f"Yo {i}"] * 3, renderer)
            return await run_episode(
                envs.make(), task, engine=engine, renderer=renderer, options=EpisodeOptions(limits=Limits(turns=3))
            )

    async def play_all() -> list[Trajectory]:
        return [await play(i) for i in range(20)]

    path = tmp_path / "demonstrations.jsonl"
    path.write_text("".join(json.dumps(t.to_json()) + "\n" for t in asyncio.run(play_all())))
    return path


@pytest.fixture
def make_config(tmp_path, small_model):
    """A run of few and small steps of a small model; any key may be given."""
    rows = [{"prompt": f"say {i}", "label": i / 100, "id": str(i)} for i in range(10)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(**values):
        given = {
            "env": f"{TOY}:Toy",
            "data": tmp_path / "tasks.jsonl",
            "model": str(small_model),
            "out": tmp_path / "run",
            "steps": 2,
            "prompts_per_step": 3,
            "group_size": 4,
            "limits": LIMITS,
            "keep": {"groups": 3},
            "device": "cpu",
        }
        if values.get("lora") is None and "model" not in values:
            given["learning_rate"] = 3e-4  # the model has random weights; the default is for those that were trained
        return TrainConfig.make(**{**given, **values})

    return make
