"""A server of agentrl's door, asked by OpenEnv's own client."""

from __future__ import annotations

import asyncio
import threading
import time

from agentrl.hosts.openenv import create_app
from tests.hosts.hosting import spoken


class Served:
    """A server in a thread."""

    def __init__(self, env, **settings) -> None:
        import uvicorn

        config = uvicorn.Config(create_app(env, **settings), host="127.0.0.1", port=0, log_level="error")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> str:
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def __exit__(self, *exc) -> None:
        self.server.should_exit = True
        self.thread.join()


async def play(url, task_id, reply):
    """An episode by OpenEnv's client. Returns the messages and the last result."""
    from openenv.core.generic_client import GenericEnvClient

    async with GenericEnvClient(base_url=url) as client:
        result, messages = await client.reset(task_id=task_id), []
        while not result.done:
            messages += result.observation["messages"]
            turn = reply(messages, result.observation["tools"])
            message = {"role": "assistant", "content": turn} if isinstance(turn, str) else turn
            messages.append(message)
            sent = {key: value for key, value in message.items() if key in ("content", "tool_calls")}
            result = await client.step(sent)
        return messages, result


def plain(message):
    names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    return message["role"], (message.get("content") or "").strip(), names


async def conversations(case, count):
    """Task id, seed of the policy, messages, reward and failure of each episode, of which eight play at a time."""
    settings, eight, tasks = case.all_settings(), asyncio.Semaphore(8), case.tasks(count)

    async def one(task, seed):
        async with eight:
            return await play(url, task.id, spoken(case.reply, seed))

    with Served(case.env, **settings) as url:
        played = await asyncio.gather(*map(one, tasks, range(count)))
        for seed, (task, (messages, last)) in enumerate(zip(tasks, played, strict=True)):
            failure = str((last.observation.get("metadata") or {}).get("failure") or "")
            reward = None if last.reward is None and failure else last.reward or 0.0
            yield task.id, seed, [plain(message) for message in messages], reward, failure
