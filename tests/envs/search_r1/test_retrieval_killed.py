"""The server is killed and started again on its port under load: true answers, or failures, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
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
KILLS = 10 if os.environ.get("AGENTRL_SOAK") else 1


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path, draw = tmp_path_factory.mktemp("corpus") / "words.jsonl", random.Random(3)
    rows = [{"id": str(at), "contents": f"{at}\n{' '.join(draw.choices(WORDS, k=20))}"} for at in range(300)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Server:
    """The command in a separate process, on one port for all its lives."""

    def __init__(self, corpus):
        self.corpus, self.lives = corpus, 0
        with bind("127.0.0.1", 0) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentrl", "retriever", str(self.corpus), "--port", str(self.port)),
            stdout=asyncio.subprocess.PIPE,
        )
        line = await self.process.stdout.readline()
        assert f"300 passages at {self.url}/retrieve, Ctrl-C ends it" in line.decode()
        self.lives += 1

    async def end(self, number):
        self.process.send_signal(number)
        await self.process.communicate()
        return self.process.returncode


@pytest.mark.thorough
@pytest.mark.timeout(120 * KILLS)
async def test_killed_and_restarted_under_load_no_answer_is_wrong_and_none_is_lost(corpus):
    index, draw = open_index(corpus), random.Random(5)
    queries = [" ".join(draw.choices(WORDS, k=3)) for _ in range(500 + 1000 * KILLS)]
    truth = {query: index.search(query, 3) for query in queries}
    assert all(truth.values())
    server, answered, to_ask = Server(corpus), 0, iter(queries)
    reached = {500 + 1000 * at: asyncio.Event() for at in range(KILLS)}

    async def search_on(retriever):
        nonlocal answered
        for query in to_ask:
            assert await retriever.search(query, 3) == truth[query]
            answered += 1
            if answered in reached:
                reached[answered].set()

    async def kill():
        for event in reached.values():
            await event.wait()
            assert await server.end(signal.SIGKILL) == -signal.SIGKILL
            await server.start()

    async with HTTPRetriever(server.url, timeout=0.3) as hasty:
        found = await asyncio.gather(*[hasty.search(query, 3) for query in queries[:100]], return_exceptions=True)
    assert all(isinstance(one, InfraError) for one in found)
    async with HTTPRetriever(server.url, timeout=60) as retriever, asyncio.TaskGroup() as group:
        for _ in range(SEARCHERS):
            group.create_task(search_on(retriever))  # the first are asked while it is down
        await server.start()
        group.create_task(kill())
    assert (answered, server.lives) == (len(queries), 1 + KILLS)
    assert await server.end(signal.SIGTERM) == 143
