"""`agentrl sft`: chat becomes a model, without an Env."""

from __future__ import annotations

import json

import pytest
import yaml

pytest.importorskip("torch", reason="the embedded engine needs torch: pip install -e '.[train]'")


def chat(*said: str) -> str:
    messages = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(said)]
    return json.dumps({"messages": messages}) + "\n"


def test_chat_becomes_a_model_that_can_be_trained_on(folder, agentrl):
    (folder / "chat.jsonl").write_text(chat("a?", "b") + chat("c?", "d") + chat("only asked"))

    assert (
        agentrl("sft", "chat.jsonl", "--model", "tiny", "--out", "run", "--epochs", "1", "--set", "device=cpu",
                "--set", "warm_start.batch_size=2", "--set", "warm_start.optimizer=adamw") == 0
    ), agentrl.stderr  # fmt: skip

    assert (folder / "run" / "model" / "model.safetensors").is_file()
    assert (folder / "run" / "skipped_rows.txt").read_text().startswith("chat.jsonl:3: no assistant message")
    config = yaml.safe_load((folder / "run" / "config.yaml").read_text())
    assert config["warm_start"]["steps"] == 2, "an epoch of three rows, two at a time"
    assert "agentrl train ENV --model run" in agentrl.stdout
    assert "warm start 2/2" in agentrl.stdout
    assert not [*(folder / "run" / "trajectories").iterdir()]
    assert not {"metrics.jsonl", "reward.png"} & {file.name for file in (folder / "run").iterdir()}, "as the docs say"


def test_a_file_that_is_missing_or_teaches_nothing_ends_before_a_folder_is_made(folder, agentrl):
    command = ("sft", "chat.jsonl", "--model", "tiny", "--out", "run")

    assert agentrl(*command) == 2
    assert "chat.jsonl: no such file; give chat as JSONL" in agentrl.stderr
    (folder / "chat.jsonl").write_text(chat("only asked"))
    assert agentrl(*command) == 2
    assert "all 1 rows were skipped" in agentrl.stderr
    assert not (folder / "run").exists()


def test_epochs_and_steps_are_not_given_together(folder, agentrl):
    (folder / "chat.jsonl").write_text(chat("a?", "b"))

    command = ("sft", "chat.jsonl", "--model", "tiny", "--out", "run", "--set", "warm_start.steps=5", "--epochs", "1")
    assert agentrl(*command) == 2
    assert "--epochs and warm_start.steps both set how long to learn; give one of them" in agentrl.stderr
