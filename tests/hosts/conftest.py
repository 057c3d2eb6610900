"""Hosts are no packages of the project: `.ci/hosts.sh` installs each into an environment of its own."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest

MODULES = {
    "trl": "trl",
    "tinker": "tinker_cookbook",
    "verifiers": "verifiers",
    "openenv": "openenv",
    "verl": "verl",
    "skyrl": "skyrl_gym",
    "skyrl_server": "skyrl",
}
"""Host -> the module that is there if the host is installed."""


def need(host: str) -> ModuleType:
    """The module of a host. If the host is not installed, the tests of the file are skipped, or fail where
    AGENTRL_REQUIRE names the host."""
    if find_spec(MODULES[host]) is not None:
        return import_module(MODULES[host])
    if host in os.environ.get("AGENTRL_REQUIRE", "").split(","):
        pytest.fail(f"AGENTRL_REQUIRE names {host}, which is not installed", pytrace=False)
    pytest.skip(f"{host} is not installed; .ci/hosts.sh FOLDER {host} plays these tests", allow_module_level=True)
