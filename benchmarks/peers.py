"""The programs with which agentrl is compared: slime's adapter and the library `renderers`, if they are installed."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import logging
import multiprocessing
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from agentrl.types import FinishReason, Message
from tests.render.markers import small_tokenizer
from tests.slime.contract.hosts import label

TEMPLATES = Path(__file__).parents[1] / "tests" / "render" / "templates" / "real"
RESULTS = Path(__file__).parent / "results"
SLIMES = {key: os.environ.get(f"{key.upper()}_SRC", "") for key in ("slime", "slime04")}
"""The root folders of slime's source; '' if not set. slime: a version before 0.4. slime04: 0.4 or later."""
SLIME_SRC = SLIMES["slime"]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the encyclopedia.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["query"],
            },
        },
    }
]


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a scripted model, and the environment's messages: a tool result for each call, or a user message."""

    text: str
    answers: tuple[str, ...]
    role: str = "tool"
    finish: FinishReason = "stop"
    aborted: bool = False
    """Whether generation was aborted in the middle, and then continued."""

    def tokens(self, tokenizer: Any) -> list[int]:
        """The sampled tokens, with the stop token if the model sampled it."""
        text = self.text + ("<|im_end|>" if self.finish == "stop" else "")
        return list(tokenizer.encode(text, add_special_tokens=False))

    def messages(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        if self.role == "user":
            return [{"role": "user", "content": text} for text in self.answers]
        known = [*ids, *(f"call_{i}" for i in range(len(ids), len(self.answers)))]
        pairs = zip(known, self.answers, strict=False)
        return [{"role": "tool", "tool_call_id": i, "name": "search", "content": text} for i, text in pairs]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many of an episode's sampled tokens a contender trains, and in how many samples."""

    sampled: int
    trained: int
    samples: int
    tokens: int
    """The number of tokens of all samples, which the trainer computes."""


REAL = "Qwen/Qwen3-0.6B"
SMALL = "a small tokenizer with Qwen 3's markers: it makes about three times as many tokens"


@functools.cache
def which_tokenizer() -> str:
    """The tokenizer of the measurement: a folder, REAL from the Hugging Face cache, or SMALL. Prints the choice."""
    given = os.environ.get("BENCH_TOKENIZER", "")
    own = Path(os.environ.get("AGENTRL_TEST_DATA", "")) / "tokenizers" / "qwen3"
    found = given or (
        str(own) if os.environ.get("AGENTRL_TEST_DATA") and own.is_dir() else REAL if _cached() else SMALL
    )
    if multiprocessing.parent_process() is None:
        remedy = f"; BENCH_TOKENIZER=FOLDER takes a real one, such as {REAL}'s" if found == SMALL else ""
        print(f"tokenizer: {found}{remedy}", flush=True)
    return found


def _cached() -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(REAL, "tokenizer.json"), str)


def load_tokenizer(template: str = "") -> Any:
    """Qwen 3's tokenizer if it is on this machine, else a small tokenizer with its special tokens; see
    `which_tokenizer`.

    `template` names a template of the repository that replaces the tokenizer's template.
    """
    from transformers import AutoTokenizer

    if (which := which_tokenizer()) != SMALL:
        tokenizer = AutoTokenizer.from_pretrained(which)
        if not tokenizer.chat_template:  # the folder may hold the tokenizer alone
            tokenizer.chat_template = (TEMPLATES / "Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8")
    else:
        tokenizer = small_tokenizer((TEMPLATES / "Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8"))
        tokenizer.add_tokens(["<|endoftext|>"], special_tokens=True)
    if template:
        path = TEMPLATES / f"{template}.jinja"
        tokenizer.chat_template = path.read_text(encoding="utf-8")
    return tokenizer


def engine_body(tokenizer: Any, text: str) -> bytes:
    """The body of a response of SGLang's /generate in which the model sampled `text`."""
    tokens = tokenizer.encode(text, add_special_tokens=False)
    meta = {
        "finish_reason": {"type": "stop", "matched": tokens[-1]},
        "output_token_logprobs": [[-0.5, token, None] for token in tokens],
        "completion_tokens": len(tokens),
        "prompt_tokens": 1,
        "cached_tokens": 0,
        "weight_version": "1",
    }
    return json.dumps({"text": text, "meta_info": meta}).encode()


def saved(name: str) -> list[dict[str, Any]]:
    """The rows of benchmarks/results/NAME.json; empty if the file is missing."""
    file = RESULTS / f"{name}.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    return rows


