from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from agentrl import Env, EpisodeOptions, Limits, StopReason, Task, run_episode
from agentrl._util import backoff
from agentrl.engine import Generation, SGLangEngine
from agentrl.errors import ConfigError, EngineError
from tests.doubles.sglang import Fake, answer, client, for_ever, reset, reset_in_the_middle
from tests.engine.inside import connections_of


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """Backoff at a hundredth of its length."""
    monkeypatch.setattr(backoff.jitter, "uniform", lambda low, high: 0.01 * high)


async def test_request_and_answer():
    reply = answer([5, 6, 7], log_probs=[-0.25, -1, 0.0], weight_version="12", cached_tokens=2, routed_experts="AAA=")
    fake = Fake(reply)
    params = {"temperature": 0.7, "stop": ("</a>",), "custom_params": {"x": 1}, "skip_special_tokens": True}
    async with fake.serve() as url, client(url, api_key="key", extra={"return_routed_experts": True}) as engine:
        generation = await engine.generate((1, 2, 3), params, session_id="s", rid="r")
    meta = {name: value for name, value in reply["meta_info"].items() if name != "output_token_logprobs"}
    meta["completion_tokens"] = 3
    assert generation == Generation(
        [5, 6, 7], [-0.25, -1, 0.0], "stop", matched=7, weight_version="12", cached_tokens=2, meta=meta
    )
    body = fake.bodies[0]
    assert body.pop("rid").startswith("r-")
    assert body == {
        "input_ids": [1, 2, 3],
        "sampling_params": {
            "temperature": 0.7,
            "stop": ["</a>"],
            "custom_params": {"x": 1},
            "skip_special_tokens": False,
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
        },
        "return_logprob": True,
        "stream": False,
        "return_routed_experts": True,
    }
    assert fake.headers[0]["X-SMG-Routing-Key"] == "s"
    assert fake.headers[0]["Authorization"] == "Bearer key"
    assert fake.headers[0]["Content-Type"] == "application/json"
    assert params["skip_special_tokens"] is True


async def test_no_session_no_routing_key():
    fake = Fake(answer([7]))
    async with fake.serve() as url, client(url) as engine:
        await engine.generate([1], {})
    assert "X-SMG-Routing-Key" not in fake.headers[0]


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ({"type": "stop", "matched": "</a>"}, ("stop", "</a>")),
        ({"type": "length", "length": 1}, ("length", None)),
        ({"type": "abort", "message": "Aborted"}, ("abort", None)),
    ],
)
async def test_finish_reasons(finish, expected):
    fake = Fake(answer([7], finish=finish))
    async with fake.serve() as url, client(url) as engine:
        generation = await engine.generate([1], {})
    assert (generation.finish_reason, generation.matched) == expected


async def test_aborted_before_the_first_token_is_an_empty_generation():
    fake = Fake({"text": "", "meta_info": {"finish_reason": {"type": "abort"}, "completion_tokens": 0}})
    async with fake.serve() as url, client(url) as engine:
        assert (await engine.generate([1], {})).tokens == []


@pytest.mark.parametrize(
    "failure",
    [
        *((status, {"error": {"message": "busy"}}) for status in (408, 429, 500, 502, 503, 504)),
        reset,
        reset_in_the_middle,
    ],
)
async def test_what_is_worth_it_is_tried_again_under_a_fresh_rid(failure):
    fake = Fake(failure, failure, answer([7]))
    async with fake.serve() as url, client(url) as engine:
        assert (await engine.generate([1], {}, rid="r")).tokens == [7]
    rids = [body["rid"] for body in fake.bodies]
    assert len(set(rids)) == 3
    assert all(rid.startswith("r-") for rid in rids)


async def test_attempts_are_bounded_and_the_last_error_is_told():
    fake = Fake(*[(503, {"error": {"message": "no workers"}})] * 9)
    async with fake.serve() as url, client(url, retry_s=0.0) as engine:
        with pytest.raises(EngineError, match=r"/generate: HTTP 503: no workers; gave up after 1 attempt in 0 s"):
            await engine.generate([1], {})
    assert len(fake.bodies) == 1


async def test_the_patience_is_a_time_and_longer_than_slimes(monkeypatch):
    """slime tries 60 times, 1 s apart; seven attempts were over after 25 s."""
    paused = []

    async def pause(request, seconds):
        paused.append(seconds)

    monkeypatch.setattr("agentrl.engine.sglang.client._Request.pause", pause)
    monkeypatch.setattr(backoff.jitter, "uniform", lambda low, high: high)
    fake = Fake(*[(503, {})] * 200)
    async with fake.serve() as url, client(url) as engine:
        with pytest.raises(EngineError, match=r"gave up after \d+ attempts in 12\d s"):
            await engine.generate([1], {})
    assert 110 < sum(paused) < 130
    assert max(paused) <= 5.0, "it comes back soon after the server"


