from __future__ import annotations

import pytest

from agentrl.models import load_tokenizer
from agentrl.render import load_renderer


@pytest.fixture(scope="session")
def tokenizer():
    return load_tokenizer("tiny")


@pytest.fixture(scope="session")
def renderer(tokenizer):
    return load_renderer(tokenizer)
