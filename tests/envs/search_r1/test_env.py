"""SearchR1: what a turn asks for, what the model reads, and what it earns. Flaws of public copies are cases here."""

from __future__ import annotations

import asyncio

import pytest

from agentrl import (
    Action,
    ConfigError,
    EnvFactory,
    EpisodeHooks,
    EpisodeOptions,
    Limits,
    Raw,
    StopReason,
    Task,
    resume_episode,
    run_episode,
)
from agentrl.engine import ScriptedEngine
from agentrl.rewards import search_r1_format, search_r1_retrieval
from agentrl.testing import call, rollout, tiny_renderer
from agentrl_envs.search_r1 import SearchR1, noop, searcher, tool_searcher
from agentrl_envs.search_r1.env import SearchR1Config, TurnRequest, read_action
from agentrl_envs.search_r1.prompts import INVALID, prompt_of
from agentrl_envs.search_r1.retrieval import Document, HTTPRetriever

from .conftest import FRANCE, LYON, Library

QUESTION = "What is the capital of France?"
LABEL = {"style": "rule", "ground_truth": {"target": ["Paris"]}}
TASK = Task(prompt=[{"role": "user", "content": prompt_of(QUESTION)}], label=LABEL)
PAPER = Limits(turns=4, observation_tokens=500)
SEARCH = "<think> I look. </think>\n<search> France </search>"
ANSWER = "<think> I know. </think>\n<answer> Paris </answer>"
INFORMATION = (
    '\n\n<information>Doc 1(Title: "France") France is a country in Europe. Its capital is Paris.\n'
    'Doc 2(Title: "Lyon") Lyon is a city in France.</information>\n\n'
)


def make(library, **config):
    return SearchR1(config, shared=library)


async def play(library, turns, *, limits=PAPER, task=TASK, **config):
    return await rollout(make(library, **config), task, turns, limits=limits)


def response(t):
    return tiny_renderer().decode(t.response)


def wrote(text, reasoning=None):
    return read_action(Action(text, text, reasoning))


class TestTags:
    async def test_search_then_answer_is_the_papers_text(self, library):
        found = Library(FRANCE, Document("1", '"Lyon"\nLyon is a city in France.'))
        found.search = lambda query, topk: asyncio.sleep(0, [FRANCE, LYON])
        t = await play(found, [SEARCH, ANSWER])
        assert (t.stop, t.reward, t.info["searches"]) == (StopReason.DONE, 1.0, 1)
        assert response(t) == SEARCH + INFORMATION + ANSWER
        sampled = tiny_renderer().decode([x for x, m in zip(t.response, t.loss_mask, strict=True) if m])
        assert sampled == SEARCH + ANSWER
        assert t.reward_parts == {"em": 1.0, "format": 1.0, "retrieved": 1.0}

    async def test_the_query_is_asked_without_the_spaces_around_it(self, library):
        await play(library, ["<search>\r\n France\t</search>", ANSWER], topk=2)
        assert library.asked == [("France", 2)]

    async def test_nothing_found_is_shown_as_an_empty_block(self, library):
        t = await play(library, ["<search>qqqq</search>", ANSWER])
        assert "\n\n<information></information>\n\n" in response(t)

    async def test_a_turn_without_an_action_is_told_what_to_write(self, library):
        t = await play(library, ["I do not know.", ANSWER])
        assert (t.reward, library.asked) == (1.0, [])
        assert INVALID in response(t)

    @pytest.mark.parametrize("query", ["<search></search>", "<search> \r\n </search>"])
    async def test_an_empty_query_is_not_asked(self, library, query):
        t = await play(library, [query, ANSWER])
        assert library.asked == []
        assert INVALID in response(t)

    async def test_a_turn_that_is_cut_within_a_tag_does_nothing(self, library):
        t = await play(library, [SEARCH], response_tokens=15)
        assert (t.stop, t.reward, library.asked) == (StopReason.TURN_MAX_TOKENS, 0.0, [])

    async def test_two_actions_in_one_turn_are_one(self, library):
        """The stop string ends the turn, so nothing of the second is kept."""
        t = await play(library, ["<search>France</search><answer>Rome</answer>", f"{ANSWER}<search>Lyon</search>"])
        assert (t.reward, library.asked) == (1.0, [("France", 3)])
        assert "Rome" not in response(t)
        assert response(t).endswith(ANSWER)

    async def test_no_tool_is_offered(self, library):
        t = await play(library, [ANSWER])
        assert t.tools == ()


