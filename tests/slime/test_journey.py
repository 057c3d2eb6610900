"""One episode under slime enters few rooms: what a reader must open to follow it (docs/structure.md)."""

from __future__ import annotations

from tests.test_rooms import ROOT, load_house

MOST = 10
"""It was 27 boxes before the loose modules had rooms; `python .ci/house.py --episode` prints them."""


async def test_one_episode_enters_few_rooms():
    rooms = await load_house().rooms_of_an_episode(ROOT)
    assert {"slime", "episode", "trajectory"} <= set(rooms)
    assert len(set(rooms)) <= MOST, sorted(set(rooms))
