"""Which tokens of a grammar's answer are trained: those that SGLang scores alike without the grammar."""

from __future__ import annotations

import pytest
from aiohttp import web

from agentrl.image import Image
from tests.doubles.sglang import Fake, answer, client

HELD = answer([5, 6, 7], log_probs=[0.0, -0.5, -1.0], weight_version="3")
TAG = {"structural_tag": "{}"}
PIXEL = Image(
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def scored(log_probs, tokens=(5, 6, 7), version="3"):
    """The answer to a request that scores the prompt's last token and those that were sampled."""
    entries = [[log_prob, token, None] for log_prob, token in zip(log_probs, tokens, strict=True)]
    finish = {"type": "length", "length": 0}
    return answer([], finish=finish, input_token_logprobs=[[None, 2, None], *entries], weight_version=version)


async def flags(*replies, params=TAG, images=(), **extra):
    fake = Fake(*replies)
    async with fake.serve() as url, client(url) as engine:
        found = await engine.generate([1, 2], params, images=images, extra=extra)
    return list(found.constrained), fake.bodies


async def test_only_what_the_grammar_changed_is_flagged():
    found, bodies = await flags(HELD, scored([-3.0, -0.5, -1.01]), lora_path="adapter")
    assert found == [True, False, False]
    assert bodies[0]["sampling_params"]["structural_tag"] == "{}"
    assert bodies[1]["input_ids"] == [1, 2, 5, 6, 7]
    assert bodies[1]["logprob_start_len"] == 1
    assert bodies[1]["lora_path"] == "adapter"
    assert bodies[1]["sampling_params"] == {"max_new_tokens": 0, "temperature": 1.0}


async def test_the_last_id_of_a_vocabulary_is_reported_as_0():
    flagged, _ = await flags(HELD, scored([-3.0, -0.5, -1.01], tokens=(5, 6, 0)))
    assert flagged == [True, False, False]


async def test_the_adapter_is_the_one_that_sampled():
    """A trainer names the next one while the reply is sampled."""
    fake = Fake()
    async with fake.serve() as url, client(url, extra={"lora_path": "one"}) as engine:

        async def held(request):
            engine.extra = {"lora_path": "two"}
            return web.json_response(HELD)

        fake.replies += [held, scored([0.0, -0.5, -1.0])]
        assert list((await engine.generate([1, 2], TAG)).constrained) == [False] * 3
    assert [body["lora_path"] for body in fake.bodies] == ["one", "one"]


async def test_without_a_grammar_nothing_is_scored():
    found, bodies = await flags(HELD, params={"temperature": 1.0})
    assert (found, len(bodies)) == ([], 1)


@pytest.mark.parametrize(
    "second",
    [
        scored([0.0, -0.5, -1.0], version="4"),
        scored([0.0, -0.5, -1.0], tokens=(5, 6, 8)),
        scored([0.0, None, -1.0]),
        scored([0.0, float("nan"), -1.0]),
        answer([]),
        (400, {"error": {"message": "LoRA adapter not found"}}),
    ],
    ids=["other weights", "other tokens", "no number", "NaN", "no scores", "refused"],
)
async def test_what_cannot_be_compared_is_not_trained(second):
    found, _ = await flags(HELD, second)
    assert found[1] is True
    assert len(found) == 3


async def test_images_are_scored_with_their_tokens_where_they_end_in_the_prompt():
    """SGLang counts them with all pads; no token that would stand for another image can be among those sampled."""
    params = {**TAG, "logit_bias": {"9": -1e4}}
    held = answer([5, 6, 7], log_probs=[0.0, -0.5, -1.0], weight_version="3", prompt_tokens=30)
    found, bodies = await flags(held, scored([-3.0, -0.5, -1.01]), params=params, images=(PIXEL,))
    assert found == [True, False, False]
    assert bodies[1]["input_ids"] == [1, 2, 5, 6, 7]
    assert bodies[1]["image_data"] == [PIXEL.uri]
    assert bodies[1]["logprob_start_len"] == 29
    assert bodies[1]["sampling_params"] == {"max_new_tokens": 0, "temperature": 1.0}


@pytest.mark.parametrize(
    ("params", "images"),
    [({**TAG, "temperature": 0.5}, ()), (TAG, (PIXEL,)), ({**TAG, "logit_bias": {"6": -1e4}}, (PIXEL,))],
    ids=["another temperature", "pads are not forbidden", "a pad was sampled all the same"],
)
async def test_what_sglang_cannot_score_is_not_trained(params, images):
    found, bodies = await flags(HELD, params=params, images=images)
    assert (found, len(bodies)) == ([True] * 3, 1)
