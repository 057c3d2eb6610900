"""NeMo Gym: compare its `simple_agent` with the adapter, on the same resource server and the same scripted answers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import IO, Any

from agentrl import EnvFactory, Limits
from agentrl.testing import call, rollout
from benchmarks.adapter_suites.both import ExcludedError, Row, player, renderer, run

VENV = Path(os.environ.get("AGENTRL_ADAPTERS_CACHE", ".cache/adapters")) / "nemo_gym"
PARTS = Path(__file__).parent / "nemo_gym_parts"
ENV = f"{Path(__file__).resolve().parents[2]}/examples/nemo_gym/env.py:NemoGym"
ROWS, PLAYS, TURNS = 5, 4, 3


def servers() -> list[Path]:
    """The folders of the resource servers with examples that need no further package."""
    (root,) = VENV.glob("lib/python3*/site-packages/resources_servers")
    files = sorted(root.glob("*/requirements.txt"))
    folders = [file.parent for file in files if file.read_text().split() == _ALONE]
    return [folder for folder in folders if (folder / "data" / "example.jsonl").exists()]


_ALONE = ["-e", "nemo-gym[dev]", "@", "../../"]


@contextmanager
def served(name: str) -> Iterator[tuple[str, str, str]]:
    """The URLs of the resource server, the model and the agent."""
    sockets = [socket.socket() for _ in range(3)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    command = [VENV / "bin" / "python", PARTS / "server.py", name, *ports]
    with tempfile.TemporaryFile("w+") as errors:
        server = subprocess.Popen(command, stderr=errors, stdout=subprocess.DEVNULL, text=True)
        try:
            resource, model, agent = (f"http://127.0.0.1:{port}" for port in ports)
            for url in (resource, model, agent):
                _wait(server, url, errors)
            yield resource, model, agent
        finally:
            server.kill()  # a stopped server would wait for its open requests
            server.wait()


def _wait(server: subprocess.Popen[str], url: str, errors: IO[str]) -> None:
    for _ in range(600):
        if server.poll() is not None:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1]
            raise ExcludedError(f"its server does not start: {last[:160]}")
        try:
            urllib.request.urlopen(f"{url}/openapi.json").close()
            return
        except OSError:
            time.sleep(0.2)
    raise ExcludedError("its server does not start")


def script(row: dict[str, Any], rng: Random) -> list[Any]:
    """Calls of the row's tools, right and wrong, then a text of the row, so that some answers are right."""
    tools = [tool for tool in row["responses_create_params"].get("tools") or () if tool.get("type") == "function"]
    drawn = rng.choices(tools, k=rng.randrange(TURNS)) if tools else []
    turns: list[Any] = [call(tool["name"], **_arguments(tool.get("parameters") or {}, row, rng)) for tool in drawn]
    texts = [*_texts({key: value for key, value in row.items() if key != "responses_create_params"})] or ["yes"]
    text = rng.choice(texts)
    return [
        *turns,
        rng.choice([text, f"\\boxed{{{text}}}", f"Answer: {text}", json.dumps({"answer": text}), "I do not know."]),
    ]


def _arguments(schema: dict[str, Any], row: dict[str, Any], rng: Random) -> dict[str, Any]:
    values = [*_texts(row)]
    made = {"integer": rng.randint(0, 9), "number": rng.randint(0, 9), "boolean": True, "array": [], "object": {}}
    return {
        name: rng.choice(each["enum"]) if "enum" in each else made.get(str(each.get("type")), rng.choice(values))
        for name, each in schema.get("properties", {}).items()
    }


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str | int | float) and 0 < len(str(value)) < 400:
        yield str(value)


def _item(number: int, turn: Any) -> dict[str, Any]:
    """A turn as an item of OpenAI's Responses API."""
    if isinstance(turn, str):
        content = [{"type": "output_text", "text": turn, "annotations": []}]
        return {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
    (called,) = turn["tool_calls"]
    name, arguments = called["function"]["name"], json.dumps(called["function"]["arguments"])
    return {"type": "function_call", "call_id": f"call_{number}", "name": name, "arguments": arguments}


def _post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read() or b"null")


def play(name: str) -> Row:
    (folder,) = [each for each in servers() if each.name == name]
    data = folder / "data" / "example.jsonl"
    rows = [json.loads(line) for line in data.read_text().splitlines() if line.strip()][:ROWS]
    if any("input_image" in json.dumps(row["responses_create_params"]) for row in rows):
        raise ExcludedError("shows images, and the tiny model reads text alone")
    plays = [(n, script(row, player(100 * n + seed))) for n, row in enumerate(rows) for seed in range(PLAYS)]
    with served(name) as (resource, model, agent):
        expected = [_played(model, agent, rows[number], turns) for number, turns in plays]
        adapted = asyncio.run(_adapted(resource, data, plays))
        different = [place for place, ours in enumerate(adapted) if ours != expected[place]]
        for place in [*different]:  # a server may draw what its tools return at random
            number, turns = plays[place]
            again = _played(model, agent, rows[number], turns)
            if again[1] != expected[place][1] and again[0] == adapted[place][0]:
                different.remove(place)
    assert not different, (
        f"{len(different)} of {len(plays)} differ: {[(adapted[i], expected[i]) for i in different[:1]]}"
    )
    return {"result": "passed", "episodes": len(adapted), "nonzero": sum(reward != 0 for reward, _ in adapted)}


def _played(model: str, agent: str, row: dict[str, Any], turns: list[Any]) -> tuple[float, list[str]]:
    """The reward and what the tools returned, by NeMo Gym's own agent."""
    _post(f"{model}/script", [_item(place, turn) for place, turn in enumerate(turns)])
    try:
        answer = _post(f"{agent}/run", row)
    except OSError as exc:
        raise ExcludedError(f"its own agent fails: {exc}"[:160]) from exc
    outputs = answer["response"]["output"]
    return float(answer["reward"]), [each["output"] for each in outputs if each["type"] == "function_call_output"]


async def _adapted(url: str, data: Path, plays: list[tuple[int, list[Any]]]) -> list[tuple[float, list[str]]]:
    """The same of the adapter."""
    episodes = []
    async with EnvFactory(ENV, {"url": url, "data": str(data)}) as envs:
        tasks = [*envs.cls.tasks(envs.config, "train")]
        for number, turns in plays:
            limits = Limits(turns=len(turns) + 1)
            t = await rollout(envs.make(), tasks[number], turns, renderer=renderer(), limits=limits)
            assert t.failure is None, t.failure and t.failure.error
            episodes.append((t.reward or 0.0, [str(each["content"]) for each in t.messages if each["role"] == "tool"]))
    return episodes


if __name__ == "__main__":
    run([folder.name for folder in servers()], play)
