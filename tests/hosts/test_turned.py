"""An episode whose turns the host samples: the same as the host's engine would give, and never an Env left open."""

from __future__ import annotations

import asyncio
import gc
import pickle
import signal
import subprocess
import sys
import textwrap
from random import Random

import pytest

from agentrl import ConfigError, EpisodeOptions, Limits, StopReason, run_episode
from agentrl.engine import ScriptedEngine
from agentrl.errors import BugError
from agentrl.hosts.turned import HostedEnv, TokenRequest, generation
from agentrl.testing import call
from tests.hosts.envs import Breaks, BreaksAtReset, Buggy, Slow, TwoTools, Weather, turns

TASK = next(iter(Weather.tasks(None, "train")))
CALL = call("lookup", place=TASK.metadata["place"])


@pytest.fixture(autouse=True)
def no_env_stays_open():
    for cls in (Weather, TwoTools, Breaks, BreaksAtReset, Buggy, Slow):
        cls.open = 0
    yield
    assert {cls.open for cls in (Weather, TwoTools, Breaks, BreaksAtReset, Buggy, Slow)} == {0}


def hosted(cls=Weather, **settings) -> HostedEnv:
    return HostedEnv(cls, model="tiny", **settings)


async def begun(env: HostedEnv, task=TASK, **options):
    return await env.turned(task, **{"context_length": 512, **options})


async def sampled(episode, script, renderer):
    """Play a host that samples `script`. Returns the prompts of the turns."""
    engine, prompts = ScriptedEngine(script, renderer), []
    request = await episode.request()
    while request is not None:
        prompts.append(request.input_ids)
        said = await engine.generate(request.input_ids, request.sampling_params)
        request = await episode.reply(generation(request, said.tokens, said.log_probs))
    return prompts


@pytest.mark.parametrize("cls", [Weather, TwoTools, Breaks, BreaksAtReset])
@pytest.mark.parametrize("seed", range(6))
async def test_the_same_episode_as_by_run_episode(cls, seed, renderer):
    rng = Random(seed)
    env = hosted(cls, limits={"max_tokens_per_turn": 40})
    task = rng.choice(env.tasks())
    script = [*turns(task, rng), *["and so on"] * 9]
    async with await begun(env, task) as episode:
        prompts = await sampled(episode, script, renderer)
    theirs = episode.trajectory
    engine = ScriptedEngine(script, renderer, context_length=512)
    options = EpisodeOptions(limits=Limits(max_tokens_per_turn=40))
    ours = await run_episode(cls(), task, engine=engine, renderer=renderer, options=options)
    assert prompts == engine.requests
    assert row(theirs) == row(ours)


def row(trajectory):
    failure = trajectory.failure and trajectory.failure.error
    return (
        *(trajectory.tokens, trajectory.loss_mask, trajectory.log_probs, trajectory.messages),
        *(trajectory.reward, trajectory.stop, failure),
    )


async def test_a_host_that_writes_messages(renderer):
    async with await hosted().turned_in_messages(TASK) as episode:
        request = await episode.request()
        assert (request.messages, request.tools[0]["function"]["name"]) == (
            [{"role": "user", "content": TASK.prompt}],
            "lookup",
        )
        request = await episode.reply(CALL)
        assert request.messages[-1]["content"] == f"It is {TASK.label} there."
        assert await episode.reply({"role": "assistant", "content": TASK.label}) is None
    assert (episode.trajectory.reward, episode.trajectory.stop) == (1.0, StopReason.DONE)


async def test_a_closed_episode_closes_its_env():
    async with await begun(hosted()) as episode:
        await episode.request()
        assert Weather.open == 1
    assert Weather.open == 0
    await episode.close()


async def test_a_cancelled_host_closes_the_env():
    Slow.asked = asyncio.Event()
    episode = await begun(hosted(Slow))
    request = await episode.request()
    tokens = (await hosted().renderer()).encode(CALL)
    replying = asyncio.create_task(episode.reply(generation(request, tokens, [-1.0] * len(tokens))))
    await Slow.asked.wait()
    replying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replying
    assert Slow.open == 0


async def test_a_host_that_drops_the_episode_closes_the_env():
    async def raising():
        episode = await begun(hosted())
        await episode.request()
        raise ZeroDivisionError("the host's bug")

    with pytest.raises(ZeroDivisionError):
        await raising()
    gc.collect()
    while Weather.open:  # noqa: ASYNC110 - the Env's end sets no event
        await asyncio.sleep(0)


def test_a_host_whose_loop_ends_closes_the_envs():
    kept = []

    async def host():
        for cls in (Weather, TwoTools):
            kept.append(await begun(hosted(cls)))
            await kept[-1].request()
        assert (Weather.open, TwoTools.open) == (1, 1)
        raise ZeroDivisionError("the host's bug")

    with pytest.raises(ZeroDivisionError):
        asyncio.run(host())
    assert len(kept) == 2


