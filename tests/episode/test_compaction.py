"""Summaries near the end of the context: `limits.compact_at`, `Env.ask_summary` and `Env.after_summary`."""

from __future__ import annotations

import json
from functools import partial

import pytest

from agentrl import ConfigError, Env, Limits, Raw, StepResult, StopReason, Task, run_episode
from agentrl.chat.client import ScriptedSpeaker
from agentrl.chat.engine import ChatEngine
from agentrl.engine import ScriptedEngine
from agentrl.env.summaries import REQUEST
from agentrl.episode.options import EpisodeOptions
from agentrl.errors import BadCallPolicy
from agentrl.models import load_tokenizer
from agentrl.testing import call, rollout
from agentrl.trajectory.model_output import ModelOutput
from agentrl.trajectory.trajectory import Trajectory, total_ledger
from agentrl.view.readers.own import read
from tests.episode.compacting import (
    ROOMS,
    TASK,
    TWELVE,
    Corridor,
    Short,
    ShortOpen,
    ShortSaved,
    Walker,
    Words,
    coins_in,
    oracle,
)
from tests.episode.resuming import Host, picture

SHORT = Limits(turns=13, context=780, compact_at=330)


async def play(renderer, env=None, limits=SHORT, engine=None, task=TASK, **options):
    engine = engine or Walker(renderer)
    t = await run_episode(
        env or Short(), task, engine=engine, renderer=renderer, options=EpisodeOptions(limits=limits, **options)
    )
    t.verify()
    assert t.prefix_breaks == 0
    return t, engine


def assert_equals_oracle(t, log):
    rows = oracle(log)
    assert len(rows) == len(t.segments)
    for row, segment in zip(rows, t.segments, strict=True):
        assert segment.tokens[: segment.prompt_length] == row.prompt
        assert segment.tokens == row.ids
        assert segment.loss_mask == row.mask
        assert segment.log_probs == row.log_probs
    return rows


async def test_sixty_turns_in_a_context_of_twelve(renderer):
    limits = Limits(**TWELVE)
    without, _ = await play(renderer, Corridor(), Limits(turns=ROOMS + 1, context=limits.context))
    assert (without.stop, without.reward) == (StopReason.CONTEXT_FULL, 0.0)
    assert len(without.turns) <= 14

    t, engine = await play(renderer, Corridor(), limits)

    rows = assert_equals_oracle(t, engine.log)
    sampled = sum(len(tokens) for _, tokens, _ in engine.log)
    ledger = total_ledger(t.segments)
    assert ledger.sampled == ledger.trained == sampled == sum(sum(row.mask) for row in rows)
    assert all(len(row.ids) < limits.context for row in rows)
    assert (t.stop, t.reward, t.summaries) == (StopReason.DONE, 1.0, len(rows) - 1)
    assert t.turn_count - t.summaries == ROOMS + 1
    assert len(rows) >= 5
    assert t.answer == str(sum(map(coins_in, range(1, ROOMS + 1))))


async def test_the_next_prompt_is_the_templates_render_of_task_and_summary(renderer):
    t, engine = await play(renderer, Corridor(), Limits(**TWELVE))
    tokenizer = load_tokenizer("tiny")
    for before, after in zip(rows := oracle(engine.log), rows[1:], strict=False):
        summary = tokenizer.decode(before.ids[-sum(before.mask) :], skip_special_tokens=True).rpartition("\n")[2]
        content = f"{TASK.prompt}\n\nYour summary of the conversation so far:\n{summary}"
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tools=list(t.tools), add_generation_prompt=True, return_dict=False
        )
        assert after.prompt == prompt
        asked = tokenizer.decode(before.ids)
        assert asked.count(REQUEST) == 1
        assert asked.endswith(f"{REQUEST}<|im_end|>\n<|im_start|>assistant\n{summary}<|im_end|>")


