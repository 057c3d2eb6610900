# ruff: noqa: ASYNC110 - what is waited for happens in other processes
"""adapt with workers: the same samples as without, over the doubles of slime's package."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import torch

from agentrl import ConfigError, Task, adapt
from agentrl._util.yaml_files import read_yaml
from agentrl.engine import ScriptedEngine
from agentrl.models import load_tokenizer
from agentrl.models.vision import load_vision
from agentrl.render import load_renderer
from agentrl.slime.check import rules
from agentrl.slime.config import SlimeConfig
from agentrl.slime.init import CONFIG, write
from agentrl.slime.playing import _LateFlagEngine, play_sample
from agentrl.slime.remote import SampleJob, SampleWorkers, refuse_loopback, sample_workers
from agentrl.types import Generation
from agentrl.workers.pipes import PipeTransport
from tests.doubles import tiny_vlm
from tests.episode.pictures import A, B
from tests.episode.seat_envs import Duel
from tests.slime.contract.conftest import served
from tests.slime.partial import ENV_FILE, PARAMS, Accounted, Slime, account, script
from tests.slime.picture_samples import Sample as PictureSample
from tests.slime.picture_server import server

SIZE = 2
SECONDS = ("non_generation_time",)


@pytest.fixture(scope="module", autouse=True)
def ended():
    """The workers serve all tests of this module."""
    yield
    sample_workers(SIZE).close()


@pytest.fixture
def slime(serve, make_args, host, renderer):
    """`async with slime("Saved") as slime`: slime's rollouts, whose episodes workers play."""

    @asynccontextmanager
    async def running(env, turns=3, seconds=0.0, args=None, **config):
        engine = Accounted(script(turns), renderer, seconds=seconds)
        given = {"partial_rollout": True, "mask_offpolicy_in_partial_rollout": False, **(args or {})}
        async with serve(engine) as (_, url):
            args = make_args(url, env=f"{ENV_FILE}:{env}", args=given, **{"workers": SIZE, **config})
            yield Slime(host, args, engine)

    return running


async def all_ready(slime):
    """Start the workers, which the first episode does, wait for both, and have both play: a new one is slow."""
    async with slime("Adding") as rollouts:
        assert await rollouts.rollout([rollouts.sample(90)]) == []
        pool = sample_workers(SIZE).pool
        async with asyncio.timeout(100):
            while not all(seat.ready for seat in pool.seats):
                await asyncio.sleep(0.01)
        assert await rollouts.rollout([rollouts.sample(91 + i) for i in range(4)]) == []
    return pool


def plain(sample):
    values = {name: value for name, value in vars(sample).items() if name not in SECONDS}
    return copy.deepcopy({**values, "rollout_log_probs": None})  # the engine never gives the same ones twice


@pytest.mark.thorough
async def test_workers_give_the_samples_that_this_process_gives(slime):
    await all_ready(slime)
    found = []
    for workers in (0, SIZE):
        async with slime("Adding", workers=workers) as rollouts:
            samples = [rollouts.sample(i) for i in range(6)]
            assert await rollouts.rollout(samples) == []
            found.append([plain(sample) for sample in samples])
            handed = rollouts.engine.handed_out
            for sample in samples:
                sampled = [x for said in handed[sample.session_id] for x in said.log_probs]
                kept = [x for x, mask in zip(sample.rollout_log_probs, sample.loss_mask, strict=True) if mask]
                assert kept == pytest.approx(sampled)
    assert found[0] == found[1]
    assert [sample["reward"] for sample in found[0]] == [1.0] * 6


@pytest.mark.thorough
@pytest.mark.parametrize("env", ["Adding", "Saved", "Replayed"])
async def test_aborted_episodes_go_back_to_their_worker(slime, env):
    """Also those whose Env stays open there."""
    async with slime(env, turns=6, seconds=0.15) as rollouts:
        samples = [rollouts.sample(i, turns=6) for i in range(8)]
        aborted = await rollouts.rollout(samples, until=lambda: len(rollouts.engine.asked) == 8)
        assert len(aborted) == 8
        assert await rollouts.rollout(aborted) == []
    assert [sample.reward for sample in samples] == [1.0] * 8
    assert {account(sample)["resumes"] for sample in samples} == {1}
    assert {account(sample).get("restarts", 0) for sample in samples} == {0}
    for sample in samples:
        said = rollouts.engine.handed_out[sample.session_id]
        assert sum(sample.loss_mask) == sum(len(one.tokens) for one in said), "each sampled token is trained once"


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, SIZE])
async def test_an_evaluation_takes_no_parked_episode(slime, workers):
    """Its samples have the numbers of the training's, and neither may have a session."""
    if workers:
        await all_ready(slime)
    async with slime("Adding", turns=6, seconds=0.15, workers=workers) as rollouts:

        def unnamed(index):
            sample = rollouts.sample(index, turns=6)
            sample.session_id = None
            return sample

        samples = [unnamed(i) for i in range(4)]
        aborted = await rollouts.rollout(samples, until=lambda: len(rollouts.engine.asked) == 4)
        assert len(aborted) == 4
        evaluated = [unnamed(i) for i in range(4)]
        await asyncio.gather(*(adapt(rollouts.args, sample, PARAMS, evaluation=True) for sample in evaluated))
        assert await rollouts.rollout(aborted) == []
    assert [sample.reward for sample in [*samples, *evaluated]] == [1.0] * 8
    assert [account(sample).get("resumes", 0) for sample in [*samples, *evaluated]] == [1] * 4 + [0] * 4
    assert {account(sample).get("restarts", 0) for sample in samples} == {0}


