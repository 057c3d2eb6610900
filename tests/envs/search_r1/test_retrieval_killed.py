"""The server is killed and started again on its port under load: true answers, or failures, and nothing else."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys

import pytest

pytest.importorskip("tantivy", reason="tantivy is not installed")

from agentrl.errors import InfraError
from agentrl_envs.search_r1.retrieval import HTTPRetriever
from agentrl_envs.search_r1.retrieval.building import open_index
from agentrl_envs.search_r1.retrieval.server import bind

WORDS = [f"{a}{b}{c}" for a in "bdfglm" for b in "aeiou" for c in "kprtz"]
SEARCHERS = 64


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path, draw = tmp_path_factory.mktemp("corpus") / "words.jsonl", random.Random(3)
    rows = [{"id": str(at), "contents": f"{at}\n{' '.join(draw.choices(WORDS, k=20))}"} for at in range(300)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Server:
    """The command in a process of its own, on one port for all its lives."""

    def __init__(self, corpus):
        self.corpus, self.lives = corpus, 0
        with bind("127.0.0.1", 0) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentrl", "retriever", "serve", str(self.corpus), "--port", str(self.port)),
            stdout=asyncio.subprocess.PIPE,
        )
        line = await self.process.stdout.readline()
        assert f"300 passages at {self.url}/retrieve, Ctrl-C ends it" in line.decode()
        self.lives += 1

    async def end(self, number):
        self.process.send_signal(number)
        await self.process.communicate()
        return self.process.returncode


async def test_killed_and_restarted_under_load_no_answer_is_wrong_and_none_is_lost(corpus):
    index, draw = open_index(corpus), random.Random(5)
    queries = [" ".join(draw.choices(WORDS, k=3)) for _ in range(3000)]
    truth = {query: index.search(query, 3) for query in queries}
    assert all(truth.values())
    server = Server(corpus)
    await server.start()
    answered, reached = 0, {at: asyncio.Event() for at in (500, 1500)}
    to_ask = iter(queries)

    async def search_on(retriever):
        nonlocal answered
        for query in to_ask:
            assert await retriever.search(query, 3) == truth[query]
            answered += 1
            if answered in reached:
                reached[answered].set()

    async def kill_twice():
        for event in reached.values():
            await event.wait()
            assert await server.end(signal.SIGKILL) == -signal.SIGKILL
            before = answered
            await server.start()
            assert answered - before <= SEARCHERS  # nobody was answered while it was down, but by what it had sent

    async with HTTPRetriever(server.url, timeout=60) as retriever, asyncio.TaskGroup() as group:
        group.create_task(kill_twice())
        for _ in range(SEARCHERS):
            group.create_task(search_on(retriever))
    assert (answered, server.lives) == (len(queries), 3)
    assert await server.end(signal.SIGTERM) == 143


async def test_while_it_is_down_each_search_fails_at_its_deadline_and_later_ones_are_true(corpus):
    index = open_index(corpus)
    truth = {word: index.search(word, 3) for word in WORDS}
    server = Server(corpus)
    async with HTTPRetriever(server.url, timeout=0.3) as hasty, HTTPRetriever(server.url, timeout=60) as patient:
        early = [asyncio.create_task(patient.search(word, 3)) for word in WORDS]
        found = await asyncio.gather(*[hasty.search(word, 3) for word in WORDS], return_exceptions=True)
        assert all(isinstance(one, InfraError) for one in found)
        await server.start()
        assert await asyncio.gather(*early) == list(truth.values())
        assert await asyncio.gather(*[patient.search(word, 3) for word in WORDS]) == list(truth.values())
    assert await server.end(signal.SIGINT) == 130
