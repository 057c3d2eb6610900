"""NeMo Gym's resource servers: the routes of a server in this process, as its agents call them, on its own examples.

A turn is a text, or JSON: a list of calls, each {"name": TOOL, "arguments": {...}}. A text ends the episode, and
`/verify` gives the reward. A server with `/step` gives a reward for each turn.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import httpx
import resources_servers
import yaml

from agentrl.testing import call
from agentrl_envs.adapters.games import GameTurn
from benchmarks.adapter_suites.nemo_gym import _arguments, _item
from benchmarks.adapter_suites.nemo_gym_parts.server import client, resource_server
from benchmarks.report_card.environment import Environment

PACKAGES = ["nemo-gym"]
ROOT = Path(next(iter(resources_servers.__path__)))
KNOWN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
LOOP = asyncio.new_event_loop()


def environments() -> Iterator[Environment]:
    for folder in sorted(file.parent for file in ROOT.glob("*/app.py")):
        gold, most = None, float("inf")
        if folder.name in KNOWN["right"]:
            gold, most = partial(right, folder), KNOWN["most"].get(folder.name, 1.0)
        opened, seeds = partial(Server, folder), len(_rows(folder))
        yield Environment(name=folder.name, open=opened, move=move, gold=gold, most=most, turns=12, seeds=seeds)


@cache
def _rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "data" / "example.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.exists() else []


def right(folder: Path, seed: int) -> list[str]:
    row, form = _rows(folder)[seed % len(_rows(folder))], KNOWN["right"][folder.name]
    if isinstance(form, str):
        return [form.format_map(row)]
    calls = row[form["calls"]]
    if isinstance(calls, dict) and calls.get("type") == "message":
        return [calls["content"]]
    calls = calls if isinstance(calls, list) else calls.get("calls", [calls])
    return [json.dumps([{"name": each["name"], "arguments": each["arguments"]} for each in calls]), "Done."]


class Server:
    """A session with a server. A seed is the number of a row."""

    def __init__(self, folder: Path) -> None:
        self._rows = _rows(folder)
        configs = [yaml.safe_load(file.read_text()) or {} for file in folder.glob("configs/*.y*ml")]
        parts = [part for config in configs for part in config.values() if isinstance(part, dict)]
        agents = {name for part in parts for name in part.get("responses_api_agents") or ()}
        code = (folder / "app.py").read_text()
        needs = {
            KNOWN["lacks"].get(folder.name, ""): True,
            "asks a judge model": "ModelServerRef" in code or "judge_model" in code,
            "shows images": "input_image" in json.dumps(self._rows),
            f"needs an agent or a sandbox of its own: {sorted(agents)}": not agents.intersection(KNOWN["agents"]),
        }
        if lacks := [need for need, is_lacking in needs.items() if need and is_lacking]:
            raise RuntimeError(lacks[0])
        self._is_single = bool(agents & {"tool_simulation_agent", "non_executing_simple_agent"})
        os.chdir(folder)  # a server is started in its folder
        sys.path.insert(0, str(folder))
        self._app = resource_server(folder.name, 1, client({"resource": 1}))
        self._steps = "/step" in {route.path for route in self._app.routes}

    def begin(self, seed: int) -> str:
        self._row, self._items = self._rows[seed % len(self._rows)], list[Any]()
        transport = httpx.ASGITransport(self._app)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://server")  # a session is a cookie
        asked = self._row["responses_create_params"]["input"]
        shown = asked if isinstance(asked, str) else "\n".join(str(each.get("content", "")) for each in asked)
        opened = self._post("reset" if self._steps else "seed_session", self._row)
        return self._shown(f"{shown}\n{(opened or {}).get('observation') or ''}")

    def answer(self, text: str) -> GameTurn:
        calls = _calls(text)
        turns = [call(name, **given) for name, given in calls] or [text]
        items = [_item(len(self._items) + place, turn) for place, turn in enumerate(turns)]
        self._items = items if self._steps else [*self._items, *items]
        head = {"id": "resp_1", "object": "response", "created_at": 0, "model": "scripted", "output": self._items}
        response = {**head, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        if self._steps:
            turn = self._post("step", {**self._row, "response": response})
            told = [str(each.get("output")) for each in turn["info"].get("tool_outputs", ())]
            shown = self._shown("\n".join([*told, turn["observation"] or ""]))
            return GameTurn(shown, turn["reward"], bool(turn["terminated"] or turn["truncated"]))
        if not calls or self._is_single:
            return GameTurn("", self._post("verify", {**self._row, "response": response})["reward"], done=True)
        outputs = [self._send(name, given).text for name, given in calls]  # also what refuses a call
        for item, output in zip(items, outputs, strict=True):
            self._items.append({"type": "function_call_output", "call_id": item["call_id"], "output": output})
        return GameTurn(self._shown("\n".join(outputs)))

    def close(self) -> None:
        LOOP.run_until_complete(self._client.aclose())

    def _shown(self, text: str) -> str:
        tools = [tool for tool in self._row["responses_create_params"].get("tools") or () if tool.get("name")]
        return f"{text}\nTools: {json.dumps(tools)}" if tools else text

    def _post(self, path: str, body: Any) -> Any:
        reply = self._send(path, body)
        assert not reply.is_error, f"{path}: {reply.status_code} {reply.text[:200]}"
        return reply.json()

    def _send(self, path: str, body: Any) -> httpx.Response:
        return LOOP.run_until_complete(self._client.post(f"/{path}", json=body))


def _calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls of a turn. Empty: the turn is a text."""
    try:
        calls = [(str(each["name"]), each["arguments"]) for each in json.loads(text)]
        return [(name, dict(json.loads(given) if isinstance(given, str) else given)) for name, given in calls]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def move(prompt: str, rng: Random) -> str:
    """A call with words of the prompt as arguments, or a text in a form that the prompt shows."""
    text, _, tools = prompt.partition("\nTools: ")
    words = [*text.split()[-60:], str(rng.randint(0, 9))]
    if tools and rng.random() < 0.6:
        tool = rng.choice(json.loads(tools))
        return json.dumps(
            [{"name": tool["name"], "arguments": _arguments(tool.get("parameters") or {}, {"": words}, rng)}]
        )
    word = rng.choice(words)
    tags = [f"<{tag}>{word}</{tag}>" for tag in re.findall(r"</(\w+)>", text)[:3]]
    shown = [f"<{tag}>{within}</{tag}>" for tag, within in re.findall(r"<(\w+)>([^<>\n]{1,20})</\1>", text)[:4]]
    return rng.choice([word, f"\\boxed{{{word}}}", json.dumps({"answer": word}), *tags, *shown])