@pytest.mark.thorough
async def test_an_open_env_is_lost_with_its_worker_and_the_episode_starts_over(slime):
    pool = await all_ready(slime)
    async with slime("Adding", turns=6, seconds=0.4) as rollouts:
        samples = [rollouts.sample(i, turns=6) for i in range(4)]
        aborted = await rollouts.rollout(samples, until=lambda: len(rollouts.engine.asked) == 4)
        assert len(aborted) == 4
        victim = pool.seats[0].pid
        os.kill(victim, signal.SIGKILL)
        while pool.seats[0].ready:
            await asyncio.sleep(0.01)
        rollouts.engine.positions.clear()
        assert await rollouts.rollout(aborted) == []
    assert [sample.reward for sample in samples] == [1.0] * 4
    assert sorted(account(sample).get("restarts", 0) for sample in samples) == [0, 0, 1, 1]
    reasons = {account(sample)["restart_reason"] for sample in samples if "restart_reason" in account(sample)}
    assert reasons == {"its environment is not open here: its time was up, or it is in another loop or process"}


@pytest.mark.thorough
async def test_a_worker_killed_in_a_rollout(slime):
    """Its episodes are played once more; no token is in two samples."""
    pool = await all_ready(slime)
    async with slime("Adding", turns=6, seconds=0.1, args={"partial_rollout": False}) as rollouts:
        samples = [rollouts.sample(i, turns=6) for i in range(8)]
        playing = asyncio.create_task(rollouts.rollout(samples))
        while len(rollouts.engine.asked) < 8:
            await asyncio.sleep(0.01)
        rollouts.engine.positions.clear()  # a script's place; a model has none
        seat = next(seat for seat in pool.seats if seat.ready)
        os.kill(seat.pid, signal.SIGKILL)
        await playing
    lost = [sample for sample in samples if "workers_lost" in account(sample).get("info", {})]
    assert lost
    assert {sample.status.value for sample in samples} <= {"completed"}
    for sample in lost:
        assert "ended by signal SIGKILL" in account(sample)["info"]["workers_lost"][0]


def launch(workers, here=True, nodes=1, env=None, **args):
    """A launch as `agentrl check slime` sees it, on a machine of 16 cores."""
    given = {"actor_num_nodes": nodes, "sglang_router_ip": None, "colocate": True, **args}
    config = SlimeConfig(env="my_env.py:MyEnv", workers=workers)
    return SimpleNamespace(
        args=SimpleNamespace(**given), env=env, config=config, here=here, trainer_gpus=8 * nodes, gpus=8 * nodes
    )


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        (launch(6), []),
        (launch(7), ["workers 7: each needs a CPU of the Ray cluster, and slime takes 10 of 16 "]),
        (launch(7, colocate=False), ["workers 7: each needs a CPU of the Ray cluster, and slime takes 18 of 16 "]),
        (launch(7, nodes=2), []),
        (launch(7, here=False), []),
        (launch(2, env=Duel), ["workers play no Env with seats, as Duel is; write workers: 0"]),
        (launch(0, env=Duel), []),
        (launch(0, nodes=2, sglang_router_ip="127.0.0.1"), []),
        (launch(2, nodes=2, sglang_router_ip="127.0.0.1"), ["http://127.0.0.1: workers on other nodes cannot reach"]),
    ],
)
def test_the_check_before_the_run(monkeypatch, setup, said):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    found = list(rules.workers(setup))
    assert len(found) == len(said)
    assert all(one.message.startswith(text) for one, text in zip(found, said, strict=True))


