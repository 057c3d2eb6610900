"""Raw-text environments, as Search-R1 is one: text that goes on in the model's turn, and stop strings at its tags."""

from __future__ import annotations

import re

import pytest

from agentrl import Env, Generation, Limits, Raw, StepResult, StopReason, Task, Trajectory, TurnOptions, run_episode
from agentrl.engine import ScriptedEngine
from agentrl.engine.scripted import scripted_log_prob
from agentrl.render import load_renderer
from agentrl.testing import call
from tests.episode.arranged import arranged
from tests.render.conftest import sentencepiece_tokenizer

DOCS = "\n\n<information>Paris is the capital of France.</information>\n\n"
SEARCH, ANSWER = "<search>France</search>", "<answer>Paris</answer>"
TASK = Task(prompt=Raw("Question: capital of France? "), label="Paris")


class SearchR1(Env):
    """The environment of Search-R1, its retriever left out."""

    turn_options = TurnOptions(stop=("</search>", "</answer>"), max_tokens=100)
    bad_calls = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.read = []

    async def step(self, action):
        self.read.append(action)
        match = re.search(r"<(search|answer)>(.*?)</\1>", action.text, re.DOTALL)
        if match is None:
            return StepResult(Raw("\nMy previous action is invalid. Let me try again.\n"))
        return StepResult(done=True) if match[1] == "answer" else StepResult(Raw(DOCS))

    def score(self, trajectory):
        found = re.findall(r"<answer>(.*?)</answer>", trajectory.actions[-1].text)
        return float(bool(found) and found[-1] == self.task.label)


class Forced(SearchR1):
    reasons: list[StopReason]

    def last_turn(self, reason):
        self.reasons = [*getattr(self, "reasons", []), reason]
        return Raw("\nI must answer now.\n")


def encode(renderer, text):
    return list(renderer.prompt(Raw(text)).tokens)


def said(renderer, text, finish="stop", matched=None):
    """A turn of exactly these tokens, as an engine that was not asked to trim returns it."""
    tokens = encode(renderer, text)
    return Generation(tokens, [scripted_log_prob(token) for token in tokens], finish, matched)


async def play(renderer, turns, env=None, *, engine=None, **kwargs) -> Trajectory:
    engine = engine or ScriptedEngine(turns, renderer)
    t = await run_episode(env or SearchR1(), TASK, engine=engine, renderer=renderer, **arranged(**kwargs))
    assert t.failure is None, t.failure
    t.verify()
    assert t.prefix_breaks == 0
    return t


def text_of(renderer, t):
    return renderer.decode(t.response)


def trained(t):
    return [token for token, mask in zip(t.response, t.loss_mask, strict=True) if mask]


async def test_search_then_answer_is_one_text(renderer):
    env = SearchR1()
    t = await play(renderer, [f"{SEARCH} and more", f"{ANSWER} and more"], env)
    assert (t.stop, t.reward) == (StopReason.DONE, 1.0)
    assert text_of(renderer, t) == SEARCH + DOCS + ANSWER
    assert [span.kind for span in t.segment.spans] == ["sampled", "observation", "sampled"]
    assert [action.matched for action in env.read] == ["</search>", "</answer>"]
    assert trained(t) == encode(renderer, SEARCH) + encode(renderer, ANSWER)


async def test_a_stop_string_may_be_split_over_tokens_in_any_way(renderer):
    pieces = [encode(renderer, character) for character in SEARCH]
    letters = [token for piece in pieces for token in piece]
    assert letters != encode(renderer, SEARCH)
    t = await play(renderer, [Generation([*letters, *letters], [-0.5] * 2 * len(letters), "stop"), ANSWER])
    assert t.actions[0].tokens == tuple(letters)
    assert text_of(renderer, t).startswith(SEARCH + DOCS)


async def test_text_past_the_tag_within_its_last_token_stays_as_sampled(renderer, tokenizer):
    """Where one token holds the tag's end and more, the engine returns all of it, and all of it is trained."""

    class Odd(SearchR1):
        turn_options = TurnOptions(stop=("> t", "</answer>"))

        async def step(self, action):
            return StepResult(Raw(DOCS)) if action.matched == "> t" else StepResult(done=True)

    the = tokenizer.convert_tokens_to_ids("Ġthe")
    written = [*encode(renderer, "<go>"), the]
    assert renderer.decode(written) == "<go> the"
    tokens = [*written, *encode(renderer, "more")]
    t = await play(renderer, [Generation(tokens, [-0.5] * len(tokens), "stop"), ANSWER], Odd())
    assert t.actions[0].tokens == tuple(written)
    assert text_of(renderer, t) == f"<go> the{DOCS}{ANSWER}"
    assert trained(t) == [*written, *t.actions[1].tokens]


