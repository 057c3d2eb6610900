"""The way of one episode under slime through the rooms, the files and the functions of agentrl."""

from __future__ import annotations

from tests.house import ROOT, load_house

ROOMS, FILES, CALLS = 10, 78, 1800
"""It was 27 boxes, 76 files and 2,015 calls; `python .ci/house.py --episode` prints the numbers. A slow machine adds a
few calls: episodes wait for each other. Two files belong to the server of the test's engine: admission and weights."""


async def test_an_episode_under_slime_enters_few_rooms_and_files_and_makes_few_calls():
    files = await load_house().calls_of_an_episode(ROOT)
    rooms = {file.split("/")[0] for file in files}
    assert {"slime", "episode", "trajectory"} <= rooms
    assert len(rooms) <= ROOMS, sorted(rooms)
    assert len(set(files)) <= FILES
    assert len(files) <= CALLS, "calls of functions for one episode of two turns"
