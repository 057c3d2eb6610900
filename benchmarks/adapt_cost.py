"""The table of turns: CPU time of `agentrl.adapt`, from Sample to Sample, beside the loops of other libraries.

SLIME_SRC=/path/to/slime python -m benchmarks.adapt_cost [--turns 2,8] [--tokens 300] [--rounds 5]

Missing libraries are named in the table: slime (SLIME_SRC), renderers, miles_tito_tokenizers, trl, verifiers (0.3: 0.4
has no ToolEnv). BENCH_TOKENIZER names the tokenizer of a Qwen model, by its folder.

Nobody speaks HTTP: the engine is an object that replies at once with the same 25 tokens, a call, or an answer in the
last turn. A tool's result is fresh text. Groups have eight episodes, with the same question or with distinct questions.
Contenders are timed in turn, round by round, in this process: the results are medians of CPU time. A cell that would
take more than `PATIENCE_S` is not played, and says so.

The comparison favours the others: see `loops`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

from agentrl import Env, adapt, tool
from agentrl.engine.sglang.client import _body
from agentrl.engine.sglang.encoding import HistoryEncoder
from agentrl.episode.shared import LoopResources
from agentrl.render import fast_bpe, memo
from agentrl.types import Generation
from benchmarks import loops
from benchmarks.fresh_episodes import FreshText
from benchmarks.loops import Group, Script, one_by_one
from benchmarks.peers import load_tokenizer, save, slime_missing

TURNS, TOKENS = (2, 8, 32, 200), (30, 300, 2000)
EPISODES = 8
"""The number of episodes that are played at the same time."""
WORDS = 60_000
"""Tokens of the different results: so many that the tokenizer's cache has lost the words of a result before the result
is repeated."""
PATIENCE_S = 20.0
"""CPU seconds of a contender's round in a cell. The estimate is the cost of the cell before, with the square of the
turns."""
AGENTRL: Mapping[str, Mapping[str, str]] = {
    "agentrl": {fast_bpe.VARIABLE: "off"},
    "agentrl, rendered": {fast_bpe.VARIABLE: "off", memo.VARIABLE: "off"},
    "agentrl, fast BPE": {fast_bpe.VARIABLE: "on"},
}
"""Name of a variant of agentrl -> environment variables with which its renderer is loaded."""
BASE = "agentrl"
script: Script


class Search(Env):
    """The same conversation, as an Env."""

    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia."""
        return next(script.results)

    def score(self, trajectory: Any) -> float:
        return float("Seine" in trajectory.answer)


class Instant:
    """An engine that replies at once. With `requests`, each request becomes the bytes that SGLang would get."""

    def __init__(self, requests: bool) -> None:
        self.encoder = HistoryEncoder(max_tokens=1 << 40) if requests else None

    async def generate(self, input_ids: Any, sampling_params: Any, *, session_id: str = "", rid: str = "") -> Any:
        if self.encoder:
            _body(self.encoder.encode(session_id, input_ids), {"sampling_params": sampling_params, "rid": rid})
        await asyncio.sleep(0)
        tokens = script.reply()
        return Generation(tokens, [-0.5] * len(tokens), "stop", tokens[-1], "1", 0, {"id": rid})

    def forget(self, session_id: str) -> None:
        if self.encoder:
            self.encoder.forget(session_id)

    async def abort(self, rid: str | None = None) -> None: ...

    async def context_length(self) -> int:
        return 1 << 30

    async def close(self) -> None: ...


