"""An episode that slime 0.4 aborts on one node of a Ray cluster ends on the other one."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.testing import call
from tests.slime.contract.conftest import served
from tests.slime.player import Player

ROOT = Path(__file__).parents[3]
STAND_INS = {
    "wandb/__init__.py": "",
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/constants.py": "".join(
        f'GPU_MEMORY_TYPE_{kind} = "{kind.lower()}"\n' for kind in ("CUDA_GRAPH", "KV_CACHE", "WEIGHTS")
    ),
    "sglang/srt/server_args.py": "ServerArgs = object\n",
    "sglang/srt/utils.py": "kill_process_tree = None\n",
}
"""What a rollout imports and does not use, for the processes of Ray."""


class Asks(Player):
    """Looks the capital up twice, then answers."""

    def _say(self, input_ids):
        found = self.decode(input_ids).count("<tool_response>")
        return call("lookup", country="France") if found < 2 else "Paris"


@pytest.mark.timeout(400)  # each process of Ray imports torch
@pytest.mark.path("two nodes of a Ray cluster: aborted on one, ended on the other")
def test_an_episode_aborted_on_one_node_ends_on_the_other(host, renderer, checkpoint, tmp_path):
    host.need(host.takes_lists and importlib.util.find_spec("straw"), "queues, or straw-queue is not installed")
    for name, text in STAND_INS.items():
        (tmp_path / "stand_ins" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "stand_ins" / name).write_text(text)
    places = [host.source, ROOT, ROOT / "envs", ROOT / "sandbox", tmp_path / "stand_ins"]
    engine = Asks(renderer)
    with served(engine, renderer.decode) as url:
        done = subprocess.run(
            [sys.executable, "-m", "tests.slime.contract.two_nodes", url, str(checkpoint), str(tmp_path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=350,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(done.stdout.strip().rpartition("\n")[2])
    assert (found["status"], found["reward"]) == ("completed", 2.0)
    first, second = found["nodes"]
    assert first != second, "each tool call ran once, on different nodes"
    account = found["account"]
    assert account["resumes"] >= 1
    assert "restarts" not in account
    assert found["trained"] == account["ledger"]["sampled"] == len(found["log_probs"])
    assert found["left"] == [], "its file is gone"
