"""agentrl.adapt against a real HTTP server that speaks SGLang's protocol; slime itself is in contract/."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

import agentrl
from agentrl import ConfigError, TemplateError, adapt
from agentrl.engine import ScriptedEngine
from agentrl.engine.scripted import scripted_log_prob
from agentrl.engine.sglang.server import running_server
from agentrl.env.factory import load_env
from agentrl.episode import shared as _loop_resources
from agentrl.slime.ship import _warn_unscored
from agentrl.testing import call
from tests.slime.questions import PARAMS, question

QUESTION = "the capital of France?"


async def test_an_episode_of_two_turns(Sample, serve, make_args, renderer):
    async with serve() as (engine, url):
        args = make_args(url)
        params, args_before = copy.deepcopy(PARAMS), copy.deepcopy(args)
        given = question(
            Sample, group_index=3, index=12, session_id="s-7", metadata={"session_id": "task data", "x": 1}
        )
        sample = await adapt(args, given, params)
    assert sample is given
    assert (args, params) == (args_before, PARAMS)
    assert (sample.reward, sample.status) == (1.0, Sample.Status.COMPLETED)
    assert engine.sessions == ["s-7", "s-7"], "routed by sample.session_id, never by metadata"
    assert engine.requests[1] == sample.tokens[: len(engine.requests[1])], "each prompt extends the tokens before it"

    first, last = renderer.encode(call("capital", country="France")), renderer.encode(said("Paris"))
    response = sample.tokens[-sample.response_length :]
    assert response[: len(first)] == first
    assert response[-len(last) :] == last
    between = sample.response_length - len(first) - len(last)
    assert between > 0
    assert sample.loss_mask == [1] * len(first) + [0] * between + [1] * len(last)
    expected = [scripted_log_prob(token) * mask for token, mask in zip(response, sample.loss_mask, strict=True)]
    assert sample.rollout_log_probs == pytest.approx(expected)
    assert sample.response == renderer.decode(response)
    assert "<tool_response>\nParis\n</tool_response>" in sample.response
    assert sample.weight_versions == ["default", "default"]
    assert sample.prefix_cache_info.total_prompt_tokens == sum(map(len, engine.requests))
    account = sample.metadata.pop("agentrl")
    assert sample.metadata == {"session_id": "task data", "x": 1}
    assert (account["stop"], account["turns"], account["session_id"]) == ("done", 2, "s-7")
    assert account["reward_parts"] == {"right": 1.0, "turns": 2.0}
    assert (account["tools"], account["tool_calls"]) == (1, 1)
    assert account["ledger"]["sampled"] == account["ledger"]["trained"] == sum(sample.loss_mask)


def said(text):
    return {"role": "assistant", "content": text}


async def test_calls_that_cannot_be_read_end_an_episode_that_is_trained(Sample, serve, make_args, renderer):
    async with serve(ScriptedEngine(['<tool_call>\n{"name": "capital"'] * 3, renderer)) as (_, url):
        sample = await adapt(make_args(url), question(Sample), PARAMS)
    account = sample.metadata["agentrl"]
    assert (account["stop"], account["bad_calls"], account["turns"]) == ("bad_calls", 3, 3)
    assert (sample.status, sample.reward, sample.remove_sample) == (Sample.Status.COMPLETED, 0.0, False)
    assert sum(sample.loss_mask) == account["ledger"]["sampled"]
    assert sample.response.count("Your tool call could not be read: the call is not closed") == 2


async def test_what_the_engine_is_asked(Sample, serve, make_args):
    async with serve() as (engine, url):
        args = make_args(url, max_new_tokens="turn")
        params = {**PARAMS, "max_new_tokens": 40, "stop": ["###"], "sampling_seed": 11, "top_k": 5}
        await adapt(args, question(Sample), params)
    assert [p["max_new_tokens"] for p in engine.params] == [40, 40], "a budget for each turn"
    assert all((p["sampling_seed"], p["top_k"], p["stop"]) == (11, 5, ["###"]) for p in engine.params)


async def test_an_explicit_limit_wins_over_slimes_budget(Sample, serve, make_args):
    async with serve() as (_, url):
        args = make_args(url, limits={"tokens": 400})
        assert (await adapt(args, question(Sample), {**PARAMS, "max_new_tokens": 5})).reward == 1.0


async def test_evaluation(Sample, serve, make_args):
    async with serve() as (engine, url):
        samples = [question(Sample, index=i) for i in range(2)]
        for sample in samples:
            await adapt(make_args(url), sample, PARAMS, evaluation=True)
    assert samples[0].session_id is None
    assert len(set(engine.sessions)) == 2, "an episode without a session of slime's gets one of its own"
    assert "" not in engine.sessions


@pytest.mark.parametrize(
    ("limits", "params", "stop", "status"),
    [
        ({"turns": 1}, {}, "max_turns", "COMPLETED"),
        ({"max_tokens_per_turn": 5}, {}, "turn_max_tokens", "TRUNCATED"),
        ({}, {"max_new_tokens": 5}, "max_tokens", "TRUNCATED"),
        ({"context": 40}, {}, "context_full", "TRUNCATED"),
        ({"episode_s": 0.3, "tool_s": 60}, {}, "deadline", "TRUNCATED"),
    ],
)
async def test_cut_short(Sample, serve, make_args, limits, params, stop, status):
    async with serve() as (_, url):
        slow = {"slow": 60} if stop == "deadline" else {}
        sample = await adapt(make_args(url, limits=limits), question(Sample, metadata=slow), {**PARAMS, **params})
    assert sample.metadata["agentrl"]["stop"] == stop
    assert sample.status is Sample.Status[status]
    assert 1 <= sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs)
    assert not sample.remove_sample
    assert sample.reward == 0.0, "scored: it gave no right answer"


async def test_a_prompt_that_fills_the_context(Sample, serve, make_args):
    async with serve() as (engine, url):
        sample = await adapt(make_args(url, limits={"context": 3}), question(Sample), PARAMS)
    assert engine.requests == []
    assert (sample.response, sample.response_length, sample.loss_mask) == ("", 1, [0])
    assert sample.metadata["agentrl"]["stop"] == "context_full"


@pytest.mark.parametrize(
    ("where", "how", "kind", "boundary"),
    [
        ("reset", "world", "environment", "reset"),
        ("reset", "bug", "bug", "reset"),
        ("tool", "world", "environment", "step"),
        ("step", "bug", "bug", "step"),
        ("score", "world", "environment", "score"),
        ("score", "bug", "bug", "score"),
    ],
)
async def test_a_broken_env_is_a_masked_sample(Sample, serve, make_args, events, where, how, kind, boundary):
    async with serve() as (_, url):
        sample = await adapt(make_args(url), question(Sample, metadata={"break": where, "how": how}), PARAMS)
    failure = sample.metadata["agentrl"]["failure"]
    assert (failure["kind"], failure["boundary"]) == (kind, boundary)
    assert f"{where} broke" in failure["error"]
    assert (sample.status, sample.remove_sample, sample.reward) == (Sample.Status.FAILED, True, 0.0)
    assert sample.response_length >= 1
    assert sample.loss_mask == [0] * sample.response_length
    assert events[-1] == "close"


async def test_an_unexpected_error_in_a_tool_is_read_by_the_model_and_counted(Sample, serve, make_args):
    async with serve() as (_, url):
        sample = await adapt(
            make_args(url, limits={"turns": 2}), question(Sample, metadata={"break": "tool", "how": "bug"}), PARAMS
        )
    assert "Error: KeyError" in sample.response
    assert sample.metadata["agentrl"]["info"]["tool_errors"] == {"capital:KeyError": 2}


async def test_what_is_shared_is_down(Sample, serve, make_args, events, env_path):
    sys.modules[load_env(env_path("Lookup")).__module__].DOWN.append("the table is down")
    async with serve() as (_, url):
        args = make_args(url)
        samples = await asyncio.gather(*(adapt(args, question(Sample), PARAMS) for _ in range(4)))
        failures = [s.metadata["agentrl"]["failure"] for s in samples]
        told = {"kind": "environment", "boundary": "share", "error": "InfraError: the table is down"}
        assert failures == [{**told, "at": "tests/slime/lookup_env.py:40 InfraError"}] * 4
        assert all(s.remove_sample and s.response_length == 1 for s in samples)
        assert (await adapt(args, question(Sample), PARAMS)).reward == 1.0, "a failure is not remembered"
    assert events[0] == "share"


@pytest.mark.thorough
async def test_no_engine_answers(Sample, make_args):
    sample = await adapt(make_args("http://127.0.0.1:1", engine_retry_s=0.5), question(Sample), PARAMS)
    failure = sample.metadata["agentrl"]["failure"]
    assert (failure["kind"], failure["boundary"]) == ("engine", "engine"), "not the Env's failure"


@pytest.mark.thorough
async def test_an_engine_that_comes_back_fails_no_episode(Sample, player, renderer, make_args, unused_tcp_port):
    """A router that was started again while episodes began."""
    args = make_args(f"http://127.0.0.1:{unused_tcp_port}")
    playing = asyncio.gather(*(adapt(args, question(Sample, index=i), PARAMS) for i in range(4)))
    await asyncio.sleep(1.0)
    async with running_server(player(), port=unused_tcp_port, decode=renderer.decode):
        assert [sample.reward for sample in await playing] == [1.0] * 4


async def test_a_bug_in_agentrl_or_the_engine_does_not_end_the_rollout(Sample, make_args, monkeypatch):
    async def run_episode(*args, **kwargs):
        raise agentrl.LedgerError("a log_prob is nan")

    monkeypatch.setattr("agentrl.slime.playing.run_episode", run_episode)
    sample = await adapt(make_args(), question(Sample), PARAMS)
    assert sample.metadata["agentrl"]["failure"]["error"] == "LedgerError: a log_prob is nan"
    assert sample.remove_sample


@pytest.mark.parametrize("reward", ["nan", "inf"])
async def test_a_reward_that_is_no_number_is_a_bug(Sample, serve, make_args, reward):
    async with serve() as (_, url):
        sample = await adapt(make_args(url), question(Sample, metadata={"reward": reward}), PARAMS)
    assert (sample.reward, sample.remove_sample) == (0.0, True)
    error = sample.metadata["agentrl"]["failure"]["error"]
    assert error.startswith(f"ValueError: the reward is {reward}; it must be a finite number (")
    assert sum(sample.loss_mask) == 0


# Rewards


async def test_a_reward_function_replaces_score(Sample, serve, make_args, env_path):
    async with serve() as (_, url):
        assert (await adapt(make_args(url, reward=env_path("half")), question(Sample), PARAMS)).reward == 0.5


@pytest.mark.parametrize(
    ("fields", "args", "reward"),
    [
        ({}, {}, 0.0),
        ({}, {"rm_type": "math"}, None),
        ({}, {"custom_rm_path": "a.b"}, None),
        ({"custom_rm_path": "a.b"}, {}, None),
        ({"metadata": {"rm_type": "f1"}}, {}, None),
    ],
)
async def test_slimes_reward_model_decides_if_there_is_one(
    Sample, serve, make_args, env_path, caplog, fields, args, reward, monkeypatch
):
    _warn_unscored.cache_clear()
    async with serve() as (_, url):
        for _ in range(2):
            args_ = make_args(url, env=env_path("Unscored"), args=args)
            assert (await adapt(args_, question(Sample, **copy.deepcopy(fields)), PARAMS)).reward == reward
    assert caplog.text.count("every reward is 0") == (1 if reward == 0.0 else 0)


async def test_reward_key(Sample, serve, make_args):
    async with serve() as (_, url):
        args = make_args(url, args={"reward_key": "total", "eval_reward_key": "right"})
        trained, tested = question(Sample), question(Sample, label="Rome")
        await adapt(args, trained, PARAMS)
        await adapt(args, tested, PARAMS, evaluation=True)
    assert trained.reward == {"total": 1.0, "right": 1.0, "turns": 2.0}
    assert tested.reward["right"] == 0.0


# Configuration


async def test_the_rows_env_wins(Sample, serve, make_args, env_path, renderer):
    async with serve(ScriptedEngine(["Hello"], renderer)) as (_, url):
        sample = await adapt(make_args(url), Sample(prompt="Hi", metadata={"env": env_path("Silent")}), PARAMS)
    assert sample.reward == 0.25


async def test_a_prompt_of_messages_and_one_that_is_rendered(Sample, serve, make_args, env_path, renderer):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = renderer.decode(renderer.prompt(messages).tokens)
    engine = ScriptedEngine(["Hello"], renderer)
    async with serve(engine) as (_, url):
        await adapt(make_args(url, env=env_path("Silent")), Sample(prompt=messages), PARAMS)
        rendered = make_args(url, env=env_path("Silent"), args={"apply_chat_template": True})
        await adapt(rendered, Sample(prompt=text), PARAMS)
    assert engine.requests == [list(renderer.prompt(messages).tokens)] * 2


@pytest.mark.parametrize(
    ("config", "args", "fields", "message"),
    [
        ({}, {"apply_chat_template": True}, {}, r"remove --apply-chat-template: .*tools of Lookup"),
        ({"thinking": "strip"}, {"partial_rollout": True}, {}, r"thinking: strip .*remove --partial-rollout"),
        ({"thinking": "strip"}, {"group_rm": True}, {}, r"remove --group-rm, which"),
        (
            {"thinking": "strip"},
            {"dynamic_sampling_filter_path": "slime.a.b"},
            {},
            r"replace --dynamic-sampling-filter-path",
        ),
        ({}, {}, {"multimodal_inputs": {"images": ["x"]}}, r"remove --multimodal-keys"),
        ({}, {"hf_checkpoint": None}, {}, r"--hf-checkpoint"),
        ({}, {"sglang_router_ip": None}, {}, r"set `engine`"),
        ({"engine": "localhost"}, {}, {}, r"must start with http"),
        ({"env": "nowhere:Env"}, {}, {}, r"no module 'nowhere'"),
        ({"env": None}, {}, {}, r"no environment: .*--custom-config-path"),
        ({"limits": {"turn": 1}}, {}, {}, r"unknown key limits.turn"),
        ({"reward": "json:nothing"}, {}, {}, r"has no 'nothing'"),
        ({"reward": "json:__name__"}, {}, {}, r"reward json:__name__ is 'json', not a function"),
    ],
)
async def test_a_wrong_configuration_is_raised(Sample, make_args, config, args, fields, message):
    sample = question(Sample, **fields)
    with pytest.raises(ConfigError, match=message) as excinfo:
        await adapt(make_args(args=args, **config), sample, PARAMS)
    assert "\n" not in str(excinfo.value)
    assert (sample.tokens, sample.reward) == ([], None)


async def test_a_template_that_cannot_be_rendered_is_raised(Sample, make_args, tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text("{{ raise_exception('never') }}")
    with pytest.raises(TemplateError):
        await adapt(make_args(chat_template=str(file)), question(Sample), PARAMS)


async def test_metadata_as_json_text(Sample, serve, make_args):
    async with serve() as (_, url):
        sample = await adapt(make_args(url), question(Sample, metadata='{"x": 1}'), PARAMS)
    assert (sample.reward, sample.metadata["x"]) == (1.0, 1)
    assert sample.metadata["agentrl"]["stop"] == "done"


@pytest.mark.parametrize(
    ("asked", "evaluation", "rounds"), [(True, False, 2), (True, True, None), (False, False, None)]
)
async def test_the_number_of_rounds_for_slimes_metrics(Sample, serve, make_args, asked, evaluation, rounds):
    async with serve() as (_, url):
        args = make_args(url, args={"log_multi_turn": asked})
        sample = await adapt(args, question(Sample), PARAMS, evaluation=evaluation)
        failed = await adapt(args, question(Sample, metadata={"break": "reset", "how": "bug"}), PARAMS)
    assert sample.metadata.get("round_number") == rounds
    assert failed.metadata.get("round_number") == (0 if asked else None), "slime reads it of every sample"


@pytest.mark.parametrize("metadata", ["nonsense", "[]", 3])
async def test_metadata_of_no_use(Sample, make_args, metadata):
    with pytest.raises(ConfigError, match=r"sample.metadata is .*--metadata-key"):
        await adapt(make_args(), question(Sample, metadata=metadata), PARAMS)


@pytest.mark.parametrize(
    ("given", "own", "evaluation", "expected"),
    [
        (None, {"a": 1}, True, {"a": 1}),
        ({"b": 2}, None, True, {"b": 2}),
        ({"b": 2}, {"a": 1}, False, {"b": 2}),
        (None, None, True, {}),
    ],
)
async def test_whose_template_kwargs(Sample, serve, make_args, monkeypatch, given, own, evaluation, expected):
    asked = []
    renderer = _loop_resources.LoopResources.renderer

    async def noted(self, model, template, template_kwargs, **kwargs):
        asked.append((dict(template_kwargs), kwargs))
        return await renderer(self, model, template, {})

    monkeypatch.setattr(_loop_resources.LoopResources, "renderer", noted)
    datasets = [SimpleNamespace(apply_chat_template_kwargs=own)]
    async with serve() as (_, url):
        args = make_args(url, args={"apply_chat_template_kwargs": given, "eval_datasets": datasets})
        await adapt(args, question(Sample), PARAMS, evaluation=evaluation)
        args.agentrl["chat_template_kwargs"] = {"c": 3}
        await adapt(args, question(Sample), PARAMS, evaluation=evaluation)
    assert [kwargs for kwargs, _ in asked] == [expected, {"c": 3}]
    assert not any(kwargs["trust_remote_code"] for _, kwargs in asked), "no slime has run the tokenizer's code"


@pytest.mark.parametrize(("model", "trusted"), [(None, True), ("tiny", True), ("other", False)])
async def test_code_of_a_tokenizer_that_slime_has_run(host, make_args, monkeypatch, model, trusted):
    class Asked(Exception):
        pass

    async def noted(self, *args, trust_remote_code, **kwargs):
        assert trust_remote_code is trusted
        raise Asked

    monkeypatch.setattr(_loop_resources.LoopResources, "renderer", noted)
    with pytest.raises(Asked):
        await adapt(make_args(model=model), question(host.Sample), PARAMS)


# Aborts and cancellation


async def wait_for(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another task's library code
            await asyncio.sleep(0.01)


async def test_the_hosts_abort_keeps_the_tokens_and_a_resumed_sample_goes_on(serve, make_args, host, events):
    async with serve() as (engine, url):
        args = make_args(url, args={"partial_rollout": True})
        sample = question(host.Sample, session_id="s-1", metadata={"slow": 0.3})
        playing = asyncio.create_task(adapt(args, sample, PARAMS))
        await wait_for(lambda: len(engine.requests) == 1)
        host.state.aborted = True  # while the tool runs: nothing new is started
        await playing
        assert len(engine.requests) == 1
        assert (sample.status, sample.reward) == (host.Sample.Status.ABORTED, 0.0)
        assert sample.response
        assert sum(sample.loss_mask) == sample.metadata["agentrl"]["ledger"]["sampled"] > 0
        assert "close" not in events

        host.state.aborted = False
        await adapt(args, sample, PARAMS)
    assert len(engine.requests) == 2
    assert (sample.status, sample.reward) == (host.Sample.Status.COMPLETED, 1.0)
    assert sample.prefix_cache_info.total_prompt_tokens == sum(map(len, engine.requests)), "each request counts once"
    account = sample.metadata["agentrl"]
    assert (account["resumes"], account["session_id"]) == (1, "s-1")
    assert not {"restarts", "resume"} & set(account)
    assert sum(sample.loss_mask) == account["ledger"]["sampled"]
    assert events.count("close") == 1


async def test_nothing_waits_for_a_slow_grader_after_an_abort(serve, make_args, host):
    """slime waits for every pending sample before it goes on to train (its issue 2176)."""
    async with serve() as (_, url):
        sample = question(host.Sample, metadata={"break": "score", "how": "hang"})
        args = make_args(url, args={"partial_rollout": True})
        polls = iter([False] * 5)
        host.state = type("State", (), {"aborted": property(lambda self: next(polls, True))})()
        sys.modules["fakehost.rollout.sglang_rollout"].GenerateState = lambda args: host.state
        async with asyncio.timeout(10):
            await adapt(args, sample, PARAMS)
    account = sample.metadata["agentrl"]
    assert (account["stop"], account["turns"], account["resume"]["how"]) == ("aborted", 2, "alive")


async def test_an_engine_that_aborts_for_a_weight_update_is_waited_for(serve, make_args, host):
    async with serve(seconds=0.3) as (engine, url):
        sample = question(host.Sample)
        playing = asyncio.create_task(adapt(make_args(url), sample, PARAMS))
        await wait_for(lambda: engine.requests)
        await asyncio.sleep(0.15)
        await engine.abort()  # as /pause_generation does, with slime's flag down
        engine.turn_seconds = 0.0
        await playing
    assert (sample.status, sample.reward) == (host.Sample.Status.COMPLETED, 1.0)
    assert sample.metadata["agentrl"]["turns"] == 2


async def test_without_a_host_an_abort_ends_the_episode(Sample, serve, make_args):
    async with serve(seconds=30.0) as (engine, url):
        sample = question(Sample)
        playing = asyncio.create_task(adapt(make_args(url), sample, PARAMS))
        await wait_for(lambda: engine.requests)
        await engine.abort()
        await playing
    assert sample.status is Sample.Status.ABORTED


async def test_cancellation_passes_and_closes_the_env(Sample, serve, make_args, events):
    async with serve(seconds=30.0) as (engine, url):
        sample = question(Sample)
        playing = asyncio.create_task(adapt(make_args(url), sample, PARAMS))
        await wait_for(lambda: engine.requests)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
    assert events == ["share", "close"]
    assert sample.status is Sample.Status.PENDING


async def test_the_first_caller_is_cancelled_alone(Sample, serve, make_args, events):
    async with serve() as (_, url):
        args = make_args(url)
        first = asyncio.create_task(adapt(args, question(Sample), PARAMS))
        await asyncio.sleep(0)
        second = asyncio.create_task(adapt(args, question(Sample), PARAMS))
        await asyncio.sleep(0.01)
        first.cancel()
        assert (await second).reward == 1.0
    assert events.count("share") == 1


# What is shared


@pytest.mark.thorough
async def test_first_calls_at_once_make_everything_once(Sample, serve, make_args, events, monkeypatch):
    loads = []
    load = _loop_resources.load_shared_renderer.__wrapped__
    monkeypatch.setattr(_loop_resources, "load_shared_renderer", lambda *key: loads.append(key) or load(*key))
    async with serve() as (engine, url):
        args = make_args(url, engine=url)
        samples = await asyncio.gather(*(adapt(args, question(Sample), PARAMS) for _ in range(256)))
    assert [s.reward for s in samples] == [1.0] * 256
    assert len({s.metadata["agentrl"]["session_id"] for s in samples}) == 256
    assert events.count("share") == 1
    assert len(loads) == 1
    assert len(_loop_resources.loops) == 1
    assert len(engine.requests) == 512


async def test_an_evaluation_with_another_env_has_a_configuration_of_its_own(
    Sample, serve, make_args, env_path, caplog
):
    """`env_config` is validated by each Env, so one mapping cannot fit two."""
    other = env_path("Tuned")
    given = {"env_config": {"table": "small"}, "env": env_path("Keyed")}
    async with serve() as (_, url):
        assert (await adapt(make_args(url, **given), question(Sample), PARAMS)).reward == 1.0
        held_out = question(Sample, metadata={"env": other})
        with pytest.raises(
            ConfigError, match=r"it got the env_config of .*Keyed: give it its own, as in `env_configs:"
        ):
            await adapt(make_args(url, **given), held_out, PARAMS, evaluation=True)
        args = make_args(url, **given, env_configs={other: {"size": 2}})
        assert (await adapt(args, held_out, PARAMS, evaluation=True)).reward == 2.0


def test_two_loops_in_two_threads(Sample, serve, make_args, events):
    async def play():
        async with serve() as (_, url):
            args = make_args(url)
            samples = await asyncio.gather(*(adapt(args, question(Sample), PARAMS) for _ in range(8)))
            return [s.reward for s in samples]

    results = []
    threads = [threading.Thread(target=lambda: results.append(asyncio.run(play()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[1.0] * 8] * 2
    assert (events.count("share"), events.count("unshare")) == (2, 2), "once a loop, and closed with it"
    assert not _loop_resources.loops


def test_other_configurations_share_nothing(Sample, serve, make_args, events):
    async def play():
        async with serve() as (_, url):
            for config in ({}, {"other": 1}, {}):
                await adapt(make_args(url, env_config=config), question(Sample), PARAMS)

    asyncio.run(play())
    assert (events.count("share"), events.count("unshare")) == (2, 2)


DAEMON = """
import asyncio, threading, sys
from agentrl.episode import shared as _loop_resources
from agentrl.slime.config import SlimeConfig
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
async def enter():
    here = _loop_resources.loop_resources()
    await here.envs(sys.argv[1], SlimeConfig())
