"""Programs that read what another model answers: judges, rankings, simulated users. An answer that was cut, refused or
never left its thought is none."""

from __future__ import annotations

import pytest

from agentrl.chat import ChatModel
from agentrl.chat.completions import read_reply
from agentrl.chat.simulation import Judge, SimulatedUser, UserConfig
from agentrl.chat.thoughts import WRITTEN, split_thoughts
from agentrl.errors import InfraError
from agentrl.rewards import LLMJudge, RelativeJudge
from agentrl.rewards.judge import verdict
from agentrl.rewards.ranking import read_ranking
from agentrl.trajectory.model_output import ModelOutput
from tests.doubles.grading import WROTE, Served

THOUGHTS = [
    # a text, its thoughts, the rest
    ("Paris", "", "Paris"),
    (" Paris\n", "", " Paris\n"),
    ("<think>a</think>b", "a", "b"),
    ("a</think>b", "a", "b"),
    ("<think>a", "a", ""),
    ("\n <think>\na", "a", ""),
    ("<think>a</think>b\n<think>c", "a\nc", "b"),
    ("a</think>b\n<think>c</think>d", "a\nc", "b\nd"),
    ("A word: <think> is no thought.", "", "A word: <think> is no thought."),
    ("[THINK]a[/THINK]b", "a", "b"),
    ("◁think▷a", "a", ""),
    ("<seed:think>a</seed:think>b", "a", "b"),
    ("<|channel|>analysis<|message|>a<|channel|>final<|message|>b", "a", "b"),
    ("<reasoning>a</reasoning>b", "", "<reasoning>a</reasoning>b"),
]
VERDICTS = [
    # content, finish reason, other fields of the message, the verdict
    ("Good.\nSCORE: 8", "stop", {}, 0.8),
    ("<think>hm</think>Fine.\nSCORE: 7", "stop", {}, 0.7),
    ("hm SCORE: 2\n</think>\nFine.\nSCORE: 7", "stop", {}, 0.7),
    ("<think>maybe\nSCORE: 10\n", "stop", {}, None),
    ("<think>maybe\nSCORE: 10\nbut", "length", {}, None),
    ("maybe\nSCORE: 10", "length", {}, None),
    ("SCORE: 1", "length", {}, None),
    ("", "stop", {}, None),
    (None, "stop", {}, None),
    ("   \n", "stop", {}, None),
    ("I cannot grade this.", "stop", {}, None),
    (None, "stop", {"refusal": "I can't help.\nSCORE: 10"}, None),
    ("SCORE: 10", "content_filter", {}, None),
    ("", "stop", {"reasoning_content": "thinking\nSCORE: 10"}, None),
    ("SCORE: 3", "stop", {"reasoning_content": "SCORE: 10"}, 0.3),
    (None, "length", {"reasoning_content": "SCORE: 9"}, None),
    ("**SCORE: 9**", "stop", {}, 0.9),
    ("SCORE: 9/10", "stop", {}, 0.9),
    ("SCORE: 11", "stop", {}, None),
    ("SCORE: ten", "stop", {}, None),
    ("score: 4", "stop", {}, 0.4),
    ("SCORE: 3\n\nWait.\n\nSCORE: 5", "stop", {}, 0.5),
    ("<think>a</think>b\n<think>c\nSCORE: 10", "stop", {}, None),
    ("<thinking>a\nSCORE: 10", "stop", {}, None),
    ("<thinking>a\nSCORE: 10</thinking>\nSCORE: 2", "stop", {}, 0.2),
    ("[THINK]a\nSCORE: 10", "stop", {}, None),
    ("[THINK]a\nSCORE: 10[/THINK]SCORE: 2", "stop", {}, 0.2),
    ("The answer has a stray <think> in it.\nSCORE: 2", "stop", {}, 0.2),
    ("It says `</think>` twice.\nSCORE: 1", "stop", {}, 0.1),
    ([{"type": "text", "text": "ok\nSCORE: 6"}], "stop", {}, 0.6),
    ([{"type": "thinking", "thinking": "SCORE: 10"}, {"type": "text", "text": "SCORE: 6"}], "stop", {}, 0.6),
    ([{"type": "thinking", "thinking": "SCORE: 10"}], "stop", {}, None),
    ([{"type": "refusal", "refusal": "No.\nSCORE: 10"}], "stop", {}, None),
    ("SCORE: 0", "stop", {}, 0.0),
    ("<think></think>SCORE: 10", "stop", {}, 1.0),
    ("SCORE: 10", "max_tokens", {}, None),
    ("SCORE: 10", "safety", {}, None),
    ("<think>\n\n</think>\n\nSCORE: 10", "stop", {}, 1.0),
    ("<seed:think>x\nSCORE: 10", "stop", {}, None),
    ("SCORE: 7.5", "stop", {}, 0.75),
    ("<reasoning>x\nSCORE: 10", "stop", {}, None),
    ("◁think▷x\nSCORE: 10◁/think▷SCORE: 1", "stop", {}, 0.1),
    ("SCORE: 10", "model_length", {}, None),
    ("SCORE: 10", "refusal", {}, None),
    ("SCORE: 10", "stop", {"refusal": "no"}, None),
]
RANKINGS = [
    # text, whether it is a ranking of E1, E2 and E3
    ("RANKING: E2 > E1 = E3", True),
    ("<think>RANKING: E1 > E2 > E3", False),
    ("<think>RANKING: E1 > E2 > E3</think>", False),
    ("x\nRANKING: E1 > E2 > E3</think>RANKING: E3 > E2 > E1", True),
    ("RANKING: E1 > E2", False),
    ("RANKING: E1 > E2 > E2 > E3", False),
    ("**RANKING: E1 > E2 > E3**", True),
    ("", False),
    ("<thinking>\nRANKING: E1 > E2 > E3", False),
    ("[THINK]\nRANKING: E1 > E2 > E3", False),
    ("It wrote <think> once.\nRANKING: E1 > E2 > E3", True),
    ("RANKING: E2 = E1 > E3", True),
    ("ranking: E3 > E2 > E1", True),
    ("- RANKING: E3 > E2 > E1", True),
    ("RANKING: `E3` > `E2` > `E1`", True),
    ("RANKING: E3, E2, E1", False),
    ("RANKING: E3 > E2 > E4", False),
    ("I rank E3 > E2 > E1", False),
    ("RANKING: E1 > E2 > E3\nRANKING: E3 > E2", False),
    ("RANKING: E1 > E2\n\nRANKING: E3 > E2 > E1", True),
    ("<think>\nRANKING: E1 > E2 > E3\n</think>\nRANKING: E3 > E2 > E1", True),
    ("<think>\nRANKING: E1 > E2 > E3\n</think>\n", False),
    ("RANKING: E1 > E2 > E3\n<think>", True),
    ("ok\n<think>\nRANKING: E1 > E2 > E3", False),
    ("◁think▷RANKING: E1 > E2 > E3", False),
    ("<reasoning>\nRANKING: E1 > E2 > E3\n</reasoning>", False),
    ("<thought>\nRANKING: E1 > E2 > E3\n</thought>RANKING: E2 > E1 > E3", True),
    ("[THINK]x[/THINK]RANKING: E2 > E1 > E3", True),
    ("RANKING: E1 > E2 > E3 </think>", False),
    ("**RANKING:** E1 > E2 > E3", True),
    ("RANKING: e1 > e2 > e3", False),
    ("RANKING: [E1] > [E2] > [E3].", True),
    ("RANKING: E1 > > E2 > E3", False),
    ("", False),
    ("RANKING:", False),
    ("The task says RANKING: E1 > E2 > E3", False),
    ("<|begin_of_thought|>RANKING: E1 > E2 > E3", False),
    ("<|begin_of_thought|>x<|end_of_thought|>RANKING: E1 > E2 > E3", True),
    ("<|channel|>analysis<|message|>RANKING: E1 > E2 > E3", False),
    ("<|channel|>analysis<|message|>x<|channel|>final<|message|>RANKING: E1 > E2 > E3", True),
]


