"""CPU time of `agentrl.adapt` itself, compared with slime's search-R1 example and slime's OpenAI adapter.

SLIME_SRC=/path/to/slime python -m benchmarks.adapt_cost        (without SLIME_SRC: without slime's)

agentrl plays as usual, and again with a rendering for each turn in place of its cache. `renderers` and
miles-tito-tokenizers play in a simple loop (prompt, request, next prompt), if they can be imported.

BENCH_TOKENIZER names the tokenizer of a Qwen model, by its folder. Without it, a local tokenizer is used, or a small
tokenizer that makes three times as many tokens. The first line of output tells which.

The contenders share an engine in a separate process, which replies to every request at once with the same 25 tokens: a
call, or an answer in the last turn. A tool result has 600 tokens of fresh text and costs nothing. The benchmark
measures the CPU time of this process, so the load of the engine and of other programs does not count. Contenders are
timed in turn, round by round. The results are medians.

The comparison favours the others: search-R1 sends text, which the engine would have to tokenise anew in every turn; two
regular expressions replace the OpenAI adapter's parsers; the simple loops parse little or nothing, return no sample and
have no limits.
"""

from __future__ import annotations

import asyncio
import importlib.util
import multiprocessing
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from aiohttp import ClientSession, TCPConnector, web

from agentrl import Env, adapt, tool
from agentrl.render import memo
from benchmarks import peers
from benchmarks.fresh_episodes import FreshText
from benchmarks.peers import SLIME_SRC, TOOLS, engine_body, load_tokenizer, save, slime_missing

TURNS = (2, 8, 32)
EPISODES = 16
"""The number of episodes that are played at the same time."""
ROUNDS = 3
QUESTION = "Which river flows through the capital of France?"
SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query": "the river of the capital"}}\n</tool_call>'
RESULT_TOKENS, RESULTS = 600, 512
"""RESULT_TOKENS: the tokens of a tool's result. RESULTS: the number of different results. They are so many that the
tokenizer's cache has lost the words of a result before the result is repeated."""
AGENTRL = {
    "agentrl.adapt": {},
    "agentrl.adapt, rendered": {memo.VARIABLE: "off"},
}
"""Name of a variant of agentrl -> environment variables with which its renderer is loaded."""
results: Iterator[str] = iter(())

Play = Callable[[int], Awaitable[int]]
"""Plays an episode with the number of turns, and returns the number of tokens of its sample."""


