"""The collector is tuned in agentrl's own process, once, and never in another's."""

from __future__ import annotations

import subprocess
import sys

import pytest

PLAYED = """
import asyncio, gc, sys
from types import SimpleNamespace
from agentrl import EpisodeOptions
from agentrl._util import garbage
from agentrl.rollout.play import groups
{claim}
before = gc.get_threshold()
envs = SimpleNamespace(cls=SimpleNamespace(seats=()))
rollout = groups.Rollout(envs=envs, engine=None, renderer=None, options=EpisodeOptions())
asyncio.run(groups.run_groups(rollout, [], group_size=1))
changed, frozen = gc.get_threshold() != before, gc.get_freeze_count() > 0
gc.set_threshold(7, 7, 7)
garbage.settle()
print(changed, frozen, gc.get_threshold() == (7, 7, 7))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("claim", "expected"), [("garbage.claim_process()", "True True True"), ("", "False False True")]
)
def test_only_a_claimed_process_collects_less_often(claim: str, expected: str) -> None:
    said = subprocess.run(
        [sys.executable, "-c", PLAYED.format(claim=claim)], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.strip() == expected


@pytest.mark.thorough
def test_the_command_claims_its_process_and_the_library_does_not() -> None:
    run = "import agentrl.{module}; from agentrl._util import garbage; {call}; print(garbage._Collector.is_ours)"
    for module, call, own in (("cli", "agentrl.cli.main()", "True"), ("slime", "pass", "False")):
        code = run.format(module=module, call=call).replace("agentrl.cli.main()", "_main()")
        code = f"import sys; sys.argv = ['agentrl', '--version']\n{_MAIN if own == 'True' else ''}{code}"
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert said.stdout.split()[-1] == own


_MAIN = """
def _main():
    try:
        agentrl.cli.main()
    except SystemExit:
        pass
"""
