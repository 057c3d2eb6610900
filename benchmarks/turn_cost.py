"""The cost of a further turn as the context grows: full rendering, miles-tito-tokenizers, `renderers`, agentrl.

python -m benchmarks.turn_cost        (miles-tito-tokenizers and `renderers` are measured if they can be imported)

Qwen 3's real tokenizer and template; a turn is a call and a 600-token tool result. All contenders are timed in turn,
round by round, in the same process; the results are medians over the rounds. There are three tables: computing the next
prompt's tokens at 7k, 36k and 73k tokens and summed over 100 turns; the trajectory's book-keeping at turn 10 and 200;
and all work of the SDK in a turn, from the engine's response to the bytes of the next request.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from agentrl.engine.sglang.client import _body
from agentrl.engine.sglang.encoding import HistoryEncoder
from agentrl.render import Rendered, Renderer, load_renderer
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Action, Generation, Message
from benchmarks.peers import TOOLS, load_tokenizer, make_renderers, renderers_missing, save

SIZES = {"7k": 7_000, "36k": 36_000, "73k": 73_000}
TURNS = 100
ROUNDS = 9
FIELDS = {"sampling_params": {"temperature": 1.0, "max_new_tokens": 512}, "return_logprob": True, "stream": False}
ASK = '<tool_call>\n{"name": "search", "arguments": {"query": "the river of the capital"}}\n</tool_call><|im_end|>'


@dataclass
class Episode:
    """A growing conversation, in the form that each contender needs."""

    tokenizer: Any
    renderer: Renderer
    trajectory: Trajectory = field(default_factory=lambda: Trajectory(tools=TOOLS))
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sampled: list[int] = self.tokenizer.encode(ASK, add_special_tokens=False)
        words = "The river Seine flows through Paris, and past it. "
        self.result = words * (600 * 10 // len(self.tokenizer.encode(words * 10)))
        self.messages.append({"role": "user", "content": "Which river flows through the capital of France?"})
        self.trajectory.append_prompt(self.renderer.prompt(self.messages), self.messages)

    @property
    def generation(self) -> Generation:
        return Generation(self.sampled, [-0.5] * len(self.sampled), "stop", self.sampled[-1])

    def answers(self, action: Action) -> list[Message]:
        return [{"role": "tool", "tool_call_id": c.id, "name": c.name, "content": self.result} for c in action.calls]

    def turn(self) -> tuple[Action, list[Message], Rendered]:
        """A whole turn in agentrl: record the reply, parse it, compute the bridge, record the observation."""
        trajectory, generation = self.trajectory, self.generation
        trajectory.append_model(generation, prompt_tokens=trajectory.segment.length)
        matched = generation.matched
        action = self.renderer.parse(
            trajectory.segment.turn_tokens, "stop", matched, thinking=trajectory.segment.thinking
        )
        trajectory.append_action(action)
        new = self.answers(action)
        bridge = self.renderer.bridge(trajectory.messages, action, new)
        trajectory.append_observation(bridge, new)
        return action, new, bridge

    def step(self) -> Step:
        """Play a turn, and return the data with which each contender can play the same turn."""
        before = list(self.trajectory.tokens)
        action, new, bridge = self.turn()
        function = {"name": "search", "arguments": {"query": "the river of the capital"}}
        call = {"id": action.calls[0].id, "type": "function", "function": function}
        self.messages += [{"role": "assistant", "content": "", "tool_calls": [call]}, *map(dict, new)]
        return Step(before, self.sampled, action, new, list(self.messages), bridge)

    def grow(self, tokens: int) -> Step:
        """Play until a turn begins with at least `tokens` tokens, and return this turn."""
        while self.trajectory.segment.length < tokens:
            self.step()
        return self.step()


@dataclass(frozen=True)
class Step:
    """A turn: the prompt, the sampled tokens, and the observation."""

    before: list[int]
    sampled: list[int]
    action: Action
    new: Sequence[Message]
    messages: list[dict[str, Any]]
    bridge: Rendered


Contender = Callable[[Step], Any]
"""Computes the tokens of the prompt after a step."""


def contenders(tokenizer: Any, renderer: Renderer) -> Mapping[str, Contender | str]:
    """Name -> contender, or the reason why it cannot be measured here."""
    found: dict[str, Contender | str] = {
        "full re-render": lambda step: tokenizer.apply_chat_template(
            step.messages, tools=TOOLS, add_generation_prompt=True, tokenize=True, return_dict=False
        ),
        "miles-tito-tokenizers": "miles-tito-tokenizers is not installed",
        "renderers bridge": renderers_missing(),
        "agentrl bridge": lambda step: renderer.bridge(step.messages, step.action, step.new),
    }
    if importlib.util.find_spec("miles_tito_tokenizers"):
        from miles_tito_tokenizers import get_tito_tokenizer

        tito = get_tito_tokenizer(tokenizer, "qwen3", allowed_append_roles=["tool", "user"])
        found["miles-tito-tokenizers"] = lambda step: tito.merge_tokens(
            step.messages[: -len(step.new)], step.messages, [*step.before, *step.sampled], tools=TOOLS
        )
    if not found["renderers bridge"]:
        peer = make_renderers(tokenizer, known=True)
        found["renderers bridge"] = lambda step: peer.bridge_to_next_turn(
            step.before, step.sampled, list(step.new), tools=TOOLS
        )
    return found


def milliseconds(run: Callable[..., Any], *args: Any) -> float:
    start = time.perf_counter()
    run(*args)
    return 1000 * (time.perf_counter() - start)


def check(step: Step, ready: Mapping[str, Contender]) -> None:
    """Exit with an error unless all contenders compute the same prompt, as only then costs can be compared."""
    expected = [*step.before, *step.sampled, *step.bridge.tokens]
    for name, run in ready.items():
        made = run(step)
        tokens = list(getattr(made, "token_ids", getattr(made, "tokens", made)))
        if tokens not in (expected, list(step.bridge.tokens)):
            raise SystemExit(f"{name} makes {len(tokens)} other tokens than the {len(expected)} expected")


def prompts(tokenizer: Any, renderer: Renderer) -> list[dict[str, Any]]:
    """Milliseconds for the next prompt at each size, and for 100 turns from the first on."""
    runs = contenders(tokenizer, renderer)
    ready = {name: run for name, run in runs.items() if not isinstance(run, str)}
    rows: dict[str, dict[str, Any]] = {
        name: {"contender": name} if name in ready else {"contender": name, "missing": run}
        for name, run in runs.items()
    }
    for size, tokens in SIZES.items():
        step = Episode(tokenizer, renderer).grow(tokens)
        check(step, ready)
        rounds = [{name: milliseconds(run, step) for name, run in ready.items()} for _ in range(ROUNDS)]
        for name in ready:
            rows[name][size] = round(median(times[name] for times in rounds), 3)
    episode, total = Episode(tokenizer, renderer), dict.fromkeys(ready, 0.0)
    for _ in range(TURNS):
        step = episode.step()
        for name, run in ready.items():
            total[name] += milliseconds(run, step)
    for name in ready:
        rows[name][f"{TURNS} turns"] = round(total[name], 1)
    return list(rows.values())


def book_keeping(tokenizer: Any, renderer: Renderer) -> list[dict[str, Any]]:
    """Microseconds of each append at about turn 10 and turn 200. All other work is done before."""
    rows = []
    for turn in (10, 200):
        seconds: dict[str, list[float]] = {"append_model": [], "append_action": [], "append_observation": []}
        for _ in range(ROUNDS):
            episode = Episode(tokenizer, renderer)
            action, new, bridge = episode.turn()
            for number in range(2, turn + 3):
                trajectory, generation = episode.trajectory, episode.generation
                took = {
                    "append_model": milliseconds(trajectory.append_model, generation),
                    "append_action": milliseconds(trajectory.append_action, action),
                    "append_observation": milliseconds(trajectory.append_observation, bridge, new),
                }
                for name in seconds if number >= turn - 2 else ():
                    seconds[name].append(took[name])
        rows.append({"turn": turn, **{name: round(1000 * median(times), 1) for name, times in seconds.items()}})
    return rows


def request(encoder: HistoryEncoder, trajectory: Trajectory) -> bytes:
    """The body of the next request to the engine."""
    return _body(encoder.encode("s", trajectory.segment.ids), FIELDS)


def whole_turns(tokenizer: Any, renderer: Renderer) -> list[dict[str, Any]]:
    """Milliseconds of all that agentrl does between two requests, the next request's bytes included."""
    rows = []
    for size, tokens in SIZES.items():
        episode, encoder = Episode(tokenizer, renderer), HistoryEncoder()
        episode.grow(tokens)
        encoder.encode("s", episode.trajectory.segment.ids)
        turns, requests = list[float](), list[float]()
        for _ in range(ROUNDS):
            turns.append(milliseconds(episode.turn))
            requests.append(milliseconds(request, encoder, episode.trajectory))
        both = [turn + request for turn, request in zip(turns, requests, strict=True)]
        parts = {"turn": turns, "request": requests, "whole": both}
        rows.append({"context": size, **{name: round(median(times), 3) for name, times in parts.items()}})
    return rows


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"\n{title}")
    keys = list(dict.fromkeys(key for row in rows for key in row if key != "missing"))
    first, rest = keys[0], keys[1:]
    print(f"{first:<24}" + "".join(f"{key:>20}" for key in rest))
    for row in rows:
        cells = (f"{row[key]:>20,}" for key in rest) if "missing" not in row else [f"  {row['missing']}"]
        print(f"{row[first]:<24}" + "".join(cells))


def main() -> None:
    tokenizer = load_tokenizer()
    renderer = load_renderer(tokenizer, tools=TOOLS)
    found = {
        "prompts (ms)": prompts(tokenizer, renderer),
        "book-keeping (us an append)": book_keeping(tokenizer, renderer),
        "whole turn (ms)": whole_turns(tokenizer, renderer),
    }
    for title, rows in found.items():
        table(title, rows)
    save("turn_cost", [{"table": title, **row} for title, rows in found.items() for row in rows])


if __name__ == "__main__":
    main()