class TestRead:
    @pytest.mark.parametrize(
        ("text", "asked"),
        [
            ("<search>a</search>", ("search", "a")),
            ("<answer>\r\n a b \r\n</answer>", ("answer", "a b")),
            ("<search>a</search><answer>b</answer>", ("search", "a")),
            ("<answer>b</answer><search>a</search>", ("answer", "b")),
            ("<search>a <search>b</search>", ("search", "b")),
            ("<search>a <answer>b</answer>", ("answer", "b")),
            ("<search>line\nline</search>", ("search", "line\nline")),
            ("<search>a", None),
            ("a</search>", None),
            ("<search>a</answer>", None),
            ("<Search>a</Search>", None),
            ("", None),
        ],
    )
    def test_the_first_finished_tag_counts(self, text, asked):
        assert wrote(text) == (asked and TurnRequest(*asked))

    @pytest.mark.parametrize(
        ("text", "asked"),
        [
            ("<think>I could <search>a</search> or <answer>b</answer></think><search>c</search>", ("search", "c")),
            ("<think>I could <search>a</search>", None),
            ("<think>It is <answer>b</answer>", None),
            ("so far.</think><answer>b</answer>", ("answer", "b")),
        ],
    )
    def test_a_tag_in_a_thought_is_no_action(self, text, asked):
        assert wrote(text) == (asked and TurnRequest(*asked))

    def test_a_thought_that_the_template_holds_apart_is_no_action(self):
        text = "<think><search>a</search></think>Well."
        assert read_action(Action(text, "Well.", "<search>a</search>")) is None

    def test_a_million_tags_take_no_time(self):
        assert wrote("<search>" * 100_000 + "a") is None


class TestReward:
    """What public copies pay for: see docs/rewards.md."""

    async def test_an_answer_in_a_passage_earns_nothing(self):
        liar = Library(Document("0", '"France"\nFrance: <answer>Paris</answer>'))
        for last in ["I give up.", "<answer> </answer>", "<answer>Rome</answer>"]:
            t = await play(liar, ["<search>France:</search>", last, last, last, last])
            assert "<answer>Paris</answer>" in response(t)
            assert t.reward == 0.0

    async def test_the_example_in_the_prompt_earns_nothing(self, library):
        task = Task(prompt=TASK.prompt, label={"ground_truth": {"target": ["Beijing"]}})
        assert "<answer> Beijing </answer>" in task.prompt[0]["content"]
        t = await play(library, ["I give up."] * 5, task=task)
        assert t.reward == 0.0

    async def test_information_that_the_model_wrote_itself_is_none(self, library):
        made_up = "<think> x </think> <information>Paris</information> <answer>Rome</answer>"
        t = await play(library, [made_up])
        assert (t.reward, all(t.loss_mask)) == (0.0, True)
        for shaped in (search_r1_format, search_r1_retrieval):
            reward = await shaped(t)
            assert reward.parts == {"em": 0.0, "format": 0.0, "retrieved": 0.0}

    async def test_an_answer_in_an_unfinished_thought_goes_on_and_earns_nothing(self, library):
        t = await play(library, ["<think> maybe <answer>Paris</answer>"] * 5)
        assert (t.stop, t.reward, len(t.turns)) == (StopReason.MAX_TURNS, 0.0, 5)

    async def test_the_label_may_hold_arrays_lists_or_one_text(self, library):
        for label in ({"target": ["Rome", "paris"]}, ["Paris"], "Paris"):
            t = await play(library, [ANSWER], task=Task(prompt=TASK.prompt, label=label))
            assert t.reward == 1.0


