"""Earlier thoughts: kept as sampled, or stripped where the template drops them, each time in a new segment."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from agentrl import (
    ConfigError,
    LedgerError,
    Limits,
    Raw,
    StepResult,
    StopReason,
    Trajectory,
    run_episode,
)
from agentrl.cli.show import render_trajectory
from agentrl.engine import Generation, ScriptedEngine
from agentrl.engine.scripted import scripted_log_prob
from agentrl.episode.options import EpisodeOptions
from agentrl.models import load_tokenizer
from agentrl.monitor import RolloutMetrics
from agentrl.render import load_renderer
from agentrl.rollout.data.chat_rows import ChatReader
from agentrl.testing import call
from agentrl.train.warm_start import load_demonstrations
from agentrl.trajectory.trajectory import total_ledger
from tests.episode.thinking import SCRIPT, TASK, TEMPLATE, Guess, think
from tests.render.markers import template_files, tokenizer_of


@pytest.fixture(scope="module")
def qwen3_like():
    tokenizer = load_tokenizer("tiny")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture(scope="module")
def thinker(qwen3_like):
    return load_renderer(qwen3_like)


async def play(renderer, thinking="strip", script=SCRIPT, env=None, **limits) -> tuple[Trajectory, ScriptedEngine]:
    engine = ScriptedEngine(script, renderer)
    t = await run_episode(
        env or Guess(),
        TASK,
        engine=engine,
        renderer=renderer,
        options=EpisodeOptions(limits=Limits(**{"turns": len(script), **limits}), thinking=thinking),
    )
    assert t.failure is None, t.failure
    t.verify()
    assert t.prefix_breaks == 0
    return t, engine


def trained(t: Trajectory) -> list[int]:
    return [token for s in t.segments for token, mask in zip(s.response, s.loss_mask, strict=True) if mask]


async def test_kept_thoughts_are_one_segment(thinker):
    t, _ = await play(thinker, "keep")
    assert len(t.segments) == 1
    assert trained(t) == [token for action in t.actions for token in action.tokens]


async def test_a_segment_begins_where_the_template_drops_a_thought_and_nowhere_else(thinker):
    t, engine = await play(thinker)
    assert [action.reasoning for action in t.actions] == [
        "I ask the oracle.", "It is not a.", "Then b.", None, "Was it c?",
    ]  # fmt: skip
    # A tool's answer drops nothing; the guesses a and b are answered by the user; before the last, nothing was thought.
    assert [len(s.actions) for s in t.segments] == [2, 1, 2]
    assert [{span.turn for span in s.spans} for s in t.segments] == [{0, 1}, {0}, {0, 1}]
    assert (len(t.turns), len(t.actions), t.stop) == (5, 5, StopReason.MAX_TURNS)
    assert t.step_rewards == [0.5] * 4
    # What the engine was sent is what each segment holds.
    sent = [s.tokens[: turn.prompt_tokens] for s in t.segments for turn in s.turns]
    assert engine.requests == sent


async def test_each_sampled_token_is_trained_exactly_once_with_its_log_prob(thinker):
    stripped, _ = await play(thinker)
    kept, _ = await play(thinker, "keep")
    assert trained(stripped) == trained(kept) == [token for action in stripped.actions for token in action.tokens]
    probs = [[p for s in t.segments for p in s.log_probs if p] for t in (stripped, kept)]
    assert probs[0] == probs[1]
    ledger = total_ledger(stripped.segments)
    assert ledger.sampled == ledger.trained == sum(turn.sampled_tokens for turn in stripped.turns)


async def test_each_segment_is_the_templates_own_render_up_to_its_last_sampled_token(thinker, qwen3_like):
    t, _ = await play(thinker)
    answers = [i for i, message in enumerate(t.messages) if message["role"] == "assistant"]
    for segment, last in zip(t.segments, (1, 2, 4), strict=True):
        # No newline after the last answer's stop token: that is the template's, and was not sampled.
        text = qwen3_like.apply_chat_template(t.messages[: answers[last] + 1], tools=list(t.tools), tokenize=False)
        assert thinker.decode(segment.tokens) == text.removesuffix("\n")
        assert segment.tokens == qwen3_like.encode(text.removesuffix("\n"), add_special_tokens=False)


async def test_survives_json_and_reads_what_was_written_before_there_were_segments(thinker):
    t, _ = await play(thinker)
    t.mask("off_policy", turn=2)
    data = json.loads(json.dumps(t.to_json()))
    again = Trajectory.from_json(data)
    assert again.to_json() == t.to_json()
    assert [s.ledger for s in again.segments] == [s.ledger for s in t.segments]
    kept, _ = await play(thinker, "keep")
    old = kept.to_json()
    del old["earlier"]
    assert Trajectory.from_json(old).to_json() == kept.to_json()
    data["earlier"][0]["loss_mask"][0] = 0
    with pytest.raises(LedgerError, match="loss_mask differs from the spans"):
        Trajectory.from_json(data)


async def test_masks_reach_all_segments_and_one_turn_wherever_it_is(thinker):
    t, _ = await play(thinker)
    t.mask("malformed", turn=1)
    t.mask("malformed", turn=4)
    t.mask("off_policy", turn=2)
    lengths = [len(action.tokens) for action in t.actions]
    assert [s.ledger.masked for s in t.segments] == [
        {"malformed": lengths[1]},
        {"off_policy": lengths[2]},
        {"malformed": lengths[4]},
    ]
    t.mask("env_failure")
    t.verify()
    assert trained(t) == []
    assert total_ledger(t.segments).masked == {
        "malformed": lengths[1] + lengths[4],
        "off_policy": lengths[2],
        "env_failure": lengths[0] + lengths[3],
    }


async def test_whoever_counts_or_learns_reads_every_segment(thinker, qwen3_like, tmp_path):
    t, _ = await play(thinker)
    t.reward, sampled = 1.0, sum(len(action.tokens) for action in t.actions)
    metrics = RolloutMetrics.of_groups([[t]])
    assert metrics.sampled_tokens == metrics.trained_tokens == sampled > 0
    assert metrics.turns_mean == 5
    assert metrics.response_length_mean == sum(s.response_length for s in t.segments)
    (tmp_path / "d.jsonl").write_text(json.dumps(t.to_json()))
    chats = ChatReader(renderer=thinker, context=1024)
    found = (await load_demonstrations(tmp_path / "d.jsonl", len(qwen3_like), chats)).rows
    assert sum(sum(d.mask) for d in found) == sampled
    console = Console(width=120, no_color=True, record=True, file=io.StringIO())
    console.print(render_trajectory(t, thinker.decode))
    shown = console.export_text()
    assert shown.index("I ask the oracle.") < shown.index("Then b.") < shown.index("Was it c?")
    assert f"sampled {sampled} = trained {sampled} + masked 0" in shown


async def test_a_template_without_thoughts_never_splits(renderer):
    script = ["a", "<think>\nhm\n</think>\n\nb", "c"]
    stripped, _ = await play(renderer, "strip", script)
    kept, _ = await play(renderer, "keep", script)
    assert not renderer.certificate.capabilities["thinking"]
    assert (len(stripped.segments), stripped.tokens) == (1, kept.tokens)


@pytest.mark.parametrize("script", [["a", "b", "c"], [call("oracle", letter="a"), "b", "c"]])
async def test_without_a_thought_there_is_nothing_to_strip(thinker, script):
    assert len((await play(thinker, "strip", script))[0].segments) == 1


async def test_what_messages_do_not_say_is_kept(thinker):
    class Texts(Guess):
        async def step(self, action):
            return StepResult(Raw(" and so")) if len(action.content) > 1 else await super().step(action)

    script = [think("Hm.", "first"), think("Well.", "b"), "c"]
    assert len((await play(thinker, "strip", script, Texts()))[0].segments) == 1
    broken = think("Hm.", "<tool_call>\n{oracle\n</tool_call>")
    t, _ = await play(thinker, "strip", [broken, think("Well.", "b"), "c"])
    assert t.actions[0].error is not None
    assert len(t.segments) == 1


async def test_a_stripped_prompt_that_leaves_no_room_ends_the_episode(thinker):
    t, _ = await play(thinker)
    stripped = t.segments[1].prompt_length
    assert stripped < len(t.segments[0].tokens)
    whole, _ = await play(thinker, context=len(t.segments[0].tokens) + 1)
    assert len(whole.segments) > 1, "what is stripped fits where what is kept would not"
    long = [think("x", "a" * 200), "b"]
    t, _ = await play(thinker, script=long, context=(await play(thinker, script=long))[0].prompt_length)
    assert (t.stop, len(t.segments)) == (StopReason.CONTEXT_FULL, 1)


async def test_limits_tokens_bounds_each_segment(thinker):
    t, _ = await play(thinker)
    longest = max(s.response_length for s in t.segments)
    again, _ = await play(thinker, tokens=longest + 1)
    assert [s.tokens for s in again.segments] == [s.tokens for s in t.segments]
    cut, _ = await play(thinker, tokens=longest - 1)
    assert cut.stop is StopReason.MAX_TOKENS


async def test_cut_observations_cannot_be_rendered_again(thinker):
    with pytest.raises(ConfigError, match=r"leave out limits\.observation_tokens"):
        await play(thinker, observation_tokens=50)


async def test_a_segment_ends_with_a_turn_that_was_closed(thinker):
    t, _ = await play(thinker)
    prompt = replace(thinker.prompt("x"), thinking=True)
    t.begin_segment(prompt)
    assert t.segment.thinking
    with pytest.raises(LedgerError, match="a segment ends with a turn"):
        t.begin_segment(prompt)


async def test_what_the_template_refuses_is_kept_and_is_no_bug():
    """A model may say a thought, a text and a call in one turn. gpt-oss' template raises where a message has all."""
    source = next(path for path in template_files() if path.stem == "openai-gpt-oss-120b")
    renderer = load_renderer(tokenizer_of(source))
    both = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I ask.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.oracle json<|message|>{"letter": "a"}<|call|>'
    )
    tokens = tokenizer_of(source).encode(both, add_special_tokens=False)
    turn = Generation(tokens, list(map(scripted_log_prob, tokens)), "stop", tokens[-1])
    t, _ = await play(renderer, "strip", [turn, think("Well.", "b"), think("So.", "c")])
    assert [bool(action.calls) for action in t.actions] == [True, False, False]
    assert t.actions[0].reasoning
    assert t.actions[0].content
    assert len(t.segments) == 1
    assert "Cannot pass both content and thinking" in t.info["thoughts_kept"]
    split, _ = await play(renderer, "strip", [think("Hm.", "a"), think("Well.", "b"), think("So.", "c")])
    assert len(split.segments) == 3
    assert "thoughts_kept" not in split.info
