"""The reference that `make docs` builds: what .ci/reference.py makes of commands, configurations and public names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import agentrl
from agentrl.train.config import TrainConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / ".ci" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(reference: ModuleType) -> dict[str, str]:
    return reference.pages()


def test_each_public_name_has_its_place(pages: dict[str, str]) -> None:
    text = "\n".join(pages.values())
    assert [name for name in agentrl.__all__ if text.count(f"::: agentrl.{name}\n") != 1] == []


def test_each_command_and_key_is_there(pages: dict[str, str]) -> None:
    for heading in ("## agentrl train", "## agentrl slime init", "## agentrl data tasks"):
        assert f"{heading}\n" in pages["commands.md"]
    assert "<code>--accept-changed-data</code>" in pages["commands.md"]
    keys = [f"| <code>{key}</code> |" for key in TrainConfig.model_fields]
    assert [key for key in keys if key not in pages["configuration.md"]] == []


def test_a_name_on_no_page_fails(reference: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentrl, "__all__", [*agentrl.__all__, "Newest"])
    with pytest.raises(ValueError, match="Newest"):
        reference.pages()


def test_a_key_without_a_meaning_fails(reference: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bare_config.py").write_text(
        "from pydantic import BaseModel\nclass Bare(BaseModel):\n    key: int = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(reference, "CONFIGS", {"One": ("bare_config:Bare",)})
    with pytest.raises(ValueError, match=r"Bare\.key has no docstring"):
        reference.pages()
    sys.modules.pop("bare_config")