@pytest.mark.thorough
async def test_an_engine_that_is_away_for_long_fails_nothing(caplog):
    fake = Fake(*[(503, {})] * 20, *[reset] * 20, answer([7]))
    async with fake.serve() as url, client(url) as engine:
        assert (await engine.generate([1], {})).tokens == [7]
    assert len(fake.bodies) == 41
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1, "of the outage, not of each attempt"
    assert "the engine is unreachable: requests are repeated for 120 s" in warnings[0]


@pytest.mark.thorough
async def test_waiting_for_an_engine_is_no_time_of_the_episode(renderer, monkeypatch):
    """Else an outage would end episodes by their deadline, to be scored and trained as slow ones."""
    monkeypatch.setattr("agentrl.engine.sglang.connections.pause", lambda *_: 0.8)
    fake = Fake(*[(503, {})] * 3, answer(renderer.encode({"role": "assistant", "content": "Paris"})))
    options = EpisodeOptions(limits=Limits(episode_s=1.5, context=1000))
    async with fake.serve() as url, client(url) as engine:
        played = await run_episode(Quiet(), Task(prompt="Where?"), engine=engine, renderer=renderer, options=options)
    assert (played.stop, played.answer) == (StopReason.DONE, "Paris")


class Quiet(Env):
    def score(self, trajectory):
        return 1.0


async def test_a_host_that_stops_its_episodes_ends_the_wait():
    fake = Fake(*[(503, {})] * 9, answer([7]))
    async with fake.serve() as url, client(url) as engine:
        engine.stopped = lambda: len(fake.bodies) >= 3
        assert await engine.generate([1], {}) == Generation((), (), "abort")
    assert len(fake.bodies) == 3, "nothing is started after the flag was set"


async def test_the_context_length_waits_for_a_server_that_is_away(unused_tcp_port):
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with client(url) as engine:
        asked = asyncio.create_task(engine.context_length())
        await asyncio.sleep(0.3)
        assert not asked.done()
        async with Fake().serve(port=unused_tcp_port):
            assert await asked == 100


@pytest.mark.parametrize("given", [-1, float("nan"), float("inf"), "60", None, True])
def test_a_patience_that_is_no_time(given):
    with pytest.raises(ConfigError, match=r"the engine's retry_s is .*; give a number of seconds"):
        SGLangEngine("http://127.0.0.1:1", retry_s=given)


async def test_nobody_listens():
    async with Fake().serve() as url:
        pass
    async with client(url, retry_s=0.005) as engine:
        with pytest.raises(EngineError, match=r"ClientConnectorError.*gave up after [2-4] attempts"):
            await engine.generate([1], {})
        await engine.abort()
        with pytest.raises(EngineError, match=r"server_info.*gave up after [2-4] attempts"):
            await engine.context_length()


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "The input is too long"}},
        {"object": "error", "message": "The input is too long", "code": 400},
        {"detail": "The input is too long"},
    ],
)
async def test_a_refusal_is_final_and_says_why(body):
    fake = Fake((400, body))
    async with fake.serve() as url, client(url) as engine:
        with pytest.raises(EngineError, match=r"HTTP 400: The input is too long$"):
            await engine.generate([1], {})
    assert len(fake.bodies) == 1


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ([], "not an answer of SGLang"),
        ("ok", "not an answer of SGLang"),
        ({"text": "no meta"}, r"meta_info is None.*, so not an answer of SGLang; .*no meta"),
        ({"meta_info": {"finish_reason": None}}, "not an answer of SGLang"),
        ({"meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[-1]]}}, "must hold lists"),
        (answer([7], finish={"type": "bored"}), "finish_reason.type is 'bored'"),
        (
            {"meta_info": {"finish_reason": {"type": "stop"}, "completion_tokens": 3}},
            "completion_tokens is 3, but output_token_logprobs has 0",
        ),
        (answer([5, 6], log_probs=[-1.0, None]), r"output_token_logprobs\[1\]: None is not a log-prob"),
        (answer([5, 6], log_probs=[float("nan"), -1.0]), r"output_token_logprobs\[0\]: nan is not a log-prob"),
        (answer([5], log_probs=[float("-inf")]), r"output_token_logprobs\[0\]: -inf is not a log-prob"),
    ],
)
async def test_what_cannot_be_trained_on_is_an_error(reply, message):
    fake = Fake(reply)
    async with fake.serve() as url, client(url) as engine:
        with pytest.raises(EngineError, match=message):
            await engine.generate([1], {})
    assert len(fake.bodies) == 1