def answer(content, finish="stop", **fields):
    return {"choices": [{"message": {"role": "assistant", "content": content, **fields}, "finish_reason": finish}]}


@pytest.mark.parametrize(("text", "thought", "rest"), THOUGHTS)
def test_thoughts_in_a_text(text, thought, rest):
    assert split_thoughts(text) == (thought, rest)


def test_thoughts_that_a_model_was_asked_to_write():
    assert split_thoughts("<reasoning>a</reasoning>b", WRITTEN) == ("a", "b")
    assert split_thoughts("<thinking>a", WRITTEN) == ("a", "")


@pytest.mark.parametrize(("content", "finish", "fields", "score"), VERDICTS)
def test_a_verdict_is_read_from_a_whole_answer_only(content, finish, fields, score):
    reply = read_reply(answer(content, finish, **fields), "url")
    assert verdict(reply.answer) == score
    if score is None and "SCORE" in f"{content}{fields}" and not reply.answer:
        assert reply.flaw


@pytest.mark.parametrize(("text", "usable"), RANKINGS)
def test_a_ranking_is_read_outside_of_thoughts(text, usable):
    assert (read_ranking(text, ["E1", "E2", "E3"]) is not None) == usable


@pytest.mark.parametrize(
    ("reply", "flaw"),
    [
        (answer("SCORE: 1", "length"), "was cut; allow more tokens"),
        (answer("<think>SCORE: 10"), "is only a thought"),
        (answer("", reasoning_content="SCORE: 10"), "is only a thought"),
        (answer(None, refusal="No.\nSCORE: 10"), "was refused"),
        (answer("SCORE: 10", "content_filter"), "was refused or filtered"),
        (answer(" "), "is empty"),
        (answer("ten"), "ends with 'ten'"),
    ],
)
async def test_a_judge_without_a_verdict_says_why(reply, flaw):
    async with Served(lambda body: reply) as served:
        with pytest.raises(InfraError, match=f"no line SCORE: 0 to 10: its answer {flaw}"):
            await LLMJudge(base_url=served.url, model="m").grade(WROTE)
        assert len(served.bodies) == 2