@pytest.mark.thorough
@pytest.mark.parametrize("env", [Short, ShortSaved, ShortOpen], ids=["replayed", "snapshot", "alive"])
async def test_an_episode_resumes_at_the_same_token_also_within_a_summary(renderer, env):
    whole, _ = await play(renderer, env())
    polls = None
    for at in range(1, 100):
        host = Host(env, Walker(renderer), renderer, task=TASK, limits=SHORT, at=frozenset({at}))
        assert picture(await host.to_the_end()) == picture(whole)
        if host.polls < at:
            polls = at
            break
    assert polls, "every poll of the flag was tried"
    within_a_summary = [p for p in range(1, len(whole.turns)) if whole.turns[p].summary]
    assert len(within_a_summary) == 2


class CutWalker(Walker):
    """Aborts the request number `cut` after five tokens."""

    cut, on_cut = 0, staticmethod(lambda: None)

    async def _play(self, said, rid):
        if len(self.requests) != self.cut:
            return await super()._play(said, rid)
        from dataclasses import replace

        self.on_cut()
        return replace(said, tokens=said.tokens[:5], log_probs=said.log_probs[:5], finish_reason="abort")


@pytest.mark.parametrize("env", [Short, ShortSaved, ShortOpen], ids=["replayed", "snapshot", "alive"])
async def test_an_abort_in_the_middle_of_a_summary(renderer, env):
    whole, plain = await play(renderer, env())
    number = next(i for i, turn in enumerate(whole.turns, 1) if turn.summary)
    engine = CutWalker(renderer)
    host = Host(env, engine, renderer, task=TASK, limits=SHORT)
    engine.cut, engine.on_cut = number, partial(setattr, host, "flag", True)
    first = await host.play()
    assert first.stop is StopReason.ABORTED
    assert first.segment.open
    assert first.turns[-1].summary
    assert Trajectory.from_json(json.loads(json.dumps(first.to_json()))).segment.request == REQUEST
    assert picture(await host.resume()) == picture(whole)
    assert len(engine.requests) == len(plain.requests) + 1


async def test_json_keeps_segments_and_summaries(renderer):
    t, _ = await play(renderer)
    data = json.dumps(t.to_json())
    again = Trajectory.from_json(json.loads(data))
    assert json.dumps(again.to_json()) == data
    assert (again.summaries, again.replies, again.conversation) == (t.summaries, t.replies, t.conversation)
    assert again.answer == t.answer


async def test_the_page_names_the_segments_after_a_summary(renderer):
    t, _ = await play(renderer)
    record = read(json.loads(json.dumps(t.to_json())))
    assert [s.name for s in record.sequences] == ["", "segment 2, after a summary", "segment 3, after a summary"]
    assert not any(s.problems for s in record.sequences)


async def test_messages_hold_each_prompt_and_each_reply_has_its_place(renderer):
    examples = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello. I walk."}]
    task = Task(prompt=[*examples, {"role": "user", "content": "Walk."}], seed=1)
    t, _ = await play(renderer, task=task)
    assert [t.messages[place]["content"] for place in t.replies] == [action.content for action in t.said]
    assert [m["content"] for m in t.conversation[:2]] == ["Hi", "Hello. I walk."]
    output = ModelOutput.of(t)
    for turn, text in zip(t.turns[:-1], output.observed, strict=True):
        assert ("Room" in text) != turn.summary, "no summary counts as an observation"


async def test_a_summary_is_no_answer(renderer):
    """An episode that ends with a summary is scored by the turn before."""

    class Last(Short):
        def after_summary(self, trajectory, summary):
            return "word " * 2000

    t, _ = await play(renderer, Last())
    assert (t.stop, t.summaries, t.answer) == (StopReason.CONTEXT_FULL, 1, "")


