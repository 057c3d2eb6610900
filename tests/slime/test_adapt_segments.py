"""agentrl.adapt where one episode is several samples, and where slime's trainer replays what the engine returned."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType

import pytest

from agentrl import ConfigError, adapt
from agentrl.engine import Generation, ScriptedEngine
from agentrl.engine.scripted import scripted_log_prob
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from tests.episode import thinking
from tests.slime.questions import PARAMS, question


@pytest.fixture
def stripping(make_args, tmp_path):
    """`stripping(url)`: args for an Env whose template drops earlier thoughts, which are stripped."""
    (tmp_path / "chat.jinja").write_text(thinking.TEMPLATE)
    config = {"env": "tests.episode.thinking:Guess", "thinking": "strip", "limits": {"turns": 5}}
    return lambda url, **args: make_args(url, args=args, chat_template=str(tmp_path / "chat.jinja"), **config)


@pytest.fixture
def thinking_renderer():
    tokenizer = load_tokenizer("tiny")
    tokenizer.chat_template = thinking.TEMPLATE
    return load_renderer(tokenizer)


@pytest.fixture
def thinker(thinking_renderer):
    return ScriptedEngine(thinking.SCRIPT, thinking_renderer, context_length=4096)


async def test_stripped_thoughts_give_a_list_of_siblings(Sample, serve, stripping, thinker):
    numbered = dataclasses.make_dataclass("Sample", [("rollout_id", int, None)], bases=(Sample,))
    async with serve(thinker) as (_, url):
        given = numbered(prompt="Guess my word.", index=4)
        samples = await adapt(stripping(url, reward_key="total"), given, {**PARAMS, "max_new_tokens": 2000})
    assert len(samples) == 3
    assert samples[-1] is given
    assert {s.rollout_id for s in samples} == {4}
    assert [s.reward for s in samples] == [{"total": 2.0}] * 3
    sampled = sum(turn for s in samples for turn in s.loss_mask)
    assert sampled == sum(s.metadata["agentrl"]["ledger"]["sampled"] for s in samples) > 0


class Cut(ScriptedEngine):
    """Says SCRIPT. In request `at` the host aborts, after half of the tokens, or before the first."""

    def __init__(self, renderer, state=None, at=0, *, prefill=False):
        super().__init__(self._turn, renderer, context_length=4096)
        self._renderer, self._state, self._at, self._prefill = renderer, state, at, prefill

    def _turn(self, ids):
        turn = self._renderer.decode(ids).count("<|im_start|>assistant") - 1
        said = thinking.SCRIPT[turn]
        tokens = self._renderer.encode({"role": "assistant", "content": said} if isinstance(said, str) else said)
        begun = next((k for k in range(len(tokens) - 1, 0, -1) if list(ids[-k:]) == list(tokens[:k])), 0)
        return Generation(tokens[begun:], [scripted_log_prob(token) for token in tokens[begun:]], "stop")

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        said = await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)
        if len(self.requests) != self._at:
            return said
        self._state.aborted = True
        half = 0 if self._prefill else len(said.tokens) // 2
        return dataclasses.replace(
            said, tokens=said.tokens[:half], log_probs=said.log_probs[:half], finish_reason="abort"
        )


@pytest.fixture
def slime_0_4(host, monkeypatch):
    """The stand-in for slime's package, with what tells 0.4 from before; and its flags."""
    module = ModuleType("fakehost.rollout.base_types")
    module.iter_samples = iter
    monkeypatch.setitem(sys.modules, module.__name__, module)
    numbered = dataclasses.make_dataclass("Sample", [("rollout_id", int, None)], bases=(host.Sample,))
    host.Sample = type("Sample", (numbered,), {"__module__": "fakehost.utils.types"})
    return host


FULLY_ASYNC = {"rollout_function_path": "slime.rollout.fully_async_rollout.generate_rollout_fully_async"}
LONG = {**PARAMS, "max_new_tokens": 2000}


async def whole_episode(slime_0_4, serve, stripping, renderer):
    async with serve(Cut(renderer)) as (_, url):
        sample = slime_0_4.Sample(prompt="Guess my word.", index=4, session_id="s")
        return await adapt(stripping(url, **FULLY_ASYNC), sample, LONG)