async def test_timeout_is_final_and_aborts_at_the_server():
    fake = Fake(for_ever)
    async with fake.serve() as url, client(url, timeout=0.2) as engine:
        with pytest.raises(EngineError, match=r"no answer within 0\.2 s; raise the engine's timeout"):
            await engine.generate([1], {}, rid="r")
    assert fake.aborts == [{"rid": fake.bodies[0]["rid"]}]


@asynccontextmanager
async def fleet():
    """A router without /abort_request that forwards to the first of two workers."""
    one, two, router = Fake(for_ever), Fake(), Fake()
    async with one.serve() as url_one, two.serve() as url_two, router.serve(router=True) as url:
        router.workers = [url_two, url_one + "/"]
        router.replies = [for_ever, for_ever]
        yield url, router, one, two


async def test_cancellation_reaches_the_workers_behind_a_router():
    async with fleet() as (url, router, one, two), client(url) as engine:
        running = asyncio.create_task(engine.generate([1], {}, rid="r"))
        await router.running.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert one.aborts == two.aborts == [{"rid": router.bodies[0]["rid"]}]
        assert router.aborts == []


@pytest.mark.thorough
async def test_abort_by_rid_and_abort_all_reach_the_workers(monkeypatch):
    monkeypatch.setattr("agentrl.engine.sglang.workers.CONTROL_S", 0.5)
    monkeypatch.setattr("agentrl.engine.sglang.client._ABORT_PAUSE_S", 0.5)
    async with fleet() as (url, router, one, two), client(url) as engine:
        running = asyncio.create_task(engine.generate([1], {}, rid="r"))
        await router.running.wait()
        await engine.abort("unknown")
        assert one.aborts == []
        await engine.abort("r")
        await engine.abort()
        assert one.aborts == two.aborts == [{"rid": router.bodies[0]["rid"]}, {"abort_all": True}]
        running.cancel()


@pytest.mark.parametrize("rid", ["r", None])
async def test_an_abort_that_came_too_early_is_sent_again(rid):
    fake = Fake()
    noticed = asyncio.Event()

    async def abort(request):
        fake.aborts.append(await request.json())
        if len(fake.aborts) == 3:  # the first two are forgotten
            noticed.set()
        return web.Response()

    async def generate(request):
        await noticed.wait()
        return web.json_response(answer([7], finish={"type": "abort"}))

    fake.abort, fake.replies = abort, [generate]
    async with fake.serve() as url, client(url) as engine:
        running = asyncio.create_task(engine.generate([1], {}, rid="r"))
        await fake.running.wait()
        await engine.abort(rid)
        assert (await running).finish_reason == "abort"
    again = {"rid": fake.bodies[0]["rid"]}
    assert fake.aborts == [again if rid else {"abort_all": True}, again, again]


@pytest.mark.thorough
async def test_abort_gives_up_on_a_request_that_will_not_end(monkeypatch):
    monkeypatch.setattr("agentrl.engine.sglang.workers.CONTROL_S", 1.0)
    fake = Fake(for_ever)
    async with fake.serve() as url, client(url) as engine:
        running = asyncio.create_task(engine.generate([1], {}, rid="r"))
        await fake.running.wait()
        async with asyncio.timeout(20):
            await engine.abort("r")
        assert len(fake.aborts) > 1
        running.cancel()


async def test_the_ranks_of_a_server_are_one_worker():
    """sglang-router with --dp-aware lists http://host:port@rank."""
    async with fleet() as (url, router, one, two), client(url) as engine:
        router.workers = [f"{worker.rstrip('/')}@{rank}" for worker in router.workers for rank in (0, 11)]
        await engine.abort()
        assert await engine.context_length() == 100
    assert one.aborts == two.aborts == [{"abort_all": True}]


async def test_a_busy_router_has_the_workers_it_had(monkeypatch):
    monkeypatch.setattr("agentrl.engine.sglang.workers._LIST_S", 0.0)
    async with fleet() as (url, router, one, _), client(url) as engine:
        await engine.abort()
        router.workers = None
        await engine.abort()
    assert one.aborts == [{"abort_all": True}] * 2
    assert router.aborts == []


async def test_a_dead_worker_does_not_keep_the_abort_from_the_others(caplog):
    async with fleet() as (url, router, one, _), client(url) as engine:
        async with Fake().serve() as dead:
            pass
        router.workers.insert(0, dead)
        with caplog.at_level(logging.WARNING):
            await engine.abort()
        assert one.aborts == [{"abort_all": True}]
        assert f"{dead}/abort_request: ClientConnectorError" in caplog.text


