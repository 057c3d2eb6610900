"""The names of the environments: the entry points of agentrl-envs."""

from __future__ import annotations

from importlib.metadata import distribution
from types import SimpleNamespace

import pytest

from agentrl.cli.envs import described
from agentrl.env.registry import GROUP


@pytest.mark.thorough
def test_every_environment_is_described():
    points = distribution("agentrl-envs").entry_points.select(group=GROUP)
    assert {"fact_search", "search_r1", "coding"} <= points.names
    for point in points:
        summary = described(SimpleNamespace(name=point.name, path=point.value, package="agentrl-envs"))
        assert (summary.broken, bool(summary.summary)) == ("", True), point.name
