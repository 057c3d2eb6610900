"""A part of the table of Envs and hosts, for each host that is installed here: no difference is without a name."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytest.importorskip("torch", reason="rows are read from the trainers")

from tests.hosts.cases import CASES
from tests.hosts.conftest import MODULES
from tests.hosts.table import HOSTS, Line, line_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
PLAYED = [host for host in HOSTS if host == "train" or find_spec(MODULES[host]) is not None]


@pytest.mark.parametrize("env", CASES)
@pytest.mark.parametrize("host", PLAYED)
async def test_no_difference_is_without_a_name(host, env):
    line = await line_of(host, env, 4)
    assert line.unnamed == []
    assert bool(line.refused) is (line.episodes == 0)
    assert line.episodes in (0, 4)


def test_a_difference_without_a_name_is_counted():
    line = Line("trl", "weather")
    line.count(["mask: row 1, token 3: the host has 0, and agentrl 1"], ["reward", "ids", "mask", "log-probs"])
    assert line.unnamed
    assert line.equal == {"reward": 1, "ids": 1, "mask": 0, "log-probs": 0}
    line = Line("verl", "the world breaks")
    line.note("failure: the host has the reward 0, and agentrl has a failure (InfraError)")
    assert (line.unnamed, line.named) == ([], {"a failure counts as 0": 1})