@dataclass
class Contender:
    """A loop, or the reason why the loop is missing."""

    name: str
    group: Group | None = None
    missing: str = ""
    distinct: bool = False
    """Whether the episodes of a group have distinct questions."""
    last: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Tokens -> turns and CPU seconds of an episode in the last cell that was played."""

    def estimate(self, turns: int, tokens: int) -> float:
        """The CPU seconds of an episode, at most."""
        before, seconds = self.last.get(tokens, (turns, 0.0))
        return seconds * (turns / before) ** 2


def agentrl(args: SimpleNamespace, sample: Callable[[str], Any]) -> Group:
    params = {"temperature": 1.0, "max_new_tokens": 1_000_000}

    async def play(question: str, turns: int) -> int:
        played = await adapt(args, sample(question), params)
        assert played.metadata["agentrl"]["turns"] == turns, played.metadata
        assert played.reward == 1.0, played.response[-100:]
        return len(played.tokens)

    return one_by_one(play)


def make_args(model: Path, **more: Any) -> SimpleNamespace:
    """The fields of slime's args that this benchmark needs."""
    return SimpleNamespace(
        hf_checkpoint=str(model),
        sglang_router_ip="127.0.0.1",
        rollout_num_engines=1,
        sglang_server_concurrency=512,
        sglang_dp_size=1,
        use_distributed_post=False,
        partial_rollout=False,
        rollout_temperature=1.0,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        rollout_max_response_len=1_000_000,
        rollout_max_context_len=1 << 30,
        rollout_stop=None,
        rollout_stop_token_ids=None,
        rollout_skip_special_tokens=False,
        apply_chat_template=False,
        custom_rm_path=None,
        rm_type=None,
        **more,
    )


async def contenders(model: Path) -> list[Contender]:
    """All contenders. A library that is missing has the reason in place of its loop."""
    numbers, slime = count(), slime_missing()
    if slime:
        from tests.slime.conftest import Sample
    else:
        import sys

        sys.path.append(loops.SLIME_SRC)
        from slime.utils.types import Sample

    def sample(question: str) -> Any:
        return Sample(index=next(numbers), prompt=question)

    def ours(folder: str, port: int) -> Group:
        config = {"env": f"{__name__}:Search", "limits": {"turns": max(TURNS)}}
        return agentrl(make_args(model.with_name(folder), sglang_router_port=port, agentrl=config), sample)

    listed = [Contender("one encode", loops.encodes(script))]
    for name, variables in AGENTRL.items():
        shutil.copytree(model, model.with_name(name))  # so a renderer of its own
        missing = loops.installed("fastokens") if variables.get(fast_bpe.VARIABLE) == "on" else ""
        if missing:
            listed.append(Contender(name, missing=missing))
            continue
        group = under(variables, ours(name, 1))
        await group(["Which river?"], 2)
        listed.append(Contender(name, group))
        if name != "agentrl, rendered":
            listed.append(Contender(f"{name}, distinct questions", group, distinct=True))
        if name == "agentrl, fast BPE":
            listed.append(Contender(f"{name}, bytes of requests", under(variables, ours(name, 2))))
    makers: Mapping[str, tuple[str, Callable[[], Group]]] = {
        "search-R1": (slime, lambda: loops.search_r1(script, make_args(model, sglang_router_port=1), sample)),
        "renderers, bare": (
            loops.installed("renderers"),
            lambda: loops.bare(script, loops.renderers_prompts(script.tokenizer)),
        ),
        "miles-tito, bare": (
            loops.installed("miles_tito_tokenizers"),
            lambda: loops.bare(script, loops.tito_prompts(script.tokenizer)),
        ),
        "TRL's tool loop": (loops.installed("trl"), lambda: loops.trl(script)),
        "verifiers' ToolEnv": (
            loops.installed("verifiers") or loops.installed("verifiers.legacy"),
            lambda: loops.verifiers(script),
        ),
    }
    return [*listed, *[await peer(name, why, make) for name, (why, make) in makers.items()]]


async def peer(name: str, why: str, make: Callable[[], Group]) -> Contender:
    """A peer's loop, if the loop is installed and plays an episode of three turns."""
    if why:
        return Contender(name, missing=why)
    try:
        group = make()
        await group(["Which river?"], 3)
    except Exception as exc:  # noqa: BLE001 - the boundary of another library, of any version
        return Contender(name, missing=f"fails with this version: {type(exc).__name__}: {exc}")
    return Contender(name, group)


