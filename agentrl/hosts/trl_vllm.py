"""TRL's vLLM as an engine of the door to TRL: token ids in, token ids and their log-probs out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentrl.engine.base import AsyncClosing
from agentrl.errors import ConfigError, EngineError, one_line
from agentrl.hosts.turned import TokenRequest, generation
from agentrl.types import Generation, SamplingParams


class VLLMEngine(AsyncClosing):
    """TRL's vLLM as an engine, in both modes: a server, or colocated. TRL has sent the weights before."""

    def __init__(self, trainer: Any, threads: ThreadPoolExecutor) -> None:
        self._vllm, self._threads = trainer.vllm_generation, threads
        self._context = trainer.args.vllm_max_model_length or trainer.model.config.max_position_embeddings
        self._waiting: list[tuple[TokenRequest, asyncio.Future[Generation]]] = []
        self._sending: asyncio.Task[None] | None = None
        if self._vllm.mode == "colocate" and (self._vllm.tensor_parallel_size > 1 or self._vllm.enable_sleep_mode):
            raise ConfigError(
                "agentrl asks a colocated vLLM turn by turn: set vllm_tensor_parallel_size=1 and "
                'vllm_enable_sleep_mode=False, or vllm_mode="server"'
            )

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str = "", rid: str = ""
    ) -> Generation:
        request, loop = TokenRequest([*input_ids], sampling_params), asyncio.get_running_loop()
        if self._vllm.mode == "server":
            return (await loop.run_in_executor(self._threads, self._ask_server, [request]))[0]
        answer: asyncio.Future[Generation] = loop.create_future()
        self._waiting.append((request, answer))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        return await answer

    async def _send(self) -> None:
        """Send waiting requests as batches: a colocated vLLM takes one call at a time."""
        while self._waiting:
            await asyncio.sleep(0)  # episodes that are ready in the same moment join the batch
            batch, self._waiting = [each for each in self._waiting if not each[1].done()], []
            requests, answers = [request for request, _ in batch], [answer for _, answer in batch]
            try:
                ask = self._ask_colocated
                generations = await asyncio.get_running_loop().run_in_executor(self._threads, ask, requests)
            except Exception as exc:  # noqa: BLE001 - the boundary of vLLM: the episodes of the batch fail
                error = EngineError(f"vLLM: {one_line(exc)}")
                for answer in answers:
                    answer.set_exception(error)
                continue
            for answer, said in zip(answers, generations, strict=True):
                if not answer.done():
                    answer.set_result(said)

    def _ask_server(self, requests: Sequence[TokenRequest]) -> list[Generation]:
        params = _vllm_params(requests[0])
        plain = {name: params.pop(name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
        prompts = [[*requests[0].input_ids]]
        try:
            said = self._vllm.vllm_client.generate(prompts=prompts, **plain, generation_kwargs=params)
        except Exception as exc:
            raise EngineError(f"the vLLM server: {one_line(exc)}") from exc
        return [generation(requests[0], said["completion_ids"][0], [values[0] for values in said["logprobs"][0]])]

    def _ask_colocated(self, requests: Sequence[TokenRequest]) -> list[Generation]:
        from vllm import SamplingParams as VLLMSamplingParams

        params = [VLLMSamplingParams(**_vllm_params(request), logprobs=0) for request in requests]
        prompts = [{"prompt_token_ids": [*request.input_ids]} for request in requests]
        outputs = [
            output.outputs[0] for output in self._vllm.llm.generate(prompts, sampling_params=params, use_tqdm=False)
        ]
        return [
            generation(
                request,
                [*output.token_ids],
                [choices[token].logprob for token, choices in zip(output.token_ids, output.logprobs, strict=True)],
                "length" if output.finish_reason == "length" else "stop",
            )
            for request, output in zip(requests, outputs, strict=True)
        ]

    async def abort(self, rid: str | None = None) -> None:
        """Do nothing: a request to vLLM runs to its end."""

    async def context_length(self) -> int:
        return int(self._context)

    async def close(self) -> None:
        pass


def _vllm_params(request: TokenRequest) -> dict[str, Any]:
    """The parameters of a request by vLLM's names."""
    params = request.sampling_params
    return {
        "temperature": params.get("temperature", 1.0),
        "top_p": params.get("top_p", 1.0),
        "top_k": max(params.get("top_k", 0), 0),
        "max_tokens": params["max_new_tokens"],
        "seed": params.get("sampling_seed"),
        "stop": [*(params.get("stop") or ())],
        "stop_token_ids": [*(params.get("stop_token_ids") or ())],
    }
