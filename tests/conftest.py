from __future__ import annotations

import signal

import pytest

from agentrl.models import load_tokenizer
from agentrl.render import load_renderer


def pytest_configure():
    """A shell that runs the tests in its background has them ignore SIGINT; some send it to themselves."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tokenizer():
    return load_tokenizer("tiny")


@pytest.fixture(scope="session")
def renderer(tokenizer):
    return load_renderer(tokenizer)
