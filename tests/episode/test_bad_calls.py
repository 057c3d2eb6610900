"""The one policy for wrong tool calls: what is wrong, what the model reads, when it ends, what is trained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentrl import (
    Action,
    BadCall,
    BadCallPolicy,
    CallError,
    ConfigError,
    Env,
    Limits,
    Raw,
    Reward,
    StepResult,
    StopReason,
    Task,
    ToolCall,
    ToolError,
    Trajectory,
    run_episode,
    tool,
)
from agentrl.engine import ScriptedEngine
from agentrl.episode.bad_calls import joined
from agentrl.testing import call
from tests.episode.arranged import arranged

BROKEN = '<tool_call>\n{"name": "search", "arg\n</tool_call>'
UNCLOSED = '<tool_call>\n{"name": "search"'
GOOD = '<tool_call>\n{"name": "search", "arguments": {"query": "France"}}\n</tool_call>'
TASK = Task(prompt="Capital of France?", label="Paris")


class Capitals(Env):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.stepped = []

    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia."""
        if query == "nothing":
            raise ToolError("no result")
        return f"{query}: the capital is Paris."

    async def step(self, action):
        self.stepped.append(action)
        return await self.run_tools(action)

    def score(self, trajectory):
        return float(trajectory.answer == self.task.label)


class Incapable:
    """A renderer whose template cannot carry what is named."""

    def __init__(self, renderer, *missing):
        self.renderer, self.missing = renderer, missing
        certificate = renderer.certificate
        capabilities = {**certificate.capabilities, **dict.fromkeys(missing, False)}
        self.certificate = replace(certificate, capabilities=capabilities)

    def __getattr__(self, name):
        return getattr(self.renderer, name)

    def bind(self, *args, **kwargs):
        return Incapable(self.renderer.bind(*args, **kwargs), *self.missing)


async def play(renderer, turns, env=None, *, policy: BadCallPolicy | None = Env.bad_calls, **kwargs) -> Trajectory:
    env = env or Capitals()
    env.bad_calls = policy
    t = await run_episode(env, TASK, engine=ScriptedEngine(turns, renderer), renderer=renderer, **arranged(**kwargs))
    t.verify()
    assert t.prefix_breaks == 0
    return t


def answers(t: Trajectory) -> list[dict]:
    return [dict(message) for message in t.messages[1:] if message["role"] != "assistant"]


def kinds(t: Trajectory) -> list[str | None]:
    return [turn.bad_call for turn in t.turns]


def test_an_actions_error_is_its_first_unreadable_call():
    good, bad, worse = ToolCall("a", "f", {}), ToolCall("b", "", {}, error="not JSON"), ToolCall("c", "", {}, error="x")
    assert Action("", "", calls=(good,)).error is None
    assert Action("", "", calls=(good, bad, worse)).error == BadCall("structural", "not JSON")


@pytest.mark.parametrize("text", [BROKEN, UNCLOSED])
async def test_an_unreadable_call_is_answered_and_the_model_may_try_again(renderer, text):
    env = Capitals()
    t = await play(renderer, [text, GOOD, "Paris"], env)
    (reply, found) = answers(t)
    assert reply["role"] == "tool"
    assert reply["tool_call_id"] == t.actions[0].calls[0].id
    assert reply["content"] == f"Your tool call could not be read: {t.actions[0].error.detail}"
    assert found["content"] == "France: the capital is Paris."
    assert reply["content"] in renderer.decode(t.tokens)
    assert (t.stop, t.reward, kinds(t)) == (StopReason.DONE, 1.0, ["structural", None, None])
    assert len(env.stepped) == 2, "step never sees a turn that could not be read"
    assert t.ledger.trained == t.ledger.sampled
    assert [turn.calls for turn in t.turns] == [[], ["search"], []]


async def test_the_policys_own_words_may_show_json(renderer):
    policy = BadCallPolicy(message='Write {"name": ...}. {detail}!')
    t = await play(renderer, [UNCLOSED, "Paris"], policy=policy)
    assert answers(t)[0]["content"] == 'Write {"name": ...}. the call is not closed!'


