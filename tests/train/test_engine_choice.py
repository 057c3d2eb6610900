"""`engine: auto`: what it becomes on which machine, and what becomes of it when the run is resumed."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from agentrl.errors import ConfigError
from agentrl.models import load_config
from agentrl.models.device import device_of
from agentrl.train import TrainConfig, Trainer, train
from agentrl.train.engine_choice import with_engine_chosen
from agentrl.train.memory import MemoryInputs, Shape


@pytest.fixture
def with_sglang(tmp_path):
    """An interpreter that has SGLang, to which agentrl only puts that question."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def without(tmp_path):
    program = tmp_path / "bare-python"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)


@pytest.fixture
def chosen(make_config):
    """`chosen(engine=..., ...)`: the configuration after the choice, and what was said."""

    def choose(begun=None, **values):
        said = []
        return with_engine_chosen(make_config(**{"device": "auto", **values}), begun, said.append), said

    return choose


def test_a_gpu_and_an_interpreter_that_has_it_mean_sglang(gpu, chosen, with_sglang):
    config, said = chosen(engine={"python": with_sglang})
    assert (config.engine, config.tis_clip, config.engine_config) == ("sglang", 2, {"python": with_sglang})
    (line,) = said
    assert line.startswith(f"engine: sglang, found by {with_sglang}; engine=local samples in this process instead")


def test_a_gpu_without_sglang_means_local_and_the_reason(gpu, chosen, without):
    config, said = chosen(engine={"python": without})
    assert (config.engine, config.tis_clip, config.engine_config) == ("local", None, {})
    (line,) = said
    assert line.startswith(
        "engine: local, which samples several times slower than SGLang: SGLang is not installed for "
    )


def test_this_interpreter_is_asked_first(gpu, chosen, monkeypatch):
    asked = []
    monkeypatch.setattr("agentrl.train.engine_choice.check_interpreter", lambda python, _: asked.append(python))
    assert chosen()[0].engine == "sglang"
    assert asked == [sys.executable]


@pytest.mark.parametrize(
    "values",
    [
        {"model": "tiny", "learning_rate": 1e-3},
        {"steps": 0},
        {"device": "cpu"},
        {"engine": {"max_batch": 8}},
    ],
    ids=["a model for laptops", "nothing is played", "no GPU", "settings of LocalEngine"],
)
def test_what_stays_in_this_process(gpu, chosen, with_sglang, values, monkeypatch):
    monkeypatch.setattr("agentrl.train.engine_choice.check_interpreter", lambda *_: None)
    assert chosen()[0].engine == "sglang"
    config, said = chosen(**values)
    assert (config.engine, config.tis_clip, said) == ("local", None, [])


def test_the_same_file_serves_a_laptop(chosen):
    config, said = chosen(engine={"python": "~/sglang/bin/python", "sleep": False}, device="cpu")
    assert (config.engine, config.engine_config, said) == ("local", {}, [])


def test_a_server_with_an_address_is_taken_anywhere(chosen):
    assert chosen(engine={"url": "http://127.0.0.1:9"}, device="cpu")[0].engine == "sglang"


def test_a_chosen_engine_stays(gpu, chosen, with_sglang):
    assert chosen(engine="local")[0].engine == "local"
    assert chosen(engine={"kind": "sglang"}, device="cpu")[0].engine == "sglang"


@pytest.mark.parametrize("begun", ["local", "sglang", "mine.py:Engine"])
def test_a_run_keeps_the_engine_it_began_with(gpu, chosen, with_sglang, begun):
    config, said = chosen(begun, engine={"python": with_sglang})
    assert (config.engine, said) == (begun, [])
    assert config.tis_clip == (2 if begun == "sglang" else None)
    assert config.engine_config == ({} if begun == "local" else {"python": with_sglang})


@pytest.mark.thorough
def test_the_run_folder_holds_the_choice_and_a_resumed_run_keeps_it(make_config, monkeypatch):
    """The first half runs without a GPU; then the machine has one, and SGLang."""
    config = make_config(steps=1)
    quiet = Console(file=io.StringIO())
    train(config, console=quiet)
    assert TrainConfig.from_yaml(config.out / "config.yaml").engine == "local"
    monkeypatch.setattr("agentrl.train.engine_choice.device_of", lambda name: "cuda")
    monkeypatch.setattr("agentrl.train.engine_choice.check_interpreter", lambda *_: None)

    class Looks(Trainer):
        async def run(self):
            assert type(self.engine).__name__ == "LocalEngine"
            return await super().run()

    train(make_config(steps=2), resume=True, trainer=Looks, console=quiet)
    with pytest.raises(ConfigError, match="engine was 'local' and is now 'sglang'"):
        train(make_config(steps=3, engine="sglang"), resume=True, console=quiet)


def test_memory_is_planned_for_the_engine_inside_until_it_is_chosen(make_config):
    config = make_config()
    shape = Shape.of(load_config(config.model))
    assert MemoryInputs.of(config, shape, on_gpu=True).engine == "inside"


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert device_of("auto") == "cpu"
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        device_of("cuda")
