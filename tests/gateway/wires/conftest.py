from __future__ import annotations

import anthropic
import openai
import pytest

from agentrl.gateway.serving.server import Gateway
from tests.gateway.wires.fakes import FakeSession


@pytest.fixture
async def gateway():
    async with Gateway() as running:
        yield running


@pytest.fixture
def session(gateway):
    made = FakeSession()
    gateway.add(made)
    return made


@pytest.fixture
async def claude(gateway, session):
    async with anthropic.AsyncAnthropic(base_url=gateway.url, auth_token=session.key, api_key=None) as client:
        yield client


@pytest.fixture
async def gpt(gateway, session):
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=session.key) as client:
        yield client
