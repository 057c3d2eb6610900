"""An agent as an Env: its tokens, what ends its episode, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace

import pytest

from agentrl import (
    AgentEnv,
    ConfigError,
    Env,
    EnvFactory,
    EpisodeOptions,
    InfraError,
    Limits,
    SessionOptions,
    StopReason,
    Task,
    TemplateError,
    load_renderer,
    run_episode,
    tool,
)
from agentrl.engine import ScriptedEngine
from agentrl.testing import call, rollout
from tests.gateway.agents import Adder, RefusedByGateway, ask, doing
from tests.render.conftest import CHATML_TOOLS, chatml_tokenizer

TASK = Task(prompt="Add up.", label=3)
SCRIPT = [call("add", n=1), call("add", n=2), "It is 3."]
USER = [{"role": "user", "content": "Hello."}]


def pickled(value):
    return pickle.loads(pickle.dumps(value))


class AddingEnv(Env):
    """The same task turn by turn."""

    def reset(self, task):
        self.total = 0
        return task.prompt

    @tool
    async def add(self, n: int) -> str:
        """Add a number."""
        self.total += n
        return f"the sum is {self.total}"


async def test_an_agents_episode_has_the_tokens_of_an_envs():
    env = Adder()
    played, plain = await rollout(env, TASK, SCRIPT), await rollout(AddingEnv(), TASK, SCRIPT)
    assert (played.tokens, played.loss_mask, played.log_probs) == (plain.tokens, plain.loss_mask, plain.log_probs)
    assert (played.reward, played.stop, played.ledger) == (1.0, StopReason.DONE, plain.ledger)
    assert played.ledger.sampled == played.ledger.trained == sum(played.loss_mask) > 0
    assert env.result == played.info["result"] == {"total": 3, "said": "It is 3."}
    assert played.answer == "It is 3."
    played.verify()


async def test_what_run_raises_is_a_failure():
    def raising(exc):
        async def run(env, task, endpoint):
            await ask(endpoint, USER)
            raise exc

        return doing(run)()

    bug = await rollout(raising(KeyError("oops")), TASK, ["Hi."])
    assert (bug.failure.kind, bug.failure.boundary) == ("bug", "run")
    assert bug.ledger.sampled > 0, "what was sampled is kept, to be looked at"
    world = await rollout(raising(InfraError("the disk is full")), TASK, ["Hi."])
    assert (world.failure.kind, world.failure.boundary) == ("environment", "run")
    cancelled = await rollout(raising(asyncio.CancelledError()), TASK, ["Hi."])
    assert (cancelled.failure.kind, cancelled.failure.boundary) == ("environment", "run")
    with pytest.raises(ConfigError, match="no such flag"):
        await rollout(raising(ConfigError("no such flag")), TASK, ["Hi."])


async def test_an_agent_that_never_asks_is_told_where():
    async def run(env, task, endpoint):
        env.url = endpoint.openai

    env = doing(run)()
    played = await rollout(env, TASK, ["Hi."])
    assert (played.failure.kind, played.failure.boundary) == ("environment", "run")
    assert env.url in played.failure.error
    assert "without a reply" in played.failure.error


async def test_what_json_cannot_hold_is_no_result():
    async def run(env, task, endpoint):
        await ask(endpoint, USER)
        return {"file": open}

    played = await rollout(doing(run)(), TASK, ["Hi."])
    assert (played.failure.kind, played.failure.boundary) == ("bug", "run")
    assert "Doing.run" in played.failure.error


async def test_after_the_end_nothing_is_answered():
    env = Adder()
    await rollout(env, TASK, SCRIPT)
    with pytest.raises(RefusedByGateway) as refused:
        await ask(env.endpoint, USER)
    assert refused.value.status == 400


async def test_a_key_that_nobody_has_is_refused():
    async def run(env, task, endpoint):
        import dataclasses

        await ask(dataclasses.replace(endpoint, key="sk-another"), USER)

    played = await rollout(doing(run)(), TASK, ["Hi."])
    assert played.failure.error.startswith("RefusedByGateway: 400")


async def test_the_bound_on_turns_ends_the_session_and_is_scored():
    played = await rollout(Adder(), Task(prompt="Add up.", label=2), [call("add", n=1)] * 9, limits=Limits(turns=2))
    assert (played.stop, played.reward, len(played.turns)) == (StopReason.MAX_TURNS, 1.0, 2)
    assert played.failure is None
    assert "RefusedByGateway: 400" in played.info["agent_error"]
    assert "result" not in played.info


@pytest.mark.parametrize(("limits", "replies"), [(None, 20), (Limits(episode_s=60), 20), (Limits(turns=16), 16)])
async def test_a_harness_may_have_more_turns_than_an_env_unless_they_are_set(limits, replies):
    class Long(Adder):
        session = SessionOptions(replies=20)

    played = await rollout(Long(), TASK, [call("add", n=1)] * 30, limits=limits)
    assert (played.stop, len(played.turns)) == (StopReason.MAX_TURNS, replies)


@pytest.mark.parametrize("again", [lambda limits: replace(limits, close_s=1.0), copy.deepcopy, pickled])
def test_a_limit_that_nobody_has_set_stays_so(again):
    assert (again(Limits()).turns, again(Limits()).turns_or(99), again(Limits(turns=16)).turns_or(99)) == (16, 99, 16)
    assert Limits().turns_or(None) == Limits.of({"close_s": 1}).turns == 16
    assert Limits.of({"turns": 16}).turns_or(99) == 16


@pytest.mark.parametrize("given", [{"images": "drop"}, {"echo": None}, {"most_replies": 0}, {"replies": "many"}])
def test_a_session_option_that_does_not_exist_is_refused(given):
    (name,) = given
    with pytest.raises(ConfigError, match=rf"^SessionOptions.{name} is .*; write "):
        SessionOptions(**given)


async def test_a_full_context_ends_an_agent_that_cannot_shorten_its_history():
    async def run(env, task, endpoint):
        messages = list(USER)
        while True:
            messages += [await ask(endpoint, messages), {"role": "user", "content": "x" * 50}]

    played = await rollout(doing(run)(), TASK, ["Hi."] * 30, limits=Limits(turns=30, context=300))
    assert (played.stop, played.reward, played.failure) == (StopReason.CONTEXT_FULL, 1.0, None)
    assert "prompt is too long" in played.info["agent_error"]
    assert 2 < len(played.turns) < 6
    assert played.ledger.trained == played.ledger.sampled


async def test_a_full_context_is_an_agents_own_business_if_it_goes_on():
    async def run(env, task, endpoint):
        said = [await ask(endpoint, USER)]
        with pytest.raises(RefusedByGateway, match="too long"):
            await ask(endpoint, [*USER, said[0], {"role": "user", "content": "x" * 500}])
        return (await ask(endpoint, [*USER, said[0], {"role": "user", "content": "In short?"}]))["content"]

    played = await rollout(doing(run)(), TASK, ["Hi.", "Yes."], limits=Limits(context=200))
    assert (played.stop, played.info["result"]) == (StopReason.DONE, "Yes.")


async def test_a_task_that_is_too_long_is_no_bug():
    task = Task(prompt="x" * 500, label=1)
    played = await rollout(Adder(), task, ["Hi."], limits=Limits(context=200))
    assert (played.failure.kind, played.failure.boundary) == ("environment", "run")
    assert "prompt is too long" in played.failure.error


async def test_an_agent_that_ignores_the_end_of_its_session_is_ended():
    ended = []

    async def run(env, task, endpoint):
        try:
            while True:
                try:
                    await ask(endpoint, USER)
                except RefusedByGateway:
                    await asyncio.sleep(0.01)
        finally:
            ended.append(True)

    played = await rollout(doing(run)(), TASK, ["Hi."] * 9, limits=Limits(turns=1, close_s=0.2))
    assert (played.stop, played.reward, ended) == (StopReason.MAX_TURNS, 1.0, [True])


async def test_the_deadline_ends_an_agent_that_hangs():
    ended = asyncio.Event()

    async def run(env, task, endpoint):
        await ask(endpoint, USER)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    played = await rollout(doing(run)(), TASK, ["Hi."], limits=Limits(episode_s=0.3))
    assert (played.stop, played.reward, played.failure) == (StopReason.DEADLINE, 1.0, None)
    assert ended.is_set()
    assert played.ledger.trained == played.ledger.sampled > 0


async def test_a_deadline_without_a_reply_is_a_failure(renderer):
    async def run(env, task, endpoint):
        await ask(endpoint, USER)

    engine = ScriptedEngine(["Hi."], renderer, seconds=60)
    options = EpisodeOptions(limits=Limits(episode_s=0.3))
    played = await run_episode(doing(run)(), TASK, engine=engine, renderer=renderer, options=options)
    assert (played.stop, played.failure.kind) == (StopReason.FAILED, "environment")


async def test_an_engine_that_breaks_is_the_failure_whatever_the_agent_makes_of_it():
    async def run(env, task, endpoint):
        try:
            await ask(endpoint, USER)
        except RefusedByGateway as exc:
            assert exc.status == 503  # noqa: PT017 - it is run by the episode
        return "I gave up."

    played = await rollout(doing(run)(), TASK, [InfraError("the engine burnt down")])
    assert (played.failure.kind, played.failure.boundary) == ("engine", "engine")


async def test_a_plain_run_plays_in_a_thread(renderer):
    threads = list[bool]()

    class Threaded(AgentEnv):
        def run(self, task, endpoint):
            threads.append(threading.current_thread() is threading.main_thread())
            return asyncio.run(ask(endpoint, USER))["content"]

        def score(self, trajectory):
            return float(self.result == "Hi.")

    played = await rollout(Threaded(), TASK, ["Hi."])
    assert (played.reward, threads) == (1.0, [False])


class Device(ScriptedEngine):
    """A request ends when it is aborted, not when nobody waits for it any more; then half of it is there."""

    busy = 0

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        self.busy += 1
        said = super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)
        running = asyncio.create_task(said)
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)

    def _ended(self, task):
        self.busy -= 1


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_an_agent_leaves_behind_leaves_the_engine(renderer, cancelled):
    """Else a lockstep would begin on an engine that is not idle, and the weights would change below a request."""
    engine = Device(lambda ids: "A long answer.", renderer, seconds=0.2)

    async def run(env, task, endpoint):
        await ask(endpoint, USER)
        abandoned = asyncio.create_task(ask(endpoint, [{"role": "user", "content": "And you?"}]))
        abandoned.add_done_callback(lambda task: task.exception())
        await asyncio.sleep(0.1)
        if cancelled:
            episode.cancel()
            await asyncio.Event().wait()

    env = doing(run)()
    episode = asyncio.create_task(run_episode(env, TASK, engine=engine, renderer=renderer))
    await asyncio.wait([episode])
    assert engine.busy == 0
    if not cancelled:
        played = episode.result()
        assert (played.stop, played.reward, len(played.segments)) == (StopReason.DONE, 1.0, 2)
        undelivered = played.segments[0].ledger
        assert undelivered.masked == {"undelivered": undelivered.sampled}


async def test_an_engine_that_never_ends_holds_up_no_episode(renderer):
    class Stuck(Device):
        async def abort(self, rid=None):
            pass

    ended = asyncio.Event()

    async def run(env, task, endpoint):
        await ask(endpoint, USER)
        abandoned = asyncio.create_task(ask(endpoint, [{"role": "user", "content": "And you?"}]))
        abandoned.add_done_callback(lambda task: task.exception())
        await asyncio.sleep(0.05)
        engine.turn_seconds = 60
        try:
            await ask(endpoint, [{"role": "user", "content": "Still there?"}])
        finally:
            ended.set()

    engine = Stuck(lambda ids: "A long answer.", renderer, seconds=0.01)
    options = EpisodeOptions(limits=Limits(episode_s=0.3, close_s=0.4))
    async with asyncio.timeout(5):
        played = await run_episode(doing(run)(), TASK, engine=engine, renderer=renderer, options=options)
    assert (played.stop, played.reward) == (StopReason.DEADLINE, 1.0)
    assert ended.is_set()
    await ScriptedEngine.abort(engine)


async def test_the_engine_is_asked_in_the_episodes_context(renderer):
    member, seen = ContextVar("member"), []

    class Watched(ScriptedEngine):
        async def generate(self, *args, **kwargs):
            seen.append(member.get())
            return await super().generate(*args, **kwargs)

    async def play(name):
        member.set(name)
        await run_episode(Adder(), TASK, engine=Watched(SCRIPT, renderer), renderer=renderer)

    await asyncio.gather(play("first"), play("second"))
    assert sorted(seen) == ["first"] * 3 + ["second"] * 3, "a lockstep counts its members by this"


@pytest.mark.thorough
async def test_cancelled_anywhere_an_episode_leaves_nothing(renderer):
    await rollout(Adder(), TASK, SCRIPT)  # the gateway's own tasks have begun
    await asyncio.sleep(0.05)
    before, ended = asyncio.all_tasks(), 0
    for steps in range(0, 700, 9):
        engine = ScriptedEngine(SCRIPT, renderer)
        env = Adder()
        episode = asyncio.create_task(run_episode(env, TASK, engine=engine, renderer=renderer))
        for _ in range(steps):
            await asyncio.sleep(0)
        episode.cancel()
        with suppress(asyncio.CancelledError):
            ended += (await episode).stop is StopReason.DONE
        if hasattr(env, "endpoint"):
            with pytest.raises(RefusedByGateway):
                await ask(env.endpoint, USER)
        async with asyncio.timeout(5):
            while left := asyncio.all_tasks() - before:
                await asyncio.wait(left, timeout=0.01)
        assert not engine.in_progress
    assert ended, "some were cancelled after their end"


async def test_a_plain_run_that_outlives_its_deadline_holds_up_neither_score_nor_close(renderer, caplog):
    let_go, closed = threading.Event(), []

    class Stuck(AgentEnv):
        def run(self, task, endpoint):
            answered = asyncio.run_coroutine_threadsafe(ask(endpoint, USER), loop)
            answered.result()
            let_go.wait(20)

        def score(self, trajectory):
            return float(trajectory.answer == "Hi.")

        def close(self):
            closed.append(True)

    loop = asyncio.get_running_loop()
    options = EpisodeOptions(limits=Limits(episode_s=0.5, score_s=4, close_s=4))
    engine = ScriptedEngine(["Hi."], renderer)
    try:
        async with asyncio.timeout(10):
            played = await run_episode(Stuck(), TASK, engine=engine, renderer=renderer, options=options)
    finally:
        let_go.set()
    assert (played.stop, played.reward, closed) == (StopReason.DEADLINE, 1.0, [True])
    assert "Stuck.run still runs in its thread" in caplog.text


class Nothing(AgentEnv):
    pass


def test_an_agent_without_a_run_is_refused():
    with pytest.raises(ConfigError, match=r"Nothing has no run; write `async def run\(self, task, endpoint\)`"):
        EnvFactory(Nothing)


@pytest.mark.parametrize("name", ["reset", "step", "tools", "exec_tool", "last_turn", "snapshot", "restore"])
def test_hooks_that_an_agent_would_never_call_are_refused(name):
    with pytest.raises(ConfigError, match=rf"Bad.{name} is never called.*run\(task, endpoint\)"):
        type("Bad", (AgentEnv,), {name: lambda self, *args: None})


def test_tools_of_the_env_are_refused():
    def add(self, n: int) -> str:
        """Add."""

    with pytest.raises(ConfigError, match=r"Bad.add is marked with @tool, but an agent has its own tools"):
        type("Bad", (AgentEnv,), {"add": tool(add)})


async def test_a_wrong_session_is_refused():
    class Bad(Adder):
        session = {"side": "mask"}  # noqa: RUF012

    with pytest.raises(ConfigError, match=r"Bad.session is .*SessionOptions"):
        await rollout(Bad(), TASK, SCRIPT)


async def test_a_tasks_own_tools_are_the_agents_business():
    async with EnvFactory(Adder) as envs:
        envs.check(Task(prompt="x", tools=[{"name": "look"}]))


async def test_a_template_that_would_lose_a_role_ends_the_run_before_any_request():
    said = "m.role + '\n' + m.content"
    deaf = CHATML_TOOLS.replace(said, "m.role + '\n' + (m.content if 'system-reminder' not in m.content else '')")
    assert deaf != CHATML_TOOLS
    renderer = load_renderer(chatml_tokenizer(template=deaf))
    with pytest.raises(TemplateError, match="a system message after a user would be lost"):
        await rollout(Adder(), TASK, SCRIPT, renderer=renderer)
