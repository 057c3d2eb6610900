"""Sampled and trained tokens in cases where rendering again loses tokens: agentrl, slime's adapter, and `renderers`.

python -m benchmarks.exact        (SLIME_SRC=/path/to/slime for slime's column, SLIME04_SRC for slime 0.4)

An episode has eight turns, with the real Qwen 3 tokenizer. A script has the tokens that a model sampled, and every
contender gets the same tokens. `trained/sampled` counts the tokens in the loss, `samples` the samples of an episode,
and `tokens` all tokens that the trainer computes. A lost token is a lost gradient; a second sample of an episode breaks
GRPO's groups.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from agentrl.render import Renderer, load_renderer
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Generation
from benchmarks.peers import (
    SLIMES,
    TOOLS,
    Outcome,
    Turn,
    load_tokenizer,
    make_renderers,
    renderers_missing,
    run_renderers,
    run_slime,
    save,
    slime_missing,
    slime_name,
)

QUESTION = "Which river flows through the capital of France?"
TURNS = 8
LONG = 1_200
Run = Callable[[Sequence[Turn]], Outcome]


def call(index: int, filler: str, *, compact: bool = False, limit: int | None = None) -> str:
    """A search call in the template's form; `compact` as many models write JSON; arguments in the order written."""
    arguments: dict[str, Any] = {"query": f"question {index} {filler}".strip()}
    if limit is not None:
        arguments["limit"] = limit
    separators = (",", ":") if compact else (", ", ": ")
    body = json.dumps({"name": "search", "arguments": arguments}, separators=separators)
    return f"<tool_call>\n{body}\n</tool_call>"


def cases(filler: str) -> dict[str, list[Turn]]:
    """Name of a case -> its turns. `filler` is text that makes the turns long."""
    every = range(TURNS)
    thought = f"<think>\nI wonder. {filler}\n</think>\n\n"
    canonical = [Turn(call(i, filler), (f"result {i}",)) for i in every]
    talk = [Turn(f"{thought}Answer {i}.", (f"And then? ({i})",), "user") for i in every]
    cut = Turn(f"<think>\nThis goes on and on {filler}", ("Please answer.",), "user", "length")
    return {
        "canonical calls": canonical,
        "compact JSON": [Turn(call(i, filler, compact=True), (f"result {i}",)) for i in every],
        "text before the call": [Turn(f"Let me look. {filler}\n{call(i, '')}", (f"result {i}",)) for i in every],
        "arguments in another order": [Turn(call(i, filler, limit=3), (f"result {i}",)) for i in every],
        "two parallel calls": [
            Turn(f"{call(i, filler)}\n{call(i, 'again')}", (f"result {i}", "the same")) for i in every
        ],
        "user observations after thinking": talk,
        "cut by length within a thought": [*talk[:3], cut, *talk[4:]],
        "a resumed abort": [*canonical[:3], replace(canonical[3], aborted=True), *canonical[4:]],
    }


def run_agentrl(tokenizer: Any, turns: Sequence[Turn], renderer: Renderer) -> Outcome:
    """The turns through Renderer and Trajectory, as an episode drives them."""
    trajectory = Trajectory(tools=TOOLS)
    messages = [{"role": "user", "content": QUESTION}]
    trajectory.append_prompt(renderer.prompt(messages), messages)
    for number, turn in enumerate(turns):
        tokens = turn.tokens(tokenizer)
        half = len(tokens) // 2 if turn.aborted else 0
        if turn.aborted:
            trajectory.append_model(Generation(tokens[:half], [-1.0] * half, "abort"))
        matched = tokens[-1] if turn.finish == "stop" else None
        rest = Generation(tokens[half:], [-1.0] * (len(tokens) - half), turn.finish, matched)
        trajectory.append_model(rest, prompt_tokens=trajectory.segment.length)
        action = renderer.parse(
            trajectory.segment.turn_tokens, turn.finish, matched, thinking=trajectory.segment.thinking
        )
        trajectory.append_action(action)
        new = turn.messages([c.id for c in action.calls])
        if turn.role == "tool" and len(action.calls) != len(turn.answers):
            raise SystemExit(
                f"turn {number}: {len(action.calls)} calls were read of {len(turn.answers)}: {turn.text!r}"
            )
        if number < len(turns) - 1:
            trajectory.append_observation(renderer.bridge(trajectory.messages, action, new), new)
    trajectory.verify()
    ledger = trajectory.ledger
    return Outcome(ledger.sampled, ledger.trained, 1, trajectory.segment.length)


def contenders(tokenizer: Any, *, known: bool) -> Mapping[str, Run | str]:
    """Name of a contender -> the function that runs it, or the reason why it cannot run here."""
    renderer = load_renderer(tokenizer, tools=TOOLS)
    found: dict[str, Run | str] = {"agentrl": lambda turns: run_agentrl(tokenizer, turns, renderer)}
    for key in SLIMES:
        found[slime_name(key)] = slime_missing(key) or partial(run_slime, tokenizer, question=QUESTION, key=key)
    policies = {"renderers": False, "renderers keep": True} if known else {"renderers": False}
    for name, keep in policies.items():
        missing = renderers_missing()
        peer = None if missing else make_renderers(tokenizer, known=known, keep_thinking=keep)
        found[name] = missing or (lambda turns, peer=peer: run_renderers(tokenizer, turns, QUESTION, renderer=peer))
    return found


def main() -> None:
    logging.disable(logging.WARNING)
    rows = []
    for family, template in (("Qwen 3", ""), ("Qwen 2.5", "Qwen-Qwen2.5-7B-Instruct")):
        tokenizer = load_tokenizer(template)
        words = "the river and the town "
        filler = words * (10 * LONG // len(tokenizer.encode(words * 10)))
        runs = contenders(tokenizer, known=not template)
        for length, text in (("short", ""), (f"{LONG:,}-token", filler)):
            print(f"\n{family}, {TURNS} {length} turns: trained/sampled, samples, tokens to train on")
            print(f"{'':<34}" + "".join(f"{name:>31}" for name in runs))
            for case, turns in cases(text).items():
                outcomes = {name: run if isinstance(run, str) else run(turns) for name, run in runs.items()}
                print(f"{case:<34}" + "".join(f"{told(outcome):>31}" for outcome in outcomes.values()))
                for name, outcome in outcomes.items():
                    result = {"missing": outcome} if isinstance(outcome, str) else asdict(outcome)
                    rows.append({"template": family, "turns": length, "case": case, "contender": name, **result})
    save("exact", rows)


def told(outcome: Outcome | str) -> str:
    if isinstance(outcome, str):
        return outcome
    share = outcome.trained / outcome.sampled
    return f"{outcome.trained:>6,}/{outcome.sampled:<6,} {share:>4.0%} {outcome.samples:>2} {outcome.tokens:>7,}"


if __name__ == "__main__":
    main()
