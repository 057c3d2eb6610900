"""`agentrl.adapt` through the real sglang-router, which has two real SGLang workers behind it.

.ci/sglang.sh starts them and runs these tests; .ci/sglang_servers.py says which variables name them. The model is a
`tiny` of random weights, and every log-prob is computed again by Hugging Face in the dtype that is served.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import aiohttp
import pytest

from agentrl import adapt
from agentrl.engine import SGLangEngine
from agentrl.env.factory import load_env
from agentrl.models import load_model, save_model, tiny_model, tiny_tokenizer
from tests.slime.contract import hosts

ROUTER, MODEL = os.environ.get("AGENTRL_ROUTER_URL", ""), os.environ.get("AGENTRL_SGLANG_MODEL", "")
WORKERS = os.environ.get("AGENTRL_SGLANG_WORKERS", "").split(",")
REQUIRED = os.environ.get("AGENTRL_REQUIRE", "").split(",")
if not (ROUTER and MODEL and len(WORKERS) == 2):
    reason = "AGENTRL_ROUTER_URL, AGENTRL_SGLANG_WORKERS and AGENTRL_SGLANG_MODEL are not set: run .ci/sglang.sh"
    if "sglang" in REQUIRED:
        raise RuntimeError(reason)
    pytest.skip(reason, allow_module_level=True)

pytestmark = pytest.mark.usefixtures("one_torch_thread")
ENV = f"{Path(__file__).with_name('chat_env.py')}:Chat"
DTYPE = os.environ.get("AGENTRL_SGLANG_DTYPE", "float32")
CLOSE = {"float32": 1e-4, "bfloat16": 0.05}[DTYPE]
"""In nats. Both sides compute the same in another order: 2e-6 is usual in float32."""
SOMETIMES = list(range(8, 1024, 16))
"""Stop tokens that random weights meet every 16th token or so."""
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 800}
CHAT = {**PLAIN, "stop_token_ids": SOMETIMES}
ENDLESS = {**PLAIN, "ignore_eos": True}


@pytest.fixture(scope="module")
def one_torch_thread():
    """torch's threads spin while they wait, and the servers need the cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def served():
    return load_model(MODEL, dtype=DTYPE)


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def worker_names(http):
    """Each worker's weight_version is its URL, so that every generation says who made it."""
    await _until(lambda: _both_healthy(http))
    for worker in WORKERS:
        await _post(http, f"{worker}/update_weight_version", new_version=worker, abort_all_requests=False)


@pytest.fixture
def play(make_args, host):
    """`play(sample, params, ...)`: one call of adapt, as slime makes it."""

    async def run(sample, params=CHAT, **overrides):
        config = {"env": ENV, "limits": {"context": 1000}, "model": MODEL, **overrides.pop("config", {})}
        return await adapt(make_args(ROUTER, args={"partial_rollout": True, **overrides}, **config), sample, params)

    return run


@pytest.fixture
def samples(host):
    def make(count, prompt="Tell me about the number {}."):
        return [
            host.Sample(prompt=prompt.format(n), index=n, session_id=f"{os.urandom(8).hex()}") for n in range(count)
        ]

    return make


@pytest.fixture
def finished():
    """The trajectories that ended in this test, by session."""
    episodes = sys.modules[load_env(ENV).__module__].FINISHED
    episodes.clear()
    return lambda: {trajectory.session_id: trajectory for trajectory in episodes}


async def _post(http, url, **body):
    async with http.post(url, json=body) as response:
        text = await response.text()
        assert response.status == 200, f"{url}: HTTP {response.status}: {text}"


async def _get(http, url):
    async with http.get(url) as response:
        assert response.status == 200, url
        return await response.json()


async def _both_healthy(http):
    listed = (await _get(http, f"{ROUTER}/workers"))["workers"]
    return {worker["url"] for worker in listed if worker["is_healthy"]} == set(WORKERS)


async def _running(http):
    """Requests that each worker is generating for."""
    loads = [await _get(http, f"{worker}/v1/loads?include=core") for worker in WORKERS]
    return [sum(rank["num_running_reqs"] + rank["num_waiting_reqs"] for rank in load["loads"]) for load in loads]


