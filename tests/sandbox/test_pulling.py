"""The disk budget of a pull, without an engine."""

import pytest

pytest.importorskip("aiodocker", reason="the extra `docker` is not installed")

from agentrl.errors import ConfigError
from agentrl_sandbox.docker.pulling import _Disk, _NoRoomError, hosts_of

GB = 1 << 30


def test_a_large_pull_that_cannot_fit_is_given_up_early():
    disk = _Disk(None, limit=10 * GB, used=6 * GB)
    disk.expect("one", 0, 3 * GB)
    with pytest.raises(_NoRoomError):
        disk.expect("two", 0, 2 * GB)
    disk.coming.pop("one")
    disk.expect("two", 0, 2 * GB)
    disk.used = 9 * GB
    disk.expect("two", 2 * GB - 1000, 2 * GB)  # almost there: what it takes is measured afterwards


def test_hosts_of_a_back_end():
    assert hosts_of("docker") == hosts_of("auto") == [""]
    assert hosts_of("docker:ssh://one, box") == ["ssh://one", "box"]
    with pytest.raises(ConfigError, match="has no engine that pulls images"):
        hosts_of("bubblewrap")
