r"""NeMo Gym's resource servers: the routes of a server in this process, as its agents call them, on its own examples.

A turn is a text, or a call: {"call": TOOL, "arguments": {...}}. A text ends the episode, and `/verify` gives the
reward. A server with `/step` gives a reward for each turn.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import httpx
import resources_servers
import yaml
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf

from agentrl_envs.adapters.games import GameTurn
from benchmarks.report_card.environment import Environment

PACKAGES = ["nemo-gym"]
ROOT = Path(next(iter(resources_servers.__path__)))
URL = "http://127.0.0.1:1"
Row = dict[str, Any]


AGENTS = ("simple_agent", "gymnasium_agent", "tool_simulation_agent", "non_executing_simple_agent")
"""The agents of NeMo Gym that `Server` plays as."""
LACKS = {
    "code_gen": "needs a Ray cluster",
    "competitive_coding_challenges": "needs the tests of a hub",
    "longmt_eval": "needs the models of a hub",
    "swerl_gen": "needs containers",
    "wmt_translation": "needs the models of a hub",
}


class NotPlayableError(Exception):
    """A server needs what this machine lacks."""


def environments() -> Iterator[Environment]:
    for folder in sorted(each.parent for each in ROOT.glob("*/app.py")):
        name = folder.name
        gold = partial(_right, name, GOLD[name]) if name in GOLD else None
        most = 1.0 if gold else float("inf")
        yield Environment(
            name=name, open=partial(Server, folder), move=move, gold=gold, most=most, turns=12, seeds=len(_rows(name))
        )


@cache
def _rows(name: str) -> list[Row]:
    path = ROOT / name / "data" / "example.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.strip()]


def _boxed(row: Row) -> str:
    return f"\\boxed{{{row.get('expected_answer') or row.get('expected_output') or row.get('expected_result')}}}"


def _call(call: Row) -> str:
    if call.get("type") == "message":
        return str(call["content"])
    arguments = call["arguments"]
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return json.dumps({"call": call["name"], "arguments": arguments})


GOLD: dict[str, Callable[[Row], str | list[str]]] = {
    **dict.fromkeys(("arc_agi", "gpqa_diamond", "mcqa", "math_with_code", "polymath", "string_match"), _boxed),
    "bunsenbench_chemistry_mcq": lambda row: f"<choice>{_option(row)}</choice>",
    "equivalence_rule": lambda row: row["expected_answer"],
    "example_tool_call_multireward": lambda row: [_call(row["expected_call"]), "Done."],
    "graphwalks": lambda row: f"Final Answer: [{', '.join(json.loads(row['expected_answer']))}]",
    "hotpotqa_qa": lambda row: json.dumps({"answer": row["expected_answer"]}),
    "imo_gradingbench": lambda row: row["expected_answer"],
    "math_proof_judgement": lambda row: row["expected_judgement"],
    "moldetox": lambda row: json.dumps({"answer": row["verifier_metadata"]["answer"]}),
    "mrcr": lambda row: row["expected_answer"],
    "proof_genselect": lambda row: f"<best_solution>{row['correct_index']}</best_solution>",
    "ragtruth": lambda row: json.dumps({"hallucination list": ["all"] if row["is_halu"] else []}),
    "reasoning_gym": lambda row: f"<answer>{row['answer']}</answer>",
    "ruler": lambda row: ", ".join(row["outputs"]),
    "single_step_tool_use_with_argument_comparison": lambda row: _call(row["expected_action"]),
    "spartqa": lambda row: row["target"],
    "swe_pivot": lambda row: _call(row["expected_action"]),
    "terminal_multi_harness": lambda row: _call(row["expected_action"]),
    "workplace_assistant": lambda row: [*map(_call, row["ground_truth"]), "Done."],
    "xlam_fc": lambda row: [*map(_call, row["expected_answers"]), "Done."],
}
"""A server -> the right turns for a row, for the servers whose rows name the answer."""


def _option(row: Row) -> str:
    return next(each[row["expected_answer"]] for each in row["options"] if row["expected_answer"] in each)


def _right(name: str, of: Callable[[Row], str | list[str]], seed: int) -> list[str]:
    rows = _rows(name)
    turns = of(rows[seed % len(rows)])
    return [turns] if isinstance(turns, str) else turns


def _app(folder: Path) -> Any:
    """The server's application, with the settings of its first configuration. Raises NotPlayableError."""
    text = (folder / "app.py").read_text(encoding="utf-8")
    parts = [part for file in _configs(folder) for part in (yaml.safe_load(file.read_text()) or {}).values()]
    agents = {name for part in parts if isinstance(part, dict) for name in part.get("responses_api_agents") or ()}
    if "ModelServerRef" in text or "judge_model" in text:
        raise NotPlayableError("asks a judge model")
    if "input_image" in json.dumps(_rows(folder.name)):
        raise NotPlayableError("shows images")
    if folder.name in LACKS or not agents.intersection(AGENTS):
        raise NotPlayableError(LACKS.get(folder.name, f"needs an agent or a sandbox of its own {sorted(agents)}"))
    os.chdir(folder)  # a server is started in its folder
    sys.path.insert(0, str(folder))
    module = import_module(f"resources_servers.{folder.name}.app")
    classes = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    (cls,) = [each for each in classes if issubclass(each, SimpleResourcesServer)]
    servers = [
        each for part in parts if isinstance(part, dict) for each in (part.get("resources_servers") or {}).values()
    ]
    settings = {**(servers or [{}])[0], "host": "127.0.0.1", "port": 1, "name": folder.name, "entrypoint": "app.py"}
    config = cls.model_fields["config"].annotation.model_validate(settings)
    head = BaseServerConfig(host="127.0.0.1", port=1)
    client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create())
    return cls(config=config, server_client=client).setup_webserver()


