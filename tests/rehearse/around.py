"""What the machine does while a launch is rehearsed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.rehearse.launch import Edit, Launch


@contextmanager
def nothing(launch: Launch) -> Iterator[None]:
    yield


@contextmanager
def other_tokenizer(launch: Launch) -> Iterator[None]:
    """The tokenizer's numbers begin at 200, so that most of its tokens are beyond the model's vocabulary."""
    file, first = launch.folder / "model/tokenizer.json", 200
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = {piece: number + first for piece, number in content["model"]["vocab"].items()}
    content["model"]["vocab"] = {f"filler{number}": number for number in range(first)} | vocabulary
    for token in content["added_tokens"]:
        token["id"] += first
    file.write_text(json.dumps(content), encoding="utf-8")
    yield


@contextmanager
def busy_port(launch: Launch) -> Iterator[None]:
    """Another program listens at the port that the launch names PORT."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        Edit("run.sh", "PORT", str(listener.getsockname()[1])).apply(launch.folder)
        yield


@contextmanager
def other_engine(launch: Launch) -> Iterator[None]:
    """An engine with other weights serves the port that my_hooks.py names PORT."""
    command = [sys.executable, "-m", "agentrl", "serve", "--model", "tiny", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as engine:
        try:
            Edit("envs/my_hooks.py", "PORT", _port(engine)).apply(launch.folder)
            yield
        finally:
            engine.terminate()
            with suppress(subprocess.TimeoutExpired):
                engine.wait(10)
            engine.kill()


def _port(engine: subprocess.Popen[str]) -> str:
    """The port of which the engine's first lines tell."""
    assert engine.stdout is not None
    for line in engine.stdout:
        if "http://" in line:
            return line.partition("http://")[2].partition(":")[2].split("/")[0].split()[0].rstrip(",.;")
    raise RuntimeError("the engine did not start")
