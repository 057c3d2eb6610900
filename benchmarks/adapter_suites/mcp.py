"""Public MCP servers over stdio: a tool's result through the adapter must equal the result in the protocol's client."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from agentrl import EnvFactory, Limits, Task
from agentrl.testing import call, rollout
from benchmarks.adapter_suites.both import Row, renderer, run

CACHE = Path(os.environ["AGENTRL_ADAPTERS_CACHE"])
ENV = "agentrl_envs.adapters.mcp:MCP"
NPM = CACHE / "npm" / "node_modules" / ".bin"
ENTITY = {"name": "a", "entityType": "letter", "observations": ["first"]}
THOUGHT = {"thought": "x", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
Script = list[tuple[str, dict[str, Any]]]
SERVERS: dict[str, tuple[Path, list[str], dict[str, str], Script]] = {
    "mcp-server-time": (
        CACHE / "servers/bin/mcp-server-time",
        [],
        {},
        [
            ("convert_time", {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "Asia/Kolkata"}),
            ("convert_time", {"source_timezone": "Nowhere", "time": "12:00", "target_timezone": "Asia/Kolkata"}),
        ],
    ),
    "mcp-server-git": (
        CACHE / "servers/bin/mcp-server-git",
        [],
        {},
        [("git_log", {"repo_path": "{repo}", "max_count": 1}), ("git_status", {"repo_path": "/"})],
    ),
    "mcp-server-sqlite": (
        CACHE / "old_servers/bin/mcp-server-sqlite",
        ["--db-path", "{folder}/x.db"],
        {},
        [
            ("create_table", {"query": "CREATE TABLE a(x int)"}),
            ("write_query", {"query": "INSERT INTO a VALUES (3)"}),
            ("read_query", {"query": "SELECT * FROM a"}),
            ("read_query", {"query": "SELEC"}),
        ],
    ),
    "server-filesystem": (
        NPM / "mcp-server-filesystem",
        ["{folder}"],
        {},
        [
            ("write_file", {"path": "a.txt", "content": "hello"}),
            ("read_text_file", {"path": "a.txt"}),
            ("read_text_file", {"path": "b.txt"}),
        ],
    ),
    "server-everything": (
        NPM / "mcp-server-everything",
        [],
        {},
        [
            ("echo", {"message": "x"}),
            ("get-sum", {"a": 1, "b": 2}),
            ("get-sum", {"a": "one"}),
            ("get-structured-content", {"location": "New York"}),
            ("get-tiny-image", {}),
        ],
    ),
    "server-memory": (
        NPM / "mcp-server-memory",
        [],
        {"MEMORY_FILE_PATH": "{folder}/memory.json"},
        [("create_entities", {"entities": [ENTITY]}), ("read_graph", {}), ("search_nodes", {"query": "first"})],
    ),
    "server-sequential-thinking": (
        NPM / "mcp-server-sequential-thinking",
        [],
        {},
        [("sequentialthinking", THOUGHT)],
    ),
}
ROOT = Path(__file__).resolve().parent.parent.parent


async def own(command: Path, args: list[str], env: dict[str, str], script: Script, folder: Path) -> list[str]:
    """The texts of the results in the protocol's client."""
    filled = [each.replace("{folder}", str(folder)) for each in args]
    variables = {name: value.replace("{folder}", str(folder)) for name, value in env.items()}
    read = []
    async with Client(StdioServerParameters(command=str(command), args=filled, env=variables)) as client:
        for name, arguments in script:
            result = await client.call_tool(name, arguments)
            texts = [block.text for block in result.content if block.type == "text"]
            left = ["[image: left out, the model reads text]" for block in result.content if block.type == "image"]
            read.append(("Error: " if result.is_error else "") + "\n".join([*texts, *left]))
    return [text.replace(str(folder), "FOLDER") for text in read]


def play(name: str) -> Row:
    command, args, env, given = SERVERS[name]
    script = [(tool, {k: str(ROOT) if v == "{repo}" else v for k, v in said.items()}) for tool, said in given]
    with tempfile.TemporaryDirectory(prefix="agentrl-mcp-") as folder:
        relative = [(tool, _inside(said, folder)) for tool, said in script]
        expected = asyncio.run(own(command, args, env, relative, Path(folder)))

    async def adapted() -> list[str]:
        config = {"command": str(command), "args": args, "env": env, "cwd": "{folder}"}
        async with EnvFactory(ENV, config) as envs:
            turns = [*(call(tool, **said) for tool, said in script), "done"]
            made, task = envs.make(), Task(prompt="go", label="done")
            t = await rollout(made, task, turns, renderer=renderer(), limits=Limits(turns=len(turns)))
            assert t.failure is None, t.failure and t.failure.error
            assert t.reward == 1.0
            folder = str(made.folder)  # type: ignore[attr-defined]
            return [m["content"].replace(folder, "FOLDER") for m in t.messages if m["role"] == "tool"]

    got = asyncio.run(adapted())
    for (tool, _), mine, theirs in zip(script, got, expected, strict=True):
        assert mine.replace("FOLDER/", "") == theirs.replace("FOLDER/", ""), f"{tool}: {mine!r:.90}, not {theirs!r:.90}"
    return {"result": "passed", "episodes": 1, "nonzero": 1, "calls": len(got)}


def _inside(said: dict[str, Any], folder: str) -> dict[str, Any]:
    """A call with absolute paths, as the server of the reference starts in a different folder."""
    return {k: f"{folder}/{v}" if k == "path" else v for k, v in said.items()}


if __name__ == "__main__":
    run(SERVERS, play)
