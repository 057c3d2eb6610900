"""slime's own tests for what users plug in, with agentrl's function."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from agentrl import adapt
from agentrl.engine import ScriptedEngine
from tests.slime.conftest import ENV_FILE
from tests.slime.contract.conftest import served


@pytest.mark.path("the host's own plugin contracts")
def test_the_host_finds_the_function(host):
    assert host.load_function("agentrl.adapt") is adapt


# transformers first, or slime's test puts an empty stand-in in its place.
START = """
import os, runpy, sys, transformers
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.path("the host's own plugin contracts")
def test_the_hosts_generate_contract(host, renderer, checkpoint, tmp_path):
    """Its fake args name no checkpoint and no router; the file that AGENTRL_CONFIG names does."""
    test = host.source / "tests/plugin_contracts/test_plugin_generate_contracts.py"
    host.need(test.exists(), "tests for plugins")
    config = tmp_path / "agentrl.yaml"
    with served(ScriptedEngine(["Hello"], renderer), renderer.decode) as url:
        config.write_text(
            json.dumps({"agentrl": {"env": f"{ENV_FILE}:Silent", "model": str(checkpoint), "engine": url}})
        )
        done = subprocess.run(
            [sys.executable, "-c", START, str(test), "--custom-generate-function-path", "agentrl.adapt", "-q"],
            env={**os.environ, "AGENTRL_CONFIG": str(config), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
