"""The loops of other libraries for an episode with a search tool, without HTTP: for `adapt_cost`.

Each loop has the same parts as `agentrl.adapt`: the prompt, an engine that replies at once, and the tool's text as
tokens. Each leaves out more: search-R1 has no template, tools or limits; the bare loops over `renderers` and miles-tito
return no sample; TRL's has no failures, no masks of failures and no reward.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import cycle
from types import SimpleNamespace
from typing import Any

from agentrl.render.raw import encoder_of
from benchmarks import peers
from benchmarks.peers import SLIME_SRC, TOOLS

SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query": "the river of the capital"}}\n</tool_call>'
ANSWER = "It is the Seine."
CALL = {"name": "search", "arguments": {"query": "the river of the capital"}}

Group = Callable[[Sequence[str], int], Awaitable[int]]
"""Plays an episode for each question, with a number of turns. Returns the number of tokens of the last episode."""
Follow = Callable[[list[Any], list[int], list[int]], list[int]]
"""Computes the tokens of the next prompt from all messages, the tokens of the previous prompt, and the sampled
tokens."""


@dataclass
class Replies:
    """The number of replies that an engine still gives in an episode. The last reply is the answer."""

    left: int

    def is_last(self) -> bool:
        self.left -= 1
        return self.left <= 0


replies: ContextVar[Replies] = ContextVar("replies")


@dataclass
class Script:
    """The tokens of the engine's replies, and the texts of the tool."""

    tokenizer: Any
    results: Iterator[str] = field(default_factory=lambda: cycle(["The Seine."]))
    call: list[int] = field(init=False)
    answer: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.call, self.answer = self.encode(f"{SEARCH}<|im_end|>"), self.encode(f"{ANSWER}<|im_end|>")

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def reply(self) -> list[int]:
        return self.answer if replies.get().is_last() else self.call


def one_by_one(play: Callable[[str, int], Awaitable[int]]) -> Group:
    """Play the episodes of a group at the same time, each in a task."""

    async def group(questions: Sequence[str], turns: int) -> int:
        async def episode(question: str) -> int:
            replies.set(Replies(turns))
            return await play(question, turns)

        return (await asyncio.gather(*map(episode, questions)))[-1]

    return group


def encodes(script: Script) -> Group:
    """Only the tool's texts as tokens, by the tokenizer's function in Rust."""
    encode = encoder_of(script.tokenizer)

    async def group(questions: Sequence[str], turns: int) -> int:
        return sum(len(encode(next(script.results))) for _ in questions for _ in range(turns - 1))

    return group


def search_r1(script: Script, args: Any, sample: Callable[[str], Any]) -> Group:
    """slime's example search-R1: `generate` with another `post` and another `search`."""
    sys.path += [SLIME_SRC, f"{SLIME_SRC}/examples/search-r1"]
    example = importlib.import_module("generate_with_search")
    texts = "<search>the river of the capital</search>", "<answer>Seine</answer>"
    outputs = [_sglang_output(text, script.encode(text)) for text in texts]

    async def post(url: str, payload: Any) -> Any:
        return outputs[replies.get().is_last()]

    async def search(query: str) -> str:
        return next(script.results)

    example.post, example.search = post, search

    async def play(question: str, turns: int) -> int:
        example.SEARCH_R1_CONFIGS["max_turns"] = turns
        played = await example.generate(args, sample(question), {"temperature": 1.0, "max_new_tokens": 100_000})
        assert "Seine" in played.response, played.response[-100:]
        return len(played.tokens)

    return one_by_one(play)


def _sglang_output(text: str, tokens: Sequence[int]) -> dict[str, Any]:
    meta = {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[-0.5, token, None] for token in tokens]}
    return {"text": text, "meta_info": meta}


def bare(script: Script, follow: Follow) -> Group:
    """A loop that only computes prompts, with a library that continues the tokens of a prompt."""

    async def play(question: str, turns: int) -> int:
        messages: list[Any] = [{"role": "user", "content": question}]
        prompt = script.tokenizer.apply_chat_template(
            messages, tools=TOOLS, add_generation_prompt=True, return_dict=False
        )
        for number in range(turns - 1):
            sampled = script.reply()
            await asyncio.sleep(0)
            call = {"id": f"call{number:05}", "type": "function", "function": CALL}
            result = {"role": "tool", "tool_call_id": call["id"], "name": "search", "content": next(script.results)}
            messages += [{"role": "assistant", "content": "", "tool_calls": [call]}, result]
            prompt = follow(messages, prompt, sampled)
        return len(prompt) + len(script.reply())

    return one_by_one(play)


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


