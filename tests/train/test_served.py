"""A run whose engine is behind HTTP: agentrl's own server in SGLang's place, with a model of its own.

The weights that it samples from come through /update_weights_from_disk or not at all.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.engine import LocalEngine
from agentrl.engine.sglang.server import running_server
from agentrl.engine.sglang.training import served, trained
from agentrl.errors import CanaryError, ConfigError, EngineLostError
from agentrl.models import load_model, load_tokenizer
from agentrl.train import Trainer
from agentrl.trajectory.trajectory import Trajectory

LAUNCH = Path(__file__).parents[1] / "doubles" / "sglang_launch.py"
SMALL = {"prompts_per_step": 1, "group_size": 3, "minibatches": 1}


@asynccontextmanager
async def server(config, change=1.0):
    """Serves a copy of the model to be trained, its head multiplied by `change`."""
    model = load_model(config.model)
    model.model.norm.weight.data *= change
    engine = LocalEngine(model, load_tokenizer(config.model), max_context=500)
    async with running_server(engine, model_name=str(config.model)) as url:
        yield url
    await engine.close()


def served_config(make_config, url, **values):
    return make_config(engine={"kind": "sglang", "url": url}, learning_rate=0.05, lr_warmup_steps=0, **SMALL, **values)


async def run(config, trainer=Trainer, resume=False):
    async with trainer(config, resume=resume, console=Console(file=io.StringIO(), width=200)) as running:
        return await running.run()


def steps(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def versions(folder, step):
    lines = (folder / "trajectories" / f"step_{step:06d}.jsonl").read_text().splitlines()
    return {version for line in lines for version in Trajectory.from_json(json.loads(line)).weight_versions}


@pytest.mark.thorough
async def test_every_step_samples_from_the_weights_of_the_step_before(make_config, tmp_path):
    async with server(make_config()) as url:
        await run(served_config(make_config, url, steps=3))
    found = steps(tmp_path / "run")
    assert all(metrics["logprob_diff_max"] < 1e-4 for metrics in found)
    assert [versions(tmp_path / "run", step) for step in (1, 2, 3)] == [{"0"}, {"1"}, {"2"}]
    assert min(metrics["hand_over_s"] for metrics in found) > 0


@pytest.mark.thorough
async def test_an_update_that_is_skipped_shows(make_config, tmp_path):
    class Skips(Trainer):
        def _open_engine(self, renderer):
            engine = super()._open_engine(renderer)
            update = engine.update

            async def skip(model, version):
                if version != "2":
                    await update(model, version)

            engine.update = skip
            return engine

    async with server(make_config()) as url:
        await run(served_config(make_config, url, steps=3), Skips)
    differences = [metrics["logprob_diff_max"] for metrics in steps(tmp_path / "run")]
    assert max(differences[:2]) < 1e-4 < 0.1 < differences[2]
    assert versions(tmp_path / "run", 3) == {"1"}


@pytest.mark.thorough
async def test_a_run_goes_on_at_another_server(make_config, tmp_path):
    async with server(make_config()) as url:
        await run(served_config(make_config, url, steps=2))
    async with server(make_config()) as url:
        await run(served_config(make_config, url, steps=3), resume=True)
    assert [metrics["step"] for metrics in steps(tmp_path / "run")] == [1, 2, 3]
    assert all(metrics["logprob_diff_max"] < 1e-4 for metrics in steps(tmp_path / "run"))
    assert versions(tmp_path / "run", 3) == {"2"}


async def test_an_engine_with_other_weights_ends_the_run_before_anything_is_trained(make_config, tmp_path):
    class Refuses(Trainer):
        def _open_engine(self, renderer):
            engine = super()._open_engine(renderer)
            given = engine._of_version

            async def nothing(model, version):
                await engine._started()
                engine._version = version

            engine.update, engine._of_version = nothing, lambda found, version: given(found, found.weight_version)
            return engine

        def update(self, groups, step):
            raise AssertionError("learned from an engine that was never given the weights")

    async with server(make_config(), change=20.0) as url:
        with pytest.raises(CanaryError, match=r"^step 1, before it is trained: trainer and engine differ by "):
            await run(served_config(make_config, url), Refuses)


@pytest.mark.thorough
@pytest.mark.parametrize("dies", ["in a rollout", "before an update"])
async def test_a_server_that_goes_away_ends_the_run_and_leaves_a_checkpoint(make_config, tmp_path, monkeypatch, dies):
    monkeypatch.setattr(served, "_END_S", 0.1)
    monkeypatch.setattr(trained, "_RETRY_S", 0)
    closing = server(make_config())

    class Dies(Trainer):
        async def collect(self, step):
            if step == 3 and dies == "in a rollout":
                await closing.__aexit__(None, None, None)
            return await super().collect(step)

        async def _finish_step(self, report, progress):
            await super()._finish_step(report, progress)
            if report.step == 2 and dies == "before an update":
                await closing.__aexit__(None, None, None)

    config = served_config(make_config, await closing.__aenter__(), steps=4)
    with pytest.raises(EngineLostError, match="no longer answers"):
        await run(config, Dies)
    assert [metrics["step"] for metrics in steps(tmp_path / "run")] == [1, 2]
    assert (tmp_path / "run" / "checkpoints" / "step_000002").exists(), "checkpoint_every is 50"
    async with server(make_config()) as url:
        await run(served_config(make_config, url, steps=4), resume=True)
    assert [metrics["step"] for metrics in steps(tmp_path / "run")] == [1, 2, 3, 4]
    assert all(metrics["logprob_diff_max"] < 1e-4 for metrics in steps(tmp_path / "run"))


@pytest.fixture
def own_server(tmp_path):
    """The setting `engine` for a server that the run starts: agentrl's own, as a program."""
    program = tmp_path / "python"
    paths = os.pathsep.join(str(LAUNCH.parents[2] / part) for part in ("", "envs", "sandbox"))
    launch = LAUNCH.with_name("agentrl_launch.py")
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{paths}" exec "{sys.executable}" "{launch}" "$@"\n')
    program.chmod(0o755)
    return {"kind": "sglang", "python": str(program)}


