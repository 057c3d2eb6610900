"""A resource server of NeMo Gym in agentrl: tasks with tools, and a server that verifies the whole response.

The episode is that of NeMo Gym's `simple_agent`: the model gets the row's `responses_create_params` by OpenAI's
Responses API, each call of a tool is a POST to the server, and the server's `/verify` gives the reward. agentrl needs
the server's address and a file of its tasks, not the package.

    agentrl train examples/nemo_gym/env.py:NemoGym --set env_config.url=http://127.0.0.1:8000 \\
        --set env_config.data=example.jsonl
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import BaseModel, ConfigDict, Field

from agentrl import AgentEnv, Endpoint, InfraError, Task, Trajectory


class NemoGymConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    url: str = Field(pattern="^https?://")
    """The resource server, such as http://127.0.0.1:8000."""
    data: Path
    """A JSONL file in NeMo Gym's form; each line has `responses_create_params`."""
    eval_data: Path | None = None
    """A file of held-out tasks, in the same form."""
    request_s: float = Field(600.0, gt=0)
    """Seconds that the server has to respond to a request."""


class NemoGym(AgentEnv):
    config: NemoGymConfig
    _response: dict[str, Any] | None = None

    @classmethod
    def tasks(cls, config: NemoGymConfig, split: str) -> Iterator[Task]:
        path = config.data if split == "train" else config.eval_data
        lines = path.read_text(encoding="utf-8").splitlines() if path else []
        for number, row in enumerate(map(json.loads, filter(None, lines)), 1):
            asked = row["responses_create_params"]["input"]
            prompt = asked if isinstance(asked, str) else str(asked[-1].get("content"))
            yield Task(id=f"{split}-{number}", prompt=prompt, metadata={"row": row})

    async def run(self, task: Task, endpoint: Endpoint) -> str | None:
        """Play the episode. Returns the text of the last message."""
        row, timeout = task.metadata["row"], aiohttp.ClientTimeout(total=self.config.request_s)
        cookies = aiohttp.CookieJar(unsafe=True)  # sessions are cookies, also of servers without a name
        self._server = await self.enter(aiohttp.ClientSession(timeout=timeout, cookie_jar=cookies))
        await self._post("seed_session", row)
        request = {**row["responses_create_params"], "model": endpoint.model}
        asked, outputs = request["input"], list[Any]()
        asked = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        headers = {"Authorization": f"Bearer {endpoint.key}"}
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout()) as model:
            while True:
                body = {**request, "input": [*asked, *outputs]}
                async with model.post(f"{endpoint.openai}/responses", json=body) as answer:
                    if not answer.ok:  # the context is full, or a limit is reached
                        break
                    response = await answer.json()
                calls = [item for item in response["output"] if item["type"] == "function_call"]
                outputs += response["output"]
                self._response = {**response, "output": outputs}
                speaks = any(item["type"] == "message" for item in response["output"])
                if response.get("incomplete_details") or (speaks and not calls):
                    break
                outputs += [await self._called(call) for call in calls]
        texts = [item["content"][0]["text"] for item in outputs if item["type"] == "message" and item["content"]]
        return texts[-1] if texts else None

    async def score(self, trajectory: Trajectory) -> float:
        """The reward of the server; 0 without any response."""
        if self._response is None:
            return 0.0
        body = {**self.task.metadata["row"], "response": self._response}
        return float(json.loads(await self._post("verify", body))["reward"])

    async def _called(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        """The result of a call. The model reads the server's refusals."""
        try:
            output = await self._post(call["name"], json.loads(call["arguments"]), refuses=True)
        except json.JSONDecodeError as exc:
            output = json.dumps({"error": f"Invalid tool call arguments: {exc!r}"})
        return {"type": "function_call_output", "call_id": call["call_id"], "output": output}

    async def _post(self, path: str, body: Any, *, refuses: bool = False) -> str:
        try:
            async with self._server.post(f"{self.config.url.rstrip('/')}/{path}", json=body) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise InfraError(f"NeMo Gym's server, {path}: {exc!r:.300}") from exc
        if not answer.ok and not refuses:
            raise InfraError(f"NeMo Gym's server, {path}: {answer.status} {text[:300]}")
        return text
