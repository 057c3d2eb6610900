"""The cost of a turn compared with encoding its text, and thousands of episodes at once: `make bench-scale`.

python -m benchmarks.scale [--part bridge,turn,growth,lag,long,memory] [--quick]

With --part, the results of other parts in the file are not changed.

Every text is fresh: a tokenizer caches words, and repeated words would hide half of its cost. Contenders run in turn in
the same process, and the CPU time of the process counts. The load of the machine is printed, because ratios vary on a
busy machine. Without real tokenizers (AGENTRL_TEST_DATA, BENCH_TOKENIZER), small tokenizers are used, which make about
three times as many tokens. A bridge is the tokens between two sampled turns.

- bridge: a bridge from the cache, a rendered bridge, and encoding the observation, for each template.
- turn: whole turns in an episode with an engine in this process, also without the time to encode and decode.
- growth: turn 200 compared with turn 10, and 2,000 episodes compared with 200.
- lag: how long the event loop is blocked when 2,000 episodes wake together, with the gate and without.
- long: an observation of 0.9 MB, which is cut to 500 tokens.
- memory: bytes a token of live and of ended episodes, without their text, and the share of messages.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from agentrl import Limits
from agentrl.episode import gate
from agentrl.episode.options import EpisodeOptions
from agentrl.episode.run import run_episode
from agentrl.errors import TemplateError
from agentrl.render import Renderer, load_renderer
from agentrl.render.memo import VARIABLE
from agentrl.render.template import Template
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Action, Generation, Message, Task, ToolCall
from benchmarks.fresh_episodes import OBSERVED, FreshText, InProcess, Script, Search, play
from benchmarks.peers import SMALL, TOOLS, load_tokenizer, save_parts, which_tokenizer
from tests.render.markers import REAL, small_tokenizer, template_files, tokenizer_of

TEMPLATES = {
    "Qwen3": "Qwen-Qwen3-0.6B",
    "DeepSeek-V3.1": "deepseek-ai-DeepSeek-V3.1",
    "Llama-3.1": "meta-llama-Llama-3.1-8B-Instruct",
    "gpt-oss": "openai-gpt-oss-120b",
    "Kimi-K2": "Kimi-K2-Instruct",
    "Mistral-Nemo": "mistralai-Mistral-Nemo-Instruct-2407",
}
SIZES = (30, 300, 2000)
"""The sizes of observations in tokens."""


def usual(times: Sequence[float]) -> float:
    """The lower quartile of times, as half of the rounds on a busy machine are slowed by other programs."""
    return quantiles(times, n=4)[0] if len(times) > 2 else min(times)


def milliseconds(run: Callable[[], Any]) -> float:
    """Milliseconds of this process's CPU time for a call of `run`."""
    before = time.process_time()
    run()
    return 1000 * (time.process_time() - before)


def without_memo(tokenizer: Any, tools: Sequence[Any]) -> Renderer:
    os.environ[VARIABLE] = "off"
    try:
        return load_renderer(tokenizer, tools=tools)
    finally:
        del os.environ[VARIABLE]


def tokenizer_for(path: Path) -> tuple[Any, str]:
    """The template's tokenizer, or Qwen 3's words with the template's special tokens; and the name of the choice."""
    own = tokenizer_of(path)
    if path.stem in REAL and len(own) > 10_000:
        return own, "own"
    if which_tokenizer() == SMALL:
        return own, "small"
    words = load_tokenizer().backend_tokenizer.to_str()
    return small_tokenizer(path.read_text(encoding="utf-8"), words), "Qwen 3's words"


def bridges(rounds: int) -> Iterable[dict[str, Any]]:
    """A row for each template and size."""
    files = {path.stem: path for path in template_files()}
    for name, stem in TEMPLATES.items():
        if stem not in files:
            yield {"template": name, "missing": "not here: AGENTRL_TEST_DATA names a folder with chat_templates"}
            continue
        tokenizer, words = tokenizer_for(files[stem])
        try:
            ours, rendered, role = load_renderer(tokenizer, tools=TOOLS), without_memo(tokenizer, TOOLS), "tool"
        except TemplateError:
            ours, rendered, role = load_renderer(tokenizer), without_memo(tokenizer, ()), "user"
        fresh, encode = FreshText(tokenizer), Template.of(tokenizer, None, (), {}).encoder
        for size in SIZES:
            found = [_bridge_round(ours, rendered, encode, role, fresh, size) for _ in range(rounds)]
            times = [usual(column) for column in zip(*found, strict=True)]
            yield {
                "template": name,
                "answer": role,
                "served": ours.certificate.bridges[role].partition(":")[0],
                "tokens": round(times[3]),
                "encode ms": round(times[0], 3),
                "bridge ms": round(times[1], 3),
                "rendered ms": round(times[2], 3),
                "bridge/(1.25 encode + 0.1)": round(times[1] / (1.25 * times[0] + 0.1), 2),
                "vocabulary": words,
            }


