"""An Env that cannot be imported, made or shared ends slime's rollout: its samples would all be failures."""

from __future__ import annotations

import pytest

from agentrl import ConfigError, adapt

PARAMS = {"temperature": 1.0, "max_new_tokens": 30}
GOOD = """
from agentrl import Env, tool

class Broken(Env):
    @tool
    async def look(self) -> str:
        return "nothing"
"""
SHARE = """
    @classmethod
    def share(cls, config):
        return open("no/such/facts.jsonl")
"""
INIT = """
    def __init__(self, size):
        self.size = size
"""


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import os\nos.environ['MISSING_KEY']\n", r"broken\.py:2: KeyError: 'MISSING_KEY'"),
        ("from json import nosuch\n", r"broken\.py:1: ImportError"),
        (GOOD + SHARE, r"Broken\.share failed: .*broken\.py:11: FileNotFoundError"),
        (GOOD + INIT, r"Broken\.__init__\(self, size\) does not take"),
    ],
)
async def test_it_is_a_config_error_in_one_line(Sample, make_args, tmp_path, source, says):
    (tmp_path / "broken.py").write_text(source)
    args = make_args(env=f"{tmp_path}/broken.py:Broken")
    with pytest.raises(ConfigError, match=says) as caught:
        await adapt(args, Sample(prompt="?", index=0), dict(PARAMS))
    assert "\n" not in str(caught.value)