async def test_an_end_before_the_tag_reopens_the_turn(renderer):
    env = SearchR1()
    engine = ScriptedEngine(["I do not know.", ANSWER], renderer)
    t = await play(renderer, [], env, engine=engine)
    eos = t.actions[0].tokens[-1]
    assert eos in renderer.stop_token_ids
    assert t.loss_mask[len(t.actions[0].tokens) - 1] == 1, "the stop token was sampled, so it is trained"
    text = text_of(renderer, t)
    assert text.index("My previous action is invalid") > text.index(renderer.decode([eos]))
    kinds = [span.kind for span in t.segment.spans]
    assert kinds[0] == kinds[-1] == "sampled"
    assert set(kinds[1:-2]) <= {"close", "prompt"}, kinds
    assert kinds[-2] == "observation"
    assert engine.requests[1] == t.tokens[: len(engine.requests[1])]
    assert (t.stop, t.reward) == (StopReason.DONE, 1.0)


async def test_a_turn_cut_by_length_is_not_read(renderer):
    env = SearchR1()
    t = await play(renderer, [SEARCH], env, limits=Limits(max_tokens_per_turn=len(encode(renderer, SEARCH)) - 1))
    assert (t.stop, env.read, t.reward, t.truncated) == (StopReason.TURN_MAX_TOKENS, [], 0.0, True)
    assert t.turns[0].finish_reason == "length"


async def test_an_observation_is_cut_to_its_budget_with_a_mark(renderer):
    env = SearchR1()
    t = await play(renderer, [SEARCH, ANSWER], env, limits=Limits(observation_tokens=6))
    (observation,) = [span for span in t.segment.spans if span.kind == "observation"]
    cut = t.info["observation_tokens_cut"]
    assert cut == len(encode(renderer, DOCS)) - 6
    assert f"[{cut} tokens cut]" in text_of(renderer, t)
    assert observation.stop - observation.start < len(encode(renderer, DOCS)) + 20
    assert (t.stop, t.reward, t.ledger.trained) == (StopReason.DONE, 1.0, t.ledger.sampled)


async def test_what_is_cut_keeps_its_end(renderer):
    end = "</information>\n\n"

    class Ends(SearchR1):
        async def step(self, action):
            found = await super().step(action)
            return found if found.done else StepResult(Raw(found.observation.text, end))

    budget = len(encode(renderer, end)) + 5
    t = await play(renderer, [SEARCH, ANSWER], Ends(), limits=Limits(observation_tokens=budget))
    cut = t.info["observation_tokens_cut"]
    assert cut == len(encode(renderer, DOCS.removesuffix(end))) - 5
    assert text_of(renderer, t).endswith(f"[{cut} tokens cut]{end}{ANSWER}")
    assert t.turns[0].raw == text_of(renderer, t)[len(SEARCH) : -len(ANSWER)], "what was not read is not kept as read"
    whole = await play(renderer, [SEARCH, ANSWER], Ends(), limits=Limits(observation_tokens=500))
    assert whole.turns[0].raw == DOCS
    assert text_of(renderer, whole) == SEARCH + DOCS + ANSWER


async def test_a_forced_answer_is_asked_for_behind_a_cut_observation(renderer):
    t = await play(renderer, [SEARCH, ANSWER], Forced(), limits=Limits(turns=1, observation_tokens=20))
    assert t.info["observation_tokens_cut"]
    assert text_of(renderer, t).endswith(f" tokens cut]\nI must answer now.\n{ANSWER}")


def test_an_end_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"Raw: the text ends with 'll done', not with end='</info>'"):
        Raw("all done", "</info>")