def children(pid):
    return [child for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]


def kill_server():
    """End the server under this process's watchdog with SIGKILL, if it still runs."""
    for child in children("self"):
        if b"watchdog.py" in Path(f"/proc/{child}/cmdline").read_bytes():
            for server in children(child):
                os.kill(int(server), signal.SIGKILL)


class KillsItsServer(Trainer):
    """Ends the server when the fifth request of step 2 has come (with staleness, before step 2), and before the update
    for step 3."""

    requests = 0

    def _open_engine(self, renderer):
        engine = super()._open_engine(renderer)
        inner = getattr(engine, "engine", engine)
        generate = inner.generate

        async def killed(*args, **request):
            self.requests += 1
            if self.is_due():
                kill_server()
            return await generate(*args, **request)

        inner.generate = killed
        return engine

    def is_due(self):
        return self.requests == 5 and self.position.step == 1 and not self.config.staleness

    async def step(self, step):
        self.requests = 0
        if step == 3 or (step == 2 and self.config.staleness):
            kill_server()
        return await super().step(step)


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("staleness", [0, 1])
async def test_a_run_survives_its_server(make_config, tmp_path, own_server, staleness):
    console = Console(file=io.StringIO(), width=1000)
    more = {"learning_rate": 0.05, "lr_warmup_steps": 0, "numerics": None, "staleness": staleness, **SMALL}
    async with KillsItsServer(make_config(engine=own_server, steps=4, **more), console=console) as trainer:
        await trainer.run()

    found = steps(tmp_path / "run")
    assert [metrics["step"] for metrics in found] == [1, 2, 3, 4]
    assert sum(metrics["failed_episodes"] for metrics in found) == 0
    assert console.file.getvalue().count("warning: SGLang ended with status 137; ") == 2
    assert console.file.getvalue().count("; it is started again\n") == 2
    if staleness == 0:
        assert all(metrics["logprob_diff_max"] < 1e-4 for metrics in found), "the weights are the current ones"
        assert [versions(tmp_path / "run", step) for step in (1, 2, 3, 4)] == [{"0"}, {"1"}, {"2"}, {"3"}]
    else:
        assert all(metrics["token_age_max"] <= 1 for metrics in found)


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_a_run_whose_server_ends_again_and_again_ends(make_config, tmp_path, own_server, monkeypatch):
    monkeypatch.setattr(trained, "_RESTARTS", 1)

    class Kills(KillsItsServer):
        def is_due(self):
            if self.position.step == 1:
                asyncio.get_running_loop().call_later(0.01, self.again)
            return False

        def again(self):
            kill_server()
            asyncio.get_running_loop().call_later(0.01, self.again)

    config = make_config(engine=own_server, steps=3, **SMALL)
    with pytest.raises(EngineLostError, match=r"^SGLang ended with status 137; the log .* ends: "):
        await run(config, Kills)
    assert [metrics["step"] for metrics in steps(tmp_path / "run")] == [1]
    assert (tmp_path / "run" / "checkpoints" / "step_000001").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("limits", [{}, {"tokens": 150}], ids=["before the run", "at the first rollout"])
def test_a_server_that_does_not_start_leaves_the_log_that_the_message_names(make_config, tmp_path, monkeypatch, limits):
    program = tmp_path / "python"  # the stand-in as a program, whatever the checkout's file modes are
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{LAUNCH}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("FAKE_SGLANG", "crash")
    own = {"kind": "sglang", "python": str(program)}
    config = make_config(engine=own, limits={"turns": 3, "max_tokens_per_turn": 6, "context": 200, **limits}, **SMALL)
    with pytest.raises(ConfigError, match=r"RuntimeError: no memory; all of it is in ") as refused:
        asyncio.run(run(config))
    log = Path(str(refused.value).rpartition("all of it is in ")[2])
    assert "RuntimeError: no memory" in log.read_text()
    assert [path.name for path in config.out.iterdir()] == ["engine.log"]
    with pytest.raises(ConfigError, match="no memory"):  # the folder is free for the next attempt
        asyncio.run(run(config))
    assert log.read_text().count("RuntimeError: no memory") == 2


@pytest.mark.thorough
async def test_a_server_plays_episodes_while_the_learner_learns(make_config, tmp_path):
    async with server(make_config()) as url:
        await run(served_config(make_config, url, steps=4, staleness=1, numerics={"stop": 0.01}))
    found = steps(tmp_path / "run")
    for step in (1, 2, 3, 4):
        assert versions(tmp_path / "run", step) <= {str(step - 2), str(step - 1)}
    assert max(metrics["token_age_max"] for metrics in found) == 1
    differences = [metrics["logprob_diff_max"] for metrics in found]
    assert differences[0] < 1e-4 < 0.1 < max(differences), "an update lies between them"