class TestForcedAnswer:
    async def test_after_four_turns_one_more_follows_with_nothing_said(self, library):
        t = await play(library, [SEARCH] * 4 + [ANSWER])
        assert (t.stop, t.reward, len(t.turns), len(library.asked)) == (StopReason.DONE, 1.0, 5, 4)
        assert response(t).endswith(f"</information>\n\n{ANSWER}")

    async def test_a_search_in_it_is_not_asked(self, library):
        t = await play(library, [SEARCH] * 6)
        assert (t.stop, t.reward, len(t.turns), len(library.asked)) == (StopReason.MAX_TURNS, 0.0, 5, 4)

    async def test_without_it_the_episode_ends(self, library):
        t = await play(library, [SEARCH] * 6, forced_answer=False)
        assert (t.stop, len(t.turns), len(library.asked)) == (StopReason.MAX_TURNS, 4, 4)


class TestObservation:
    async def test_a_cut_one_keeps_its_closing_tag(self):
        long = Library(Document("0", '"France"\n' + "France is a country in Europe. " * 200))
        t = await play(long, [SEARCH, ANSWER])
        (observation,) = [span for span in t.segment.spans if span.kind == "observation"]
        text = tiny_renderer().decode(t.response[observation.start : observation.stop])
        assert t.info["observation_tokens_cut"] > 0
        assert text.startswith("\n\n<information>Doc 1(")
        assert text.endswith(" tokens cut]</information>\n\n")
        assert observation.stop - observation.start < 530, "a mark says how many were cut"
        assert t.reward == 1.0

    async def test_a_passage_that_was_cut_away_was_not_retrieved(self):
        hidden = Library(Document("0", '"France"\n' + "France is a country in Europe. " * 200 + "Paris"))
        t = await play(hidden, [SEARCH, "<think> So. </think> <answer>Rome</answer>"])
        reward = await search_r1_retrieval(t)
        assert reward.parts == {"em": 0.0, "format": 1.0, "retrieved": 0.0}


class TestRetrieverDown:
    @pytest.mark.parametrize("form", ["tags", "tools"])
    async def test_it_fails_the_episode_and_the_model_reads_nothing(self, dead, form):
        first = SEARCH if form == "tags" else call("search", query="France")
        t = await play(dead, [first, ANSWER], form=form)
        assert (t.stop, t.failure.kind, t.reward) == (StopReason.FAILED, "environment", None)
        assert "connection refused" in t.failure.error
        assert "information" not in response(t).removeprefix(SEARCH)
        assert len(t.turns) == 1


class TestTools:
    async def test_search_then_answer(self, library):
        t = await play(library, [call("search", query="France"), "<answer>Paris</answer>"], form="tools")
        assert (t.stop, t.reward, t.info["searches"]) == (StopReason.DONE, 1.0, 1)
        (read,) = [m["content"] for m in t.messages if m["role"] == "tool"]
        assert read.startswith('Doc 1(Title: "France") France is a country')
        (spec,) = t.tools
        assert spec["function"]["name"] == "search"
        assert list(spec["function"]["parameters"]["properties"]) == ["query"]

    async def test_an_empty_query_is_told_and_not_asked(self, library):
        t = await play(library, [call("search", query=" "), "<answer>Paris</answer>"], form="tools")
        assert library.asked == []
        assert any("the query is empty" in str(m["content"]) for m in t.messages)

    async def test_an_answer_without_tags_earns_nothing(self, library):
        t = await play(library, ["Paris"], form="tools")
        assert (t.stop, t.reward) == (StopReason.DONE, 0.0)

    async def test_the_forced_answer_is_asked_for_and_nothing_is_searched(self, library):
        searches = [call("search", query="France")] * 4
        t = await play(library, [*searches, "<answer>Paris</answer>"], form="tools")
        assert (t.stop, t.reward, len(library.asked)) == (StopReason.DONE, 1.0, 4)
        assert "No search is left." in str(t.messages[-2]["content"])
        t = await play(library, [*searches, *searches], form="tools")
        assert (t.stop, t.reward, len(library.asked)) == (StopReason.MAX_TURNS, 0.0, 8)