async def test_a_hanging_worker_delays_cancellation_for_a_bounded_time(monkeypatch):
    monkeypatch.setattr("agentrl.engine.sglang.workers.CONTROL_S", 0.2)
    fake = Fake(for_ever)
    fake.abort = for_ever
    async with fake.serve() as url, client(url) as engine:
        running = asyncio.create_task(engine.generate([1], {}))
        await fake.running.wait()
        start = time.monotonic()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert 0.1 < time.monotonic() - start < 3


async def test_the_abort_is_sent_even_if_the_caller_is_cancelled_twice():
    fake = Fake(for_ever)
    async with fake.serve() as url, client(url) as engine:
        running = asyncio.create_task(engine.generate([1], {}))
        await fake.running.wait()
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await engine.close()
        assert fake.aborts == [{"rid": fake.bodies[0]["rid"]}]


async def test_abort_between_two_attempts_ends_the_request():
    fake, aborting = Fake((503, {}), answer([7])), []
    async with fake.serve() as url, client(url) as engine:

        async def abort_then_fail(request):
            aborting.append(asyncio.create_task(engine.abort("r")))
            await asyncio.sleep(0)
            return web.json_response({}, status=503)

        fake.replies[0] = abort_then_fail
        assert await engine.generate([1], {}, rid="r") == Generation((), (), "abort")
        await asyncio.gather(*aborting)
    assert len(fake.bodies) == 1


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"context_length": 4096}, 4096),
        ({"context_length": None, "max_req_input_len": 4090, "max_total_num_tokens": 100_000}, 4090),
        ({"context_length": 4096, "max_req_input_len": 8186, "max_total_num_tokens": 8192}, 4096),
    ],
)
async def test_context_length(info, expected):
    fake = Fake()
    fake.info = info
    async with fake.serve() as url, client(url) as engine:
        assert await engine.context_length() == expected
        fake.info = None
        assert await engine.context_length() == expected


async def test_context_length_is_the_smallest_of_the_workers():
    async with fleet() as (url, _, one, two), client(url) as engine:
        one.info, two.info = {"context_length": 300}, {"context_length": 200}
        assert await engine.context_length() == 200


async def test_a_dead_worker_has_no_say_in_the_context_length():
    async with fleet() as (url, router, one, _), client(url) as engine:
        async with Fake().serve() as dead:
            pass
        router.workers.insert(0, dead)
        one.info = {"context_length": 80}
        assert await engine.context_length() == 80


async def test_every_living_worker_must_name_its_context_length():
    async with fleet() as (url, _, one, _), client(url) as engine:
        one.info = {}
        with pytest.raises(EngineError, match="names no context length"):
            await engine.context_length()


async def test_an_unknown_context_length_names_the_remedy():
    fake = Fake()
    fake.info = {"context_length": None}
    async with fake.serve() as url, client(url) as engine:
        with pytest.raises(EngineError, match=r"/server_info names no context length; set limits\.context"):
            await engine.context_length()


def test_a_url_needs_its_scheme():
    with pytest.raises(ConfigError, match="must start with http://"):
        SGLangEngine("localhost:30000")


async def test_closed_is_closed():
    engine = SGLangEngine("http://127.0.0.1:1")
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError, match="is closed"):
        await engine.generate([1], {})


async def test_max_connections_bounds_what_is_open():
    running = most = 0

    async def gate(request):
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0.02)
        running -= 1
        return web.json_response(answer([7]))

    fake = Fake(*[gate] * 8)
    async with fake.serve() as url, client(url, max_connections=2) as engine:
        await asyncio.gather(*[engine.generate([1], {}) for _ in range(8)])
    assert most == 2


async def test_the_session_of_a_loop_that_is_gone_is_dropped():
    fake = Fake(answer([7]), answer([7]))
    async with fake.serve() as url:
        engine = SGLangEngine(url)

        async def once():
            await engine.generate([1], {})
            # The loop ends without a word; its socket goes with it, so that no other warning hides ours.
            await connections_of(engine).sessions[asyncio.get_running_loop()].connector.close()

        await asyncio.to_thread(lambda: asyncio.run(once()))
        assert len(connections_of(engine).sessions) == 1
        await engine.generate([1], {})
        assert list(connections_of(engine).sessions) == [asyncio.get_running_loop()]
        await engine.close()


@pytest.mark.thorough
def test_import_is_light():
    import subprocess
    import sys

    code = (
        "import sys, agentrl.engine; print(sorted({'aiohttp', 'torch', 'transformers'} & set(sys.modules)));"
        "agentrl.engine.SGLangEngine; print('aiohttp' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split("\n")[:2] == ["[]", "True"]