def save_parts(name: str, parts: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Like `save`, but rows of other parts in the file are not changed."""
    save(name, [*(row for row in saved(name) if row["part"] not in parts), *rows])


def save(name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write benchmarks/results/NAME.json, with the date, the kind of machine, and the tokenizer if one was used."""
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    found: dict[str, Any] = {"date": date.today().isoformat(), "machine": machine}
    if which_tokenizer.cache_info().currsize:
        used = which_tokenizer()
        found["tokenizer"] = used if used in (REAL, SMALL) else Path(used).name
    found["rows"] = list(rows)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


# slime's own adapter: the agent speaks HTTP, slime renders every turn again and keeps tokens in a TrajectoryManager.


def slime_missing(key: str = "slime") -> str:
    """Why slime's adapter cannot run; empty if it can."""
    if not SLIMES[key] or not (Path(SLIMES[key]) / "slime" / "agent").is_dir():
        return f"{key.upper()}_SRC is not set"
    return ""


def slime_name(key: str) -> str:
    """The name and version of slime, such as `slime 624b824a8`."""
    return key if slime_missing(key) else label(key, Path(SLIMES[key]))


def run_slime(tokenizer: Any, turns: Sequence[Turn], question: str, *, key: str = "slime") -> Outcome:
    """Play the turns through slime's OpenAIAdapter over HTTP, as an OpenAI client does.

    Each version of slime runs in a separate process, as both packages have the same name.
    """
    return _process_of(key).submit(_run_slime_here, SLIMES[key], tokenizer, turns, question).result()


@functools.cache
def _process_of(key: str) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _run_slime_here(source: str, tokenizer: Any, turns: Sequence[Turn], question: str) -> Outcome:
    if source not in sys.path:
        sys.path.append(source)
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return asyncio.run(_run_slime(tokenizer, turns, question))


async def _run_slime(tokenizer: Any, turns: Sequence[Turn], question: str) -> Outcome:
    from aiohttp.test_utils import TestClient, TestServer
    from slime.agent.adapters import common, openai
    from slime.utils.types import Sample

    script = [part for turn in turns for part in _generations(tokenizer, turn)]
    generations = iter(script)

    async def generate(prompt_ids: list[int], *_: Any, **__: Any) -> Any:
        tokens, finish = next(generations)
        return common.TurnRecord(
            prompt_ids=list(prompt_ids), output_ids=tokens, finish_reason=finish, output_log_probs=[-1.0] * len(tokens)
        )

    common.call_sglang_generate, common.parse_model_output = generate, _parse_as_sglang
    adapter = openai.OpenAIAdapter(tokenizer=tokenizer, sglang_url="", tool_parser="qwen25", reasoning_parser="qwen3")
    messages: list[Message] = [{"role": "user", "content": question}]
    async with TestClient(TestServer(adapter.app)) as client:
        for turn in turns:
            body = {"messages": messages, "tools": TOOLS}
            for _ in range(1 + turn.aborted):  # an agent whose turn was aborted asks again
                headers = {"Authorization": "Bearer episode"}
                response = await client.post("/v1/chat/completions", json=body, headers=headers)
                said = (await response.json())["choices"][0]["message"]
            ids = [call["id"] for call in said.get("tool_calls") or ()]
            answers = turn.messages(ids)
            messages += [said, *(answers[: len(ids)] if ids else answers)]
    samples = await adapter.finish_session("episode", base_sample=Sample(index=0, prompt=question))
    sampled = sum(len(tokens) for tokens, _ in script)
    trained = sum(sum(sample.loss_mask) for sample in samples)
    return Outcome(sampled, trained, len(samples), sum(len(sample.tokens) for sample in samples))


def _generations(tokenizer: Any, turn: Turn) -> list[tuple[list[int], str]]:
    """The engine's responses for a turn. After an abort, the engine returns the whole turn again."""
    tokens = turn.tokens(tokenizer)
    return [*([(tokens[: len(tokens) // 2], "abort")] if turn.aborted else []), (tokens, turn.finish)]


def _parse_as_sglang(raw_output: str, *, tools_schema: Any, **_: Any) -> Any:
    """Parse a turn like SGLang's parsers `qwen3` (reasoning) and `qwen25` (calls), which slime imports."""
    from slime.agent.parsing import ParsedModelOutput

    text = raw_output.removesuffix("<|im_end|>")
    reasoning, found, rest = text.rpartition("</think>")
    if not found and text.startswith("<think>"):
        reasoning, rest = text, ""
    calls = re.findall(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", rest, re.DOTALL) if tools_schema else []
    uses = [{"name": call["name"], "input": call["arguments"]} for call in map(json.loads, calls)]
    said = rest.partition("<tool_call>")[0].strip()
    return ParsedModelOutput(reasoning=reasoning.replace("<think>", "").strip(), text=said, tool_uses=uses)


# `renderers`: a bridge where the family is known and allows it, else a full render; a broken prefix begins a sample.


def renderers_missing() -> str:
    """Why the library `renderers` cannot run; empty if it can."""
    return "" if importlib.util.find_spec("renderers") else "`renderers` is not installed"


def make_renderers(tokenizer: Any, *, known: bool, keep_thinking: bool = False) -> Any:
    """A renderer of the library `renderers`: its renderer for Qwen 3 or, without `known`, its renderer for unknown
    templates."""
    from renderers import DefaultRendererConfig, Qwen3RendererConfig, create_renderer

    if not known:
        return create_renderer(tokenizer, DefaultRendererConfig(tool_parser="qwen3", reasoning_parser="think"))
    return create_renderer(tokenizer, Qwen3RendererConfig(thinking_retention="all" if keep_thinking else None))


def run_renderers(tokenizer: Any, turns: Sequence[Turn], question: str, *, renderer: Any) -> Outcome:
    messages: list[Any] = [{"role": "user", "content": question}]
    prompt = list(renderer.render_ids(messages, tools=TOOLS, add_generation_prompt=True))
    sampled, finished = 0, list[int]()
    for number, turn in enumerate(turns):
        tokens = turn.tokens(tokenizer)
        sampled += len(tokens)
        so_far = [*prompt, *tokens]
        if number == len(turns) - 1:
            finished.append(len(so_far))
            break
        new = turn.messages([])
        messages += [_as_message(renderer.parse_response(tokens, tools=TOOLS)), *new]
        bridged = renderer.bridge_to_next_turn(prompt, tokens, new, tools=TOOLS)
        again = bridged is None
        prompt = list(
            renderer.render_ids(messages, tools=TOOLS, add_generation_prompt=True) if again else bridged.token_ids
        )
        if prompt[: len(so_far)] != so_far:
            finished.append(len(so_far))
    return Outcome(sampled, sampled, len(finished), sum(finished))


def _as_message(parsed: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning_content:
        message["reasoning_content"] = parsed.reasoning_content
    calls = [call for call in parsed.tool_calls if isinstance(call.arguments, dict)]
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{i}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for i, call in enumerate(calls)
        ]
    return message