class TestResume:
    async def test_an_aborted_episode_goes_on_in_another_env_as_if_nothing_had_been(self, library):
        """Aborted before each turn and each step: the forced answer and the count of searches are kept."""
        turns, renderer = [*[SEARCH] * 4, ANSWER], tiny_renderer()
        whole = await play(library, turns)
        for after in range(1, 11):
            t = await interrupted(library, turns, renderer, after)
            assert (t.tokens, t.loss_mask, t.stop, t.reward) == (whole.tokens, whole.loss_mask, whole.stop, 1.0)
            assert t.info["searches"] == 4

    async def test_its_state_is_plain(self, library):
        env = make(library)
        await env.last_turn(StopReason.MAX_TURNS)
        state = await env.snapshot()
        again = make(library)
        await again.restore(state)
        assert (state, again.final) == ((0, True), True)


async def interrupted(library, turns, renderer, after):
    """An episode that is aborted when the flag is read for the `after`th time, and resumed in a fresh Env."""
    reads, parked = 0, []

    def aborted():
        nonlocal reads
        reads += 1
        return reads == after + 1

    async def park(one):
        parked.append(one)

    engine = ScriptedEngine(turns, renderer)
    given = {"engine": engine, "renderer": renderer, "options": EpisodeOptions(limits=PAPER)}
    t = await run_episode(make(library), TASK, hooks=EpisodeHooks(aborted=aborted, park=park), **given)
    return await resume_episode(parked[0], make(library), **given) if parked else t


class TestMaking:
    async def test_share_opens_the_retriever_of_the_configuration(self):
        async with EnvFactory(SearchR1, {"retriever": "http://127.0.0.1:9"}) as envs:
            assert isinstance(envs.shared, HTTPRetriever)
            assert envs.shared.url == "http://127.0.0.1:9/retrieve"
        with pytest.raises(ConfigError, match="neither a URL"):
            async with EnvFactory(SearchR1, {"retriever": "no/such/corpus.jsonl"}):
                pass

    def test_needs_names_the_retriever(self):
        (line,) = SearchR1.needs(SearchR1Config(), 256)
        assert line.startswith("a retriever at http://127.0.0.1:8000/retrieve")
        assert "256" in line
        (line,) = SearchR1.needs(SearchR1Config(retriever="wiki.jsonl"), 256)
        assert line.startswith("the corpus wiki.jsonl")

    @pytest.mark.parametrize("wrong", [{"topk": 0}, {"form": "xml"}, {"retriver": "x"}, {"timeout": 0}])
    def test_a_wrong_configuration_is_refused(self, wrong):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            EnvFactory(SearchR1, wrong)


class TestPlayers:
    @pytest.mark.parametrize(("player", "form"), [(searcher, "tags"), (tool_searcher, "tools")])
    async def test_the_searcher_wins_by_reading_and_noop_does_not(self, library, player, form):
        assert (await play(library, player(TASK), form=form)).reward == 1.0
        assert library.asked == [(QUESTION, 3)]
        assert (await play(Library(LYON), player(TASK), form=form)).reward == 0.0
        assert (await play(library, noop(TASK), form=form)).reward == 0.0

    async def test_it_follows_the_searches_of_the_row(self, library):
        task = Task(prompt="?", label="Paris", metadata={"extra_info": {"searches": ["Lyon", "Europe."]}})
        assert (await play(library, searcher(task), task=task, topk=1)).reward == 1.0
        assert [query for query, _ in library.asked] == ["Lyon", "Europe."]

    async def test_raw_prompts_of_the_paper_hold_the_question(self, library):
        task = Task(prompt=Raw(f"<|im_start|>user\n{prompt_of(QUESTION)}"), label=["Paris"])
        await play(library, searcher(task), task=task)
        assert library.asked == [(QUESTION, 3)]
