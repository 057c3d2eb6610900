"""A node of Ray that does not start, or that ends, is named with its cause. A script stands in for `ray start`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.rehearse import cluster
from agentrl.rehearse.cluster import Guarded, lost_part, node_address, start_ray
from agentrl.rehearse.plan import Layout

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux adopts orphans")
SLOW = "Exception: The current node timed out during startup. This could happen because the GCS is overloaded."
LAYOUT = Layout(nodes=1, gpus=2, ranks=2, engines=2, colocated=True)


@pytest.fixture
def starts(tmp_path):
    """A function that starts Ray. Each start of its node prints the next of some texts; READY then runs on."""

    def start(processes, *texts):
        program = tmp_path / "python"
        program.write_text(
            f"#!{sys.executable}\n"
            "import os, sys, time\nfrom pathlib import Path\n"
            f"counter = Path({str(tmp_path)!r}, 'count')\n"
            "number = int(counter.read_text()) if counter.exists() else 0\n"
            "counter.write_text(str(number + 1))\n"
            f"Path({str(tmp_path)!r}, 'pid').write_text(str(os.getpid()))\n"
            f"text = {texts!r}[number]\n"
            "print(text, flush=True)\n"
            "if 'Check failed' in text:\n"
            "    logs = Path(sys.argv[sys.argv.index('--temp-dir') + 1], 'session_latest/logs')\n"
            "    logs.mkdir(parents=True, exist_ok=True)\n"
            "    (logs / 'raylet.err').write_text(text)\n"
            "    time.sleep(600)\n"
            "time.sleep(600 if 'started' in text else 0)\nraise SystemExit(1)\n"
        )
        program.chmod(0o755)
        return start_ray(processes, program, LAYOUT, dict(os.environ), tmp_path, timeout_s=60)

    return start


READY = "Ray runtime started."
ENDED = (
    f"{READY}\nSome Ray subprocesses exited unexpectedly:\n  raylet [exit code=-9]\nRemaining processes will be killed."
)


ABORT = "[raylet] Check failed: status.has_value() Timed out waiting for file /tmp/x/dashboard_agent_listen_port\n"


def test_a_slow_node_is_started_again(starts, tmp_path):
    with Guarded() as processes:
        variables = starts(processes, SLOW, ABORT, READY)
        assert lost_part(processes, tmp_path) == ""
        assert Path(variables["TMPDIR"]).is_dir()
        assert variables["RAY_ADDRESS"].startswith(f"{node_address(0)}:")
    assert not Path(variables["TMPDIR"]).exists(), "with the temporary files of all processes"
    assert (tmp_path / "count").read_text() == "3"


@pytest.mark.parametrize("texts", [(SLOW, SLOW, SLOW), ("no such flag",)])
def test_a_node_that_does_not_start(starts, tmp_path, texts):
    with Guarded() as processes, pytest.raises(ConfigError, match=f"did not start: {texts[0][:20]}.*ray-node0.txt"):
        starts(processes, *texts)
    assert (tmp_path / "count").read_text() == str(len(texts))


def test_a_node_that_ends_later(starts, tmp_path):
    with Guarded() as processes:
        starts(processes, ENDED)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        while not (lost := lost_part(processes, tmp_path)):
            processes.wait(1)
    assert lost.startswith("ray node 0, which ended by signal SIGKILL: raylet [exit code=-9]")


@pytest.mark.parametrize("there", [True, False])
def test_a_port_for_clients_of_ray_only_with_grpc(starts, tmp_path, monkeypatch, there):
    """Ray without grpc does not start if it is given that port. With grpc, two Rays would share the default port."""
    monkeypatch.setattr(cluster, "find_spec", lambda name: object() if there else None)
    with Guarded() as processes:
        starts(processes, READY)
        words = Path("/proc", (tmp_path / "pid").read_text(), "cmdline").read_bytes()
    assert (b"--ray-client-server-port" in words) == there
