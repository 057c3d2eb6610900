"""--opd-type sglang: the teacher's log-probs reach the sample beside the Env's reward."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl import ConfigError, adapt
from agentrl.engine.sglang import connections
from tests.slime.questions import PARAMS, question


def said(token: int) -> float:
    return -token / 1000


@pytest.fixture
def Taught(Sample):
    class Taught(Sample):
        teacher_log_probs = None

    return Taught


@asynccontextmanager
async def teacher(answers=()):
    """A server that scores what it is given; before that it gives these answers, one a request. Yields (asked, url)."""
    asked, answers = [], list(answers)

    async def generate(request):
        body = await request.json()
        asked.append(body)
        if answers:
            status, answer = answers.pop(0)
            return web.json_response(answer, status=status)
        scored = [[None if i == 0 else said(token), token, None] for i, token in enumerate(body["input_ids"])]
        return web.json_response({"text": "", "meta_info": {"input_token_logprobs": scored}})

    app = web.Application()
    app.router.add_post("/generate", generate)
    async with TestServer(app) as server:
        yield asked, str(server.make_url("/generate"))


def opd(url: str, **args):
    return {"use_opd": True, "opd_type": "sglang", "rm_url": url, "rollout_temperature": 1.0, **args}


async def test_the_teacher_scores_the_response(Taught, serve, make_args):
    pytest.importorskip("torch", reason="slime needs torch")
    async with serve() as (_, url), teacher() as (asked, teacher_url):
        sample = await adapt(make_args(url, args=opd(teacher_url)), question(Taught), PARAMS)
    assert sample.reward == 1.0, "the Env's reward stays"
    response = sample.tokens[-sample.response_length :]
    assert sample.teacher_log_probs.tolist() == pytest.approx([said(token) for token in response])
    assert [body["input_ids"] for body in asked] == [sample.tokens]
    assert asked[0]["sampling_params"]["temperature"] == 1
    assert (asked[0]["sampling_params"]["max_new_tokens"], asked[0]["return_logprob"]) == (0, True)


async def test_evaluation_and_other_distillation_ask_nobody(Taught, serve, make_args):
    async with serve() as (_, url), teacher() as (asked, teacher_url):
        sample = await adapt(make_args(url, args=opd(teacher_url)), question(Taught), PARAMS, evaluation=True)
        other = await adapt(make_args(url, args=opd(teacher_url, opd_type="megatron")), question(Taught), PARAMS)
        failed = question(Taught, metadata={"break": "reset", "how": "bug"})
        failed = await adapt(make_args(url, args=opd(teacher_url)), failed, PARAMS)
    assert (asked, sample.teacher_log_probs, other.teacher_log_probs) == ([], None, None)
    assert failed.teacher_log_probs.tolist() == [0.0], "slime reads as many as there are tokens"


BAD = {
    "refused": (400, {"error": "no"}),
    "no log-probs": (200, {"meta_info": {}}),
    "nothing": (200, []),
    "too few": (200, {"meta_info": {"input_token_logprobs": [[-1.0, 7, None]]}}),
    "no numbers": (200, {"meta_info": {"input_token_logprobs": [[None, 1, None]] * 500}}),
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
async def test_a_teacher_without_an_answer_is_a_masked_sample(Taught, serve, make_args, answer):
    async with serve() as (_, url), teacher([answer]) as (_, teacher_url):
        sample = await adapt(make_args(url, args=opd(teacher_url)), question(Taught), PARAMS)
    failure = sample.metadata["agentrl"]["failure"]
    assert (failure["kind"], failure["boundary"]) == ("environment", "score")
    assert (sample.status, sample.remove_sample, sum(sample.loss_mask)) == (Taught.Status.FAILED, True, 0)
    assert sample.teacher_log_probs.tolist() == [0.0] * sample.response_length


async def test_a_teacher_that_is_busy_is_asked_again(Taught, serve, make_args, monkeypatch):
    monkeypatch.setattr(connections, "_FIRST_PAUSE_S", 0.001)
    async with serve() as (_, url), teacher([(503, {})] * 8) as (asked, teacher_url):
        sample = await adapt(make_args(url, args=opd(teacher_url)), question(Taught), PARAMS)
    assert (len(asked), sample.reward) == (9, 1.0)


async def test_the_patience_with_a_teacher_has_an_end(Taught, serve, make_args):
    async with serve() as (_, url), teacher([(503, {})] * 8) as (asked, teacher_url):
        sample = await adapt(make_args(url, args=opd(teacher_url), engine_retry_s=0.0), question(Taught), PARAMS)
    assert len(asked) == 1
    assert "HTTP 503" in sample.metadata["agentrl"]["failure"]["error"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"rm_url": None}, r"add --rm-url"),
        ({"rollout_temperature": 0.7}, r"scores at temperature 1, and slime compares at 0.7"),
        ({"custom_rm_path": "slime.rollout.on_policy_distillation.reward_func"}, r"remove --custom-rm-path, which"),
        (
            {"custom_reward_post_process_path": "slime.rollout.on_policy_distillation.post_process_rewards"},
            r"remove --custom-reward-post-process-path",
        ),
    ],
)
async def test_flags_that_it_does_not_go_with(Taught, make_args, args, message):
    with pytest.raises(ConfigError, match=message):
        await adapt(make_args(args=opd("http://127.0.0.1:1/generate", **args)), question(Taught), PARAMS)


async def test_a_host_whose_sample_has_no_place_for_it(Sample, make_args):
    with pytest.raises(ConfigError, match=r"no teacher_log_probs; use --opd-type megatron"):
        await adapt(make_args(args=opd("http://127.0.0.1:1/generate")), question(Sample), PARAMS)