@pytest.mark.parametrize("prefill", [False, True], ids=["in a turn", "in a prefill"])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
async def test_an_aborted_episode_is_one_sample_and_ends_as_a_list(
    slime_0_4, serve, stripping, thinking_renderer, at, prefill
):
    whole = await whole_episode(slime_0_4, serve, stripping, thinking_renderer)
    engine = Cut(thinking_renderer, slime_0_4.state, at, prefill=prefill)
    async with serve(engine) as (_, url):
        args = stripping(url, **FULLY_ASYNC)
        given = slime_0_4.Sample(prompt="Guess my word.", index=4, session_id="s")
        assert await adapt(args, given, LONG) is given
        assert (given.status, given.reward) == (given.Status.ABORTED, 0.0)
        assert len(given.loss_mask) == given.response_length >= 1
        assert given.metadata["agentrl"]["resume"]["how"] == "alive"
        slime_0_4.state.aborted = False
        samples = await adapt(args, given, LONG)
    assert samples[-1] is given
    assert samples[-1].metadata["agentrl"]["resumes"] == 1
    assert len(engine.requests) == 6, "five turns, one of them in two requests"
    for one, other in zip(samples, whole, strict=True):
        assert (one.tokens, one.loss_mask, one.reward) == (other.tokens, other.loss_mask, other.reward)
        assert one.rollout_log_probs == other.rollout_log_probs
        assert one.metadata["agentrl"]["ledger"] == other.metadata["agentrl"]["ledger"]


async def test_what_older_weights_sampled_is_masked_in_all_segments(slime_0_4, serve, stripping, thinking_renderer):
    """slime masks the one Sample that it was given; the segments before it are as old."""
    engine = Cut(thinking_renderer, slime_0_4.state, 4)
    flags = {**FULLY_ASYNC, "partial_rollout": True, "mask_offpolicy_in_partial_rollout": True}
    async with serve(engine) as (_, url):
        args = stripping(url, **flags)
        sample = slime_0_4.Sample(prompt="Guess my word.", index=4, session_id="s")
        await adapt(args, sample, LONG)
        sampled = sample.metadata["agentrl"]["ledger"]["sampled"]
        sample.loss_mask, slime_0_4.state.aborted = [0] * sample.response_length, False
        samples = await adapt(args, sample, LONG)
    ledgers = [one.metadata["agentrl"]["ledger"] for one in samples]
    assert sum(ledger["masked"].get("off_policy", 0) for ledger in ledgers) == sampled
    assert [sum(one.loss_mask) for one in samples] == [ledger["trained"] for ledger in ledgers]
    assert [bool(ledger["trained"]) for ledger in ledgers] == [False, False, True]


async def test_an_evaluation_is_one_sample_stripped_or_not(Sample, serve, stripping, thinker):
    async with serve(thinker) as (_, url):
        given = Sample(prompt="Guess my word.")
        sample = await adapt(stripping(url), given, {**PARAMS, "max_new_tokens": 2000}, evaluation=True)
    assert sample is given
    assert sample.metadata["agentrl"]["turns"] == 5


async def test_an_own_filter_takes_lists(Sample, serve, stripping, thinker):
    numbered = dataclasses.make_dataclass("Sample", [("rollout_id", int, None)], bases=(Sample,))
    async with serve(thinker) as (_, url):
        args = stripping(url, dynamic_sampling_filter_path="agentrl.slime.has_spread")
        assert isinstance(await adapt(args, numbered(prompt="Guess", index=0), PARAMS), list)


async def test_slimes_reward_model_is_not_asked_for_each_segment_alone(Sample, serve, stripping, thinker, tmp_path):
    unscored = tmp_path / "unscored.py"
    unscored.write_text("def nothing(trajectory):\n    return None\n")
    numbered = dataclasses.make_dataclass("Sample", [("rollout_id", int, None)], bases=(Sample,))
    async with serve(thinker) as (_, url):
        args = stripping(url, rm_type="math")
        args.agentrl["reward"] = f"{unscored}:nothing"
        with pytest.raises(ConfigError, match=r"reward from Env.score or `reward`"):
            await adapt(args, numbered(prompt="Guess my word.", index=0), {**PARAMS, "max_new_tokens": 2000})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"use_rollout_routing_replay": True, "num_layers": 1, "moe_router_topk": 1}, "returned no routed_experts"),
        ({"rollout_top_p": 0.9}, "returned no top_p_token_ids"),
    ],
)
async def test_an_engine_that_does_not_return_what_is_to_be_replayed(
    Sample, serve, make_args, flags, message, monkeypatch
):
    monkeypatch.setattr("agentrl.slime.playing.request_fields", lambda flags: {})  # which this server would refuse
    fields = ("rollout_top_p_token_ids", "rollout_top_p_token_offsets", "rollout_routed_experts")
    replayed = dataclasses.make_dataclass("Sample", [(name, object, None) for name in fields], bases=(Sample,))
    async with serve() as (_, url):
        with pytest.raises(ConfigError, match=message):
            await adapt(make_args(url, args=flags), question(replayed), PARAMS)
        tested = question(replayed)
        assert (await adapt(make_args(url, args=flags), tested, PARAMS, evaluation=True)).reward == 1.0