async def test_in_a_mixed_turn_the_readable_calls_run_and_all_are_answered_in_order(renderer):
    env = Capitals()
    t = await play(renderer, [f"{GOOD}\n{BROKEN}\n{GOOD}", "Paris"], env)
    ids = [call.id for call in t.actions[0].calls]
    said = answers(t)
    assert [message["tool_call_id"] for message in said] == ids
    assert [message["content"].split(":")[0] for message in said] == [
        "France",
        "Your tool call could not be read",
        "France",
    ]
    assert [call.id for call in env.stepped[0].calls] == [ids[0], ids[2]]
    assert env.stepped[0].error is None
    assert t.turns[0].calls == ["search", "search"]


async def test_a_template_without_orphan_tool_results_gets_a_user_message(renderer):
    t = await play(Incapable(renderer, "orphan_tool"), [BROKEN, "Paris"])
    (reply,) = answers(t)
    assert set(reply) == {"role", "content"}
    assert reply["role"] == "user"
    assert f"<|im_start|>user\n{reply['content']}" in renderer.decode(t.tokens)
    # beside a call that was read, it is no orphan
    t = await play(Incapable(renderer, "orphan_tool"), [f"{BROKEN}\n{GOOD}", "Paris"])
    assert [message["role"] for message in answers(t)] == ["tool", "tool"]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (call("find", query="x"), "Error: there is no tool 'find'; the tools are: search"),
        (call("search", q="x"), "Error: invalid arguments for search: query: field required"),
    ],
)
async def test_content_errors_are_answered_by_the_env_and_counted(renderer, message, says):
    env = Capitals()
    t = await play(renderer, [message, "Paris"], env)
    assert answers(t)[0]["content"].startswith(says)
    assert (kinds(t), t.stop) == (["content", None], StopReason.DONE)
    assert t.actions[0].error is None
    assert len(env.stepped) == 2


async def test_a_tool_that_refuses_is_no_bad_call_but_a_call_error_is(renderer):
    t = await play(renderer, [call("search", query="nothing"), "Paris"])
    assert kinds(t) == [None, None]

    class Dynamic(Capitals):
        def exec_tool(self, call):
            raise CallError("no such table")

    t = await play(renderer, [call("search", query="x"), "Paris"], Dynamic())
    assert (kinds(t), answers(t)[0]["content"]) == (["content", None], "Error: no such table")


async def test_errors_in_a_row_end_the_episode_and_are_trained(renderer):
    t = await play(renderer, [BROKEN, call("find"), UNCLOSED, GOOD])
    assert (t.stop, kinds(t), t.reward) == (StopReason.BAD_CALLS, ["structural", "content", "structural"], 0.0)
    assert t.segment.spans[-1].kind == "sampled", "no reply that no turn would read"
    assert (t.ledger.trained, t.truncated) == (t.ledger.sampled, False)


async def test_a_good_turn_starts_the_count_anew(renderer):
    t = await play(renderer, [BROKEN, GOOD, BROKEN, "Paris"], policy=BadCallPolicy(in_a_row=2))
    assert (t.stop, t.reward) == (StopReason.DONE, 1.0)
    t = await play(renderer, [GOOD, BROKEN], policy=BadCallPolicy(in_a_row=1))
    assert t.stop is StopReason.BAD_CALLS


async def test_masking_takes_the_unreadable_turns_and_no_others(renderer):
    t = await play(renderer, [BROKEN, call("find"), "Paris"], policy=BadCallPolicy(mask=True))
    assert t.ledger.masked == {"malformed": t.turns[0].sampled_tokens}
    assert [span.masked for span in t.segment.spans if span.kind == "sampled"] == ["malformed", None, None]


