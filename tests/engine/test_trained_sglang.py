"""The embedded trainer with a real SGLang, by both routes: whole weights to one at a URL, adapters to one of its own.

.ci/sglang.sh starts the former and runs these tests; see test_real_sglang.py. The latter take half a minute each to
start, so one test has all that needs them.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest
from rich.console import Console

from agentrl.engine import SGLangEngine
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from agentrl.train import TrainConfig, Trainer
from agentrl.trajectory.trajectory import Trajectory
from tests.engine.inside import server_of

URL, MODEL = os.environ.get("AGENTRL_SGLANG_URL", ""), os.environ.get("AGENTRL_SGLANG_MODEL", "")
PYTHON = os.environ.get("AGENTRL_SGLANG_PYTHON", "")
if not (URL and MODEL and PYTHON):
    reason = "AGENTRL_SGLANG_URL, _MODEL and _PYTHON are not set: run .ci/sglang.sh"
    if "sglang" in os.environ.get("AGENTRL_REQUIRE", "").split(","):
        raise RuntimeError(reason)
    pytest.skip(reason, allow_module_level=True)

pytestmark = pytest.mark.timeout(600)  # a busy machine takes minutes to start a server

TOY = Path(__file__).parents[1] / "train" / "toy_env.py"
AGREES, SHOWS = 1e-4, 0.1
"""Differences of engine and trainer in a token's log-prob: with the same weights, and with those of a step before."""


@pytest.fixture
def settings(tmp_path):
    """A run of few and small steps, each of which changes the weights visibly."""
    rows = [{"prompt": f"say {i}", "label": i / 100, "id": str(i)} for i in range(4)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "env": f"{TOY}:Toy",
        "data": str(tmp_path / "tasks.jsonl"),
        "model": MODEL,
        "out": str(tmp_path / "run"),
        "prompts_per_step": 2,
        "group_size": 4,
        "limits": {"turns": 3, "max_tokens_per_turn": 6, "context": 200},
        "device": "cpu",
        "learning_rate": 0.05,
        "lr_warmup_steps": 0,
        "checkpoint_every": 1,
    }


@pytest.fixture
async def weights_come_back():
    yield
    body = {"model_path": MODEL, "weight_version": "default"}
    await post("/update_weights_from_disk", body)


async def post(path, body):
    async with aiohttp.ClientSession() as http, http.post(f"{URL}{path}", json=body) as response:
        assert response.status == 200, await response.text()


async def run(config, trainer=Trainer, resume=False):
    async with trainer(config, resume=resume, console=Console(file=io.StringIO(), width=200)) as running:
        return await running.run()


def differences(folder):
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["logprob_diff_max"] for line in lines]


def versions(folder):
    """The weight versions of all turns of each step."""
    found = []
    for file in sorted((Path(folder) / "trajectories").glob("step_*.jsonl")):
        played = [Trajectory.from_json(json.loads(line)) for line in file.read_text().splitlines()]
        found.append({version for trajectory in played for version in trajectory.weight_versions})
    return found


class Skips(Trainer):
    """The weights of step 2 never arrive."""

    def _open_engine(self, renderer):
        engine = super()._open_engine(renderer)
        update = engine.update

        async def skip(model, version):
            if version == "2":
                await server_of(engine).control.resume(["kv_cache"])
                engine._asleep, engine._version = [], "1"
            else:
                await update(model, version)

        engine.update = skip
        return engine


async def test_whole_weights_from_disk_with_sleep(settings, weights_come_back):
    """Asleep in every step: on a CPU the memory stays, but the server insists on the order of the calls."""
    by_url = {**settings, "engine": {"kind": "sglang", "url": URL, "sleep": True}}
    await run(TrainConfig.make(**by_url, steps=2))
    await run(TrainConfig.make(**by_url, steps=4), resume=True)
    assert max(differences(settings["out"])) < AGREES
    assert versions(settings["out"]) == [{"0"}, {"1"}, {"2"}, {"3"}]

    settings["out"] = by_url["out"] = f"{settings['out']}-skipping"
    await run(TrainConfig.make(**by_url, steps=3, numerics=None), Skips)  # else the watch ends the run there
    *before, skipped = differences(settings["out"])
    assert max(before) < AGREES < SHOWS < skipped
    assert versions(settings["out"]) == [{"0"}, {"1"}, {"1"}]


async def test_episodes_are_played_during_updates(settings, weights_come_back):
    await run(TrainConfig.make(**settings, steps=4, staleness=1, engine={"kind": "sglang", "url": URL}))
    lines = [json.loads(line) for line in (Path(settings["out"]) / "metrics.jsonl").read_text().splitlines()]
    assert max(line["token_age_max"] for line in lines) == 1, "a step has tokens from before the last update"
    for step, sampled_by in enumerate(versions(settings["out"]), 1):
        assert sampled_by <= {str(step - 2), str(step - 1)}
    assert lines[0]["logprob_diff_max"] < AGREES < SHOWS < max(line["logprob_diff_max"] for line in lines[1:])