class Search(Env):
    """The same conversation, as an Env."""

    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia."""
        return next(results)

    def score(self, trajectory: Any) -> float:
        return float("Seine" in trajectory.answer)


@dataclass(frozen=True)
class Script:
    """The engine's replies: `call` in each turn but the last, then `answer`. The count of `marker` in a prompt
    gives the number of the turn."""

    marker: bytes
    call: str
    answer: str
    before: int = 0
    """How often the marker occurs in the first prompt."""


def serve(scripts: Mapping[str, Script], turns: Any, ready: Connection) -> None:
    """Run the engine in a separate process. Every script has its own port."""
    tokenizer = load_tokenizer()

    def app_of(script: Script) -> web.Application:
        call, last = engine_body(tokenizer, script.call), engine_body(tokenizer, script.answer)

        async def generate(request: web.Request) -> web.Response:
            seen = len(re.findall(script.marker, await request.read())) - script.before
            return web.Response(body=call if seen < turns.value - 1 else last, content_type="application/json")

        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/generate", generate)
        return app

    async def main() -> None:
        ports = {}
        for name, script in scripts.items():
            runner = web.AppRunner(app_of(script))
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            ports[name] = runner.addresses[0][1]
        ready.send(ports)
        await asyncio.to_thread(ready.poll, None)

    asyncio.run(main())


@contextmanager
def engines(scripts: Mapping[str, Script]) -> Iterator[tuple[dict[str, int], Any]]:
    """Start the engine. Yields the port of each script by name, and the number of turns, which the processes share."""
    spawn = multiprocessing.get_context("spawn")
    turns = spawn.Value("i", 1)
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(scripts, turns, there), daemon=True)
    process.start()
    try:
        yield here.recv(), turns
    finally:
        here.send(None)
        process.join(10)


def play_agentrl(args: SimpleNamespace, sample: Callable[[], Any]) -> Play:
    params = {"temperature": 1.0, "max_new_tokens": 100_000}

    async def play(turns: int) -> int:
        played = await adapt(args, sample(), params)
        assert played.metadata["agentrl"]["turns"] == turns, played.metadata
        assert played.reward == 1.0, played.response[-100:]
        return len(played.tokens)

    return play


def play_search_r1(args: SimpleNamespace, sample: Callable[[], Any]) -> Play:
    sys.path.append(f"{SLIME_SRC}/examples/search-r1")
    example = importlib.import_module("generate_with_search")

    async def search(query: str) -> str:
        return next(results)

    example.search = search

    async def play(turns: int) -> int:
        example.SEARCH_R1_CONFIGS["max_turns"] = turns
        played = await example.generate(args, sample(), {"temperature": 1.0, "max_new_tokens": 100_000})
        assert "Seine" in played.response, played.response[-100:]
        return len(played.tokens)

    return play


def play_openai_adapter(
    tokenizer: Any, url: str, sample: Callable[[], Any]
) -> tuple[Play, Callable[[], AbstractAsyncContextManager[None]]]:
    from slime.agent.adapters import common, openai

    common.parse_model_output = peers._parse_as_sglang
    adapter = openai.OpenAIAdapter(tokenizer=tokenizer, sglang_url=url, tool_parser="qwen25", reasoning_parser="qwen3")
    served = SimpleNamespace(url="", client=None)
    sessions = iter(range(1_000_000))

    @asynccontextmanager
    async def started() -> AsyncIterator[None]:
        runner = web.AppRunner(adapter.app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/chat/completions"
        async with ClientSession(connector=TCPConnector(limit=0)) as served.client:
            yield
        await runner.cleanup()

    async def play(turns: int) -> int:
        session = f"episode-{next(sessions)}"
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        for _ in range(turns):
            body = {"messages": messages, "tools": TOOLS}
            async with served.client.post(
                served.url, json=body, headers={"Authorization": f"Bearer {session}"}
            ) as said:
                message = (await said.json())["choices"][0]["message"]
            answers = [
                {"role": "tool", "tool_call_id": call["id"], "content": next(results)}
                for call in message.get("tool_calls") or ()
            ]
            messages += [message, *answers]
        samples = await adapter.finish_session(session, base_sample=sample(), reward=1.0)
        return sum(len(part.tokens) for part in samples)

    return play, started


def play_bare(tokenizer: Any, url: str, peer: str) -> tuple[Play, Callable[[], AbstractAsyncContextManager[None]]]:
    """Play in a loop that only computes prompts, with the library `peer`, which continues the tokens of a prompt."""
    served = SimpleNamespace(client=None)
    follow = renderers_prompts(tokenizer) if peer == "renderers" else tito_prompts(tokenizer)
    called = {"name": "search", "arguments": {"query": "the river of the capital"}}

    @asynccontextmanager
    async def started() -> AsyncIterator[None]:
        async with ClientSession(connector=TCPConnector(limit=0)) as served.client:
            yield

    async def ask(tokens: list[int]) -> list[int]:
        body = {"input_ids": tokens, "sampling_params": {"temperature": 1.0}, "return_logprob": True}
        async with served.client.post(f"{url}/generate", json=body) as answer:
            return [token for _, token, _ in (await answer.json())["meta_info"]["output_token_logprobs"]]

    async def play(turns: int) -> int:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        prompt = tokenizer.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True, return_dict=False)
        for number in range(turns - 1):
            sampled = await ask(prompt)
            call = {"id": f"call{number:05}", "type": "function", "function": called}
            new = {"role": "tool", "tool_call_id": call["id"], "name": "search", "content": next(results)}
            messages += [{"role": "assistant", "content": "", "tool_calls": [call]}, new]
            prompt = follow(messages, prompt, sampled)
        return len(prompt) + len(await ask(prompt))

    return play, started


Follow = Callable[[list[Any], list[int], list[int]], list[int]]
"""Computes the tokens of the next prompt from all messages, the tokens of the previous prompt, and the sampled
tokens."""


def renderers_prompts(tokenizer: Any) -> Follow:
    renderer = peers.make_renderers(tokenizer, known=True)

    def follow(messages: list[Any], prompt: list[int], sampled: list[int]) -> list[int]:
        renderer.parse_response(sampled, tools=TOOLS)
        return list(renderer.bridge_to_next_turn(prompt, sampled, messages[-1:], tools=TOOLS).token_ids)

    return follow


def tito_prompts(tokenizer: Any) -> Follow:
    library = importlib.import_module("miles_tito_tokenizers")
    tito = library.get_tito_tokenizer(tokenizer, "qwen3", allowed_append_roles=["tool", "user"])

    def follow(messages: list[Any], prompt: list[int], sampled: list[int]) -> list[int]:
        return list(tito.merge_tokens(messages[:-1], messages, [*prompt, *sampled], tools=TOOLS))

    return follow


def bare_loops(tokenizer: Any, url: str) -> dict[str, tuple[Play, Callable[[], AbstractAsyncContextManager[None]]]]:
    """The simple loops of the installed libraries, by name."""
    modules = {"renderers": "renderers", "miles-tito": "miles_tito_tokenizers"}
    return {
        f"{name}, bare loop": play_bare(tokenizer, url, name)
        for name, module in modules.items()
        if importlib.util.find_spec(module)
    }


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


async def measure(contenders: Mapping[str, Play], turns: Any) -> list[dict[str, Any]]:
    rows = []
    for count in TURNS:
        turns.value = count
        times: dict[str, list[float]] = {name: [] for name in contenders}
        tokens = {}
        for number in range(ROUNDS + 1):
            for name, play in contenders.items():
                began = time.process_time()
                played = await asyncio.gather(*[play(count) for _ in range(EPISODES)])
                tokens[name] = max(played)
                if number:  # the first round warms up
                    times[name].append(1000 * (time.process_time() - began) / EPISODES)
        for name, spent in times.items():
            per_episode = median(spent)
            rows.append({"turns": count, "name": name, "tokens": tokens[name], "ms_per_episode": round(per_episode, 2)})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"CPU time of the glue, median of {ROUNDS} rounds of {EPISODES} episodes at a time")
    print(f"{'turns':>5} {'tokens':>7}  {'':24} {'ms/episode':>10} {'ms/turn':>8} {'ratio':>6}")
    base = {row["turns"]: row["ms_per_episode"] for row in rows if row["name"] == "agentrl.adapt"}
    for row in rows:
        per_episode, ratio = row["ms_per_episode"], row["ms_per_episode"] / base[row["turns"]]
        row["load"] = round(os.getloadavg()[0], 1)
        row["ms_per_turn"], row["ratio"] = round(per_episode / row["turns"], 3), round(ratio, 2)
        print(
            f"{row['turns']:>5} {row['tokens']:>7,}  {row['name']:24} {per_episode:>10.2f} {row['ms_per_turn']:>8.2f} "
            f"{ratio:>5.2f}x"
        )


def make_args(port: int, model: Path, **more: Any) -> SimpleNamespace:
    """The fields of slime's args that this benchmark needs."""
    return SimpleNamespace(
        hf_checkpoint=str(model),
        sglang_router_ip="127.0.0.1",
        sglang_router_port=port,
        rollout_num_engines=1,
        sglang_server_concurrency=512,
        sglang_dp_size=1,
        use_distributed_post=False,
        partial_rollout=False,
        rollout_temperature=1.0,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        rollout_max_response_len=100_000,
        rollout_max_context_len=1_000_000,
        rollout_stop=None,
        rollout_stop_token_ids=None,
        rollout_skip_special_tokens=False,
        apply_chat_template=False,
        custom_rm_path=None,
        rm_type=None,
        **more,
    )