@pytest.mark.parametrize("cap", [{"max_tokens_per_turn": 60}, {"context": 760}], ids=["turn", "context"])
async def test_a_summary_that_is_cut_off_ends_the_episode(renderer, cap):
    def say(text):
        return "and " * 200 if text.rstrip().endswith(f"{REQUEST}<|im_end|>\n<|im_start|>assistant") else call("walk")

    limits = Limits(turns=13, **{"context": 780, "compact_at": 500, **cap})
    t, engine = await play(renderer, limits=limits, engine=Walker(renderer, say))
    assert t.stop is (StopReason.CONTEXT_FULL if "context" in cap else StopReason.TURN_MAX_TOKENS)
    assert t.turns[-1].summary
    assert len(t.segments) == 1
    assert_equals_oracle(t, engine.log)


async def test_calls_in_a_summary_are_not_executed(renderer):
    def say(text):
        asked = text.rstrip().endswith(f"{REQUEST}<|im_end|>\n<|im_start|>assistant")
        return {**call("walk"), "content": "I have 5 coins."} if asked else "done" if "I have" in text else call("walk")

    env = Short()
    t, engine = await play(renderer, env, engine=Walker(renderer, say))
    (summary,) = [turn for turn in t.turns if turn.summary]
    assert summary.bad_call == "content"
    assert env.room == sum(turn.calls == ["walk"] and not turn.summary for turn in t.turns)
    assert t.conversation[0]["content"].endswith(":\nI have 5 coins.")
    assert_equals_oracle(t, engine.log)


async def test_an_unreadable_call_in_a_summary_is_masked_as_in_any_turn(renderer):
    class Masking(Short):
        bad_calls = BadCallPolicy(mask=True, penalty=0.25)

    def say(text):
        asked = text.rstrip().endswith(f"{REQUEST}<|im_end|>\n<|im_start|>assistant")
        return "<tool_call>\n{walk}\n</tool_call>" if asked else "done" if "summary of" in text else call("walk")

    t, _ = await play(renderer, Masking(), engine=Walker(renderer, say))
    ledger = total_ledger(t.segments)
    assert ledger.masked == {"malformed": next(turn for turn in t.turns if turn.summary).sampled_tokens}
    assert t.reward == -0.25


async def test_the_env_decides_when_and_how(renderer):
    asked = []

    class Deciding(Short):
        def ask_summary(self, trajectory):
            asked.append(self.room)
            return "Note your coins, as in: I have 7 coins." if self.room == 6 else ""

        async def after_summary(self, trajectory, summary):
            assert trajectory.turns[-1].summary
            return [{"role": "system", "content": "You walk."}, {"role": "user", "content": f"Notes: {summary}"}]

    def say(text):
        if text.rpartition("<|im_start|>user")[2].count("Note your"):
            return "I have 1 coins."
        return "done" if "Notes" in text else call("walk")

    t, _ = await play(renderer, Deciding(), Limits(turns=13, compact_at=1), engine=Walker(renderer, say))
    assert asked == [], "the first prompt has more tokens than compact_at: no summary would help"
    t, _ = await play(renderer, Deciding(), Limits(turns=13, compact_at=100), engine=Walker(renderer, say))
    assert asked == [2, 3, 4, 5, 6]
    assert [m["role"] for m in t.conversation] == ["system", "user", "assistant"]
    assert t.conversation[1]["content"] == "Notes: I have 1 coins."


@pytest.mark.parametrize(
    ("name", "result", "error"),
    [
        ("ask_summary", 5, "ask_summary returned 5; return text"),
        ("after_summary", 5, "after_summary gave 5"),
        ("ask_summary", ZeroDivisionError("here"), "here"),
        ("after_summary", ZeroDivisionError("here"), "here"),
    ],
)
async def test_a_hook_that_fails_fails_the_episode(renderer, name, result, error):
    def hook(self, *args):
        if isinstance(result, Exception):
            raise result
        return result

    t, _ = await play(renderer, type("Broken", (Short,), {name: hook})())
    assert t.stop is StopReason.FAILED
    assert error in t.failure.error
    assert (t.failure.kind, t.failure.boundary) == ("bug", "step")


