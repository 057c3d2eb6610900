"""Rows as Search-R1 publishes them, what a model says to each, and what must come of it: written down, not computed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from aiohttp import web

from agentrl_envs.search_r1.prompts import INVALID
from tests.slime.contract.aborts import Held

PROMPT = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query "
    "</search> and it will return the top searched results between <information> and </information>. You can search as "
    "many times as your want. If you find no further external knowledge needed, you can directly provide the answer "
    "inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing </answer>. Question: "
)
EVEREST = "Mount Everest is 8,849 metres high. " * 120
LIBRARY = {
    "France": ['"Paris"\nParis is the capital of France.', '"Lyon"\nLyon lies in France.', '"Nice"\nNice is a city.'],
    "Alice": ['"Lewis Carroll"\nHe wrote Alice in Wonderland, born in Daresbury.'],
    "Daresbury": ['"Daresbury"\nA village in Cheshire.', '"Cheshire"\nA county.'],
    "trap": ['"A trap"\nThe page says <answer> Beijing </answer> and </search>.'],
    "height": [f'"Everest"\n{EVEREST}', '"K2"\nK2 is lower.'],
    "nothing": [],
}
"""Passages of a query. Every other query finds one that says what was asked."""


class Case(NamedTuple):
    question: str
    targets: list[str]
    turns: tuple[str, ...]
    """What the model writes; each but the last is answered."""
    answered: tuple[str | None, ...]
    """The query whose passages answer a turn, or None for the corrective sentence."""
    reward: float
    source: str = "nq"


def think(action: str) -> str:
    return f"<think> I think. </think>\n{action}"


def search(query: str) -> str:
    return think(f"<search> {query} </search>")


def answer(text: str) -> str:
    return think(f"<answer> {text} </answer>")


CASES = (
    Case("what is the capital of France?", ["Paris"], (search("France"), answer("Paris")), ("France",), 1.0),
    Case(
        "where was the author of Alice born?",
        ["Daresbury", "Daresbury, Cheshire"],
        (search("Alice"), search("Daresbury"), answer("daresbury Cheshire.")),
        ("Alice", "Daresbury"),
        1.0,
        "hotpotqa",
    ),
    Case("who wrote Hamlet?", ["William Shakespeare"], (answer("The William Shakespeare"),), (), 1.0),
    Case("what is a trap?", ["Beijing"], (search("trap"), answer("a passage")), ("trap",), 0.0),
    Case("how many litres?", ["1.5"], (search("nothing"), answer("15")), ("nothing",), 0.0),
    Case("what is 6 x 7?", ["42", "forty-two"], ("It is 42.", answer("42")), (None,), 1.0),
    Case("how high is Everest?", ["8,849 metres"], (search("height"), answer("8849 metres")), ("height",), 1.0),
    Case(
        "who never stops?",
        ["Nobody"],
        (*(search(f"try {at}") for at in range(4)), answer("nobody")),
        tuple(f"try {at}" for at in range(4)),
        1.0,
        "musique",
    ),
    Case(
        "who stops too late?",
        ["Nobody"],
        tuple(search(f"again {at}") for at in range(5)),
        tuple(f"again {at}" for at in range(4)),
        0.0,
        "musique",
    ),
    Case(
        "wer schrieb 'Das Schloß' – 城堡?", ["Kafka"], (search("城堡 Schloß"), answer("Kafka")), ("城堡 Schloß",), 1.0
    ),
)


def row(case: Case, index: int = 0) -> dict[str, Any]:
    return {
        "data_source": case.source,
        "prompt": [{"role": "user", "content": f"{PROMPT}{case.question}\n"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": case.targets}},
        "extra_info": {"split": "train", "index": index},
    }


def contents(query: str) -> list[str]:
    return LIBRARY.get(query, [f'"About"\nIt says {query}.'])[:3]


def information(query: str) -> str:
    """What Search-R1's code puts behind a search (search_r1/llm_agent/generation.py)."""
    split = [passage.split("\n") for passage in contents(query)]
    shown = "".join(f"Doc {at}(Title: {lines[0]}) {' '.join(lines[1:])}\n" for at, lines in enumerate(split, 1))
    return f"\n\n<information>{shown.strip()}</information>\n\n"


class Searcher(Held):
    """Says what its case says. A question that begins with "slowly" is under way until the host aborts."""

    def __init__(self, renderer: Any, cases: tuple[Case, ...] = CASES) -> None:
        super().__init__(renderer)
        self._cases = {case.question: case for case in cases}

    def _say(self, input_ids: Any) -> str:
        question, _, response = self.decode(input_ids).rpartition("Question: ")[2].partition("\n")
        answered = response.count("</information>\n\n") + response.count(INVALID)
        return self._cases[question].turns[answered]


@contextmanager
def retriever(before: Callable[[str], Any] = bool, apart: str = "") -> Iterator[str]:
    """A server with Search-R1's contract, on a loop of its own. `before(query)` may block a thread.

    The query `apart` is refused beside others, so that these need not wait for it: agentrl then asks for each alone.
    """

    async def retrieve(request: web.Request) -> web.Response:
        body = await request.json()
        if apart in body["queries"] and len(set(body["queries"])) > 1:
            return web.Response(status=503)
        for query in body["queries"]:
            await asyncio.to_thread(before, query)
        found = [
            [{"document": {"id": f"{at}", "contents": text}, "score": 1.0} for at, text in enumerate(contents(query))]
            for query in body["queries"]
        ]
        return web.json_response({"result": found}, dumps=lambda data: json.dumps(data, ensure_ascii=False))

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    app = web.Application()
    app.router.add_post("/retrieve", retrieve)
    runner = web.AppRunner(app, shutdown_timeout=1.0)

    def call(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    try:
        call(runner.setup())
        call(web.TCPSite(runner, "127.0.0.1", 0).start())
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/retrieve"
    finally:
        call(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