def _configs(folder: Path) -> list[Path]:
    return sorted(folder.glob("configs/*.y*ml"))


class Server:
    """A session with a server. A seed is the number of a row."""

    def __init__(self, folder: Path) -> None:
        self._rows, self._app = _rows(folder.name), _app(folder)
        self._loop = _loop()
        paths = {route.path for route in self._app.routes}
        self._steps = "/step" in paths
        configs = "".join(file.read_text() for file in _configs(folder))
        self._is_single = "tool_simulation_agent" in configs or "non_executing" in configs

    def begin(self, seed: int) -> str:
        self._row, self._items = self._rows[seed % len(self._rows)], list[Row]()
        transport = httpx.ASGITransport(self._app)
        self._client = httpx.AsyncClient(transport=transport, base_url=URL)  # a session is a cookie
        asked = self._row["responses_create_params"]["input"]
        shown = asked if isinstance(asked, str) else str(asked[-1].get("content"))
        opened = self._post("reset" if self._steps else "seed_session", self._row)
        return self._shown(f"{shown}\n{opened.get('observation') or ''}" if isinstance(opened, dict) else shown)

    def answer(self, text: str) -> GameTurn:
        called = _called(text)
        if self._steps:
            turn = self._post("step", {**self._row, "response": _response([_item(0, called or text)])})
            done = bool(turn["terminated"] or turn["truncated"])
            told = [str(each.get("output")) for each in turn["info"].get("tool_outputs", ())]
            return GameTurn(self._shown("\n".join([*told, turn["observation"] or ""])), turn["reward"], done)
        self._items.append(_item(len(self._items), called or text))
        if called is None or self._is_single:
            verified = self._post("verify", {**self._row, "response": _response(self._items)})
            return GameTurn("", verified["reward"], done=True)
        output = self._post(str(called["call"]), called["arguments"], refuses=True)
        output = output if isinstance(output, str) else json.dumps(output)
        self._items.append({"type": "function_call_output", "call_id": self._items[-1]["call_id"], "output": output})
        return GameTurn(self._shown(output))

    def close(self) -> None:
        self._loop.run_until_complete(self._client.aclose())

    def _shown(self, text: str) -> str:
        tools = [tool for tool in self._row["responses_create_params"].get("tools") or () if tool.get("name")]
        return f"{text}\nTools: {json.dumps(tools)}" if tools else text

    def _post(self, path: str, body: Any, *, refuses: bool = False) -> Any:
        reply = self._loop.run_until_complete(self._client.post(f"/{path}", json=body))
        if reply.is_error and not refuses:
            raise RuntimeError(f"{path}: {reply.status_code} {reply.text[:200]}")
        return reply.text if reply.is_error else reply.json()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _called(text: str) -> Row | None:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) and read.keys() == {"call", "arguments"} else None


def _item(number: int, turn: Row | str) -> Row:
    """A turn as an item of OpenAI's Responses API."""
    if isinstance(turn, str):
        content = [{"type": "output_text", "text": turn, "annotations": []}]
        said = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
        return {**said, "content": content}
    arguments = json.dumps(turn["arguments"])
    return {"type": "function_call", "call_id": f"call_{number}", "name": turn["call"], "arguments": arguments}


def _response(items: list[Row]) -> Row:
    head = {"id": "resp_1", "object": "response", "created_at": 0, "model": "scripted", "output": items}
    return {**head, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


def move(prompt: str, rng: Random) -> str:
    """A call with words of the prompt as arguments, or a text in a form that the prompt shows."""
    text, _, tools = prompt.partition("\nTools: ")
    words = [*text.split()[-60:], str(rng.randint(0, 9))]
    if tools and rng.random() < 0.6:
        tool = rng.choice(json.loads(tools))
        fields = (tool.get("parameters") or {}).get("properties", {})
        made = {"integer": rng.randint(0, 9), "number": rng.randint(0, 9), "boolean": True, "array": [], "object": {}}
        values = {
            key: rng.choice(of["enum"]) if "enum" in of else made.get(str(of.get("type")), rng.choice(words))
            for key, of in fields.items()
        }
        return json.dumps({"call": tool["name"], "arguments": values})
    word = rng.choice(words)
    tags = [f"<{tag}>{word}</{tag}>" for tag in re.findall(r"</(\w+)>", text)[:3]]
    shown = re.findall(r"<(\w+)>([^<>\n]{1,20})</\1>", text)
    given = [f"<{tag}>{within}</{tag}>" for tag, within in shown[:4]]
    return rng.choice([word, f"\\boxed{{{word}}}", json.dumps({"answer": word}), *tags, *given])
