"""Recall, latency, memory and index of the retriever, over a corpus and over a large corpus that is generated from it.

python -m benchmarks.retrieval FOLDER [PASSAGES]     (FOLDER has corpus.jsonl and qa.jsonl in Search-R1's formats)

recall@3 is the share of questions with an answer in the first three passages. The recall of the server is compared with
the recall of tantivy alone, without the retriever's code. The generated corpus has the real passages, and mixtures of
their sentences, PASSAGES (2,000,000) in total: words are as frequent as in the real corpus, and many passages share
sentences with the right passage. Each phase has a new server, so that no response comes from the cache, except in the
phase that measures the cache.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import aiohttp
import tantivy

from agentrl_envs.search_r1.retrieval import HTTPRetriever, open_retriever
from agentrl_envs.search_r1.retrieval.building import open_index
from benchmarks.peers import save

TOPK = 3
AT_ONCE = 256
PASSAGES = 2_000_000
SEED = 17
Row = dict[str, Any]
Search = Callable[[str], Any]


def make_corpus(real: Path, made: Path, passages: int) -> None:
    """Write the real passages, then passages of a title and three to six sentences, which are drawn from all
    passages."""
    draw = random.Random(SEED)
    lines = real.read_text().splitlines()
    contents = [json.loads(line)["contents"] for line in lines]
    titles = [one.partition("\n")[0].strip('"') for one in contents]
    sentences = [s for one in contents for s in re.split(r"(?<=[.!?]) ", one.partition("\n")[2]) if s]
    with made.open("w") as file:
        file.writelines(f"{line}\n" for line in lines)
        for at in range(len(lines), passages):
            text = " ".join(draw.choices(sentences, k=draw.randint(3, 6)))
            row = {"id": f"made-{at}", "contents": f'"{draw.choice(titles)} ({at})"\n{text}'}
            file.write(json.dumps(row) + "\n")


def normal(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def recall(rows: Sequence[Row], found: Sequence[Sequence[str]]) -> Row:
    """The share of questions with an answer in a passage, for each source."""
    hits: dict[str, list[bool]] = {}
    for row, contents in zip(rows, found, strict=True):
        read = [f" {normal(one)} " for one in contents]
        hit = any(f" {normal(answer)} " in one for answer in row["golden_answers"] for one in read)
        hits.setdefault(row["source"], []).append(hit)
    return {source: round(sum(some) / len(some), 4) for source, some in hits.items()}


def asked_of_tantivy(corpus: Path, questions: Sequence[str], *, parser: bool) -> list[list[str]]:
    """The passages that tantivy finds when it is used directly, by its parser of queries or by the words themselves.

    Its parser counts "school" and "schools" as two words, although they have the same stem.
    """
    steps = [tantivy.Filter.remove_long(40), tantivy.Filter.lowercase(), tantivy.Filter.stopword("english")]
    steps += [tantivy.Filter.ascii_fold(), tantivy.Filter.stemmer("english")]
    words = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for step in steps:
        words = words.filter(step)
    schema = tantivy.SchemaBuilder().add_text_field("text", stored=True, tokenizer_name="w").build()
    index = tantivy.Index(schema)
    analyzer = words.build()
    index.register_tokenizer("w", analyzer)
    writer = index.writer(256 << 20, 1)
    for line in corpus.open():
        writer.add_document(tantivy.Document(text=json.loads(line)["contents"]))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    found = []
    for question in questions:
        if parser:
            query = index.parse_query(" ".join(re.findall(r"[^\W_]+", question.lower())), ["text"])
        else:
            terms = [tantivy.Query.term_query(schema, "text", word) for word in set(analyzer.analyze(question))]
            query = tantivy.Query.boolean_query([(tantivy.Occur.Should, term) for term in terms])
        hits = searcher.search(query, TOPK).hits
        found.append([searcher.doc(address)["text"][0] for _, address in hits])
    return found


def make_index(corpus: Path) -> Row:
    """Build an index by the command in a separate process. Returns the seconds that it reports, and its peak of
    memory."""
    load = os.getloadavg()[0]
    process = subprocess.Popen(
        [sys.executable, "-m", "agentrl", "retriever", str(corpus), "--index-only"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, said
    folder = corpus.with_name(f"{corpus.name}.bm25")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {
        "phase": "index",
        "passages": int(said.split()[0]),
        "seconds": float(said.split()[-2]),
        "seconds of one core": round(usage.ru_utime + usage.ru_stime, 1),
        "corpus (MiB)": round(corpus.stat().st_size / 2**20, 1),
        "index (MiB)": round(size / 2**20, 1),
        "most memory (MiB)": round(usage.ru_maxrss / 1024),
        "load of the machine before": round(load, 1),
    }


@asynccontextmanager
async def server(corpus: Path) -> AsyncIterator[tuple[str, int]]:
    """Run a server in a separate process. Yields its URL and its process id."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentrl", "retriever", str(corpus), "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    try:
        yield re.findall(r"http\S+/retrieve", line)[0], process.pid
    finally:
        process.terminate()
        await process.wait()