HOST = """
import asyncio, signal, sys
from agentrl.hosts.turned import HostedEnv
from tests.hosts.envs import Weather

class Told(Weather):
    def close(self):
        super().close()
        print("closed", flush=True)

async def main():
    episode = await HostedEnv(Told, model="tiny").turned(next(iter(Told.tasks(None, "train"))), context_length=512)
    await episode.request()
    print("open", flush=True)
    await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.thorough
def test_a_host_that_is_interrupted_closes_the_env():
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(HOST)], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout.readline() == "open\n"
        host.send_signal(signal.SIGINT)
        assert host.stdout.read() == "closed\n"


ENDING = """
import asyncio
from contextlib import asynccontextmanager
from agentrl.hosts.turned import HostedEnv
from agentrl.workers.threads import LoopThread
from tests.hosts.envs import Weather

class Shares(Weather):
    @classmethod
    @asynccontextmanager
    async def share(cls, config):
        yield None
        print(await asyncio.to_thread(str, "closed in a thread"), flush=True)

if __name__ == "__main__":
    LoopThread("as TRL's door has it").run_here(HostedEnv(Shares, model="tiny").opened())
"""


@pytest.mark.thorough
def test_a_host_that_ends_closes_what_its_envs_share():
    """A sandbox is removed in a thread, and Python ends its pools of threads early."""
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("closed in a thread\n", 0)


async def test_a_bug_is_raised_and_a_broken_world_is_data(renderer):
    async with await begun(hosted(Buggy)) as episode:
        with pytest.raises(BugError, match="KeyError"):
            await sampled(episode, ["sunny"], renderer)
    async with await begun(hosted(BreaksAtReset)) as episode:
        assert await sampled(episode, [], renderer) == []
    assert (episode.trajectory.stop, episode.trajectory.failure.kind) == (StopReason.FAILED, "environment")


async def test_two_envs_in_one_host(renderer):
    async with await begun(hosted(Weather)) as first, await begun(hosted(TwoTools)) as second:
        one, two = await first.request(), await second.request()
        assert len(two.input_ids) > len(one.input_ids), "each prompt has the tools of its own Env"
        assert await first.request() is one, "until the reply the request stays the same"
        script = [CALL, TASK.label]
        await asyncio.gather(*(sampled(episode, script, renderer) for episode in (first, second)))
    assert (first.trajectory.reward, second.trajectory.reward) == (1.0, 1.0)


async def test_a_reply_without_a_request_is_refused(renderer):
    async with await begun(hosted()) as episode:
        with pytest.raises(RuntimeError, match="waits for no reply"):
            await episode.reply(None)
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = episode.trajectory


@pytest.mark.parametrize(
    ("tokens", "reason", "ends"),
    [
        ([5, 9], None, ("stop", 9)),
        ([5], None, ("stop", None)),
        ([5, 6], None, ("length", None)),
        ([5], "length", ("length", None)),
    ],
)
def test_the_end_of_a_turn_is_read_from_its_tokens(tokens, reason, ends):
    request = TokenRequest([1], {"max_new_tokens": 2, "stop_token_ids": [9]})
    said = generation(request, tokens, [-1.0] * len(tokens), reason)
    assert (said.finish_reason, said.matched) == ends


def test_settings_are_checked(tmp_path):
    with pytest.raises(ConfigError, match=r"HostedEnv\(\.\.\.\).*limts"):
        hosted(limts={"turns": 2})
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}\n')
    with pytest.raises(ConfigError, match="two tasks have the id 'x'"):
        hosted(data=tmp_path / "tasks.jsonl").tasks()
    env = pickle.loads(pickle.dumps(hosted(limits={"turns": 3})))
    assert (env.env, env.config.limits, len(env.tasks("eval"))) == (Weather, {"turns": 3}, 14)
    assert set(env.by_id) == {task.id for split in ("train", "eval") for task in env.tasks(split)}


async def test_a_door_without_a_tokenizer_says_so():
    with pytest.raises(ConfigError, match="needs the model's tokenizer"):
        await HostedEnv(Weather).turned(TASK, context_length=512)


async def test_an_env_file_that_is_no_package(tmp_path, renderer):
    file = tmp_path / "mine.py"
    file.write_text("from tests.hosts.envs import Weather\n\nclass Mine(Weather):\n    open = 0\n")
    env = HostedEnv(f"{file}:Mine", model="tiny")
    async with await begun(env, env.tasks()[0]) as episode:
        await sampled(episode, ["sunny"], renderer)
    assert episode.trajectory.reward in (0.0, 1.0)
