"""README's path with all that only Linux has hidden: init, play, check, train, show, eval and view. No Mac was used."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import agentrl

MAC = Path(__file__).with_name("as_on_a_mac.py")
SMALL = ["steps=2", "warm_start.steps=3", "eval_every=0", "eval_tasks=2", "prompts_per_step=2", "group_size=2"]


def command(*words):
    return [sys.executable, str(MAC), *words]


def environment():
    """No program of the machine can be reached, bubblewrap and docker included."""
    return {**os.environ, "PATH": "/nonexistent", "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def run(folder, *words):
    return subprocess.run(command(*words), cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def checked(folder, *words):
    done = run(folder, *words)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_what_only_linux_has_is_hidden(tmp_path):
    """Otherwise the other test would show nothing."""
    (tmp_path / "probe.py").write_text(
        f"import runpy; mac = runpy.run_path({str(MAC)!r}); mac['become_a_mac']()\n"
        "import ctypes, os, select, selectors, sys\n"
        "from pathlib import Path\n"
        "assert sys.platform == 'darwin' and not hasattr(select, 'epoll') and not hasattr(os, 'memfd_create')\n"
        "assert not Path('/proc/self/stat').exists() and not Path('/dev/shm').exists()\n"
        "for use, path in ((open, '/proc/meminfo'), (os.listdir, '/proc/self/fd'), (os.readlink, '/proc/self')):\n"
        "    try:\n        use(path)\n    except FileNotFoundError:\n        continue\n    raise AssertionError(path)\n"
        "assert getattr(ctypes.CDLL(None), 'renameat2', None) is None\n"
        "import fcntl, resource, pwd\n"
    )
    subprocess.run([sys.executable, str(tmp_path / "probe.py")], check=True)


@pytest.mark.thorough
def test_readmes_path(tmp_path):
    checked(tmp_path, "init", "weather")
    weather = tmp_path / "weather"
    played = checked(weather, "play", "weather:Weather", "--player", "weather:explorer", "--out", "demos.jsonl")
    assert "mean reward" in played
    assert "0 errors, 0 warnings" in checked(weather, "check", "weather:Weather", "--gold", "weather:gold")
    settings = [word for setting in SMALL for word in ("--set", setting)]
    assert "held out, final" in checked(weather, "train", "--config", "train.yaml", *settings)
    assert "ledger: sampled" in checked(weather, "show", "runs/first", "--index", "0")
    assert "reward mean" in checked(weather, "eval", "weather:Weather", "--model", "runs/first", "--limit", "2")

    server = subprocess.Popen(
        command("view", "runs/first"), cwd=weather, env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        link = re.match(r"http://127\.0\.0\.1:\d+/\S+", server.stdout.readline())[0]
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert b"agentrl" in opener.open(link, timeout=30).read()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
        server.stdout.close()


@pytest.mark.thorough
def test_a_rehearsal_is_refused_by_name(tmp_path):
    (tmp_path / "run.sh").write_text("python3 train.py\n")
    refused = run(tmp_path, "slime", "rehearse", "run.sh")
    assert refused.returncode == 2
    assert "error: agentrl slime rehearse needs Linux" in refused.stderr


def test_a_device_that_is_missing_is_named(monkeypatch):
    import torch

    from agentrl.models.device import device_of
    from agentrl.train import TrainConfig

    assert TrainConfig.make(env="weather:Weather", out="runs/x", steps=1, device="mps").device == "mps"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert (device_of("mps"), device_of("auto")) == ("mps", "cpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(agentrl.ConfigError, match="device: mps was given, but torch sees no GPU of a Mac; use cpu"):
        device_of("mps")
