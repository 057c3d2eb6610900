"""A Harbor task with a docker-compose.yaml of several services, as a whole: loaded, validated, played, graded."""

import json
import os

import pytest

from agentrl_envs.coding.formats.harbor import load
from agentrl_envs.coding.images import missing_lines
from agentrl_envs.coding.validate import ValidationSettings, find_tasks, validate
from agentrl_sandbox.docker.container import SANDBOX
from agentrl_sandbox.docker.images import BASE
from tests.envs.coding.harbor_tasks import harbor_task
from tests.sandbox.engine import entered

COMPOSE = """
services:
  main:
    image: ${MAIN_IMAGE_NAME}
    command: [sh, -c, "sleep infinity"]
    environment: {STORE: "http://store:8000"}
    depends_on:
      store: {condition: service_healthy}
      seed: {condition: service_completed_successfully}
    volumes: ["shared:/shared", "${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}"]
  seed:
    image: ${MAIN_IMAGE_NAME}
    command: sh -c "echo 4 > /shared/tens"
    volumes: [shared:/shared]
  store:
    build: ./store
    ports: ["8000:8000"]
    volumes: ["./store/units.txt:/units.txt:ro"]
    healthcheck: {test: [CMD, test, -e, /tmp/up], interval: 200ms, retries: 50}
    mem_limit: 64m
volumes: {shared: }
"""
STORE = """
import http.server, pathlib
kept = {"/units": pathlib.Path("/units.txt").read_bytes()}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path in kept else 404)
        self.end_headers()
        self.wfile.write(kept.get(self.path, b""))
    def do_PUT(self):
        kept[self.path] = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()
server = http.server.HTTPServer(("", 8000), Handler)
pathlib.Path("/tmp/up").touch()
server.serve_forever()
"""
ASK = (
    'python3 -c "import sys, urllib.request as u; print(u.urlopen(u.Request(*sys.argv[1:2], '
    "data=sys.argv[2].encode() if sys.argv[2:] else None, method='PUT' if sys.argv[2:] else 'GET')).read().decode())\" "
)
SOLVE = f"#!/bin/bash\n{ASK} $STORE/answer $(cat /shared/tens)$({ASK} $STORE/units)\n"
TEST = f"""#!/bin/bash
if [ "$({ASK} $STORE/answer)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


@pytest.fixture
def task(tmp_path):
    if BASE not in os.environ:
        pytest.skip(f"{BASE} is not set")
    folder = harbor_task(tmp_path / "task", dockerfile="FROM base\nWORKDIR /app\n", solve=SOLVE, test=TEST)
    store = folder / "environment" / "store"
    store.mkdir()
    (store / "Dockerfile").write_text('FROM base\nCOPY store.py /\nCMD ["python3", "/store.py"]\n')
    (store / "store.py").write_text(STORE)
    (store / "units.txt").write_text("2")
    (folder / "environment" / "docker-compose.yaml").write_text(COMPOSE)
    return tmp_path


async def test_it_is_validated_on_a_real_engine(task, monkeypatch):
    monkeypatch.setattr("agentrl_envs.coding.validate.TIMES", 1)
    async with entered("docker") as backend:
        settings = ValidationSettings(backend="docker", base={"base": os.environ[BASE]}, concurrency=2)
        (found,) = find_tasks(task, settings)
        problem = load(found)
        images = [problem.image, problem.spec["services"]["services"]["store"]["image"]]
        (line,) = await missing_lines("docker", images)
        assert line.startswith("2 of 2 images are missing")
        (finding,) = await validate([found], settings)
        assert (finding.verdict, finding.reason) == ("good", "")
        assert await missing_lines("docker", images) == []
        labels = {"filters": json.dumps({"label": [SANDBOX]})}
        assert (await backend.engine.docker._query_json("networks", params=labels)) == []
        await backend.clear(await backend.leftovers())
