"""CPU time of a request in the gateway, compared with slime's OpenAI adapter in the same run.

SLIME_SRC=/path/to/slime python -m benchmarks.gateway_cost        (without SLIME_SRC: agentrl alone)

The agents and the engine run in a separate process. The engine responds to every request at once with the same 25
tokens: a call, or an answer in the last turn. A tool result has 600 tokens. The agents use Chat Completions. The
benchmark measures the CPU time of the gateway's process, from the first request of an episode to its sample, so the
load of clients and of other programs does not count. Contenders are timed in turn, round by round. The results are of
the best round of each.

The comparison favours slime: two regular expressions replace its parsers.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

from aiohttp import ClientSession, TCPConnector, web

from agentrl.engine.sglang import SGLangEngine
from agentrl.episode.options import EpisodeOptions
from agentrl.gateway.serving.server import Gateway
from agentrl.gateway.session.session import Session
from agentrl.render import load_renderer
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Limits
from benchmarks import peers
from benchmarks.peers import SLIME_SRC, TOOLS, engine_body, load_tokenizer, save, slime_missing

QUESTION = "Which river flows through the capital of France?"
SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query": "the river of the capital"}}\n</tool_call><|im_end|>'
ANSWER = "It is the Seine.<|im_end|>"
RESULT = "The river Seine flows through Paris, and past it. " * 54
HISTORY = 70_000
"""Tokens of the first message in the longest case."""


@dataclass(frozen=True)
class Case:
    """A kind of episodes: the number of turns and the lengths."""

    turns: int
    streamed: bool = False
    history: int = 0
    """Tokens of the first message; 0 stands for a short question."""
    episodes: int = 8
    """The number of episodes that are played at the same time."""

    @property
    def rounds(self) -> int:
        """The number of rounds. Short episodes have more rounds, as noise from other programs matters more."""
        return max(5, 100 // self.turns)


CASES = (
    *(Case(turns) for turns in (2, 8, 32)),
    *(Case(turns, streamed=True) for turns in (2, 8, 32)),
    Case(8, history=HISTORY, episodes=2),
)


@dataclass(frozen=True)
class Job:
    """An order to the agents' process: the episodes to play."""

    url: str
    keys: Sequence[str]
    case: Case
    question: str


class Engine:
    """The engine. It responds to each session with calls, and in the last turn with an answer."""

    def __init__(self, tokenizer: Any) -> None:
        self.turns = 1
        self._seen: Counter[str] = Counter()
        self._call, self._last = (engine_body(tokenizer, text) for text in (SEARCH, ANSWER))

    async def generate(self, request: web.Request) -> web.Response:
        await request.read()
        session = request.headers["X-SMG-Routing-Key"]
        self._seen[session] += 1
        body = self._call if self._seen[session] < self.turns else self._last
        return web.Response(body=body, content_type="application/json")


async def ask(client: ClientSession, job: Job, key: str) -> None:
    """Run an agent: it executes the model's calls, until the model answers."""
    messages: list[Any] = [{"role": "user", "content": job.question}]
    for _ in range(job.case.turns):
        body = {"model": "m", "messages": messages, "tools": TOOLS, "stream": job.case.streamed}
        url = f"{job.url}/v1/chat/completions"
        async with client.post(url, json=body, headers={"Authorization": f"Bearer {key}"}) as said:
            assert said.status == 200, await said.text()
            text = await said.text()
        message = streamed(text) if job.case.streamed else json.loads(text)["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in message.get("tool_calls") or ()
        ]
        messages += [message, *results]
    assert "Seine" in message["content"], message


def streamed(text: str) -> dict[str, Any]:
    """The message that the pieces of a stream make."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for line in text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                delta = choice["delta"]
                message["content"] += delta.get("content") or ""
                calls = [
                    {key: value for key, value in call.items() if key != "index"}
                    for call in delta.get("tool_calls") or ()
                ]
                if calls:
                    message.setdefault("tool_calls", []).extend(calls)
    return message


def agents(there: Connection) -> None:
    """The process of the engine and of the agents."""

    async def main() -> None:
        engine = Engine(load_tokenizer())
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/generate", engine.generate)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        there.send(runner.addresses[0][1])
        async with ClientSession(connector=TCPConnector(limit=0)) as client:
            while (job := await asyncio.to_thread(there.recv)) is not None:
                engine.turns = job.case.turns
                await asyncio.gather(*(ask(client, job, key) for key in job.keys))
                there.send(True)
        await runner.cleanup()

    asyncio.run(main())


@contextmanager
def playing() -> Iterator[tuple[str, Connection]]:
    """Start the agents' process. Yields the engine's URL, and the connection for jobs."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=agents, args=(there,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}", here
    finally:
        here.send(None)
        process.join(10)