def descendants(pid):
    """All processes that come from one, by /proc."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "too slow"
        time.sleep(0.1)


def killed_after_two_steps(settings):
    """The command, killed by SIGKILL in the middle of its third step or so. Nothing that it started is left."""
    given = {**settings, "steps": 100}
    env, flags = given.pop("env"), [f"--set={key}={json.dumps(value)}" for key, value in given.items()]
    flags += ["--set=lora.rank=8", "--set=engine.kind=sglang", f"--set=engine.python={PYTHON}"]
    metrics = Path(settings["out"]) / "metrics.jsonl"
    with open(f"{settings['out']}.txt", "w+") as said:
        trainer = subprocess.Popen([sys.executable, "-m", "agentrl", "train", env, *flags], stdout=said, stderr=said)
        try:
            wait_until(
                lambda: trainer.poll() is not None or (metrics.exists() and metrics.read_text().count("\n") >= 2), 300
            )
            said.seek(0)
            assert trainer.poll() is None, said.read()
            started = descendants(trainer.pid)
        finally:
            trainer.kill()
            trainer.wait()
    assert len(started) > 2, "a watchdog, SGLang, and what SGLang starts"
    wait_until(lambda: not any(map(lives, started)), 30)


def kill_child(watchdog):
    (server,) = Path(f"/proc/{watchdog}/task/{watchdog}/children").read_text().split()
    os.kill(int(server), signal.SIGKILL)


class LosesServer(Trainer):
    """SGLang is killed in the fourth step that is played here."""

    played = 0

    async def collect(self, step):
        self.played += 1
        if self.played == 4:
            kill_child(server_of(self.engine)._process.pid)
        return await super().collect(step)


async def test_adapters_to_a_server_of_its_own_which_ends_with_its_trainer(settings):
    """A killed trainer leaves no server, and a killed server is started again."""
    await asyncio.to_thread(killed_after_two_steps, settings)
    done, steps = len(differences(settings["out"])), len(differences(settings["out"])) + 6
    config = TrainConfig.make(**settings, steps=steps, lora={"rank": 8}, engine={"kind": "sglang", "python": PYTHON})
    await run(config, LosesServer, resume=True)
    assert len(differences(settings["out"])) == steps > done
    assert max(differences(settings["out"])) < AGREES
    assert versions(settings["out"]) == [{str(step)} for step in range(steps)]


@pytest.mark.parametrize("more", [{}, {"lora": {"rank": 4}}], ids=["disk", "adapter"])
async def test_images_are_read_by_the_weights_of_each_step(settings, more):
    """The same pictures in each step: SGLang must not read them as the step before did. A server of its own for each,
    because what it keeps of an image is set at its start. Nor has a log-prob the share of the forbidden pads.
    """
    pytest.importorskip("PIL", reason="images need Pillow")
    config = {**settings, "env": f"{TOY}:Pictures", "model": "tiny-vl", "prompts_per_step": 1, "learning_rate": 0.02}
    await run(TrainConfig.make(**config, **more, steps=2, engine={"kind": "sglang", "python": PYTHON}))
    lines = [json.loads(line) for line in (Path(settings["out"]) / "metrics.jsonl").read_text().splitlines()]
    assert [line["failed_episodes"] for line in lines] == [0, 0]
    assert versions(settings["out"]) == [{"0"}, {"1"}]
    assert max(differences(settings["out"])) < 2e-5


async def test_weights_that_change_during_a_request_are_told_apart(weights_come_back):
    prompt = load_renderer(load_tokenizer(MODEL)).prompt("What country is Lyon in?").tokens
    engine = SGLangEngine(URL)
    running = asyncio.create_task(
        engine.generate(prompt, {"temperature": 1.0, "max_new_tokens": 900, "ignore_eos": True})
    )
    await asyncio.sleep(0.7)
    await post("/pause_generation", {"mode": "retract"})
    await post("/update_weights_from_disk", {"model_path": MODEL, "weight_version": "mid"})
    await post("/continue_generation", {})
    generation = await running
    (first, start, change), (second, again, end) = generation.versions()
    assert (first, start, second, end) == ("default", 0, "mid", len(generation.tokens))
    assert 0 < change == again < end
    trajectory = Trajectory()
    trajectory.append_prompt(load_renderer(load_tokenizer(MODEL)).prompt("What country is Lyon in?"))
    trajectory.append_model(generation)
    assert trajectory.turns[0].weight_versions == ["default", "mid"]
    await engine.close()