class TestAbort:
    """A stop string that an abort has split between two requests: no engine can see it."""

    @pytest.mark.parametrize("split", [1, 2, 3])
    async def test_the_turn_ends_at_the_tag(self, renderer, split):
        tokens = encode(renderer, SEARCH)
        rest = [*tokens[-split:], *encode(renderer, " and I go on and on")]
        pieces = [
            Generation(tokens[:-split], [-0.25] * (len(tokens) - split), "abort"),
            Generation(rest, [-0.5] * len(rest), "stop", rest[-1]),
            said(renderer, ANSWER),
        ]
        env = SearchR1()
        t = await play(
            renderer, [], env, engine=ScriptedEngine(lambda ids: pieces.pop(0), renderer), aborted=lambda: False
        )
        assert text_of(renderer, t) == SEARCH + DOCS + ANSWER
        assert (env.read[0].matched, env.read[0].tokens) == ("</search>", tuple(tokens))
        assert t.log_probs[: len(tokens)] == [-0.25] * (len(tokens) - split) + [-0.5] * split
        assert len(t.turns) == 2

    async def test_a_tag_written_whole_after_the_abort_is_the_engines_to_find(self, renderer):
        whole = encode(renderer, SEARCH)
        pieces = [
            Generation(encode(renderer, "let me "), [-0.25] * len(encode(renderer, "let me ")), "abort"),
            Generation(whole, [-0.5] * len(whole), "stop", "</search>"),
            said(renderer, ANSWER),
        ]
        engine = ScriptedEngine(lambda ids: pieces.pop(0), renderer)
        t = await play(renderer, [], engine=engine, aborted=lambda: False)
        assert text_of(renderer, t) == f"let me {SEARCH}{DOCS}{ANSWER}"

    async def test_without_stop_strings_nothing_is_cut(self, renderer):
        class Plain(Env):
            async def step(self, action):
                return StepResult(done=True)

        tokens = encode(renderer, SEARCH)
        pieces = [Generation(tokens[:4], [-0.1] * 4, "abort"), Generation(tokens[4:], [-0.1] * len(tokens[4:]), "stop")]
        engine = ScriptedEngine(lambda ids: pieces.pop(0), renderer)
        t = await play(renderer, [], Plain(), engine=engine, aborted=lambda: False)
        assert t.response == tokens


class TestLastTurn:
    async def test_it_buys_exactly_one_turn_joined_to_what_is_pending(self, renderer):
        env = Forced()
        t = await play(renderer, [SEARCH, SEARCH, ANSWER], env, limits=Limits(turns=2))
        assert (t.stop, t.reward, len(t.turns)) == (StopReason.DONE, 1.0, 3)
        assert text_of(renderer, t).endswith(f"{DOCS}\nI must answer now.\n{ANSWER}")
        assert env.reasons == [StopReason.MAX_TURNS]

    async def test_a_model_that_goes_on_searching_has_had_its_turn(self, renderer):
        env = Forced()
        t = await play(renderer, [SEARCH] * 9, env, limits=Limits(turns=2))
        assert (t.stop, len(t.turns), len(env.read), env.reasons) == (
            StopReason.MAX_TURNS,
            3,
            3,
            [StopReason.MAX_TURNS],
        )
        assert t.segment.spans[-1].kind == "sampled"

    async def test_none_ends_the_episode_as_before(self, renderer):
        t = await play(renderer, [SEARCH] * 9, limits=Limits(turns=2))
        assert (t.stop, len(t.turns)) == (StopReason.MAX_TURNS, 2)

    async def test_it_is_not_asked_when_the_env_is_done(self, renderer):
        env = Forced()
        t = await play(renderer, [SEARCH, ANSWER], env, limits=Limits(turns=2))
        assert (t.stop, hasattr(env, "reasons")) == (StopReason.DONE, False)

    async def test_it_must_fit_like_any_observation(self, renderer):
        whole = await play(renderer, [SEARCH, ANSWER], Forced(), limits=Limits(turns=1))
        room = whole.segment.response_length - len(whole.actions[-1].tokens)
        t = await play(renderer, [SEARCH, ANSWER], Forced(), limits=Limits(turns=1, tokens=room))
        assert (t.stop, len(t.turns)) == (StopReason.MAX_TOKENS, 1)

    async def test_messages_are_followed_by_messages(self, renderer):
        class Tools(Env):
            async def step(self, action):
                return StepResult("Go on.")

            async def last_turn(self, reason):
                return "Answer now."

            def score(self, trajectory):
                return 1.0

        t = await play(renderer, ["a", "b"], Tools(), limits=Limits(turns=1))
        assert [m["content"] for m in t.messages[1:]] == ["Go on.", "Answer now.", "b", "Go on."]
        assert t.unread == 1, "what was answered last"

    async def test_text_after_messages_is_a_bug_that_says_so(self, renderer):
        class Mixed(Forced):
            async def step(self, action):
                return StepResult("Go on.")

        engine = ScriptedEngine([SEARCH], renderer)
        t = await run_episode(Mixed(), TASK, engine=engine, renderer=renderer, **arranged(limits=Limits(turns=1)))
        assert (t.failure.kind, t.failure.boundary) == ("bug", "step")
        assert "return what `step` returns" in t.failure.error


