"""The server's endpoints for a trainer, with LocalEngine, and a trainer in another process."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
from pathlib import Path

import aiohttp
import pytest

torch = pytest.importorskip("torch")

from agentrl.engine import ScriptedEngine  # noqa: E402
from agentrl.engine.local import LocalEngine  # noqa: E402
from agentrl.engine.sglang.admission import Admission  # noqa: E402
from agentrl.engine.sglang.server import running_server  # noqa: E402
from agentrl.models import save_model, tiny_model, tiny_tokenizer  # noqa: E402
from tests.doubles import sglang_package  # noqa: E402

SENDER = Path(__file__).parent / "weight_sender.py"
GREEDY = {"temperature": 0, "max_new_tokens": 8}


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def engine():
    engine = LocalEngine(tiny_model(0), tiny_tokenizer())
    yield engine
    await engine.close()


@pytest.fixture
def new():
    """The weights of another model, as a trainer sends them."""
    return {name: value.bfloat16() for name, value in tiny_model(1).state_dict().items() if name != "lm_head.weight"}


@pytest.fixture
def ask(http):
    """`await ask(url, path, **body)`: the status, and the reply or the error."""

    async def post(url, path, **body):
        data = io.BytesIO(json.dumps(body).encode())  # a weight's values are too large for json=
        async with http.post(f"{url}/{path}", data=data, headers={"Content-Type": "application/json"}) as response:
            reply = await response.json()
            return response.status, reply.get("error", {}).get("message", reply)

    return post


def prompt():
    return tiny_tokenizer().encode("capital of")


async def played(ask, url):
    status, reply = await ask(url, "generate", input_ids=prompt(), sampling_params=GREEDY, return_logprob=True)
    assert status == 200, reply
    meta = reply["meta_info"]
    return [token for _, token, _ in meta["output_token_logprobs"]], meta["weight_version"]


async def expected(weights):
    model = tiny_model(0)
    model.load_state_dict({name: value.float() for name, value in weights.items()}, strict=False)
    model.tie_weights()
    fresh = LocalEngine(model, tiny_tokenizer())
    tokens = list((await fresh.generate(prompt(), GREEDY)).tokens)
    await fresh.close()
    return tokens


def serialized(weights, flattened=False):
    if flattened:
        bucket = sglang_package.FlattenedTensorBucket(list(weights.items()))
        weights = {"flattened_tensor": bucket.get_flattened_tensor(), "metadata": bucket.get_metadata()}
    else:
        weights = list(weights.items())
    return sglang_package.MultiprocessingSerializer.serialize(weights, output_str=True)


def halves(weights):
    names = sorted(weights)
    return [{name: weights[name] for name in part} for part in (names[::2], names[1::2])]


async def send(url, tmp_path, *manner):
    save_model(tiny_model(1).bfloat16(), tiny_tokenizer(), tmp_path)
    sender = await asyncio.create_subprocess_exec(
        sys.executable, SENDER, url, tmp_path, *manner, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(sender.communicate(), 240)  # torch is slow to import on a busy machine
    return sender.returncode, out.decode(), err.decode()


# Over a process group


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("manner", ["plain", "flattened"])
async def test_weights_over_gloo_are_equal_to_the_bit(ask, engine, new, tmp_path, manner):
    async with running_server(engine) as url:
        before = await played(ask, url)
        assert await send(url, tmp_path, manner) == (0, "", "")
        after = await played(ask, url)
        assert await ask(url, "destroy_weights_update_group", group_name="slime-pp_0") == (
            400,
            "no group 'slime-pp_0', only []",
        )
    for name, value in engine.copy_weights().items():
        assert torch.equal(value, new[name].float()), name
    assert after == (await expected(new), "1")
    assert before[0] != after[0]
    assert before[1] == "0"


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("manner", "cause"), [("silent", "Timed out|timed out"), ("lost", "closed|reset")])
async def test_a_lost_trainer_ends_in_an_error_and_changes_nothing(ask, engine, tmp_path, caplog, manner, cause):
    caplog.set_level("DEBUG", "agentrl.engine.sglang.weights")
    async with running_server(engine, group_timeout=5.0) as url:
        before = await played(ask, url)
        code, out, _ = await send(url, tmp_path, manner)
        async with asyncio.timeout(30):
            while "no weights came over the group 'slime-pp_0'" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await played(ask, url) == before
        status, message = await ask(
            url, "update_weights_from_distributed", names=[], dtypes=[], shapes=[], group_name="slime-pp_0"
        )
    assert code == (9 if manner == "lost" else 0)
    assert (manner == "silent") == out.startswith("500 ")
    assert re.search(cause, caplog.text)
    assert (status, "send init_weights_update_group first" in message) == (400, True)


async def test_a_group_that_does_not_form_is_an_error(ask, engine):
    group = {"master_address": "127.0.0.1", "master_port": 1, "world_size": 2, "group_name": "g", "backend": "gloo"}
    async with running_server(engine, group_timeout=0.2) as url:
        status, message = await ask(url, "init_weights_update_group", **group, rank_offset=1)
        assert (status, "did not form within 0.2 s" in message) == (500, True)
        status, message = await ask(url, "init_weights_update_group", **{**group, "backend": "carrier"}, rank_offset=1)
        assert (status, "carrier" in message) == (400, True)
        status, message = await ask(url, "init_weights_update_group", **group, rank_offset=0)
        assert (status, "rank_offset 0 must be above 0" in message) == (400, True)
        assert (await ask(url, "generate", input_ids=prompt(), sampling_params=GREEDY))[0] == 200


# As tensors


@pytest.mark.parametrize("flattened", [False, True])
async def test_weights_as_tensors_in_parts(ask, engine, new, monkeypatch, flattened):
    sglang_package.install(monkeypatch)
    load_format = {"load_format": "flattened_bucket"} if flattened else {}
    async with running_server(engine) as url:
        for part in halves(new):
            status, reply = await ask(
                url,
                "update_weights_from_tensor",
                serialized_named_tensors=[serialized(part, flattened)] * 2,  # both ranks send the same
                weight_version="7",
                flush_cache=False,
                **load_format,
            )
            assert (status, reply["success"]) == (200, True)
        assert await played(ask, url) == (await expected(new), "7")


async def test_without_sglang_tensors_are_not_served(ask, engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "sglang", None)
    async with running_server(engine) as url:
        status, message = await ask(url, "update_weights_from_tensor", serialized_named_tensors=["AA=="])
    assert (status, message.startswith("update_weights_from_tensor needs the package sglang")) == (501, True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda new: {"model.strange": new["model.norm.weight"]}, "the model has no such tensor"),
        (lambda new: {"model.norm.weight": torch.zeros(3)}, "found shape (3,), the model has shape"),
        (lambda new: {"model.norm.weight": new["model.norm.weight"].to(torch.int8)}, "quantised"),
        (lambda new: {"model.norm.weight": new["model.norm.weight"].to(torch.float8_e4m3fn)}, "quantised"),
        (lambda new: {"lm_head.weight": new["model.embed_tokens.weight"] + 1}, "differ, and this model ties them"),
    ],
)
async def test_wrong_weights_change_nothing(ask, engine, new, monkeypatch, wrong, message):
    sglang_package.install(monkeypatch)
    async with running_server(engine) as url:
        before = await played(ask, url)
        status, answer = await ask(
            url,
            "update_weights_from_tensor",
            serialized_named_tensors=[serialized({**new, **wrong(new)})],
            weight_version="7",
        )
        assert (status, message in answer) == (400, True), answer
        assert "\n" not in answer
        assert await played(ask, url) == before


async def test_tied_weights_in_two_requests_of_a_version(ask, engine, new, monkeypatch):
    sglang_package.install(monkeypatch)
    embeddings = new["model.embed_tokens.weight"]

    async def update(version, **weights):
        named = {name.replace("__", "."): value for name, value in weights.items()}
        return await ask(
            url, "update_weights_from_tensor", serialized_named_tensors=[serialized(named)], weight_version=version
        )

    async with running_server(engine) as url:
        for version in ("1", "2", "2"):  # the last: a trainer that begins anew
            assert (await update(version, model__embed_tokens__weight=embeddings))[0] == 200
            assert (await update(version, lm_head__weight=embeddings.clone()))[0] == 200
            embeddings = embeddings + 1
        assert (await update("3", lm_head__weight=embeddings))[0] == 200
        status, message = await update("3", model__embed_tokens__weight=embeddings + 1)
        assert (status, "differ, and this model ties them" in message) == (400, True)
    assert torch.equal(engine.copy_weights()["model.embed_tokens.weight"], embeddings.float())


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("update_weights_from_tensor", {"serialized_named_tensors": "x"}, "must be a list of str"),
        ("update_weights_from_tensor", {"serialized_named_tensors": ["!"]}, "cannot be read"),
        ("update_weights_from_tensor", {"serialized_named_tensors": ["!"], "load_format": "direct"}, "'direct'"),
        ("update_weights_from_tensor", {"serialized_named_tensors": ["!"], "manifest": 1}, "manifest"),
        ("update_weights_from_distributed", {"names": ["a"], "dtypes": [], "shapes": []}, "same length"),
        ("update_weights_from_distributed", {"names": ["a"], "dtypes": ["b"], "shapes": [[-1]]}, "shapes must be"),
        ("update_weights_from_distributed", {"names": [], "dtypes": [], "shapes": []}, "no group"),
        ("init_weights_update_group", {"master_port": "1"}, "must be strings"),
        ("destroy_weights_update_group", {"group_name": ""}, "group_name must be"),
        ("release_memory_occupation", {"tags": ["disk"]}, "tags must be a list of kv_cache, weights, cuda_graph"),
        ("resume_memory_occupation", {"tags": ["weights"]}, "weights is not released"),
        ("weights_checker", {"action": "guess"}, "action must be one of"),
        ("weights_checker", {"action": "compare"}, 'needs a "snapshot" before'),
        ("update_weight_version", {}, "new_version"),
    ],
)
async def test_wrong_requests_are_named(ask, engine, monkeypatch, path, body, message):
    sglang_package.install(monkeypatch)
    async with running_server(engine) as url:
        status, answer = await ask(url, path, **body)
    assert (status, message in answer) == (400, True), answer


async def test_an_engine_without_weights_names_itself(ask, chars):
    async with running_server(ScriptedEngine([], chars)) as url:
        for path in ("init_weights_update_group", "release_memory_occupation", "update_weight_version"):
            body = {"new_version": "1", "master_address": "h"}
            status, message = await ask(url, path, **body)
            assert (status, message) == (
                400,
                "ScriptedEngine has no weights that a request can change: serve the engine local",
            )


# Requests that run


async def until_running(http, url):
    async with asyncio.timeout(10):
        while True:
            async with http.get(f"{url}/v1/loads") as response:
                if (await response.json())["loads"][0]["num_running_reqs"]:
                    return


@pytest.mark.parametrize("abort", [False, True])
async def test_an_update_waits_for_running_requests_or_aborts_them(http, ask, engine, new, monkeypatch, abort):
    sglang_package.install(monkeypatch)
    long = {"input_ids": prompt(), "sampling_params": {"max_new_tokens": 200, "sampling_seed": 3, "stop": None}}
    body = {"serialized_named_tensors": [serialized(new)], "weight_version": "9", "abort_all_requests": abort}
    async with running_server(engine) as url:
        running = asyncio.create_task(ask(url, "generate", **long))
        await until_running(http, url)
        assert (await ask(url, "update_weights_from_tensor", **body))[0] == 200
        meta = (await running)[1]["meta_info"]
        assert (await played(ask, url))[1] == "9"
    assert meta["weight_version"] == "0"
    assert (meta["finish_reason"]["type"] == "abort") == abort


async def test_requests_wait_for_a_change_and_changes_for_requests(chars):
    admission, order = Admission(ScriptedEngine([], chars)), []

    async def request(rid):
        async with admission.request(rid, 1) as may_start:
            order.append(f"{rid} {may_start}")
            await first_may_end.wait()

    async def change(name):
        async with admission.changing():
            order.append(f"change {name}")
            await asyncio.sleep(0)

    first_may_end = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(request("a"))
        await asyncio.sleep(0)
        group.create_task(change("1"))
        group.create_task(change("2"))
        await asyncio.sleep(0)
        group.create_task(request("b"))
        group.create_task(request("c"))
        await asyncio.sleep(0)
        await admission.abort("c")
        assert (admission.running, admission.waiting) == (1, 2)
        first_may_end.set()
    assert order[:3] == ["a True", "c False", "change 1"]
    assert sorted(order[3:]) == ["b True", "change 2"]
    assert admission.tokens == {}


async def test_versions_by_request(http, ask, engine):
    async with running_server(engine) as url:

        async def version():
            async with http.get(f"{url}/get_weight_version") as response, http.get(f"{url}/model_info") as info:
                reply = await response.json()
                assert (await info.json())["weight_version"] == reply["weight_version"]
                return reply

        assert await version() == {"weight_version": "0"}
        status, reply = await ask(url, "update_weight_version", new_version="3", abort_all_requests=False)
        assert (status, reply["new_version"], await version()) == (200, "3", {"weight_version": "3"})
        for path in ("begin_weight_update", "end_weight_update", "post_process_weights"):
            assert (await ask(url, path))[0] == 200


# Memory


async def test_released_memory_cannot_generate(ask, engine):
    async with running_server(engine) as url:
        before = await played(ask, url)
        assert (await ask(url, "release_memory_occupation"))[0] == 200
        status, message = await ask(url, "generate", input_ids=prompt())
        assert (status, message) == (
            409,
            "/release_memory_occupation released cuda_graph, kv_cache, weights: send /resume_memory_occupation before",
        )
        assert (await ask(url, "resume_memory_occupation", tags=["weights"]))[0] == 200
        status, message = await ask(url, "generate", input_ids=prompt())
        assert (status, "released cuda_graph, kv_cache:" in message) == (409, True)
        assert (await ask(url, "resume_memory_occupation", tags=["kv_cache", "cuda_graph"]))[0] == 200
        assert await played(ask, url) == before


async def test_with_the_memory_saver_released_weights_are_lost(ask, engine, new, monkeypatch):
    sglang_package.install(monkeypatch)

    async def update(weights):
        body = {"serialized_named_tensors": [serialized(weights)], "weight_version": "1"}
        return await ask(url, "update_weights_from_tensor", **body)

    async with running_server(engine, server_args={"enable_memory_saver": True}) as url:
        await ask(url, "release_memory_occupation")
        status, message = await update(new)
        assert (status, "send /resume_memory_occupation before an update" in message) == (409, True)
        await ask(url, "resume_memory_occupation")
        first, second = halves(new)
        assert (await update(first))[0] == 200
        status, message = await ask(url, "generate", input_ids=prompt())
        assert (status, f"{len(second)} weights were released and no update has sent them" in message) == (409, True)
        assert (await update(second))[0] == 200
        assert await played(ask, url) == (await expected(new), "1")


async def test_a_request_that_runs_keeps_the_memory(ask, engine):
    async with running_server(engine) as url:
        running = asyncio.create_task(ask(url, "generate", input_ids=prompt(), sampling_params={"max_new_tokens": 100}))
        await asyncio.sleep(0.05)
        status, message = await ask(url, "release_memory_occupation")
        await running
    assert (status, "1 requests are running" in message) == (400, True)


# The checks


async def test_the_weights_checker_of_slime(ask, engine, new, monkeypatch):
    sglang_package.install(monkeypatch)
    old = {name: value.bfloat16() for name, value in engine.copy_weights().items()}

    async def check(action, **more):
        return await ask(url, "weights_checker", action=action, **more)

    async def compare(weights):
        assert (await check("snapshot"))[0] == 200
        assert (await check("reset_tensors"))[0] == 200
        await ask(url, "update_weights_from_tensor", serialized_named_tensors=[serialized(weights)])
        return await check("compare")

    async with running_server(engine) as url:
        assert (await compare(old))[0] == 200  # equal in the type of the trainer
        missing = {name: value for name, value in old.items() if name != "model.norm.weight"}
        assert await compare(missing) == (
            400,
            f"weights_checker: 1 of {len(old)} weights differ from the snapshot (model.norm.weight)",
        )
        sums = [(await check("checksum"))[1]["ranks"][0]["per_gpu_checksum"] for _ in range(2)]
        await ask(url, "update_weights_from_tensor", serialized_named_tensors=[serialized(new)])
        sums.append((await check("checksum"))[1]["ranks"][0]["per_gpu_checksum"])
    assert sums[0] == sums[1] != sums[2]


async def test_the_servers_arguments(http, engine):
    arguments = {"enable_memory_saver": True, "tp_size": 2, "api_key": "secret", "path": Path("a")}
    async with running_server(engine, server_args=arguments) as url, http.get(f"{url}/server_info") as response:
        info = await response.json()
    assert (info["enable_memory_saver"], info["tp_size"], info["pp_size"], info["path"]) == (True, 2, 1, "a")
    assert "api_key" not in info


def test_experts_have_the_names_of_the_checkpoint():
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    from agentrl.engine.local.named_weights import NamedWeights

    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        moe_intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
    )
    torch.manual_seed(0)
    model, other = (AutoModelForCausalLM.from_config(config).eval() for _ in range(2))
    weights = {name: value.clone() for name, value in NamedWeights(other).parameters().items()}
    with torch.no_grad():
        assert NamedWeights(model).copy(weights, "1") == set(weights)
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in weights
    ids = torch.arange(8)[None]
    assert torch.equal(model(ids).logits, other(ids).logits)