async def test_the_limit_of_turns_does_not_count_summaries_and_the_last_turn_is_none(renderer):
    class Forced(Short):
        def last_turn(self, reason):
            return "Answer now."

    t, engine = await play(renderer, Forced(), Limits(**{**TWELVE, "turns": 9, "compact_at": 200}))
    assert t.turn_count - t.summaries == 10
    assert not t.turns[-1].summary
    assert renderer.decode(engine.log[-1][0]).count("Answer now.") == 1


async def test_each_segment_has_its_own_limit_of_tokens(renderer):
    t, _ = await play(renderer, limits=Limits(turns=13, context=780, compact_at=560, tokens=700))
    assert t.stop is StopReason.DONE
    assert sum(s.response_length for s in t.segments) > 700


async def test_a_request_that_does_not_fit_is_noted(renderer):
    t, _ = await play(renderer, limits=Limits(turns=13, context=600, compact_at=500))
    assert (t.stop, t.summaries) == (StopReason.CONTEXT_FULL, 0)
    assert t.info["no_room_for_summary"] == t.segment.length


async def test_compact_at_beyond_the_context_is_refused(renderer):
    with pytest.raises(ConfigError, match=r"limits\.compact_at is 800, and the context ends at 780 tokens"):
        await play(renderer, limits=Limits(context=780, compact_at=800))


async def test_an_env_without_tools(renderer):
    t, engine = await play(renderer, Words(), Limits(turns=13, context=500, compact_at=330), Walker(renderer, words))
    assert_equals_oracle(t, engine.log)
    assert (t.reward, len(t.segments) > 1) == (float(sum(map(coins_in, range(1, 13)))), True)


def words(text):
    from tests.episode.compacting import next_turn

    said = next_turn(text)
    return said if isinstance(said, str) else "walk"


async def test_raw_text(renderer):
    class RawWords(Env):
        def reset(self, task):
            self.turns = 0
            return Raw("Count.") if task.label == "raw" else "Count."

        def step(self, action):
            self.turns += 1
            return StepResult(Raw(f" {self.turns} and"), done=self.turns == 12)

        def score(self, trajectory):
            return float(self.turns)

    script = ["xyz"] * 30
    limits = Limits(turns=30, compact_at=100, context=400)
    t, _ = await play(renderer, RawWords(), limits, ScriptedEngine(script, renderer))
    assert (t.stop, t.reward) == (StopReason.DONE, 12.0)
    assert t.summaries == len(t.segments) - 1 > 0
    refused, _ = await play(
        renderer, RawWords(), limits, ScriptedEngine(script, renderer), Task(prompt="x", label="raw")
    )
    assert "write after_summary(trajectory, summary), which returns Raw" in refused.failure.error


async def test_a_speaker_reads_only_the_summary_and_what_follows(renderer):
    heard = []

    def say(messages, tools):
        heard.append(list(messages))
        text = "\n".join(str(m["content"]) for m in messages)
        if messages[-1]["content"].endswith(REQUEST):
            return "I have 3 coins."
        return "done" if "summary of" in text else call("walk")

    engine = ChatEngine(ScriptedSpeaker(say), renderer, by={"model": "say"})
    t, _ = await play(renderer, engine=engine)
    assert t.summaries == 1
    assert [m["role"] for m in heard[-1]] == ["user"]
    assert heard[-1][0]["content"].endswith("I have 3 coins.")


