"""Scripted episodes are, token for token, what they were: a change of structure must not move this hash."""

from __future__ import annotations

from benchmarks.episode_hash import digest, scripted


async def test_scripted_episodes_are_what_they_were(renderer):
    assert digest(await scripted(renderer)) == "c7d40f737c618736"
