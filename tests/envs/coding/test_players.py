"""Gold, no-op and hostile players in real sandboxes: every reward right, nothing left."""

import pytest

from benchmarks.coding import SHORT, play
from tests.envs.coding.attacks import ATTACKS
from tests.sandbox.engine import REQUIRED, entered

pytestmark = pytest.mark.timeout(600)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["docker", "bubblewrap"])
async def test_every_reward_is_right_and_nothing_is_left(name):
    async with entered(name):
        pass  # skipped here if it cannot work
    episodes = 3 * len(ATTACKS) if name in REQUIRED else SHORT
    done, _, _figures, left = await play(name, episodes, concurrency=4)
    assert [(one.plan, one.trajectory.reward, one.trajectory.failure) for one in done if not one.right] == []
    assert (len(done), left) == (episodes, 0)
