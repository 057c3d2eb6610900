"""The Env's needs of the node on which slime plays its episodes."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl._util.findings import Finding, error, note
from agentrl.env.config import validated_config
from agentrl.errors import one_line
from agentrl.slime.check.memory import episodes_at_once
from agentrl.slime.check.setup import Setup


def needs(setup: Setup) -> Iterator[Finding]:
    if setup.env is None or setup.config is None:
        return
    name = setup.env.__name__
    config = validated_config(setup.env, setup.config.env_config_of(setup.config.env or ""))
    try:
        lines = list(setup.env.needs(config, episodes_at_once(setup) or 1))
    except Exception as exc:  # noqa: BLE001 - the boundary of a hook
        yield error(f"{name}.needs failed: {one_line(exc)}")
        return
    for line in lines:
        yield note(f"{name} needs, on the node of slime's RolloutManager: {line}")