async def _until_running(http, count):
    async def reached():
        return sum(await _running(http)) == count

    await _until(reached)


async def _until(condition):
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 (another process's state has no event)
            await asyncio.sleep(0.1)


async def _abort_all(http):
    """As slime does: every worker, for the router has no such endpoint."""
    for worker in WORKERS:
        await _post(http, f"{worker}/abort_request", abort_all=True)


def _log_probs(model, tokens):
    """Of tokens[1:], by Hugging Face."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0, :-1].float()
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()


def _errors(model, sample, trained=None):
    """|ours - Hugging Face's| of a sample's trained tokens."""
    expected = _log_probs(model, sample.tokens)[-sample.response_length :]
    triples = zip(expected, sample.rollout_log_probs, trained or sample.loss_mask, strict=True)
    return [abs(theirs - ours) for theirs, ours, is_trained in triples if is_trained]


def _say(what, errors):
    figures = f"max {max(errors):.2g}, mean {statistics.mean(errors):.2g}"
    print(f"\n{what}: {len(errors)} tokens, |log-prob difference| {figures}")


async def test_episodes_are_token_exact_cached_and_stay_with_their_worker(
    http, play, samples, finished, served, worker_names
):
    started = time.monotonic()
    played = await asyncio.gather(*map(play, samples(32)))
    seconds = time.monotonic() - started
    assert {sample.status.name for sample in played} == {"COMPLETED"}
    assert [sample.reward for sample in played] == [3.0] * 32

    errors = [error for sample in played for error in _errors(served, sample)]
    _say(f"32 episodes in {seconds:.1f} s", errors)
    assert max(errors) < CLOSE

    pages = [(await _get(http, f"{worker}/server_info"))["page_size"] for worker in WORKERS]
    missed, by_worker = [], dict.fromkeys(WORKERS, 0)
    for sample in played:
        trajectory = finished()[sample.session_id]
        assert trajectory.tokens == sample.tokens
        # Computed before a turn: the last turn's prompt and what it sampled.
        computed = [turn.prompt_tokens + turn.sampled_tokens for turn in trajectory.turns]
        missed += [before - turn.cached_tokens for before, turn in zip(computed, trajectory.turns[1:], strict=False)]
        worker, *others = {version for turn in trajectory.turns for version in turn.weight_versions}
        assert not others, f"session {sample.session_id} was with {worker} and {others}"
        by_worker[worker] += 1
        assert sample.prefix_cache_info.cached_tokens == sum(turn.cached_tokens for turn in trajectory.turns)
    print(f"tokens computed before, yet not cached, on turns 2 and 3: {sorted(set(missed))}; page size {pages}")
    print(f"sessions by worker: {by_worker}")
    # The last token sampled was never an input, so nothing of it could be cached.
    assert max(missed) <= 1 + max(pages)
    assert min(by_worker.values()) >= 4, "32 sessions over two workers"


async def test_only_one_worker_knows_a_session(http, play, samples):
    """The same without the workers' word for it: their prefix caches tell who has seen an episode."""
    for worker in WORKERS:
        await _post(http, f"{worker}/flush_cache")
    unlike = "abcdefghijklmnopqrstuvwxyz"
    played = await asyncio.gather(*[play(sample) for sample in samples(8, unlike + "{}")])
    for sample in played:
        known = []
        for worker in WORKERS:
            engine = SGLangEngine(worker)
            known.append((await engine.generate(sample.tokens, {"max_new_tokens": 1})).cached_tokens)
            await engine.close()
        prompt = len(sample.tokens) - sample.response_length
        assert max(known) >= len(sample.tokens) - 2
        assert min(known) < prompt, f"both workers know {sample.session_id}: {known} of {len(sample.tokens)} tokens"


async def test_aborted_in_the_middle_of_a_turn_and_resumed(http, play, samples, host, served):
    asked = samples(8)
    running = [asyncio.create_task(play(sample, ENDLESS)) for sample in asked]
    await _until_running(http, 8)
    await asyncio.sleep(0.5)
    host.state.aborted = True
    started = time.monotonic()
    await _abort_all(http)
    parts = await asyncio.gather(*running)
    print(f"\n8 generations aborted in {time.monotonic() - started:.2f} s")
    assert {sample.status.name for sample in parts} == {"ABORTED"}
    before = [(list(sample.tokens), list(sample.rollout_log_probs)) for sample in parts]
    assert all(sample.response_length > 1 and all(sample.loss_mask) for sample in parts)
    errors = [error for sample in parts for error in _errors(served, sample)]
    assert max(errors) < CLOSE

    host.state.aborted = False
    whole = await asyncio.gather(*[play(sample) for sample in parts])
    assert {sample.status.name for sample in whole} == {"COMPLETED"}
    for sample, (tokens, log_probs) in zip(whole, before, strict=True):
        assert sample.tokens[: len(tokens)] == tokens
        assert sample.rollout_log_probs[: len(log_probs)] == log_probs
        assert len(sample.tokens) > len(tokens)
    errors = [error for sample in whole for error in _errors(served, sample)]
    _say("aborted, resumed and joined", errors)
    assert max(errors) < CLOSE


async def test_a_prompt_longer_than_the_context_costs_no_request(play, samples):
    (sample,) = samples(1, "long " * 2000)
    sample = await play(sample, config={"limits": {}})
    assert (sample.status.name, sample.metadata["agentrl"]["stop"]) == ("TRUNCATED", "context_full")
    assert sum(sample.loss_mask) == 0


async def test_a_prompt_that_sglang_refuses_is_one_failed_sample(play, samples):
    """limits.context promises more than the server has."""
    (sample,) = samples(1, "long " * 2000)
    started = time.monotonic()
    sample = await play(sample, config={"limits": {"context": 100_000}})
    seconds = time.monotonic() - started
    failure = sample.metadata["agentrl"]["failure"]
    print(f"\n{sample.status.name} in {seconds:.2f} s: {failure['error']}")
    assert (sample.status.name, sample.reward, sample.remove_sample) == ("FAILED", 0.0, True)
    assert (failure["boundary"], failure["error"].count("HTTP 400")) == ("engine", 1)
    assert "longer than the model's context length" in failure["error"]
    assert "attempts" not in failure["error"]
    assert seconds < 5


@pytest.fixture
async def new_weights(http, tmp_path):
    """`await new_weights("1", seed)`: every worker gets other weights, as slime pauses, updates and continues them."""
    update = {"model_path": str(tmp_path), "weight_version": "new"}
    save_model(tiny_model(1), tiny_tokenizer(), tmp_path)

    async def change(**update):
        for worker in WORKERS:
            await _post(http, f"{worker}/pause_generation")
        for worker in WORKERS:
            await _post(http, f"{worker}/update_weights_from_disk", **update)
        for worker in WORKERS:
            await _post(http, f"{worker}/continue_generation")

    yield lambda: change(**update)
    await change(model_path=MODEL, weight_version="old")


async def test_new_weights_in_the_middle_of_a_turn(http, play, samples, finished, served, new_weights):
    for worker in WORKERS:
        await _post(http, f"{worker}/update_weight_version", new_version="old", abort_all_requests=False)
    running = [asyncio.create_task(play(sample, {**ENDLESS, "max_new_tokens": 600})) for sample in samples(8)]
    await _until_running(http, 8)
    await asyncio.sleep(0.5)
    started = time.monotonic()
    await new_weights()
    print(f"\nweights changed under 8 generations in {time.monotonic() - started:.1f} s")
    played = await asyncio.gather(*running)
    models = {"old": served, "new": load_model("tiny", seed=1, dtype=DTYPE)}
    errors, strangers = [], []
    for sample in played:
        assert sample.status.name in ("COMPLETED", "TRUNCATED")
        assert sample.weight_versions == ["old", "new"]
        trajectory = finished()[sample.session_id]
        assert trajectory.tokens == sample.tokens
        for version, model in models.items():
            own = [0] * sample.response_length
            for span in trajectory.segment.spans:
                if span.weight_version == version:
                    own[span.start : span.stop] = [1] * (span.stop - span.start)
            assert sum(own) > 1
            errors += _errors(model, sample, own)
            strangers += _errors(models["new" if version == "old" else "old"], sample, own)
    _say("each token by the weights its span names", errors)
    assert max(errors) < CLOSE
    assert statistics.mean(strangers) > 0.1, "the other weights would not have done"


@pytest.fixture(params=hosts.NAMES)
def framework(request):
    if why := hosts.absent(request.param):
        (pytest.fail if request.param in REQUIRED else pytest.skip)(why)
    with hosts.imported(request.param) as found, pytest.MonkeyPatch.context() as patch:
        patch.setattr(found.ray, "put", lambda data: data)
        yield found
        found.reset()


@pytest.mark.filterwarnings("default")  # the host's own are not ours to fix
def test_a_hosts_own_partial_rollout(framework, served, tmp_path):
    """It takes the first groups that are done, aborts the others at the workers, and sends them again later."""
    rows = [{"prompt": f"Tell me about the number {n}.", "label": "", "metadata": {}} for n in range(12)]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    router = urlsplit(ROUTER)
    given = {
        "hf_checkpoint": MODEL,
        "prompt_data": str(data),
        "sglang_router_ip": router.hostname,
        "sglang_router_port": router.port,
        "agentrl": {"env": ENV, "limits": {"context": 1000}},
        "eval_datasets": [],
        "partial_rollout": True,
        "over_sampling_batch_size": 8,
        "rollout_max_response_len": 800,
        "rollout_stop_token_ids": SOMETIMES,
    }
    args = SimpleNamespace(**{**hosts.ARGS, **given})
    framework.http.init_http_client(args)
    run = hosts.Run(framework, args, engine=None)
    errors, resumed = [], 0
    for rollout_id in range(2):
        samples, train, _ = run.train(rollout_id)
        assert len(samples) == 8
        for sample, log_probs in zip(samples, train["rollout_log_probs"], strict=True):
            assert sample.status.name == "COMPLETED"
            assert log_probs == sample.rollout_log_probs
            errors += _errors(served, sample)
            resumed += "start_rollout_id" in sample.metadata
            assert not sample.metadata["agentrl"].get("restarts")
    print(f"\n{framework.label}: {resumed} of 16 samples were aborted, kept, and finished in the second rollout")
    _say("through the host's own rollout", errors)
    assert resumed >= 2
    assert max(errors) < CLOSE


async def test_a_cancelled_episode_leaves_nothing_running(http, play, samples):
    for wait in (0.0, 0.05, 1.0):  # before, about when, and after its request is at a worker
        running = asyncio.create_task(play(samples(1)[0], ENDLESS))
        await asyncio.sleep(wait)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await _until_running(http, 0)


async def test_a_worker_that_dies_takes_no_rollout_with_it(http, play, samples, served):
    """The last test: afterwards there is one worker."""
    pids = os.environ.get("AGENTRL_SGLANG_PIDS")
    if not pids:
        pytest.skip("AGENTRL_SGLANG_PIDS is not set: it names the process groups of workers that may be killed")
    running = [asyncio.create_task(play(sample, {**PLAIN, "max_new_tokens": 300})) for sample in samples(16)]
    await _until_running(http, 16)
    assert min(await _running(http)) > 0
    started = time.monotonic()
    os.killpg(int(pids.split(",")[1]), signal.SIGKILL)
    played = await asyncio.gather(*running)
    statuses = Counter(sample.status.name for sample in played)
    print(f"\n16 episodes, a worker killed: {dict(statuses)} after {time.monotonic() - started:.1f} s")
    for sample in played:
        if sample.status.name == "FAILED":
            assert sample.metadata["agentrl"]["failure"]["kind"] == "environment"
            assert sample.remove_sample
    kept = [sample for sample in played if not sample.remove_sample]
    assert len(kept) >= 8, "those of the other worker at the least"
    errors = [error for sample in kept for error in _errors(served, sample)]
    _say("with one worker killed", errors)
    assert max(errors) < CLOSE
    fresh = SGLangEngine(ROUTER)
    assert await fresh.context_length() > 0, "the dead worker, still listed, does not count"
    await fresh.abort()
    await fresh.close()