@dataclass(frozen=True)
class Contender:
    """A gateway that runs in this process."""

    url: str
    begin: Callable[[str], None]
    """Open a session."""
    end: Callable[[str], Awaitable[Sequence[int]]]
    """Close a session. Returns the number of tokens of each sample."""


@asynccontextmanager
async def ours(engine_url: str, tokenizer: Any) -> AsyncIterator[Contender]:
    engine, renderer = SGLangEngine(engine_url), load_renderer(tokenizer)
    options = EpisodeOptions(limits=Limits(turns=1000, context=1_000_000))
    sessions: dict[str, Session] = {}

    def begin(key: str) -> None:
        sessions[key] = Session(key)
        sessions[key].play(engine, renderer, options, None, key)
        gateway.add(sessions[key])

    async def end(key: str) -> Sequence[int]:
        session = sessions.pop(key)
        session.close("done")
        gateway.remove(session)
        session.write(trajectory := Trajectory())
        assert trajectory.ledger.trained == trajectory.ledger.sampled
        return [len(segment.ids) for segment in trajectory.segments]

    async with Gateway() as gateway:
        yield Contender(gateway.url, begin, end)
    await engine.close()


@asynccontextmanager
async def slimes(engine_url: str, tokenizer: Any) -> AsyncIterator[Contender]:
    from slime.agent.adapters import common, openai
    from slime.utils.types import Sample

    common.parse_model_output = peers._parse_as_sglang
    adapter = openai.OpenAIAdapter(
        tokenizer=tokenizer, sglang_url=engine_url, tool_parser="qwen25", reasoning_parser="qwen3"
    )

    def begin(key: str) -> None:
        adapter.open_session(key)

    async def end(key: str) -> Sequence[int]:
        base = Sample(index=0, prompt=QUESTION)
        return [len(sample.tokens) for sample in await adapter.finish_session(key, base_sample=base, reward=1.0)]

    runner = web.AppRunner(adapter.app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield Contender(f"http://127.0.0.1:{runner.addresses[0][1]}", begin, end)
    await runner.cleanup()


async def play(
    contender: Contender, jobs: Connection, case: Case, question: str, keys: Sequence[str]
) -> tuple[float, int, int]:
    """Play a case. Returns milliseconds of CPU time a request, and the samples and tokens of an episode."""
    began = time.process_time()
    for key in keys:
        contender.begin(key)
    jobs.send(Job(contender.url, keys, case, question))
    assert await asyncio.to_thread(jobs.recv)
    samples = [await contender.end(key) for key in keys]
    spent = 1000 * (time.process_time() - began)
    return spent / case.episodes / case.turns, max(map(len, samples)), max(map(sum, samples))


async def measure(engine_url: str, jobs: Connection) -> list[dict[str, Any]]:
    tokenizer = load_tokenizer()
    per_text = len(tokenizer.encode(RESULT, add_special_tokens=False))
    rows = []
    async with AsyncExitStack() as stack:
        contenders = {"agentrl gateway": await stack.enter_async_context(ours(engine_url, tokenizer))}
        if missing := slime_missing():
            print(f"agentrl alone: {missing}")
        else:
            contenders["slime OpenAI adapter"] = await stack.enter_async_context(slimes(engine_url, tokenizer))
        for case in CASES:
            question = RESULT * round(case.history / per_text) + QUESTION
            found: dict[str, list[tuple[float, int, int]]] = {name: [] for name in contenders}
            for number in range(case.rounds + 1):  # the first round warms up
                for name, contender in contenders.items():
                    keys = [f"{name[:5]}-{len(rows)}-{number}-{index}" for index in range(case.episodes)]
                    found[name].append(await play(contender, jobs, case, question, keys))
            for name, rounds in found.items():
                spent = min(ms for ms, _, _ in rounds[1:])
                rows.append(asdict(case) | {"name": name, "samples": rounds[1][1], "tokens": rounds[1][2], "ms": spent})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print("CPU time of the gateway's process, best round; ratio: to agentrl's in the same case")
    print(f"{'turns':>5} {'tokens':>7} {'samples':>7} {'':8}  {'':22} {'ms/request':>10} {'ratio':>6}")
    own = 1.0
    for row in rows:
        own = row["ms"] if row["name"] == "agentrl gateway" else own
        row["ratio"] = round(row["ms"] / own, 2)
        row["ms_per_request"] = round(row.pop("ms"), 3)
        print(
            f"{row['turns']:>5} {row['tokens']:>7,} {row['samples']:>7} {'streamed' if row['streamed'] else '':8}  "
            f"{row['name']:22} {row['ms_per_request']:>10.2f} {row['ratio']:>5.2f}x"
        )


def main() -> None:
    warnings.simplefilter("ignore")
    if SLIME_SRC:
        sys.path.append(SLIME_SRC)
    with playing() as (engine_url, jobs):
        rows = asyncio.run(measure(engine_url, jobs))
    show(rows)
    save("gateway_cost", rows)


if __name__ == "__main__":
    main()