def _bridge_round(
    ours: Renderer, rendered: Renderer, encode: Callable[[str], list[int]], role: str, fresh: FreshText, size: int
) -> tuple[float, ...]:
    """Milliseconds to encode, to bridge and to bridge by rendering, each for a different text; and the tokens of the
    first text."""
    text, number = fresh.tokens(size), fresh._pick.getrandbits(32)
    asked = answer(ours, role, fresh.tokens(size), f"c{number:08x}")
    other = answer(ours, role, fresh.tokens(size), f"d{number:08x}")
    encoded = milliseconds(lambda: encode(text))
    made = milliseconds(lambda: ours.bridge(*asked))
    return encoded, made, milliseconds(lambda: rendered.bridge(*other)), len(encode(text))


def answer(renderer: Renderer, role: str, text: str, call_id: str) -> tuple[list[Message], Action, list[Message]]:
    """A turn that ends with a stop token, and the answer of a tool or a user."""
    call = ToolCall(call_id, "search", {"query": "x"})
    stop = max(renderer.stop_token_ids)
    history: list[Message] = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "said"}]
    if role == "user":
        return history, Action("said", "said", None, (), "stop", stop, (5, stop)), [{"role": "user", "content": text}]
    told = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}
    return history, Action("", "", None, (call,), "stop", stop, (5, stop)), [told]


def _played(renderer: Renderer, script: Script, episodes: int, turns: int, repeats: int = 1) -> None:
    for _ in range(repeats):
        asyncio.run(play(renderer, script, episodes, turns))


def turns_of(rounds: int) -> Iterable[dict[str, Any]]:
    """The cost of a whole turn, and the cost without encoding and decoding."""
    tokenizer = load_tokenizer()
    encode = Template.of(tokenizer, None, (), {}).encoder
    for memo in ("memo", "rendered"):
        found = list[tuple[float, float, float]]()
        renderer = load_renderer(tokenizer) if memo == "memo" else without_memo(tokenizer, ())
        fresh = FreshText(tokenizer, seed=7)
        for _ in range(rounds):
            script, count = Script(tokenizer, 8 * 11), 8 * 11
            texts = [fresh.tokens(300) for _ in range(count)]
            inside = _clocked()
            whole = milliseconds(partial(_played, renderer, script, 8, 11)) / count
            within = 1000 * inside() / count
            found.append((whole, within, milliseconds(partial(list, map(encode, texts))) / count))
        whole, within, alone = (usual(column) for column in zip(*found, strict=True))
        yield {
            "bridges": memo,
            "turn ms": round(whole, 3),
            "encode and decode in it ms": round(within, 3),
            "one encode of 300 ms": round(alone, 3),
            "turn/encode": round(whole / alone, 2),
            "rest/(0.9 encode)": round((whole - within) / (0.9 * alone), 2),
        }


_spent = [0.0]


def _clocked() -> Callable[[], float]:
    """Count the CPU seconds that this process spends in the tokenizer. The returned function reads and resets the
    count."""
    _spent[0] = 0.0
    if not hasattr(Template, "_agentrl_clocked"):
        for name in ("_encode", "decode"):
            setattr(Template, name, _counting(getattr(Template, name)))
        Template._agentrl_clocked = True  # type: ignore[attr-defined]
    return lambda: _spent[0]


