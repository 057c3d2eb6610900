"""A reward model over HTTP, with the requests and responses of slime's `--rm-type remote_rm`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from agentrl._util.http import HttpService
from agentrl._util.per_loop import PerLoop
from agentrl.errors import ConfigError, InfraError
from agentrl.rewards.grader import Grade, Grader
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import JSON, Reward

_LINGER_S = 0.01
"""The seconds that a batch waits for further requests."""


class RemoteReward(Grader):
    """Asks a server for the reward. The body of a request is `{"prompt", "response", "label"}`, or a list of up to
    `batch` such objects.

    `response` is the model's text. The server returns a number, or a mapping with the number as "score" or "reward",
    and with other numbers, the parts of the reward. For a list of objects, the server returns a list. Without a `url`,
    slime's --rm-url is used.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        batch: int = 1,
        headers: Mapping[str, str] | None = None,
        seconds: float = 60.0,
        retries: int = 3,
        concurrency: int = 64,
    ) -> None:
        self.batch = batch
        self._settings: dict[str, Any] = {
            "headers": dict(headers or {}),
            "seconds": seconds,
            "retries": retries,
            "concurrency": concurrency,
        }
        self._service = HttpService(url=url, **self._settings) if url else None
        self._waiting: PerLoop[list[tuple[JSON, asyncio.Future[JSON]]]] = PerLoop()
        self._sending: set[asyncio.Task[None]] = set()

    def __call__(self, *arguments: Any, **kwargs: Any) -> Awaitable[JSON]:
        if self._service is None and len(arguments) == 2 and getattr(arguments[0], "rm_url", None):
            self._service = HttpService(url=arguments[0].rm_url, **self._settings)
        return super().__call__(*arguments, **kwargs)

    async def grade(self, output: ModelOutput) -> Grade:
        if self._service is None:
            raise ConfigError(
                "remote_rm has no server; give slime --rm-url, or name a RemoteReward(url) of your own file in `reward`"
            )
        body = {"prompt": output.prompt, "response": "\n".join(output.turns), "label": output.label}
        answer = await (self._service.post(body) if self.batch == 1 else self._batched(body))
        return read_grade(answer, self._service.url)

    async def _batched(self, body: JSON) -> JSON:
        loop, waiting = asyncio.get_running_loop(), self._waiting.here(list)
        future: asyncio.Future[JSON] = loop.create_future()
        waiting.append((body, future))
        if len(waiting) >= self.batch:
            self._send(loop)
        elif len(waiting) == 1:
            loop.call_later(_LINGER_S, self._send, loop)
        return await future

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        if batch := self._waiting.pop(loop, None):
            task = loop.create_task(self._ask(batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _ask(self, batch: Sequence[tuple[JSON, asyncio.Future[JSON]]]) -> None:
        batch = [(body, future) for body, future in batch if not future.done()]
        if not batch or self._service is None:
            return
        try:
            answers = await self._service.post([body for body, _ in batch])
            if not isinstance(answers, list) or len(answers) != len(batch):
                raise ConfigError(
                    f"{self._service.url} answered {answers!r:.80} to {len(batch)} requests; a batch needs a list of "
                    "rewards, in order; leave out `batch` if the server takes one at a time"
                )
        except (InfraError, ConfigError) as exc:
            for _, future in batch:
                if not future.done():
                    future.set_exception(exc)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)


def read_grade(answer: JSON, url: str) -> Grade:
    """The reward in the server's response. Raises InfraError for a response without a finite number."""
    mapping = answer if isinstance(answer, Mapping) else {}
    value = next((mapping[key] for key in ("score", "reward") if key in mapping), None) if mapping else answer
    if isinstance(value, bool | int | float) and math.isfinite(value):
        parts = {k: float(v) for k, v in mapping.items() if isinstance(v, int | float) and k not in ("score", "reward")}
        return Reward(float(value), parts)
    raise InfraError(f"{url} answered {answer!r:.100}, which holds no reward")