async def test_the_penalty_is_a_part_of_the_reward(renderer):
    class Parts(Capitals):
        def score(self, trajectory):
            return Reward(1.0, {"em": 1.0})

    policy = BadCallPolicy(penalty=0.25)
    t = await play(renderer, [BROKEN, GOOD, BROKEN, call("find"), "Paris"], Parts(), policy=policy)
    assert (t.reward, t.reward_parts) == (0.5, {"em": 1.0, "bad_call_penalty": -0.5})
    t = await play(renderer, [GOOD, "Paris"], Parts(), policy=policy)
    assert (t.reward, t.reward_parts) == (1.0, {"em": 1.0})
    t = await play(renderer, [BROKEN, "Paris"], policy=policy, reward=lambda t: 3.0)
    assert t.reward == 2.75, "a reward function is penalised too"


async def test_without_a_reward_there_is_nothing_to_take_the_penalty_from(renderer):
    class Unscored(Capitals):
        def score(self, trajectory):
            return None

    t = await play(renderer, [BROKEN, "Paris"], Unscored(), policy=BadCallPolicy(penalty=1.0))
    assert (t.reward, t.reward_parts) == (None, {})


async def test_without_a_policy_step_sees_them_itself(renderer):
    env = Capitals()
    t = await play(renderer, [BROKEN] * 5 + ["Paris"], env, policy=None)
    assert (t.stop, len(env.stepped)) == (StopReason.DONE, 6)
    assert env.stepped[0].error is not None
    assert answers(t)[0]["content"] == f"Error: {env.stepped[0].error.detail}"
    assert kinds(t) == ["structural"] * 5 + [None]


async def test_an_env_without_tools_reads_its_own_formats(renderer):
    class Tags(Env):
        async def step(self, action):
            return StepResult(reward=float("<tool_call>" in action.text), done=True)

    t = await play(renderer, [BROKEN], Tags())
    assert (t.reward, kinds(t)) == (1.0, [None])


async def test_a_cut_turn_is_no_bad_call(renderer):
    t = await play(renderer, [GOOD], limits=Limits(max_tokens_per_turn=6))
    assert (t.stop, kinds(t)) == (StopReason.TURN_MAX_TOKENS, [None])


async def test_the_turn_limit_counts_unreadable_turns_too(renderer):
    t = await play(renderer, [BROKEN, BROKEN, BROKEN], limits=Limits(turns=2))
    assert t.stop is StopReason.MAX_TURNS


async def test_text_goes_on_in_the_turn_and_leaves_no_room_for_replies(renderer):
    class Continues(Capitals):
        async def step(self, action):
            return StepResult(Raw("and so")) if action.calls else StepResult(done=True)

    t = await play(renderer, [f"{GOOD}\n{BROKEN}", "Paris"], Continues())
    assert (t.stop, answers(t)) == (StopReason.DONE, [])


def test_a_policy_must_allow_one_error():
    with pytest.raises(ConfigError, match="in_a_row must be at least 1, not 0"):
        BadCallPolicy(in_a_row=0)


def test_hooks_and_settings_may_not_be_hidden_by_a_tool():
    for name in ("turn_options", "bad_calls", "last_turn"):
        with pytest.raises(ConfigError, match=f"a tool method named '{name}' hides Env.{name}"):
            type("Hides", (Env,), {name: tool(lambda self: "")})


@pytest.mark.parametrize(
    ("pending", "last", "capable", "whole"),
    [
        (Raw("a"), Raw("b"), True, Raw("ab", end="b")),
        ([{"role": "user", "content": "a"}], "b", False, [{"role": "user", "content": text} for text in "ab"]),
        ([{"role": "tool", "content": "a"}], "b", False, [{"role": "tool", "content": "a\n\nb"}]),
        (
            [{"role": "tool", "content": "a"}],
            "b",
            True,
            [{"role": "tool", "content": "a"}, {"role": "user", "content": "b"}],
        ),
    ],
)
def test_two_observations_as_one(pending, last, capable, whole):
    assert joined(pending, last, {"user_after_tool": capable}) == whole


@pytest.mark.parametrize(("pending", "last"), [(Raw("a"), "b"), ("a", Raw("b"))])
def test_text_and_messages_cannot_be_joined(pending, last):
    with pytest.raises(TypeError, match="return what `step` returns"):
        joined(pending, last, {})
