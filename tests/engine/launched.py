"""A launched stand-in of SGLang, and its log."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl.engine.table import TrainingParts

LAUNCH = Path(__file__).parents[1] / "doubles" / "sglang_launch.py"


@pytest.fixture
def training(tmp_path):
    return TrainingParts(tmp_path / "run", "cpu", "float32", said.append)


said: list[str] = []


@pytest.fixture(autouse=True)
def executable(tmp_path, monkeypatch):
    """The stand-in as a program, whatever the checkout's file modes are."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{LAUNCH}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setitem(globals(), "LAUNCH", program)


def logged(training):
    log = training.folder / "engine.log"
    return log.read_text() if log.exists() else ""