def trl(script: Script) -> Group:
    """The tool loop of TRL's GRPOTrainer, which plays the episodes of a batch in step."""
    from trl.chat_template_utils import add_response_schema, get_training_chat_template, qwen3_chat_template
    from trl.trainer.grpo_trainer import GRPOTrainer, parse_response

    def search(query: str) -> str:
        """Search the encyclopedia.

        Args:
            query: the words to search for
        """
        return next(script.results)

    class Loop(GRPOTrainer):
        """The trainer without a model."""

        def __init__(self) -> None:
            tokenizer = deepcopy(script.tokenizer)
            tokenizer.chat_template = qwen3_chat_template  # the only text that TRL recognises as Qwen 3's
            self.processing_class = self._tokenizer = add_response_schema(tokenizer)
            self.chat_template = get_training_chat_template(tokenizer)
            self.tools, self.chat_template_kwargs, self.environment_factories = [search], {}, None
            self._is_vlm = self.use_vllm = False
            self.max_tool_calling_iterations = self.max_completion_length = 1 << 40
            self.model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=1 << 40))

        def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
            sampled = [list(script.answer if each.is_last() else script.call) for each in self.replies]
            return sampled, [[-0.5] * len(tokens) for tokens in sampled]

        def play(self, questions: Sequence[str], turns: int) -> int:
            self._sync_tool_dicts = [{"search": search} for _ in questions]
            self._async_tool_dicts = [{} for _ in questions]
            self.replies = [Replies(turns) for _ in questions]
            prompts = [[{"role": "user", "content": question}] for question in questions]
            prompt_ids, images, fields = self._tokenize_prompts(prompts)
            sampled, logprobs = self._generate_single_turn(prompt_ids)
            completions = [
                [parse_response(self._tokenizer, ids, prefix=prompt, tools=self.tools)]
                for prompt, ids in zip(prompt_ids, sampled, strict=True)
            ]
            mask, *_ = self._tool_call_loop(prompts, prompt_ids, sampled, completions, logprobs, images, fields)
            assert all(each.left == 0 for each in self.replies), "a call was not executed"
            return len(prompt_ids[-1]) + len(mask[-1])

    loop = Loop()

    async def group(questions: Sequence[str], turns: int) -> int:
        return loop.play(questions, turns)

    return group


def verifiers(script: Script) -> Group:
    """verifiers' ToolEnv with its client over `renderers`. The post of the OpenAI client is replaced."""
    _with_pool()
    import verifiers.legacy as vf
    from datasets import Dataset
    from verifiers.legacy.clients.renderer_client import RendererClient

    async def search(query: str) -> str:
        """Search the encyclopedia."""
        return next(script.results)

    def body(tokens: Sequence[int]) -> bytes:
        scored = {"content": [{"token": f"token_id:{token}", "logprob": -0.5} for token in tokens]}
        return json.dumps(
            {"choices": [{"token_ids": tokens, "logprobs": scored, "finish_reason": "stop"}], "request_id": "r"}
        ).encode()

    bodies = [SimpleNamespace(content=body(tokens)) for tokens in (script.call, script.answer)]

    class Server:
        base_url = "http://nowhere/v1"

        async def post(self, *_: Any, **__: Any) -> Any:
            return bodies[replies.get().is_last()]

    env = vf.ToolEnv(
        tools=[search],
        max_turns=1 << 40,
        dataset=Dataset.from_list([{"question": "?", "answer": ""}]),
        rubric=vf.Rubric(),
    )
    client = RendererClient(Server(), renderer=peers.make_renderers(script.tokenizer, known=True))

    async def play(question: str, turns: int) -> int:
        row = {"prompt": [{"role": "user", "content": question}], "example_id": 0, "answer": ""}
        state = await env.rollout(row, client, "model", {"temperature": 1.0})
        steps = state["trajectory"]
        assert len(steps) == turns, (len(steps), state.get("error"))
        return len(steps[-1]["tokens"]["prompt_ids"]) + len(steps[-1]["tokens"]["completion_ids"])

    return one_by_one(play)


def _with_pool() -> None:
    """Add the names that verifiers 0.3.1 imports, and that `renderers` has no longer from 0.1.11 on. A client with a
    renderer of its own uses only `_maybe_offload`."""
    import renderers.client

    async def directly(_: Any, work: Callable[[], Any]) -> Any:
        return work()

    absent = {(renderers, "RendererPool"): object, (renderers, "create_renderer_pool"): None}
    for (module, name), value in {**absent, (renderers.client, "_maybe_offload"): directly}.items():
        if not hasattr(module, name):
            setattr(module, name, value)


def installed(module: str) -> str:
    """Empty if the module can be imported, else the reason why a loop cannot be played."""
    return "" if importlib.util.find_spec(module) else f"{module} is not installed"
