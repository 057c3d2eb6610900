"""Random conversations over every certified template: whatever is said or sampled, the ledger is complete."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.errors import TemplateError
from agentrl.render import Renderer, load_renderer
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Action, Generation, Message
from tests.render.markers import small_tokenizer, template_files, tokenizer_of
from tests.render.mutants import CHATML, LLAMA
from tests.render.probes import TOOLS

PIECES = (
    "<|im_end|>",
    "</s>",
    "<tool_call>",
    "</think>",
    "<think>",
    "[/INST]",
    '{"name": "book"',
    "{{ x }}",
    "晴れ 🚆",
)
TEXT = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=30), st.lists(st.sampled_from(PIECES), max_size=4).map(" ".join)
)
"""Unicode, control characters, emptiness, and what looks like a template's own marks."""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | TEXT,
    lambda value: st.lists(value, max_size=3) | st.dictionaries(TEXT, value, max_size=2),
    max_leaves=5,
)
CALLS = st.lists(st.fixed_dictionaries({"place": VALUES}, optional={"seats": VALUES}), min_size=1, max_size=6)
TURNS = st.one_of(
    st.tuples(st.just("says"), TEXT, st.none()),
    st.tuples(st.just("calls"), st.just(""), CALLS),
    st.tuples(st.sampled_from(["random", "length", "abort"]), TEXT, st.none()),
)
CONVERSATION = st.lists(st.tuples(TURNS, TEXT), min_size=1, max_size=30)


def certified() -> list[Any]:
    """A renderer and its tokenizer for each template that certifies; two small ones are always there."""
    named = {"chatml": lambda: small_tokenizer(CHATML), "llama": lambda: small_tokenizer(LLAMA)}
    named |= {path.stem: lambda path=path: tokenizer_of(path) for path in template_files()}
    return [pytest.param(make, id=name) for name, make in named.items()]


@pytest.mark.thorough
@pytest.mark.parametrize("make", certified())
def test_random_conversations_keep_every_invariant(make: Any) -> None:
    tokenizer = make()
    try:
        renderer = load_renderer(tokenizer, tools=TOOLS)
    except TemplateError:
        return  # test_checker.py has a word on those

    @settings(max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(question=TEXT, conversation=CONVERSATION, seed=st.integers(0, 2**32))
    def play(question: str, conversation: Any, seed: int) -> None:
        Play(renderer, tokenizer, seed).run(question, conversation)

    play()


class Play:
    """A conversation driven through Renderer and Trajectory as an episode drives them."""

    def __init__(self, renderer: Renderer, tokenizer: Any, seed: int) -> None:
        self.renderer, self.vocabulary = renderer, len(tokenizer)
        self.rng = random.Random(seed)
        self.trajectory = Trajectory(tools=TOOLS)
        self.sampled = 0

    def run(self, question: str, conversation: Any) -> None:
        trajectory = self.trajectory
        messages = [{"role": "user", "content": question}]
        trajectory.append_prompt(self.renderer.prompt(messages), messages)
        for (kind, text, calls), observed in conversation:
            before = list(trajectory.tokens)
            self.generate(kind, text, calls)
            action = self.read()
            new = self.answer(action, observed)
            rendered = self.renderer.bridge(trajectory.messages, action, new)
            trajectory.append_observation(rendered, new)
            self.check(before, action, rendered.tokens)
        trajectory.verify()
        assert Trajectory.from_json(trajectory.to_json()).tokens == trajectory.tokens

    def generate(self, kind: str, text: str, calls: Any) -> None:
        """One turn: as the renderer would write it, or any tokens at all; an aborted one is resumed."""
        if kind == "says":
            return self.sample(self.renderer.encode({"role": "assistant", "content": text or "yes"}), "stop")
        if kind == "calls":
            return self.sample(self.renderer.encode(self.asks(calls)), "stop")
        tokens = [self.rng.randrange(self.vocabulary) for _ in range(self.rng.randrange(1, 40))]
        if kind == "length":
            return self.sample(tokens, "length")
        if kind == "abort":
            self.sample(tokens[:-1], "abort")
        return self.sample([*tokens, self.rng.choice(sorted(self.renderer.stop_token_ids))], "stop")

    def asks(self, calls: Any) -> Message:
        count = len(calls) if self.renderer.certificate.capabilities["parallel_calls"] else 1
        written = [
            {"id": f"call{i:05}", "type": "function", "function": {"name": "book", "arguments": arguments}}
            for i, arguments in enumerate(calls[:count])
        ]
        return {"role": "assistant", "content": "", "tool_calls": written}

    def sample(self, tokens: list[int], finish: Any) -> None:
        log_probs = [-self.rng.random() for _ in tokens]
        matched = tokens[-1] if finish == "stop" else None
        sent = len(self.trajectory.tokens)
        generation = Generation(tuple(tokens), tuple(log_probs), finish, matched=matched)
        self.trajectory.append_model(generation, prompt_tokens=sent)
        self.sampled += len(tokens)

    def read(self) -> Action:
        trajectory, turn = self.trajectory, self.trajectory.turns[-1]
        tokens = trajectory.segment.turn_tokens
        action = self.renderer.parse(tokens, turn.finish_reason, turn.matched, thinking=trajectory.segment.thinking)
        assert list(action.tokens) == tokens
        assert turn.finish_reason == "stop" or not action.calls
        trajectory.append_action(action)
        return action

    def answer(self, action: Action, observed: str) -> list[Message]:
        if action.calls and self.renderer.certificate.capabilities["tool_results"]:
            return [{"role": "tool", "tool_call_id": c.id, "name": c.name, "content": observed} for c in action.calls]
        return [{"role": "user", "content": observed}]

    def check(self, before: list[int], action: Action, bridge: tuple[int, ...]) -> None:
        trajectory = self.trajectory
        assert trajectory.tokens == [*before, *action.tokens, *bridge]
        ledger = trajectory.ledger
        assert ledger.sampled == ledger.trained == sum(trajectory.loss_mask) == self.sampled
        assert ledger.masked == {}
        assert (
            len(trajectory.loss_mask) == len(trajectory.log_probs) == len(trajectory.tokens) - trajectory.prompt_length
        )
