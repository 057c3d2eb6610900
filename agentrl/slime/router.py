"""The policy by which SGLang's router sends the turns of an episode to the same engine.

python3 -m agentrl.slime.router          prints a value for --router-policy
"""

from __future__ import annotations

import argparse
import sys

STICKY = ("consistent_hashing", "manual")
"""Policies that look at the header X-SMG-Routing-Key, the best first."""


def policies() -> tuple[str, ...] | None:
    """The values that the installed router takes for --router-policy. None without the package sglang_router.

    The command line of the router on PyPI lacks `consistent_hashing`; that of the fork in slime's image has it.
    """
    try:
        from sglang_router.router_args import RouterArgs
    except ImportError:
        return None
    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser)
    choices = next((action.choices for action in parser._actions if "--policy" in action.option_strings), None)
    return tuple(choices) if choices else None


def sticky_policy() -> str | None:
    """The best policy that the installed router takes. None if the router takes none of STICKY."""
    taken = policies()
    return next((policy for policy in STICKY if taken is None or policy in taken), None)


if __name__ == "__main__":
    sys.stdout.write(f"{sticky_policy() or 'cache_aware'}\n")  # the last: by equal prefixes, so mostly the same engine