async def test_a_ranking_that_was_cut_is_none(caplog):
    line = "RANKING: E1 > E2"
    replies = iter([answer(line, "length"), answer(f"<think>{line}"), answer(line)])
    group = [ModelOutput.of_turns([text]) for text in ("one", "two")]
    async with Served(lambda body: next(replies)) as served:
        judge = RelativeJudge(base_url=served.url, model="m", twice=0.0)
        assert [grade.value for grade in await judge.grade_group(group)] == [0.5, 0.5]
        assert sorted(grade.value for grade in await judge.grade_group(group)) == [0.0, 1.0]
    assert "its answer was cut; allow more tokens" in caplog.text


@pytest.mark.parametrize(
    "broken", [answer("I want to", "length"), answer(None, refusal="I cannot."), answer("<think>who am I?"), answer("")]
)
async def test_a_simulated_user_says_no_half_sentence(broken):
    replies = iter([broken, answer("<think>hm</think>I want my money back.")])
    async with Served(lambda body: next(replies)) as served:
        settings = {"base_url": served.url, "model": "m"}
        user = SimulatedUser(ChatModel(**settings), "You are Ada.", UserConfig(speaker=settings))
        assert (await user.hear("Hello?")).text == "I want my money back."
    assert [message["content"] for message in user.messages] == ["Hello?", "I want my money back."]


async def test_a_judge_of_an_env_reads_whole_answers_only():
    replies = iter([answer("<think>\nyes"), answer("yes", "length"), answer("It is not.\nno")])
    async with Served(lambda body: next(replies)) as served:
        assert await Judge(ChatModel(base_url=served.url, model="m")).choose("Is it?") == "no"
