"""A host's own rollouts, from its data set to the ranks' shares of the training data."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from aiohttp import web

from agentrl.models import tiny_model, tiny_tokenizer
from tests.slime.conftest import ENV_FILE
from tests.slime.contract.conftest import WORKERS
from tests.slime.player import Player


@pytest.mark.path("sync")
def test_train(host, start, rows):
    run = start(rows())
    samples, data, ranks = run.train()
    assert len(samples) == 8
    assert {s.status for s in samples} == {host.Status.COMPLETED}
    assert data["raw_reward"] == [1.0] * 4 + [0.0, 0.0] + [1.0] * 2, "nobody knows the capital of Peru"
    assert sum(data["rewards"]) == pytest.approx(0.0, abs=1e-5)
    asked = {tuple(ids) for ids in run.engine.requests}
    for sample in samples:
        # What was trained on is what was sampled: the prompt of the last turn is a prefix of the sample.
        assert sum(sample.tokens[: len(ids)] == list(ids) for ids in asked) == 2
    assert sum(len(rank["tokens"]) for rank in ranks) == 8
    metrics = host.metrics.compute_metrics_from_samples(run.args, samples)
    assert metrics["truncated_ratio"] == 0.0
    assert host.metrics.compute_perf_metrics_from_samples(run.args, samples, 1.0)["rollout_time"] == 1.0


@pytest.mark.path("conversion to train data, split over the ranks")
def test_what_reaches_the_ranks(host, start, rows):
    samples, data, ranks = start(rows(), max_tokens_per_gpu=256).train()
    assert data["response_lengths"] == [len(m) for m in data["loss_masks"]]
    assert data["response_lengths"] == [len(p) for p in data["rollout_log_probs"]]
    assert [sum(m) for m in data["loss_masks"]] == [s.metadata["agentrl"]["ledger"]["sampled"] for s in samples]
    for mask, log_probs in zip(data["loss_masks"], data["rollout_log_probs"], strict=True):
        assert all((p < 0) == bool(m) for m, p in zip(mask, log_probs, strict=True))
        assert 0 < sum(mask) < len(mask), "the tool's answer is not trained"
    shares = [dict(zip(rank["partition"], rank["tokens"], strict=True)) for rank in ranks]
    assert all(shares)
    assert {i: tuple(tokens) for share in shares for i, tokens in share.items()} == {
        i: tuple(sample.tokens) for i, sample in enumerate(samples)
    }
    if host.has("rollout_id"):
        assert data["rollout_mask_sums"] == [sum(mask) for mask in data["loss_masks"]]
        assert len(set(data["rollout_ids"])) == 8
        for rank in ranks:  # the schedule: each sample of a rank in one micro-batch, as many of them on each rank
            assert sorted(i for batch in rank["micro_batch_indices"] for i in batch) == list(range(len(rank["tokens"])))
        assert len({tuple(rank["num_microbatches"]) for rank in ranks}) == 1


@web.middleware
async def teaching(request: web.Request, handler: Any) -> web.StreamResponse:
    if request.path != "/teacher":
        return await handler(request)
    ids = (await request.json())["input_ids"]
    scored = [[-token / 1000, token, None] for token in ids]
    return web.json_response({"meta_info": {"input_token_logprobs": scored}})


@pytest.mark.path("distillation from a teacher behind HTTP")
def test_distillation(host, start, rows):
    host.need(host.has("teacher_log_probs"), "teacher_log_probs")
    run = start(rows(), middlewares=(teaching,), use_opd=True, opd_type="sglang")
    run.args.rm_url = f"http://{run.args.sglang_router_ip}:{run.args.sglang_router_port}/teacher"
    samples, data, ranks = run.train()
    assert data["raw_reward"] == [1.0] * 4 + [0.0, 0.0] + [1.0] * 2, "the Env's"
    for sample, taught in zip(samples, data["teacher_log_probs"], strict=True):
        assert taught.tolist() == pytest.approx([-token / 1000 for token in sample.tokens[-sample.response_length :]])
    assert sum(len(rank["teacher_log_probs"]) for rank in ranks) == 8


@pytest.mark.path("trace spans")
def test_slimes_request_metrics(host, start, rows):
    run = start(rows(), log_multi_turn=True)
    samples, data, _ = run.train()
    traces = [getattr(sample, "trace", None) for sample in samples]
    host.need(all(traces), "traces")
    for trace in traces:
        ended = [event["name"] for event in trace["events"] if event["type"] == "span_end"]
        assert [ended.count(name) for name in ("env_reset", "sglang_generate", "env_step", "env_score")] == [1, 2, 2, 1]
    assert data["round_number"] == [2] * 8
    metrics = host.metrics.compute_perf_metrics_from_samples(run.args, samples, 1.0)
    assert metrics["request/e2e_latency/mean"] > 0


@pytest.mark.path("session affinity")
def test_the_samples_own_session_routes(host, start, rows):
    policy = {"router_policy": "consistent_hashing", "sglang_router_policy": "consistent_hashing"}
    run = start(rows(session_id="shared by all"), **policy)
    samples, _ = run.samples()
    assert set(run.engine.sessions) == {host.session(s) for s in samples}
    assert len(set(run.engine.sessions)) == 8
    assert "" not in run.engine.sessions


@pytest.mark.path("evaluation")
def test_evaluation(host, start, rows):
    run = start(rows())
    result = run.evaluate()
    assert result["rewards"] == [1.0] * 4 + [0.0, 0.0] + [1.0] * 2
    assert result["truncated"] == [False] * 8
    assert {s.metadata["agentrl"]["stop"] for s in result["samples"]} == {"done"}
    assert len(set(run.engine.sessions)) == 8, "the host names no session in evaluation: each episode has its own"


@pytest.mark.path("evaluation")
def test_evaluation_between_two_rollouts(start, rows):
    run = start(rows())
    before = run.samples()[0]
    assert sum(run.evaluate()["rewards"]) == 6.0
    after = run.samples(1)[0]
    assert [s.reward for s in before] == [s.reward for s in after]


@pytest.mark.path("over-sampling")
def test_over_sampling(start, rows, events, held):
    slow = rows()
    slow[0]["metadata"] = {"held_in": "tool"}
    run = start(slow, rollout_batch_size=2, over_sampling_batch_size=3, global_batch_size=4)
    held(run)
    samples, data, _ = run.train()
    assert [s.group_index for s in samples] == [1, 1, 2, 2], "the slow group was too much, and is dropped"
    assert data["raw_reward"] == [1.0, 1.0, 0.0, 0.0]
    assert run.data_source.buffer == []
    assert events.count("close") == 6, "also those whose samples nobody wants any more"


@pytest.mark.path("dynamic filter")
def test_the_hosts_dynamic_filter(host, start, rows):
    mixed = rows(reward="index")
    mixed[2]["metadata"] = {}  # two equal rewards: nothing to learn
    path = f"{host.name}.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
    run = start(mixed, dynamic_sampling_filter_path=path, rollout_batch_size=3, global_batch_size=6)
    samples, metrics = run.samples()
    assert {s.group_index for s in samples} == {0, 1, 3}
    assert metrics["rollout/dynamic_filter/drop_zero_std_0.0"] >= 1


@pytest.mark.path("deterministic seeds")
def test_seeds(start, rows):
    run = start(rows(), sglang_enable_deterministic_inference=True, n_samples_per_prompt=4, global_batch_size=16)
    run.samples()
    seeds = {session: set[int]() for session in run.engine.sessions}
    for session, params in zip(run.engine.sessions, run.engine.params, strict=True):
        seeds[session].add(params["sampling_seed"])
    assert sorted(seed for (seed,) in seeds.values()) == sorted([42, 43, 44, 45] * 4), "one for all turns of an episode"
    run.engine.params.clear()
    run.evaluate()
    assert {params["sampling_seed"] for params in run.engine.params} == {42, 43}


class Talker(Player):
    """As Player, but of Peru it says more than anybody wants to hear."""

    def _say(self, input_ids: Any) -> Any:
        text = self.decode(input_ids)
        return "never ending " * 100 if "capital of Peru" in text else super()._say(input_ids)


@pytest.mark.path("every status")
def test_every_status(host, start, rows, renderer, held):
    one = rows()
    one[1]["metadata"] = {"break": "reset", "how": "world"}
    one[0]["metadata"] = {"held_in": "tool"}
    run = start(
        one,
        engine=Talker(renderer),
        partial_rollout=True,
        rollout_batch_size=3,
        over_sampling_batch_size=4,
        global_batch_size=6,
    )
    held(run)
    samples, data, ranks = run.train()
    status = host.Status
    assert [s.status for s in samples] == [status.FAILED] * 2 + [status.TRUNCATED] * 2 + [status.COMPLETED] * 2
    assert data["truncated"] == [0, 0, 1, 1, 0, 0]
    assert [sum(mask) > 0 for mask in data["loss_masks"]] == [False] * 2 + [True] * 4
    assert all(length >= 1 for length in data["response_lengths"])
    assert {s.status for group in run.data_source.buffer for s in group} == {status.ABORTED}
    assert all(isinstance(s.reward, float) for group in run.data_source.buffer for s in group)
    # Should a host ever ship them to training, they are sound as well.
    data, ranks = run.convert([*run.data_source.buffer[0], *samples[:4]])
    assert sum(len(rank["tokens"]) for rank in ranks) == 6


@pytest.mark.path("the host's reward model")
@pytest.mark.parametrize("given", ["rm_type", "custom_rm_path"])
def test_the_hosts_reward_model(start, rows, given, monkeypatch):
    module = ModuleType("my_reward")

    async def score(args: Any, sample: Any) -> float:
        return 2.0 if sample.label in sample.response else -2.0

    module.score = score  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_reward", module)
    own = {"rm_type": "f1"} if given == "rm_type" else {"custom_rm_path": "my_reward.score"}
    asked = rows()
    asked[1]["metadata"] = {"break": "reset", "how": "world"}
    data = start(asked, agentrl={"env": f"{ENV_FILE}:Unscored"}, **own).train()[1]
    if given == "rm_type":
        assert all(reward > 0 for reward in data["raw_reward"][:2])
    else:
        assert data["raw_reward"][:2] + data["raw_reward"][4:] == [2.0] * 2 + [-2.0] * 2 + [2.0] * 2
    assert data["raw_reward"][2:4] == [0.0] * 2, "nobody scores a failed episode"


@pytest.mark.path("reward key")
def test_reward_key(start, rows):
    run = start(rows(), reward_key="total", eval_reward_key="turns")
    data = run.train()[1]
    assert data["raw_reward"] == [1.0] * 4 + [0.0] * 2 + [1.0] * 2
    assert run.evaluate()["rewards"] == [2.0] * 8


@pytest.mark.path("the demo's Env, unchanged")
def test_the_demos_env(demo):
    """What `agentrl train` trains on a laptop, class and data files unchanged."""
    run, turns = demo("agentrl_envs.fact_search:FactSearch")
    samples, data, _ = run.train()
    assert data["raw_reward"] == [1.0] * 8
    assert [s.metadata["agentrl"]["turns"] for s in samples] == turns
    assert run.evaluate()["rewards"] == [1.0] * 8


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Threads of torch spin while they wait; beside those of a host and the server, two cores are 20 times slower."""
    torch = importlib.import_module("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.path("a real model")
@pytest.mark.usefixtures("one_torch_thread")
def test_a_real_model(host, start, rows):
    """tiny has learned nothing: what it says is noise, but its tokens and log-probs are a real model's."""
    engine = importlib.import_module("agentrl.engine.local").LocalEngine(tiny_model(0), tiny_tokenizer())
    run = start(rows(), engine=engine, rollout_max_response_len=24)
    samples, data, _ = run.train()
    assert {s.status for s in samples} <= {host.Status.COMPLETED, host.Status.TRUNCATED}
    assert all(1 <= length <= 24 for length in data["response_lengths"])
    for mask, log_probs in zip(data["loss_masks"], data["rollout_log_probs"], strict=True):
        assert all((p < 0) == bool(m) for m, p in zip(mask, log_probs, strict=True))
    assert len(run.evaluate()["rewards"]) == 8


@pytest.mark.path("fully-async")
def test_fully_async(host, start, rows):
    host.need(host.fully_async, "fully-async rollout")
    run = start(rows(), rollout_function_path=host.fully_async_path)
    for rollout_id in range(2):
        samples, data, _ = run.train(rollout_id)
        assert len(samples) == 8
        right = {"France": 1.0, "Spain": 1.0, "Peru": 0.0}
        assert data["raw_reward"] == [next(right[c] for c in right if c in s.prompt) for s in samples]
        assert all(s.metadata["agentrl"]["ledger"]["trained"] == sum(s.loss_mask) > 0 for s in samples)


@pytest.mark.path("fully-async beside evaluation")
def test_fully_async_beside_evaluation(host, start, rows, events):
    """Two event loops of one process: the worker's own, and the one that evaluation runs on."""
    host.need(host.fully_async, "fully-async rollout")
    run = start(rows(), rollout_function_path=host.fully_async_path)
    # slime's semaphore binds itself to the loop on which it is first waited for: one that nobody waits for serves both.
    host.rollout.GenerateState(run.args).semaphore = asyncio.Semaphore(10_000)
    samples, data, _ = run.train()
    rewards = run.evaluate()["rewards"]
    assert len(samples) == 8
    assert set(data["raw_reward"]) <= {0.0, 1.0}
    assert sum(rewards) == 6.0
    if not WORKERS:  # each of them has its own, from an earlier test
        assert events.count("share") == host.loops