async def run(ports: Mapping[str, int], turns: Any, tokenizer: Any, model: Path) -> list[dict[str, Any]]:
    number, contenders = iter(range(1_000_000)), dict[str, Play]()
    config = {"env": f"{__name__}:Search", "limits": {"turns": max(TURNS)}}
    missing = slime_missing()
    if missing:
        print(f"without slime: {missing}")
        from tests.slime.conftest import Sample
    else:
        from slime.utils.types import Sample

    def sample() -> Any:
        return Sample(index=next(number), prompt=QUESTION)

    turns.value = TURNS[0]
    async with AsyncExitStack() as stack:
        for name, variables in AGENTRL.items():
            own = Path(shutil.copytree(model, model.with_name(f"{model.name} {name}")))  # so a renderer of its own
            play = play_agentrl(make_args(ports["agentrl.adapt"], own, agentrl=config), sample)
            with environment(variables):
                await play(TURNS[0])
            contenders[name] = play
        if not missing:
            from slime.utils.http_utils import init_http_client

            stock = make_args(ports["slime search-r1"], model)
            init_http_client(stock)
            url = f"http://127.0.0.1:{ports['slime OpenAI adapter']}"
            adapter, started = play_openai_adapter(tokenizer, url, sample)
            await stack.enter_async_context(started())
            contenders |= {"slime search-r1": play_search_r1(stock, sample), "slime OpenAI adapter": adapter}
        for name, (bare, opened) in bare_loops(tokenizer, f"http://127.0.0.1:{ports['agentrl.adapt']}").items():
            await stack.enter_async_context(opened())
            contenders[name] = bare
        return await measure(contenders, turns)


def main() -> None:
    warnings.simplefilter("ignore")
    if SLIME_SRC:
        sys.path.append(SLIME_SRC)
    global results
    tokenizer = load_tokenizer()
    fresh = FreshText(tokenizer)
    results = cycle([fresh.tokens(RESULT_TOKENS).replace("<", "(") for _ in range(RESULTS)])
    first = tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}], tools=TOOLS, return_dict=False)
    end_of_call = tokenizer.convert_tokens_to_ids("</tool_call>")
    called = Script(
        rf", ?{end_of_call}\b".encode(),  # not the bare number, which a request's id may hold
        f"{SEARCH}<|im_end|>",
        "It is the Seine.<|im_end|>",
        first.count(end_of_call),
    )
    searched = Script(b"</information>", "<search>the river of the capital</search>", "<answer>Seine</answer>")
    scripts = {"agentrl.adapt": called, "slime search-r1": searched, "slime OpenAI adapter": called}
    with engines(scripts) as (ports, turns), TemporaryDirectory() as folder:
        model = Path(folder, "model")
        tokenizer.save_pretrained(model)
        (model / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
        rows = asyncio.run(run(ports, turns, tokenizer, model))
    show(rows)
    save("adapt_cost", rows)


if __name__ == "__main__":
    main()