def test_init_writes_them(tmp_path):
    (tmp_path / "slime/scripts/models").mkdir(parents=True)
    for workers in (0, 8):
        _, config = write("my_env.py:MyEnv", "qwen3-4B", tmp_path / "slime", tmp_path / str(workers), workers)
        assert SlimeConfig.parse(CONFIG, read_yaml(str(config), CONFIG)["agentrl"]).workers == workers


async def test_the_engine_of_a_worker_follows_the_latest_rollout(monkeypatch):
    """All rollouts share its client. With the flag of an aborted one, it would never wait for its server again."""
    flags = []

    async def play_sample(request, aborted, stopped):
        flags.append(stopped)
        raise ConfigError("enough")

    monkeypatch.setattr("agentrl.slime.remote.play_sample", play_sample)
    job = SampleJob()
    for aborted in (True, False):
        with pytest.raises(ConfigError, match="enough"):
            await job.play(SimpleNamespace(in_slime=True, task=Task(prompt="go")), lambda aborted=aborted: aborted)
    assert [flag() for flag in flags] == [False, False]


class Aborting(ScriptedEngine):
    """Its first answer is cut off, and `tell` is called so many seconds later."""

    def __init__(self, renderer, tell=lambda: None, seconds=0.0):
        super().__init__([Generation([], [], "abort"), "6"], renderer, context_length=4096)
        self.tell, self.seconds = tell, seconds

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        if not self.requests:
            asyncio.get_running_loop().call_later(self.seconds, self.tell)
        return await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)


async def test_a_turn_is_not_asked_for_again_where_the_abort_flag_comes_late(
    host, serve, make_args, renderer, monkeypatch
):
    """The flag crosses to the worker on another way than the engine's answer."""
    flag = asyncio.Event()
    playing = lambda request, aborted: play_sample(request, flag.is_set, lambda: False)  # noqa: E731 - as a worker does
    monkeypatch.setattr("agentrl.slime.adapt.play_sample", playing)
    async with serve(Aborting(renderer, flag.set, 0.1)) as (engine, url):
        sample = await adapt(make_args(url), host.Sample(prompt="How many?", index=0), PARAMS)
    assert len(engine.requests) == 1
    assert sample.status == host.Sample.Status.ABORTED


async def test_the_wait_for_the_abort_flag_ends(renderer, monkeypatch):
    """The engine aborts by itself, too: before new weights."""
    monkeypatch.setattr("agentrl.slime.playing._FLAG_S", 0.05)
    looks = []
    engine = _LateFlagEngine(Aborting(renderer), lambda: bool(looks.append(1)))
    said = await asyncio.wait_for(engine.generate([1], dict(PARAMS), session_id="s"), 30)
    assert said.finish_reason == "abort"
    assert len(looks) > 1
    looks.clear()
    assert (await engine.generate([1], dict(PARAMS), session_id="s")).finish_reason == "stop"
    assert looks == [], "only what was aborted is waited for"


@pytest.mark.parametrize(("alive", "refused"), [([True, True], True), ([True, False], False)])
async def test_an_engine_that_other_nodes_do_not_reach_is_refused(slime, monkeypatch, alive, refused):
    ray = SimpleNamespace(nodes=lambda: [{"Alive": one} for one in alive])
    monkeypatch.setattr("agentrl.slime.remote._ray", lambda: ray)
    monkeypatch.setattr("agentrl.slime.remote._transport", PipeTransport)
    refuse_loopback.cache_clear()
    refuse_loopback("http://10.0.0.7:30000", 0)
    async with slime("Adding") as rollouts:
        sample = rollouts.sample(0)
        if refused:
            with pytest.raises(ConfigError, match=r"127\.0\.0\.1:.* is out of reach .*; use this node's address"):
                await adapt(rollouts.args, sample, PARAMS)
        else:
            assert (await adapt(rollouts.args, sample, PARAMS)).reward == 1.0
    refuse_loopback.cache_clear()


@pytest.mark.thorough
async def test_a_cluster_that_grows_is_looked_at_again_when_a_worker_starts(slime, monkeypatch):
    nodes = [{"Alive": True}]
    monkeypatch.setattr("agentrl.slime.remote._ray", lambda: SimpleNamespace(nodes=lambda: nodes))
    monkeypatch.setattr("agentrl.slime.remote._transport", PipeTransport)
    refuse_loopback.cache_clear()
    async with slime("Adding") as rollouts:
        for index in range(3):
            assert (await adapt(rollouts.args, rollouts.sample(index), PARAMS)).reward == 1.0
            while not all(seat.ready for seat in sample_workers(SIZE).pool.seats):
                await asyncio.sleep(0.01)
            if index == 1:  # this URL was checked after all workers had started
                nodes.append({"Alive": True})  # and none of them is there
        pool = sample_workers(SIZE).pool
        before = pool.started
        os.kill(pool.seats[0].pid, signal.SIGKILL)
        while pool.started == before:
            await asyncio.sleep(0.01)
        with pytest.raises(ConfigError, match=r"127\.0\.0\.1:.* is out of reach for workers on other nodes"):
            await adapt(rollouts.args, rollouts.sample(3), PARAMS)
    refuse_loopback.cache_clear()


