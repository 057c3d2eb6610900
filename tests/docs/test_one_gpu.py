"""docs/one-gpu.md: its files are valid, its commands are understood, its table is what memory.py computes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

pytest.importorskip("torch", reason="training needs the extra `train`")

from agentrl.cli import app
from agentrl.cli.settings import merge, parse_settings
from agentrl.train import TrainConfig
from agentrl.train.memory import MemoryEstimate, MemoryInputs, Shape
from tests.train.qwen3 import qwen3

PAGE = (Path(__file__).parents[2] / "docs" / "one-gpu.md").read_text(encoding="utf-8")
FILES = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
COMMANDS = re.findall(r"^    agentrl (.*)$", PAGE, re.MULTILINE)
FREE = {gpu: int(free) * 10**9 for gpu, free in re.findall(r"(\d+) GB card has (\d+) GB free", PAGE)}
ROWS = re.findall(r"^\| (\d+) \| (\S+) \| `(.*)` \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("values", FILES, ids=lambda values: values["out"])
def test_its_files_are_valid(values: dict[str, Any]) -> None:
    config = TrainConfig.make(**values)
    assert (config.engine, config.tis_clip, config.limits["context"]) == ("sglang", 2, 16384)
    assert config.learning_rate == (1e-4 if config.lora else 1e-5)


ENV = "from agentrl import Env\nclass MyEnv(Env):\n    def score(self, trajectory): return 1.0\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_are_understood(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They end where they look for the user's files, or for the model's configuration, but not before."""
    monkeypatch.chdir(tmp_path)
    if command.startswith("train"):
        Path("my_env.py").write_text(ENV)
        for name in ("tasks.jsonl", "held_out.jsonl"):
            Path(name).write_text('{"prompt": "a"}\n')
    Path("first.yaml").write_text(yaml.safe_dump(FILES[0]))
    given: list[TrainConfig] = []
    monkeypatch.setattr("agentrl.train.train", lambda config, **_: given.append(config))
    if "--resume" in command:
        Path("runs/first").mkdir(parents=True)
        Path("runs/first/config.yaml").write_text(TrainConfig.make(**FILES[0]).to_yaml())
    result = CliRunner().invoke(app, shlex.split(command))
    if command.startswith("train"):
        assert given[0].lora is not None, result.output
        assert (given[0].engine, given[0].dtype, given[0].model) == ("sglang", "bfloat16", "Qwen/Qwen3-4B")
    else:
        assert result.output.startswith("error: "), result.output
        assert any(file in result.output for file in ("my_env.py", "runs/first"))


def test_its_table_is_computed() -> None:
    assert len(ROWS) == 9
    shapes = {model: Shape.of(qwen3(model)) for model in ("0.6B", "1.7B", "4B")}
    for gpu, model, settings, learning, playing, at_once in ROWS:
        config = TrainConfig.make(**merge(FILES[0], parse_settings(settings.split())))
        need = MemoryEstimate.of(shapes[model], MemoryInputs.of(config, shapes[model], on_gpu=True))
        free = FREE[gpu]
        told = f"{need.learning / 1e9:.1f}", f"{need.rollout / 1e9:.1f}", str(need.episodes(free))
        assert told == (learning, playing, at_once), (gpu, model, settings)
        assert need.fits(free)
