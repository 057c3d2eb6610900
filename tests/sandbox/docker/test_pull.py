"""`agentrl sandbox pull` against a registry on loopback: killed and started again, within a budget, with a login."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.sandbox.docker.registry import Registry
from tests.sandbox.docker.remote import Daemon, needs
from tests.sandbox.engine import ALONE, SOAK

pytestmark = [ALONE, pytest.mark.timeout(600)]  # each command imports agentrl: half a minute on a busy machine

KB = 1000
KILLS, IMAGES = (SOAK, 200) if SOAK else (4, 60)


@pytest.fixture
def engine():
    needs("dockerd")
    engine = Daemon()
    try:
        engine.start()
        yield engine
    finally:
        engine.close()


def tiny(registry, count, size):
    """So many images with a layer of random bytes each; their names."""
    chance = random.Random(count)
    names = [f"tiny/number{i:03}" for i in range(count)]
    for name in names:
        registry.add(name, {"file": chance.randbytes(size)})
    return [f"{registry.address}/{name}" for name in names]


def tasks(folder, images):
    """A data set with one task for each image."""
    rows = [
        {
            "id": f"task-{i}",
            "metadata": {"format": f"{folder}/loading.py:load", "image": image},
            "prompt": "do nothing",
        }
        for i, image in enumerate(images)
    ]
    (folder / "loading.py").write_text(
        "from agentrl_envs.coding.problem import Problem, Step\n\n\n"
        "def load(task):\n    return Problem((Step('', None),), image=task.metadata['image'])\n"
    )
    file = folder / "tasks.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def started(file, *hosts, options=(), env=None):
    backend = f"docker:{','.join(f'unix://{host.socket}' for host in hosts)}"
    command = [sys.executable, "-m", "agentrl", "sandbox", "pull", str(file), "--backend", backend, *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **(env or {})})


def pulled(*args, **kwargs):
    process = started(*args, **kwargs)
    said, complained = process.communicate(timeout=300)
    return process.returncode, said, complained


def images_size(engine):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(engine.socket)
        client.sendall(b"GET /v1.41/system/df HTTP/1.0\r\n\r\n")
        reply = b"".join(iter(lambda: client.recv(1 << 16), b""))
    return json.loads(reply.partition(b"\r\n\r\n")[2])["LayersSize"]


def names_on(engine):
    return set(engine.docker("images", "--format", "{{.Repository}}").stdout.decode().split())


@pytest.mark.timeout(900)
def test_killed_at_random_moments_each_image_is_pulled_once(engine, tmp_path, capsys):
    chance = random.Random(30)
    with Registry(slow=0.05) as registry:
        images = tiny(registry, IMAGES, 20 * KB)
        file, budget = tasks(tmp_path, images), IMAGES * 24 * KB
        for _ in range(KILLS):
            enough = registry.layers.total() + chance.randint(1, 16)
            process = started(file, engine, options=("--disk-gb", str(budget / 1e9)))
            while registry.layers.total() < enough and process.poll() is None:
                time.sleep(0.005)
            time.sleep(chance.random() * 0.1)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert images_size(engine) <= budget
        before = len(names_on(engine))
        code, said, _ = pulled(file, engine, options=("--disk-gb", str(budget / 1e9)))
        assert (code, names_on(engine)) == (0, set(images)), said
        asked, layers = registry.asked.copy(), registry.layers.copy()
        code, said, _ = pulled(file, engine)
        assert (code, registry.asked, registry.layers) == (0, asked, layers), "what is there is not asked for again"
    twice = sum(layers.values()) - IMAGES
    with capsys.disabled():
        print(
            f"\n{KILLS} kills; {before} of {IMAGES} there after the last; {twice} layers on their way at a kill "
            f"were sent again; {images_size(engine) / 1e6:.1f} of {budget / 1e6:.1f} MB"
        )
    assert f"{IMAGES} there" in said
    assert twice <= 4 * KILLS, "at most those on their way at a kill"
    assert before > 0, "pulls survive a kill"


def test_the_disk_budget_is_kept(engine, tmp_path):
    with Registry() as registry:
        images = tiny(registry, 30, 100 * KB)
        file, options = tasks(tmp_path, images), ("--disk-gb", "0.002")
        for _ in range(2):  # the second one removes nothing, and fits nothing more in
            code, said, complained = pulled(file, engine, options=options)
            assert (code, len(names_on(engine)) in (18, 19, 20)) == (1, True)
            assert f"{30 - len(names_on(engine))} no room" in said, complained
            assert images_size(engine) <= 2000 * KB
        code, said, _ = pulled(file, engine, options=("--disk-gb", "0.001"))  # a smaller one: the last are removed
        assert (code, images_size(engine) <= 1000 * KB) == (1, True)
        assert len(names_on(engine)) in (8, 9, 10)


def test_a_private_registry_gets_docker_s_credentials(engine, tmp_path):
    with Registry(login="me:secret") as registry:
        images = tiny(registry, 2, KB)
        file = tasks(tmp_path, images)
        code, _, complained = pulled(file, engine, env={"DOCKER_CONFIG": str(tmp_path)})
        assert (code, names_on(engine)) == (1, set())
        assert "no basic auth credentials" in complained or "unauthorized" in complained.lower()
        written = {"auths": {registry.address: {"auth": base64.b64encode(b"me:secret").decode()}}}
        (tmp_path / "config.json").write_text(json.dumps(written))
        assert pulled(file, engine, env={"DOCKER_CONFIG": str(tmp_path)})[0] == 0
        assert names_on(engine) == set(images)


def test_a_mirror_is_asked_first_and_images_keep_their_names(engine, tmp_path):
    with Registry() as first, Registry() as mirror:
        images = tiny(first, 3, KB)
        for name in ("tiny/number000", "tiny/number001"):
            mirror.add(f"kept/{name}", {"file": name.encode()})
        code, said, complained = pulled(
            tasks(tmp_path, [*images, "127.0.0.1:9/no/such"]), engine, options=("--mirror", f"{mirror.address}/kept")
        )
        assert (code, names_on(engine)) == (1, set(images)), complained
        assert (first.asked.total(), mirror.asked.total()) == (1, 2)
        assert "3 pulled, 1 failed" in said


def test_every_host_gets_every_image(engine, tmp_path):
    other = Daemon()
    try:
        other.start()
        with Registry() as registry:
            images = tiny(registry, 4, KB)
            code, said, complained = pulled(tasks(tmp_path, images), engine, other)
        assert (code, names_on(engine), names_on(other)) == (0, set(images), set(images))
        assert said.count("4 images: 4 pulled") == 2
        assert complained.count("4 of 4 images are missing") == 2
    finally:
        other.close()
