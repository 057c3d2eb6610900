"""A run of a model that is named as on the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from agentrl.models import load_model
from agentrl.train import TrainConfig, train
from tests.doubles.hub import FakeHub, listen_at, nobody_listens


@pytest.mark.thorough
def test_a_run_downloads_its_model_once_and_goes_on_without_a_network(
    make_config: Callable[..., TrainConfig], small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    name = "some-org/Small@main"
    with FakeHub().serve() as hub:
        listen_at(hub.url, monkeypatch)
        hub.add("some-org/Small", small_model)
        train(make_config(model=name, steps=1))
        assert hub.fetched[-1] == "model.safetensors"
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["model"] == name
    nobody_listens(monkeypatch)
    assert train(make_config(model=name, steps=2), resume=True)
    assert load_model(name), "the cache has what a new run needs"
