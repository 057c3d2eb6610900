"""The real SGLang that .ci/sglang.sh started, and its model here."""

from __future__ import annotations

import os

import pytest

from agentrl.models import load_model, load_tokenizer
from agentrl.render import load_renderer

URL, MODEL = os.environ.get("AGENTRL_SGLANG_URL", ""), os.environ.get("AGENTRL_SGLANG_MODEL", "")
if not (URL and MODEL):
    reason = "AGENTRL_SGLANG_URL and AGENTRL_SGLANG_MODEL are not set: run .ci/sglang.sh"
    if "sglang" in os.environ.get("AGENTRL_REQUIRE", "").split(","):
        raise RuntimeError(reason)
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def model():
    return load_model(MODEL)


@pytest.fixture(scope="module")
def renderer():
    return load_renderer(load_tokenizer(MODEL))


@pytest.fixture
async def local(model):
    from agentrl.engine import LocalEngine

    engine = LocalEngine(model, load_tokenizer(MODEL))
    yield engine
    await engine.close()