async def test_workers_that_cannot_start_are_started_once(slime, monkeypatch):
    """However many episodes wait for them: all get the same error."""
    starts = []

    class Pool:
        def __init__(self, **given):
            pass

        async def __aenter__(self):
            starts.append(self)
            await asyncio.sleep(0.05)
            raise ConfigError("worker 0 ended twice before it was ready")

    monkeypatch.setattr("agentrl.slime.remote.WorkerPool", Pool)
    async with slime("Adding", workers=SIZE + 1) as rollouts:
        playing = [adapt(rollouts.args, rollouts.sample(i), PARAMS) for i in range(8)]
        found = await asyncio.gather(*playing, return_exceptions=True)
    sample_workers(SIZE + 1).close()
    assert len(starts) == 1
    assert {(type(error), str(error)) for error in found} == {(ConfigError, "worker 0 ended twice before it was ready")}


@pytest.mark.thorough
async def test_workers_that_are_closed_while_they_start_end():
    workers = SampleWorkers(SIZE)
    waiting = asyncio.create_task(workers.thread.run(workers.started()))
    while workers.starting is None:
        await asyncio.sleep(0.001)
    starting = workers.starting
    await asyncio.to_thread(workers.close)
    assert starting.cancelled()
    waiting.cancel()


async def test_what_cannot_be_sent_is_named(slime):
    async with slime("Adding") as rollouts:
        with pytest.raises(ConfigError, match=r"sample s-3 cannot be sent to a worker: .*lambda.*; use plain data"):
            await adapt(rollouts.args, rollouts.sample(3, odd=lambda: 0), PARAMS)


async def test_an_env_with_seats_is_refused(Sample, serve, make_args, renderer):
    async with serve(ScriptedEngine(["1"], renderer)) as (_, url):
        with pytest.raises(ConfigError, match="workers play no Env with seats, as Duel is; write workers: 0"):
            await adapt(
                make_args(url, env="tests.episode.seat_envs:Duel", workers=SIZE), Sample(prompt="", index=0), PARAMS
            )


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, SIZE])
async def test_images_cross_to_a_worker_and_back(make_args, workers):
    """A worker gets and gives files; the pixels are made here."""
    model = str(tiny_vlm.folder("qwen3_vl"))
    pictured = load_renderer(load_tokenizer(model), vision=load_vision(model))
    content = [{"type": "image", "image": A.uri}, {"type": "text", "text": "Which colour?"}]
    sample = PictureSample(
        prompt=[{"role": "user", "content": content}], multimodal_inputs={"images": [A.uri]}, label="red", index=0
    )
    with served(ScriptedEngine(["unused"], pictured), pictured.decode, server(model, [])) as url:
        args = make_args(url, env="tests.slime.picture_env:Pictures", workers=workers, args={"hf_checkpoint": model})
        assert (await adapt(args, sample, PARAMS)).status.value == "completed"
    expected = load_vision(model).tensors([A, B])
    assert set(sample.multimodal_train_inputs) == set(expected)
    for name, pixels in expected.items():
        assert torch.equal(sample.multimodal_train_inputs[name], pixels)


async def test_images_that_the_model_cannot_read_are_refused_in_a_worker(slime):
    async with slime("Adding") as rollouts:
        sample = rollouts.sample()
        sample.multimodal_inputs = {"images": [A.uri]}
        with pytest.raises(ConfigError, match="not known to read images"):
            await adapt(rollouts.args, sample, PARAMS)


async def test_a_mistake_in_the_configuration_is_the_same_in_a_worker(slime):
    async with slime("Missing") as rollouts:
        with pytest.raises(ConfigError, match="has no 'Missing'"):
            await adapt(rollouts.args, rollouts.sample(), PARAMS)


@pytest.mark.thorough
async def test_an_evaluation_from_another_event_loop(slime):
    """slime's fully-async rollout and its evaluation have loops of their own; the workers serve both."""
    async with slime("Adding", seconds=0.02) as rollouts:
        training = asyncio.create_task(rollouts.rollout([rollouts.sample(i) for i in range(4)]))
        evaluated = rollouts.sample(9)

        def evaluate():
            return asyncio.run(adapt(rollouts.args, evaluated, PARAMS, evaluation=True))

        assert (await asyncio.to_thread(evaluate)).reward == 1.0
        assert await training == []