def under(variables: Mapping[str, str], group: Group) -> Group:
    """The loop with these environment variables."""

    async def play(questions: Sequence[str], turns: int) -> int:
        with mock.patch.dict(os.environ, variables):
            return await group(questions, turns)

    return play


async def cell(listed: Sequence[Contender], turns: int, tokens: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each contender: milliseconds of CPU of a turn."""
    numbers, times = count(), dict[str, list[float]]()
    ready = [each for each in listed if each.group and each.estimate(turns, tokens) < PATIENCE_S]
    lengths = dict[str, int]()
    for number in range(rounds + 1):
        for each in ready:
            assert each.group is not None
            episodes = EPISODES if EPISODES * each.estimate(turns, tokens) < PATIENCE_S else 1
            first = next(numbers)
            questions = [f"Which river, {first}.{i if each.distinct else 0}?" for i in range(episodes)]
            gc.collect()
            began = time.process_time()
            lengths[each.name] = await each.group(questions, turns)
            spent = (time.process_time() - began) / episodes
            if number or turns * tokens > 20_000:  # the first round warms up what has not played yet
                times.setdefault(each.name, []).append(1000 * spent / turns)
    rows = []
    for each in listed:
        row: dict[str, Any] = {"turns": turns, "tokens": tokens, "name": each.name}
        if each.name in times:
            cost = median(times[each.name])
            each.last[tokens] = turns, cost * turns / 1000
            row |= {"ms a turn": round(cost, 3), "tokens of an episode": lengths[each.name]}
            row |= {"least": round(min(times[each.name]), 3), "most": round(max(times[each.name]), 3)}
        else:
            row["missing"] = each.missing or f"about {each.estimate(turns, tokens):.0f} s an episode: not played"
        rows.append(row)
    base = next(row["ms a turn"] for row in rows if row["name"] == BASE)
    for row in rows:
        if "ms a turn" in row:
            row["ratio"] = round(row["ms a turn"] / base, 2)
    return rows


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"\n{rows[0]['turns']} turns of {rows[0]['tokens']} tokens, at a load of {os.getloadavg()[0]:.1f}")
    for row in rows:
        if "missing" in row:
            print(f"  {row['name']:36} {row['missing']}")
        else:
            spread = f"({row['least']:.2f} to {row['most']:.2f})"
            print(f"  {row['name']:36} {row['ms a turn']:7.2f} ms a turn {spread:20} {row['ratio']:6.2f}x", flush=True)


def whole_numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


async def measure(model: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    engines = {1: Instant(requests=False), 2: Instant(requests=True)}

    async def engine(self: LoopResources, url: str, *_: Any, **__: Any) -> Any:
        return engines[int(url.rpartition(":")[2])]

    LoopResources.engine = engine  # type: ignore[method-assign]
    listed, fresh, rows = await contenders(model), FreshText(script.tokenizer), list[dict[str, Any]]()
    for tokens in options.tokens:
        texts = [fresh.tokens(tokens).replace("<", "(") for _ in range(max(256, WORDS // tokens))]
        script.results = cycle(texts)
        for turns in options.turns:
            found = await cell(listed, turns, tokens, options.rounds)
            show(found)
            rows += found
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=whole_numbers, default=list(TURNS))
    parser.add_argument("--tokens", type=whole_numbers, default=list(TOKENS))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    global script
    script = Script(load_tokenizer())
    with TemporaryDirectory() as folder:
        model = Path(folder, "model")
        script.tokenizer.save_pretrained(model)
        (model / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
        rows = asyncio.run(measure(model, options))
    if (options.turns, options.tokens) == (list(TURNS), list(TOKENS)):
        save("adapt_cost", rows)


if __name__ == "__main__":
    import benchmarks.adapt_cost as module  # the Env's module is imported by its name, so the script must be there

    module.main()
