"""Router and addresses on a laptop: slime's servers listen on loopback, and PyPI's router takes slime's policies."""

from __future__ import annotations

import os
from typing import Any

from agentrl.rehearse.standins.imports import after

_POLICY = "consistent_hashing"


@after("slime.utils.misc", "miles.utils.misc")
def use_loopback(module: Any) -> None:
    """Let slime/utils/misc.py return the address of SLIME_HOST_IP, in place of the address that Ray sees."""
    module.get_current_node_ip = lambda: os.environ.get("SLIME_HOST_IP", "127.0.0.1")


@after("sglang_router.router_args")
def accept_policy(module: Any) -> None:
    """Let the command line take `--router-policy consistent_hashing`, which slime's build of the router takes.

    PyPI's router has the policy, but its command line does not list the policy.
    """
    add = module.RouterArgs.add_cli_args

    def add_cli_args(parser: Any, *args: Any, **kwargs: Any) -> None:
        add(parser, *args, **kwargs)
        for action in parser._actions:
            if action.choices and "cache_aware" in action.choices and _POLICY not in action.choices:
                action.choices = [*action.choices, _POLICY]

    module.RouterArgs.add_cli_args = staticmethod(add_cli_args)
