"""A session of two turns by a raw client."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.episode.options import EpisodeOptions
from agentrl.gateway.serving.server import Gateway
from agentrl.gateway.session.session import Session
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Limits


class Watched(Session):
    """A session that tells when a client has got an answer, and when one has gone."""

    def __init__(self, key):
        super().__init__(key)
        self.lost, self.delivered = asyncio.Event(), asyncio.Event()

    def ask(self, request):
        exchange = super().ask(request)
        for event in ("lost", "delivered"):
            setattr(exchange, event, self._then(getattr(exchange, event), getattr(self, event)))
        return exchange

    def _then(self, tell, event):
        def told():
            tell()
            event.set()

        return told


@pytest.fixture
async def play(renderer):
    """Starts a gateway with one session, in which the model says the turns."""
    async with Gateway() as gateway:

        def start(said, seconds=0.0, **limits):
            session = Watched("key-1")
            session.engine = ScriptedEngine(said, renderer, seconds=seconds)
            session.play(session.engine, renderer, EpisodeOptions(limits=Limits(**limits)), None, "s")
            gateway.add(session)
            started.append(session)
            return gateway, session

        started = []
        yield start
        for session in started:
            session.close("done")


def segments(session):
    session.close("done")
    session.write(trajectory := Trajectory())
    ledger = trajectory.ledger
    assert ledger.trained == ledger.sampled
    return trajectory.segments
