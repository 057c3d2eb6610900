"""Another machine, as far as the network goes: a network namespace that is joined to this one by a pair of devices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A namespace, this machine's address as it is seen from there, and its own."""

    name: str
    here: str
    there: str

    def command(self, argv: Sequence[str]) -> list[str]:
        """A command that runs there. It sees no other network, not even this machine's loopback."""
        return [str(shutil.which("ip")), "netns", "exec", self.name, *argv]


@contextmanager
def namespace() -> Iterator[Elsewhere]:
    """A namespace for the time of the context. Skips the test with the reason where none can be made."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("a network namespace needs Linux and iproute2's `ip`")
    number = os.getpid() % (1 << 14)
    third, fourth = number >> 6, (number & 63) << 2  # of 198.18.0.0/15, which is for tests (RFC 2544)
    made = Elsewhere(f"agentrl-{number}", f"198.18.{third}.{fourth + 1}", f"198.18.{third}.{fourth + 2}")
    device = f"art{number}"
    try:
        _ip(f"netns add {made.name}")
    except subprocess.CalledProcessError as exc:
        pytest.skip(f"no network namespace can be made here: {exc.stderr.strip()}")
    try:
        _ip(f"link add {device} type veth peer name eth0 netns {made.name}")
        _ip(f"addr add {made.here}/30 dev {device}")
        _ip(f"link set {device} up")
        _ip(f"-n {made.name} addr add {made.there}/30 dev eth0")
        _ip(f"-n {made.name} link set eth0 up")
        _ip(f"-n {made.name} link set lo up")
        yield made
    except subprocess.CalledProcessError as exc:
        pytest.skip(f"no pair of network devices can be made here: {exc.stderr.strip()}")
    finally:
        _ip(f"netns del {made.name}")  # its end of the pair goes with it, and so the other one


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True)
