"""The episode loop: every way to end, every boundary that can break, aborts, limits, cancellation."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import ClassVar

import pytest

from agentrl import (
    ConfigError,
    EngineError,
    Env,
    Generation,
    InfraError,
    LedgerError,
    Limits,
    Raw,
    Reward,
    StepResult,
    StopReason,
    Task,
    ToolError,
    TurnOptions,
    run_episode,
    tool,
)
from agentrl.engine import ScriptedEngine
from agentrl.testing import call
from tests.episode.arranged import arranged

TASK = Task(prompt="Capital of France?", label="Paris")
SEARCH_THEN_ANSWER = [call("search", query="France"), "Paris"]


class Capitals(Env):
    closed = 0

    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia."""
        return f"{query}: the capital is Paris."

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)

    async def close(self):
        Capitals.closed += 1


@pytest.fixture(autouse=True)
def _every_env_is_closed():
    Capitals.closed = 0
    yield
    assert Capitals.closed == 1


class Spy(ScriptedEngine):
    """A ScriptedEngine that keeps the sampling parameters it was given."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.params = []

    async def generate(self, input_ids, sampling_params, **kwargs):
        self.params.append(sampling_params)
        return await super().generate(input_ids, sampling_params, **kwargs)


def play(renderer, turns, env=None, *, engine=None, task=TASK, **kwargs):
    engine = engine or ScriptedEngine(turns, renderer)
    return run_episode(env or Capitals(), task, engine=engine, renderer=renderer, **arranged(**kwargs))


async def test_search_then_answer(renderer):
    engine = ScriptedEngine(SEARCH_THEN_ANSWER, renderer)
    seen = []
    t = await play(renderer, [], engine=engine, session_id="s7", on_turn=lambda t: seen.append(len(t.actions)))
    assert (t.reward, t.stop, t.failure, t.session_id) == (1.0, StopReason.DONE, None, "s7")
    assert [action.calls[0].name if action.calls else action.content for action in t.actions] == ["search", "Paris"]
    assert "France: the capital is Paris." in renderer.decode(t.tokens)
    assert seen == [1, 2]
    # Every prompt is all tokens so far, and the trained tokens are exactly those the engine wrote.
    assert engine.requests[0] == t.tokens[: t.prompt_length]
    assert engine.requests[1] == t.tokens[: len(engine.requests[1])]
    trained = [token for token, mask in zip(t.response, t.loss_mask, strict=True) if mask]
    assert trained == [token for action in t.actions for token in action.tokens]
    t.verify()


async def test_what_the_model_reads_is_what_the_template_would_write(renderer):
    """The whole conversation, rendered at once by the template itself, is token for token the trajectory."""
    t = await play(renderer, SEARCH_THEN_ANSWER)
    whole = renderer.bind(t.tools).prompt([*t.messages[:1], *t.messages[1:]])
    full = renderer.decode(whole.tokens)
    assert full.startswith(renderer.decode(t.tokens))


async def test_the_task_may_be_messages_or_raw_text(renderer):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital?"}]
    t = await play(renderer, ["Paris"], task=replace(TASK, prompt=messages))
    assert "Be brief." in renderer.decode(t.tokens)
    assert t.messages[:2] == messages
    Capitals.closed = 0
    t = await play(renderer, ["Paris"], task=replace(TASK, prompt=Raw("Q: capital? A:")))
    assert renderer.decode(t.tokens[: t.prompt_length]) == "Q: capital? A:"


async def test_turn_limit_stops_after_the_last_step(renderer):
    t = await play(renderer, [call("search", query="x")] * 5, limits=Limits(turns=2))
    assert (t.stop, len(t.turns), t.reward) == (StopReason.MAX_TURNS, 2, 0.0)
    assert t.segment.spans[-1].kind == "sampled"  # no observation that no turn would read


async def test_a_cut_turn_is_neither_parsed_nor_executed(renderer):
    t = await play(renderer, SEARCH_THEN_ANSWER, limits=Limits(max_tokens_per_turn=8))
    assert (t.stop, len(t.turns)) == (StopReason.TURN_MAX_TOKENS, 1)
    assert t.actions[0].calls == ()
    assert (t.ledger.sampled, t.turns[0].finish_reason) == (8, "length")
    assert t.reward == 0.0


@pytest.mark.parametrize("extra", [0, 1])
async def test_response_budget_ends_at_a_turn_boundary_or_inside_a_turn(renderer, extra):
    whole = await play(renderer, SEARCH_THEN_ANSWER)
    Capitals.closed = 0
    first = len(whole.actions[0].tokens)
    t = await play(renderer, SEARCH_THEN_ANSWER, limits=Limits(tokens=first + extra))
    assert (t.stop, t.segment.response_length) == (StopReason.MAX_TOKENS, first)
    Capitals.closed = 0
    t = await play(renderer, SEARCH_THEN_ANSWER, limits=Limits(tokens=whole.segment.response_length - 1))
    assert (t.stop, t.segment.response_length, len(t.turns)) == (
        StopReason.MAX_TOKENS,
        whole.segment.response_length - 1,
        2,
    )


async def test_context_is_asked_of_the_engine_and_never_exceeded(renderer):
    whole = await play(renderer, SEARCH_THEN_ANSWER)
    for context in range(whole.prompt_length + 1, len(whole.tokens)):
        Capitals.closed = 0
        engine = ScriptedEngine(SEARCH_THEN_ANSWER, renderer, context_length=context)
        t = await play(renderer, [], engine=engine)
        assert t.stop is StopReason.CONTEXT_FULL
        assert len(t.tokens) <= context
        t.verify()


async def test_a_prompt_that_fills_the_context_ends_before_the_first_turn(renderer):
    t = await play(renderer, SEARCH_THEN_ANSWER, limits=Limits(context=3))
    assert (t.stop, t.turns, t.reward) == (StopReason.CONTEXT_FULL, [], 0.0)


async def test_deadline(renderer):
    engine = ScriptedEngine(SEARCH_THEN_ANSWER, renderer, seconds=30)
    t = await play(renderer, [], engine=engine, limits=Limits(episode_s=0.05))
    assert (t.stop, t.failure) == (StopReason.DEADLINE, None)


async def test_sampling_params_are_passed_on_bounded_and_not_mutated(renderer):
    class Asks(Capitals):
        turn_options = TurnOptions(stop=("</answer>",), max_tokens=40)

    engine = Spy(["Paris"], renderer)
    given = {"temperature": 0.5, "stop": "END", "max_new_tokens": 90, "min_new_tokens": 60, "sampling_seed": 4}
    before = dict(given)
    await play(renderer, [], Asks(), engine=engine, sampling_params=given)
    assert given == before
    assert engine.params[0]["max_new_tokens"] == engine.params[0]["min_new_tokens"] == 40, "SGLang refuses more"
    assert engine.params[0]["stop"] == ["END", "</answer>"]
    assert set(engine.params[0]["stop_token_ids"]) >= renderer.stop_token_ids
    assert (engine.params[0]["temperature"], engine.params[0]["sampling_seed"]) == (0.5, 4)


async def test_raw_text_continues_the_same_turn(renderer):
    class Tags(Capitals):
        turn_options = TurnOptions(stop=("</search>",))

        async def step(self, action):
            if "</search>" in action.text:
                return StepResult(Raw("<information>Paris</information>"))
            return StepResult(done=True)

    t = await play(renderer, ["<search>France</search> and more", "Paris"], Tags())
    text = renderer.decode(t.response)
    assert text.startswith("<search>France</search><information>Paris</information>Paris")
    assert [s.kind for s in t.segment.spans] == ["sampled", "observation", "sampled"]
    assert t.actions[0].matched == "</search>"


async def test_abort_without_a_host_ends_the_episode_with_its_tokens(renderer):
    aborted = Generation([5, 6, 7], [-0.1] * 3, "abort")
    t = await play(renderer, [aborted])
    assert (t.stop, t.ledger.sampled, t.reward) == (StopReason.ABORTED, 3, None)


async def test_abort_by_the_engine_alone_goes_on_in_the_same_turn(renderer):
    tokens = renderer.encode({"role": "assistant", "content": "Paris"})
    pieces = [
        Generation(tokens[:2], [-0.1] * 2, "abort", weight_version="1"),
        Generation([], [], "abort"),
        Generation(tokens[2:], [-0.2] * len(tokens[2:]), "stop", tokens[-1], weight_version="2"),
    ]
    engine = Spy(lambda ids: pieces.pop(0), renderer)
    t = await play(renderer, [], engine=engine, aborted=lambda: False, limits=Limits(max_tokens_per_turn=50))
    assert (t.stop, t.answer, t.reward, len(t.turns)) == (StopReason.DONE, "Paris", 1.0, 1)
    assert t.weight_versions == ["1", "2"]
    assert [p["max_new_tokens"] for p in engine.params] == [50, 48, 48]
    assert engine.requests[2] == engine.requests[0] + list(tokens[:2])


async def test_the_hosts_flag_is_polled_after_a_step(renderer):
    flag = []

    class Raises(Capitals):
        @tool
        async def search(self, query: str) -> str:
            flag.append(True)
            return "found"

    engine = ScriptedEngine(SEARCH_THEN_ANSWER, renderer)
    t = await play(renderer, [], Raises(), engine=engine, aborted=lambda: bool(flag))
    assert (t.stop, len(engine.requests), t.reward) == (StopReason.ABORTED, 1, None)
    assert "found" in renderer.decode(t.tokens)  # what the tool answered is kept


@pytest.mark.parametrize(
    ("hook", "error", "kind", "boundary"),
    [
        ("reset", InfraError("no box"), "environment", "reset"),
        ("reset", KeyError("x"), "bug", "reset"),
        ("step", ConnectionError("gone"), "environment", "step"),
        ("step", ZeroDivisionError("oops"), "bug", "step"),
        ("score", TimeoutError("grader"), "environment", "score"),
        ("score", ValueError("nan"), "bug", "score"),
    ],
)
async def test_broken_hooks_are_recorded_with_their_boundary(renderer, hook, error, kind, boundary):
    class Broken(Capitals):
        pass

    async def fail(self, *args):
        raise error

    setattr(Broken, hook, fail)
    t = await play(renderer, SEARCH_THEN_ANSWER, Broken())
    assert (t.stop, t.reward) == (StopReason.FAILED, None)
    assert (t.failure.kind, t.failure.boundary) == (kind, boundary)
    assert type(error).__name__ in t.failure.error
    assert "Traceback" in t.failure.traceback


async def test_a_broken_world_inside_a_tool_fails_the_episode_but_a_tool_error_does_not(renderer):
    class Down(Capitals):
        error: Exception = InfraError("retriever down")

        @tool
        async def search(self, query: str) -> str:
            raise self.error

    t = await play(renderer, SEARCH_THEN_ANSWER, Down())
    assert (t.stop, t.failure.error) == (StopReason.FAILED, "InfraError: retriever down")
    Capitals.closed = 0
    Down.error = ToolError("nothing found")
    t = await play(renderer, SEARCH_THEN_ANSWER, Down())
    assert (t.stop, t.reward) == (StopReason.DONE, 1.0)
    Capitals.closed = 0
    Down.error = KeyError("index")
    t = await play(renderer, SEARCH_THEN_ANSWER, Down())
    assert (t.stop, t.info["tool_errors"]) == (StopReason.DONE, {"search:KeyError": 1})


@pytest.mark.parametrize("found", [{"late.org:443": 2, "evil.org:443": 2}, None])
async def test_what_its_sandboxes_asked_for_in_vain_is_counted(renderer, found):
    class Box(AbstractAsyncContextManager):
        refused: ClassVar = {}

        async def __aexit__(self, *exc):
            self.refused = {"late.org:443": 1, "evil.org:443": 1} if found else "an attribute of something else"

    class Boxed(Capitals):
        async def reset(self, task):
            await self.enter(Box())
            await self.enter(Box())
            return task.prompt

    t = await play(renderer, ["Paris"], Boxed())
    assert (t.stop, t.info.get("refused_hosts")) == (StopReason.DONE, found)


async def test_engine_errors_are_the_environments(renderer):
    t = await play(renderer, [EngineError("prompt too long")])
    assert (t.stop, t.failure.kind, t.failure.boundary) == (StopReason.FAILED, "engine", "engine")


async def test_hook_deadlines_are_failures_of_the_environment(renderer):
    class Slow(Capitals):
        async def reset(self, task):
            await asyncio.sleep(60)

    t = await play(renderer, SEARCH_THEN_ANSWER, Slow(), limits=Limits(reset_s=0.02))
    assert t.failure.error == "TimeoutError: Slow.reset took longer than 0.02 s"
    assert t.failure.kind == "environment"


async def test_configuration_and_ledger_errors_are_raised_not_recorded(renderer):
    class Misconfigured(Capitals):
        async def reset(self, task):
            raise ConfigError("corpus: no such file")

    with pytest.raises(ConfigError, match="corpus"):
        await play(renderer, SEARCH_THEN_ANSWER, Misconfigured())
    Capitals.closed = 0

    def breaks(trajectory):
        trajectory.append_action(trajectory.actions[-1])

    with pytest.raises(LedgerError, match="none is open"):
        await play(renderer, ["Paris"], reward=breaks)


async def test_a_step_that_returns_nothing_is_a_bug_that_says_so(renderer):
    class Forgot(Capitals):
        async def step(self, action):
            return None

    t = await play(renderer, ["Paris"], Forgot())
    assert t.failure.error.startswith("TypeError: Forgot.step returned NoneType, not a StepResult (")


async def test_rewards_score_parts_reward_function_steps_and_none(renderer):
    class Parts(Capitals):
        async def score(self, trajectory):
            return Reward(0.75, {"em": 0.5, "brief": 0.25})

    t = await play(renderer, ["Paris"], Parts())
    assert (t.reward, t.reward_parts) == (0.75, {"em": 0.5, "brief": 0.25})
    Capitals.closed = 0
    t = await play(renderer, ["Paris"], Parts(), reward=lambda t: -float(len(t.turns)))
    assert t.reward == -1.0

    class Steps(Env):
        async def step(self, action):
            done = action.content == "stop"
            return StepResult(() if done else "more", reward=0.5, done=done)

    t = await play(renderer, ["go", "stop"], Steps())
    assert (t.reward, t.step_rewards) == (1.0, [0.5, 0.5])

    class Unscored(Env):
        async def step(self, action):
            return StepResult(done=True)

    t = await play(renderer, ["x"], Unscored())
    assert t.reward is None
    Capitals.closed = 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_a_reward_that_is_no_number_is_a_bug(renderer, value):
    t = await play(renderer, ["Paris"], reward=lambda t: value)
    assert (t.stop, t.reward) == (StopReason.FAILED, None)
    assert t.failure.error.startswith(f"ValueError: the reward is {value}; it must be a finite number (")


async def test_cancellation_closes_the_env_and_passes_on(renderer):
    engine = ScriptedEngine(SEARCH_THEN_ANSWER, renderer, seconds=30)
    task = asyncio.create_task(play(renderer, [], engine=engine))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_close_runs_to_its_end_under_repeated_cancellation(renderer):
    reached = asyncio.Event()

    class Slow(Capitals):
        async def reset(self, task):
            await asyncio.sleep(30)

        async def close(self):
            reached.set()
            await asyncio.sleep(0.05)
            await super().close()

    task = asyncio.create_task(play(renderer, [], Slow()))
    await asyncio.sleep(0.01)
    task.cancel()
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_close_that_fails_or_hangs_leaves_the_result_standing(renderer, caplog):
    class Stuck(Capitals):
        async def close(self):
            await super().close()
            await asyncio.sleep(60)

    t = await play(renderer, ["Paris"], Stuck(), limits=Limits(close_s=0.02))
    assert (t.stop, t.reward) == (StopReason.DONE, 1.0)
    assert t.info["close_error"].startswith("TimeoutError")


@pytest.mark.thorough
async def test_hundreds_of_episodes_at_once_on_one_engine(renderer):
    engine = ScriptedEngine(SEARCH_THEN_ANSWER, renderer, seconds=0.01)
    done = await asyncio.gather(*(play(renderer, [], engine=engine) for _ in range(300)))
    assert {t.reward for t in done} == {1.0}
    assert len({t.session_id for t in done}) == 300
    assert Capitals.closed == 300
    Capitals.closed = 1