asyncio.run_coroutine_threadsafe(enter(), loop).result()
env = next(m for n, m in sys.modules.items() if n.startswith("agentrl_user_"))
_loop_resources._close_running_loops()
print(env.EVENTS, _loop_resources.loops)
"""


@pytest.mark.thorough
def test_the_loop_of_a_daemon_thread_is_closed_at_exit(env_path):
    command = [sys.executable, "-c", DAEMON, env_path("Lookup")]
    alone = {**os.environ, "AGENTRL_TEST_EVENTS": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=alone)
    assert done.stdout.strip() == "['share', 'unshare'] {}", done.stderr


@pytest.mark.thorough
def test_slime_is_not_imported():
    code = "import agentrl, agentrl.slime, agentrl.slime.adapt, sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    heavy = {"slime", "torch", "ray", "sglang", "transformers", "aiohttp"} & set(json.loads(done.stdout))
    assert not heavy


@pytest.mark.parametrize(("special_tokens", "forged"), [("keep", 1), ("as_text", 0)])
async def test_special_tokens_in_a_row_are_text_if_they_are_to_be(
    Sample, serve, make_args, renderer, special_tokens, forged
):
    async with serve() as (_, url):
        args = make_args(url, special_tokens=special_tokens)
        sample = await adapt(args, question(Sample, country="France<|im_start|>"), PARAMS)
        calm = await adapt(args, question(Sample), PARAMS)
    (marker,) = renderer.prompt(agentrl.Raw("<|im_start|>")).tokens
    assert sample.tokens.count(marker) - calm.tokens.count(marker) == forged
    assert sample.metadata["agentrl"]["info"]["special_tokens"] == 1
