"""Images against a real SGLang: tiny Qwen2.5-VL and Qwen3-VL models, scored again by transformers.

.ci/sglang.sh runs these tests. Each starts a server of its own from SGLang's environment, on this machine's CPU.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.doubles import tiny_vlm

PYTHON = os.environ.get("AGENTRL_SGLANG_PYTHON", "")
if not PYTHON:
    reason = "AGENTRL_SGLANG_PYTHON is not set: run .ci/sglang.sh"
    if "sglang" in os.environ.get("AGENTRL_REQUIRE", "").split(","):
        raise RuntimeError(reason)
    pytest.skip(reason, allow_module_level=True)

pytestmark = pytest.mark.timeout(1200)
ROOT = Path(__file__).resolve().parents[2]
_SERVE = (
    "-m sglang.launch_server --device cpu --attention-backend torch_native --disable-cuda-graph --dtype float32 "
    "--disable-overlap-schedule --mem-fraction-static 0.8 --max-total-tokens 16384 --skip-server-warmup "
    "--sleep-on-idle --grammar-backend xgrammar --host 127.0.0.1"
)


@contextmanager
def served(folder: Path, logs: Path, **environment: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **environment}
    with open(logs / "server.log", "wb") as log:
        server = subprocess.Popen(
            [PYTHON, *_SERVE.split(), "--model-path", str(folder), "--port", str(port)],
            env={**os.environ, **own},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait(f"http://127.0.0.1:{port}/health", server, logs)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def _wait(url: str, server: subprocess.Popen, logs: Path) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(1)
    raise AssertionError((logs / "server.log").read_text()[-3000:])


def found(kind: str, logs: Path, **environment: str) -> dict:
    folder = tiny_vlm.folder(kind, weights=True)
    own = {"PYTHONPATH": str(ROOT), "AGENTRL_PROJECT_PACKAGES": sysconfig.get_path("purelib")}
    with served(folder, logs, **environment) as url:
        script = Path(__file__).with_name("images_against_sglang.py")
        done = subprocess.run(
            [PYTHON, str(script), str(folder), url, *(["again"] if environment else [])],
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("kind", "expanded", "missing"),
    [("qwen2_5_vl", "no answer", "status 400"), ("qwen3_vl", "status 500", "status 500")],
)
def test_sglang_reads_and_scores_what_a_trainer_will(kind, expanded, missing, tmp_path):
    seen = found(kind, tmp_path)
    for episode in seen["episodes"]:
        assert episode["failure"] is None, episode
        assert episode["turns"] > 1, episode
        assert episode["worst"] < 2e-5, episode
    assert seen["local"] < 2e-5, "LocalEngine equals SGLang"
    flags, far = seen["grammar"]["flags"], seen["grammar"]["far"]
    assert all(flag == (one >= 0) or abs(one) < 1e-4 for flag, one in zip(flags, far, strict=True)), (
        "scored with images"
    )
    assert set(flags) == {True, False}
    assert seen["episodes"][0]["images"] == 3, "from the prompt, a tool and a step"
    assert seen["episodes"][2]["cut"] > 0, "the abort came inside a turn"
    forms = {name: answer for name, (answer, _) in seen["forms"].items()}
    length = seen["forms"]["one pad an image"][1]
    assert forms["one pad an image"] == length
    assert forms["more images than pads"] == length, "an image is dropped without an error: pads are counted before"
    assert forms["pads without images"] != length, "no error either: prompt_tokens shows it"
    assert (forms["pads expanded"], forms["more pads than images"]) == (expanded, missing)


def test_a_server_that_tokenises_the_prompt_again_stops_the_episode_by_name(tmp_path):
    seen = found("qwen2_5_vl", tmp_path, SGLANG_MM_AVOID_RETOKENIZE="0")
    drifting = seen["episodes"][1]
    assert "tokenises the prompt again" in drifting["failure"]
