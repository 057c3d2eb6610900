"""TRL's vLLM as an engine, by the interface of TRL 1.16.0: vLLM itself needs a GPU."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import pytest

from agentrl import ConfigError, EngineError
from agentrl.hosts.trl_vllm import VLLMEngine

PARAMS = {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 3, "stop_token_ids": [9], "stop": ["</a>"]}
SENT = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 0,
    "max_tokens": 3,
    "seed": 5,
    "stop": ["</a>"],
    "stop_token_ids": [9],
}


class LLM:
    """A colocated vLLM: takes one call at a time."""

    def __init__(self) -> None:
        self.calls, self.running = [], threading.Lock()

    def generate(self, prompts, sampling_params, use_tqdm):
        assert self.running.acquire(blocking=False), "two calls at once"
        try:
            self.calls.append([prompt["prompt_token_ids"] for prompt in prompts])
            return [self.output(prompt["prompt_token_ids"]) for prompt in prompts]
        finally:
            self.running.release()

    @staticmethod
    def output(ids):
        if ids == [404]:
            raise ValueError("out of memory")
        tokens = (ids[0], 9)
        log_probs = [{3: SimpleNamespace(logprob=-0.5), token: SimpleNamespace(logprob=-token / 8)} for token in tokens]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, logprobs=log_probs, finish_reason="stop")])


@pytest.fixture
def vllm(monkeypatch):
    module = ModuleType("vllm")
    module.seen = []
    module.SamplingParams = lambda **params: module.seen.append(params)
    monkeypatch.setitem(sys.modules, "vllm", module)
    return module


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def engine(threads, *, mode="colocate", sleep=False, parallel=1, **parts):
    vllm = SimpleNamespace(mode=mode, tensor_parallel_size=parallel, enable_sleep_mode=sleep, **parts)
    model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=512))
    args = SimpleNamespace(vllm_max_model_length=None)
    return VLLMEngine(SimpleNamespace(vllm_generation=vllm, args=args, model=model), threads)


async def test_episodes_that_ask_together_share_a_call(vllm, threads):
    llm = LLM()
    colocated = engine(threads, llm=llm)
    asked = [colocated.generate([number], {**PARAMS, "sampling_seed": 5}) for number in range(20, 26)]
    for number, said in enumerate(await asyncio.gather(*asked), 20):
        assert (said.tokens, said.log_probs) == ([number, 9], [-number / 8, -9 / 8])
        assert (said.finish_reason, said.matched) == ("stop", 9)
    assert len(llm.calls) == 1
    assert vllm.seen[0] == {**SENT, "logprobs": 0}
    assert await colocated.context_length() == 512


async def test_an_error_of_vllm_fails_its_batch_alone(vllm, threads):
    colocated = engine(threads, llm=LLM())
    failed = await asyncio.gather(*(colocated.generate([each], PARAMS) for each in (404, 7)), return_exceptions=True)
    assert [str(error) for error in failed] == ["vLLM: ValueError: out of memory"] * 2
    assert isinstance(failed[0], EngineError)
    assert (await colocated.generate([7], PARAMS)).tokens == [7, 9]


async def test_a_cancelled_episode_disturbs_no_other(vllm, threads):
    colocated = engine(threads, llm=LLM())
    first, second = (asyncio.create_task(colocated.generate([each], PARAMS)) for each in (7, 8))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).tokens == [8, 9]


async def test_a_server_is_asked_for_each_turn(threads):
    seen = []

    def generate(prompts, **params):
        seen.append((prompts, params))
        if prompts == [[404]]:
            raise ConnectionError("refused")
        return {"completion_ids": [[5, 6, 7]], "logprobs": [[[-1.0], [-2.0], [-3.0]]]}

    served = engine(threads, mode="server", vllm_client=SimpleNamespace(generate=generate))
    said = await served.generate([1, 2], {**PARAMS, "sampling_seed": 5})
    assert (said.tokens, said.log_probs, said.finish_reason) == ([5, 6, 7], [-1.0, -2.0, -3.0], "length")
    ((prompts, params),) = seen
    assert (prompts, {**params.pop("generation_kwargs"), **params}) == ([[1, 2]], SENT)
    with pytest.raises(EngineError, match="the vLLM server: ConnectionError: refused"):
        await served.generate([404], PARAMS)


@pytest.mark.parametrize("setting", [{"sleep": True}, {"parallel": 2}])
def test_a_colocated_vllm_that_cannot_be_asked_turn_by_turn(threads, setting):
    with pytest.raises(ConfigError, match='or vllm_mode="server"'):
        engine(threads, **setting)