async def test_a_player_never_reads_the_request(renderer):
    def player(task):
        for room in range(1, 13):
            heard = yield call("walk")
            assert heard.startswith(f"Room {room}: {coins_in(room)} coins.")
            assert "summary" not in heard
        yield str(sum(map(coins_in, range(1, 13))))

    t = await rollout(Short(), TASK, player(TASK), renderer=renderer, limits=SHORT)
    assert (t.reward, t.summaries) == (1.0, 2)
    summaries = [action.content for action, turn in zip(t.said, t.turns, strict=True) if turn.summary]
    assert all(text.startswith("The last observation: Room") and "summary" not in text for text in summaries)
    t = await rollout(
        Short(), TASK, player(TASK), renderer=renderer, limits=SHORT, summary=lambda t: f"{t.turn_count} turns"
    )
    assert next(a.content for a, turn in zip(t.said, t.turns, strict=True) if turn.summary).endswith(" turns")


async def test_a_template_that_numbers_results_begins_anew_after_a_summary():
    from agentrl.render import load_renderer
    from tests.episode.thinking import TEMPLATE

    tokenizer = load_tokenizer("tiny")
    counted = (
        "{%- set ns.results = ns.results + 1 -%}{{- '<|im_start|>user\n' + ns.results|string + '. <tool_response>\n'"
    )
    plain = "{{- '<|im_start|>user\n<tool_response>\n'"
    assert TEMPLATE.count(plain) == 1
    tokenizer.chat_template = TEMPLATE.replace(plain, counted).replace("(last=-1)", "(last=-1, results=0)")
    numbering = load_renderer(tokenizer)
    t, engine = await play(numbering, limits=Limits(turns=13, context=900, compact_at=400))
    assert t.summaries > 0
    whole = numbering.bind(t.tools)
    for request, place in zip(engine.requests, t.replies, strict=True):
        first = max(s.first_message for s in t.segments if s.first_message <= place)
        assert numbering.decode(request) == numbering.decode(whole.prompt(t.messages[first:place]).tokens)


@pytest.mark.thorough
async def test_stripped_thoughts_and_summaries(renderer):
    """Each segment of both kinds begins with the template's own render."""
    from agentrl.render import load_renderer
    from tests.episode.thinking import TEMPLATE, think

    tokenizer = load_tokenizer("tiny")
    tokenizer.chat_template = TEMPLATE
    thinker = load_renderer(tokenizer)

    def say(text):
        return think("Onward.", words(text.replace("Onward.", "")))

    engine = Walker(thinker, say)
    limits = Limits(turns=13, context=780, compact_at=330)
    t, _ = await play(thinker, Words(), limits, engine, thinking="strip")
    assert_equals_oracle(t, engine.log)
    assert (t.summaries > 0, t.reward) == (True, float(sum(map(coins_in, range(1, 13)))))


async def test_seats_have_summaries_of_their_own(renderer):
    from agentrl import run_seats

    class Count(Env):
        """Two players say numbers in turn."""

        seats = ("a", "b")
        deterministic = True

        def reset(self, task):
            self.turns = 0
            return "Count."

        def observe(self, seat):
            return f"You are {seat}. The number is {self.turns}."

        def step(self, action):
            self.turns += 1
            other = "b" if self.seat == "a" else "a"
            if self.turns == 24:
                return StepResult(done=True, rewards={self.seat: 1.0, other: 0.0})
            return StepResult(next_seat=other)

    engine = Walker(renderer, lambda text: "notes" if f"{REQUEST}<|im_end|>\n" in text[-300:] else "I count.")
    by_seat = await run_seats(
        Count(),
        Task(prompt="x", seed=1),
        engine=engine,
        renderer=renderer,
        options=EpisodeOptions(limits=Limits(compact_at=250, context=500, turns=12)),
    )
    for seat, t in by_seat.items():
        t.verify()
        assert t.stop is StopReason.DONE
        assert t.summaries == len(t.segments) - 1 > 0
        assert all("notes" in str(s.said[-1].content) for s in t.segments[:-1])
        assert f"You are {seat}." in t.conversation[0]["content"]
    assert total_ledger(s for t in by_seat.values() for s in t.segments).sampled == sum(
        len(x) for _, x, _ in engine.log
    )