def _counting(function: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        before = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            _spent[0] += time.process_time() - before

    return counted


def growth(quick: bool) -> Iterable[dict[str, Any]]:
    """Ratios of the CPU time of a turn: turn 200 to turn 10, and many episodes to few.

    Each time is divided by the time of an encode right afterwards, because the load changes while an episode grows.
    """
    tokenizer = load_tokenizer()
    renderer = load_renderer(tokenizer)
    encode = Template.of(tokenizer, None, (), {}).encoder
    last, early, late = (60 if quick else 200), list[float](), list[float]()
    for _ in range(2 if quick else 5):
        engine = _Timed(Script(tokenizer, last + 6), partial(encode, FreshText(tokenizer).tokens(OBSERVED)))
        asyncio.run(play(renderer, engine.script, 1, last + 5, engine))
        early += engine.took[5:15]
        late += engine.took[last - 5 : last + 5]
    first, then = usual(early), usual(late)
    yield {"what": f"turn {last} / turn 10", "encodes": f"{first:.2f}, {then:.2f}", "ratio": round(then / first, 2)}
    few, many, turns = (50, 500, 3) if quick else (200, 2000, 3)
    ratios, costs = list[float](), list[tuple[float, float]]()
    for _ in range(3 if quick else 5):
        ms = [_played_ms(renderer, tokenizer, episodes, many // episodes, turns) for episodes in (few, many)]
        ratios.append(ms[1] / ms[0])
        costs.append((ms[0], ms[1]))
    low, high = (min(column) for column in zip(*costs, strict=True))
    yield {
        "what": f"{many} / {few} episodes",
        "ms": f"{low:.3f}, {high:.3f}",
        "ratio": round(median(ratios), 2),
        "ratio of the quickest": round(high / low, 2),
    }


def _played_ms(renderer: Renderer, tokenizer: Any, episodes: int, repeats: int, turns: int) -> float:
    """Milliseconds a turn."""
    script = Script(tokenizer, episodes * repeats * turns)
    gc.collect()
    return milliseconds(partial(_played, renderer, script, episodes, turns, repeats)) / (episodes * repeats * turns)


class _Timed(InProcess):
    """Measures the CPU time between two requests, in units of `unit`, which runs right after."""

    def __init__(self, script: Script, unit: Callable[[], Any]) -> None:
        super().__init__(script)
        self.took, self.unit, self._left = list[float](), unit, 0.0

    async def generate(self, *args: Any, **kwargs: Any) -> Generation:
        made = await super().generate(*args, **kwargs)
        turn = 1000 * (time.process_time() - self._left)
        self.took.append(turn / usual([milliseconds(self.unit) for _ in range(4)]))
        self._left = time.process_time()
        return made


def lags(episodes: int) -> Iterable[dict[str, Any]]:
    """How long the event loop is blocked when all episodes get their replies at once."""
    tokenizer = load_tokenizer()
    renderer = load_renderer(tokenizer)
    for name, tick in (("without a gate", 1e9), ("with the gate", gate.TICK_S)):
        script, kept = Script(tokenizer, 3 * episodes), gate.TICK_S
        gate.TICK_S = tick
        try:
            found, seconds = asyncio.run(_lag(renderer, script, episodes))
        finally:
            gate.TICK_S = kept
        found.sort()
        yield {
            "loop": name,
            "episodes": episodes,
            "rounds": len(found),
            "p50 ms": round(found[len(found) // 2], 2),
            "p99 ms": round(found[int(len(found) * 0.99)], 1),
            "max ms": round(found[-1], 1),
            "CPU s": round(seconds, 2),
        }


async def _lag(renderer: Renderer, script: Script, episodes: int) -> tuple[list[float], float]:
    """CPU milliseconds between two turns of another task during the work, and the CPU seconds of the whole work."""
    engine, found, running = InProcess(script, together=episodes), list[float](), True

    async def look() -> None:
        before = time.process_time()
        while running:
            await asyncio.sleep(0 if engine.script.sampled and not engine.waiting else 0.001)
            now = time.process_time()
            found.append(1000 * (now - before))
            before = now

    started = time.process_time()
    beside = asyncio.create_task(look())
    await play(renderer, script, episodes, 3, engine)
    running = False
    await beside
    return found, time.process_time() - started


def long_observation() -> Iterable[dict[str, Any]]:
    """An observation of 0.9 MB, cut to 500 tokens: how long the event loop is blocked, and the cost."""
    tokenizer = load_tokenizer()
    renderer = load_renderer(tokenizer)
    script = Script(tokenizer, 2)
    script.observed = ["nothing", FreshText(tokenizer).words(140_000)[:900_000]]
    found, running = list[float](), True

    async def look() -> None:
        while running:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            found.append(1000 * (time.perf_counter() - before))

    async def main() -> Trajectory:
        nonlocal running
        beside = asyncio.create_task(look())
        await asyncio.sleep(0.05)
        found.clear()
        options = EpisodeOptions(limits=Limits(turns=2, observation_tokens=500))
        made = await run_episode(
            Search(script), Task(prompt="Go."), engine=InProcess(script), renderer=renderer, options=options
        )
        running = False
        await beside
        return made

    before = time.process_time()
    trajectory = asyncio.run(main())
    yield {
        "observation": "900,000 characters",
        "tokens kept": trajectory.ledger.observation,
        "longest hold ms": round(max(found), 1),
        "CPU s": round(time.process_time() - before, 2),
    }


def memory(episodes: int) -> Iterable[dict[str, Any]]:
    """Bytes a token of episodes with 11 turns, without the text in their messages and actions."""
    tokenizer = load_tokenizer()
    renderer = load_renderer(tokenizer)
    asyncio.run(play(renderer, Script(tokenizer, 11), 1, 11))  # what is learned once
    engine = _Weighed(Script(tokenizer, 11 * episodes), together=episodes)
    tracemalloc.start()
    trajectories = asyncio.run(play(renderer, engine.script, episodes, 11, engine))
    ended = _weight(trajectories)
    tracemalloc.stop()
    for name, (taken, text, messages, tokens) in (("live", engine.weight), ("ended", ended)):
        yield {
            "episodes": name,
            "tokens": tokens // episodes,
            "bytes a token": round((taken - text) / tokens, 1),
            "of them messages": round(messages / tokens, 1),
            "text": round(text / tokens, 1),
        }


class _Weighed(InProcess):
    """An engine that measures the memory of all episodes when the last episode requests its eleventh turn."""

    weight = (0, 0, 0, 1)

    async def generate(self, *args: Any, **kwargs: Any) -> Generation:
        if len(self.waiting) == self.together - 1 and len(self.script.sampled) == self.together:
            self.weight = _weight([found for found in gc.get_objects() if isinstance(found, Trajectory)])
        return await super().generate(*args, **kwargs)


def _weight(trajectories: Sequence[Trajectory]) -> tuple[int, int, int, int]:
    """Bytes allocated since tracing began, bytes of text in trajectories, bytes of dicts and lists in messages, and the
    number of tokens."""
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    text = sum(_size(found) for found in _within(trajectories) if isinstance(found, str))
    told = [trajectory.messages for trajectory in trajectories]
    messages = sum(_size(found) for found in _within(told) if isinstance(found, dict | list))
    return taken, text, messages, sum(trajectory.segment.length for trajectory in trajectories)


def _within(roots: Sequence[Any]) -> Iterable[Any]:
    """All objects that can be reached from `roots`, each once."""
    seen, left = set[int](), list(roots)
    while left:
        found = left.pop()
        if id(found) in seen or isinstance(found, type):
            continue
        seen.add(id(found))
        yield found
        left += gc.get_referents(found)


def _size(found: object) -> int:
    """The bytes of an object; 0 if the object existed before tracing began."""
    return sys.getsizeof(found) if tracemalloc.get_object_traceback(found) else 0


PARTS: dict[str, Callable[[bool], Iterable[dict[str, Any]]]] = {
    "bridge": lambda quick: bridges(9 if quick else 41),
    "turn": lambda quick: turns_of(3 if quick else 9),
    "growth": growth,
    "lag": lambda quick: lags(300 if quick else 2000),
    "long": lambda _: long_observation(),
    "memory": lambda quick: memory(5 if quick else 20),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and episodes")
    given = parser.parse_args()
    which_tokenizer()
    parts, rows = given.part.split(","), list[dict[str, Any]]()
    for part in parts:
        print(f"\n{part}, at a load of {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        for row in PARTS[part](given.quick):
            print("  " + ", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
            rows.append({"part": part, "date": str(date.today()), "load": round(os.getloadavg()[0], 1), **row})
    save_parts("scale", parts, rows)


if __name__ == "__main__":
    main()