def memory(pid: int) -> Row:
    status = Path(f"/proc/{pid}/status").read_text()
    found = dict(re.findall(r"(Rss\w+|VmHWM):\s+(\d+) kB", status))
    return {
        "own memory (MiB)": round(int(found["RssAnon"]) / 1024, 1),
        "mapped index in memory (MiB)": round(int(found["RssFile"]) / 1024, 1),
    }


async def timed(search: Search, questions: Sequence[str], at_once: int) -> tuple[Row, list[Any]]:
    """The latencies of callers, with `at_once` searches running at all times."""
    took, found = [0.0] * len(questions), [None] * len(questions)
    waiting = iter(enumerate(questions))

    async def ask_on() -> None:
        for at, question in waiting:
            begun = time.perf_counter()
            found[at] = await search(question)
            took[at] = time.perf_counter() - begun

    begun = time.perf_counter()
    await asyncio.gather(*[ask_on() for _ in range(at_once)])
    return latency(took, time.perf_counter() - begun), found


def latency(took: Sequence[float], wall: float) -> Row:
    return {
        "p50 (ms)": round(1e3 * median(took), 3),
        "p99 (ms)": round(1e3 * quantiles(took, n=100)[98], 3),
        "queries/s": round(len(took) / wall, 1),
    }


def compared(rows: Sequence[Row], found: Sequence[Any], direct: Sequence[Sequence[str]] | None) -> Row:
    read = [[document.contents for document in documents] for documents in found]
    said: Row = {"recall@3": recall(rows, read)}
    if direct is not None:
        same = sum(mine == list(theirs) for mine, theirs in zip(read, direct, strict=True))
        said["lists equal to tantivy's own"] = f"{same} of {len(read)}"
    return said


async def over_http(corpus: Path, rows: Sequence[Row], direct: Sequence[Sequence[str]] | None) -> list[Row]:
    questions = [row["question"] for row in rows]
    phases: list[Row] = []
    async with server(corpus) as (url, pid), aiohttp.ClientSession() as session:

        async def bare(question: str) -> Any:
            async with session.post(url, json={"queries": [question], "topk": TOPK}) as response:
                return await response.json()

        phases.append({"phase": "HTTP, a bare request each, 1 in flight", **(await timed(bare, questions, 1))[0]})
    for at_once in (1, AT_ONCE):
        async with server(corpus) as (url, pid), HTTPRetriever(url, timeout=600) as client:
            said, found = await timed(lambda question, c=client: c.search(question, TOPK), questions, at_once)
            phase = f"HTTP, agentrl's client, {at_once} in flight"
            phases.append({"phase": phase, **said, **memory(pid), **compared(rows, found, direct)})
            if at_once > 1:
                again, _ = await timed(lambda question, c=client: c.search(question, TOPK), questions, at_once)
                phases.append({"phase": f"{phase}, all from the cache", **again, **memory(pid)})
    return phases


async def in_process(corpus: Path, rows: Sequence[Row], direct: Sequence[Sequence[str]] | None) -> list[Row]:
    questions = [row["question"] for row in rows]
    index, took, found = open_index(corpus), [], []
    for question in questions:
        begun = time.perf_counter()
        found.append(index.search(question, TOPK))
        took.append(time.perf_counter() - begun)
    said = {**latency(took, sum(took)), **compared(rows, found, direct)}
    phases = [{"phase": "in process, Index.search", **said}]
    async with open_retriever(str(corpus)) as local:
        said, _ = await timed(lambda question: local.search(question, TOPK), questions, AT_ONCE)
    return [*phases, {"phase": f"in process, {AT_ONCE} in flight", **said}]


async def measure(corpus: Path, rows: Sequence[Row], direct: Sequence[Sequence[str]] | None = None) -> list[Row]:
    return [make_index(corpus), *await over_http(corpus, rows, direct), *await in_process(corpus, rows, direct)]


async def main(folder: Path, passages: int) -> None:
    rows = [json.loads(line) for line in (folder / "qa.jsonl").open()]
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        real = Path(scratch) / "corpus.jsonl"
        real.write_bytes((folder / "corpus.jsonl").read_bytes())
        questions = [row["question"] for row in rows]
        direct = asked_of_tantivy(real, questions, parser=False)
        parsed = asked_of_tantivy(real, questions, parser=True)
        found.append({"corpus": "real", "phase": "tantivy directly", "recall@3": recall(rows, direct)})
        found.append({"corpus": "real", "phase": "tantivy directly, its parser", "recall@3": recall(rows, parsed)})
        found += [{"corpus": "real", **row} for row in await measure(real, rows, direct)]
        show(found)
        if passages:
            made = Path(scratch) / "made.jsonl"
            make_corpus(real, made, passages)
            found += [{"corpus": f"{passages} passages", **row} for row in await measure(made, rows)]
            show(found)
    save("retrieval", found)


def show(found: Sequence[Row]) -> None:
    for row in found:
        print("  ".join(f"{key}: {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    given = sys.argv[1:] or sys.exit(__doc__)
    asyncio.run(main(Path(given[0]), int(given[1]) if len(given) > 1 else PASSAGES))