async def test_two_hundred_turns_keep_their_ledger(renderer):
    class Endless(SearchR1):
        async def step(self, action):
            return StepResult(Raw(DOCS))

    t = await play(renderer, lambda ids: call("x") if len(ids) % 2 else SEARCH, Endless(), limits=Limits(turns=200))
    assert (t.stop, len(t.turns)) == (StopReason.MAX_TURNS, 200)
    assert t.ledger.trained == t.ledger.sampled


class TestLocalEngine:
    """The same with a model that samples, whatever it samples: the tag is what it happens to say."""

    @pytest.fixture
    async def engine(self, tokenizer):
        pytest.importorskip("torch", reason="the embedded engine needs torch: pip install -e '.[train]'")
        from agentrl.engine.local import LocalEngine
        from agentrl.models import load_model

        engine = LocalEngine(load_model("tiny", device="cpu"), tokenizer)
        yield engine
        await engine.close()

    @staticmethod
    def env(stop, **kwargs):
        class Tagged(Env):
            turn_options = TurnOptions(stop=(stop,), **kwargs)

            async def step(self, action):
                return StepResult(Raw(DOCS)) if action.matched == stop else StepResult(done=True)

            def score(self, trajectory):
                return 0.0

        return Tagged()

    async def sampled(self, engine, renderer):
        """What the model says of itself, without an end."""
        ids = renderer.prompt(TASK.prompt).tokens
        params = {"sampling_seed": 3, "max_new_tokens": 30, "ignore_eos": True}
        return list((await engine.generate(ids, params)).tokens)

    async def test_a_tag_split_over_tokens_with_text_past_it(self, engine, renderer):
        tokens = await self.sampled(engine, renderer)
        stop = renderer.decode(tokens[8:10]) + renderer.decode(tokens[10:11])[:1]
        first = next(n for n in range(31) if stop in renderer.decode(tokens[:n]))
        params = {"sampling_seed": 3, "ignore_eos": True}
        t = await play(
            renderer,
            [],
            self.env(stop),
            engine=engine,
            sampling_params=params,
            limits=Limits(turns=2, max_tokens_per_turn=30),
        )
        assert (t.actions[0].tokens, t.actions[0].matched) == (tuple(tokens[:first]), stop)
        assert t.segment.spans[1].kind == "observation"
        assert t.response[first : first + 2] == encode(renderer, DOCS)[:2]

    async def test_a_tag_split_by_an_abort(self, engine, renderer):
        tokens = await self.sampled(engine, renderer)
        stop = renderer.decode(tokens[8:12])
        first = next(n for n in range(31) if stop in renderer.decode(tokens[:n]))
        assert stop not in renderer.decode(tokens[: first - 1])

        class Aborts:
            """LocalEngine, whose first answer is broken off within the tag."""

            def __init__(self):
                self.asked = 0

            async def generate(self, input_ids, sampling_params, **kwargs):
                self.asked += 1
                if self.asked > 1:
                    return await engine.generate(input_ids, sampling_params, **kwargs)
                cut = {**sampling_params, "max_new_tokens": first - 2}
                answer = await engine.generate(input_ids, cut, **kwargs)
                return Generation(answer.tokens, answer.log_probs, "abort", weight_version=answer.weight_version)

            async def context_length(self):
                return await engine.context_length()

        params = {"sampling_seed": 3, "ignore_eos": True}
        t = await play(
            renderer,
            [],
            self.env(stop),
            engine=Aborts(),
            sampling_params=params,
            aborted=lambda: False,
            limits=Limits(turns=1, max_tokens_per_turn=30),
        )
        # with a seed, a token depends on its position alone: the resumed turn says what the whole one would have
        assert (t.actions[0].tokens, t.actions[0].matched) == (tuple(tokens[:first]), stop)
        assert len(t.turns) == 1


@pytest.mark.parametrize("text", ["Paris", "\n\n<information>Paris is mild.</information>\n\n", " it", "▁", ")x"])
@pytest.mark.parametrize("before", [True, False])
def test_text_in_the_middle_of_a_turn_gains_no_space(text, before):
    tokenizer = sentencepiece_tokenizer(before=before)
    renderer = load_renderer(tokenizer)
    turn = list(renderer.prompt(Raw("The weather in")).tokens)
    action = renderer.parse(turn, "stop", "in")
    tokens = renderer.text(Raw(text), action).tokens
    written = "".join(tokenizer.convert_ids_to_tokens([*turn, *tokens])).replace("▁", " ")
    assert written == (" " if before else "") + "The weather in" + text.replace("▁", " ")
    cut = renderer.text(Raw(f"{text * 20}</a>", end="</a>"), action, budget=8)
    assert "".join(tokenizer.convert_ids_to_tokens(cut.tokens)).endswith("cut]</a>")
