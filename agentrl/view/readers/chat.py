"""Reads two formats of messages: rows of chat, and trajectories in ATIF, the format of Harbor. Steps in ATIF may have
tokens."""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from agentrl._util.texts import texts_in
from agentrl.trajectory.outline import Outline, answer_of
from agentrl.types import JSON
from agentrl.view.model import (
    Author,
    EpisodeRecord,
    Text,
    TokenProblem,
    TokenRun,
    TokenSequence,
    TurnFacts,
    column,
    count,
    fill,
    merged,
)

_SOURCES: Mapping[str, Author] = {"agent": "model", "user": "env", "system": "prompt"}


def is_row(data: JSON) -> bool:
    return isinstance(data, dict) and isinstance(data.get("messages") or data.get("completion"), list | str)


def is_atif(data: JSON) -> bool:
    return isinstance(data, dict) and str(data.get("schema_version", "")).startswith("ATIF")


def read_row(row: Mapping[str, JSON]) -> EpisodeRecord:
    """A row of `messages`, or of `prompt` and `completion`, without tokens and mask."""
    prompt, completion = _listed(row.get("prompt"), "user"), _listed(row.get("completion"), "assistant")
    messages = row["messages"] if isinstance(row.get("messages"), list) else [*prompt, *completion]
    outline = Outline(
        name=str(row.get("id", "")),
        turns=sum(message.get("role") == "assistant" for message in messages),
        calls=dict(Counter(name for message in messages for name in _names(message.get("tool_calls")))),
        answer=answer_of(messages),
        reward=row["reward"] if isinstance(row.get("reward"), int | float) else None,
        sequences=0,
    )
    return EpisodeRecord(outline, "chat", texts=list(_texts_of(messages)), messages=messages, linear=True)


def _texts_of(messages: Sequence[Mapping[str, JSON]]) -> Iterator[Text]:
    turn = -1
    for message in messages:
        role = str(message.get("role"))
        turn += role == "assistant"
        author: Author = "model" if role == "assistant" else "env" if turn >= 0 else "prompt"
        thought = f"<think>{message['reasoning_content']}</think>" if message.get("reasoning_content") else ""
        body = "".join(texts_in(message.get("content")))
        weight = message.get("weight")
        trained = False if weight == 0 else None
        yield Text(author, f"{role}: {thought}{body}{_said(message.get('tool_calls'))}\n", turn, trained)


def _turns(agents: Sequence[Mapping[str, JSON]]) -> list[TurnFacts]:
    """Data on each of the agent's steps. The duration of a step is the time since the previous step."""
    times = [_unix(step.get("timestamp")) for step in agents]
    return [
        TurnFacts(
            calls=_called(step),
            generate_s=None if before is None or time is None else time - before,
            sampled=(step.get("metrics") or {}).get("completion_tokens"),
        )
        for step, before, time in zip(agents, [None, *times], times, strict=False)
    ]


def _called(step: Mapping[str, JSON]) -> list[str]:
    return [call["function_name"] for call in step.get("tool_calls") or ()]


def _listed(value: JSON, role: str) -> list[Mapping[str, JSON]]:
    return [{"role": role, "content": value}] if isinstance(value, str) else list(value or ())


def _names(calls: JSON) -> list[str]:
    return [str((call.get("function") or call).get("name")) for call in calls or () if isinstance(call, Mapping)]


def _said(calls: JSON) -> str:
    return "".join(f"\n{json.dumps(call.get('function') or call, ensure_ascii=False)}" for call in calls or ())


def read_atif(data: Mapping[str, JSON]) -> EpisodeRecord:
    """A trajectory in ATIF. The format does not tell which tokens are trained. Raises KeyError, TypeError or
    ValueError."""
    steps: Sequence[Mapping[str, JSON]] = data["steps"]
    agents = [step for step in steps if step["source"] == "agent" and step.get("llm_call_count") != 0]
    sequences = list(_sequences(agents))
    outline = Outline(
        name=str(data.get("trajectory_id") or data.get("session_id") or ""),
        turns=len(agents),
        calls=dict(Counter(chain.from_iterable(map(_called, agents)))),
        started=_unix(steps[0].get("timestamp")),
        reward=_reward(data),
        answer=_text(agents[-1]["message"])[-60:] if agents else "",
        sequences=0,
    )
    others = data.get("subagent_trajectories") or ()
    problems = [
        TokenProblem("subagent", f"{len(others)} trajectories of subagents inside, not read", severity="not told")
    ]
    return EpisodeRecord(
        count(outline, sequences) if sequences else outline,
        "ATIF",
        sequences,
        texts=list(_texts(steps)),
        turns=_turns(agents),
        facts={"agent": data.get("agent"), "notes": data.get("notes"), "final_metrics": data.get("final_metrics")},
        linear=True,
        problems=problems if others else [],
    )


def _sequences(agents: Sequence[Mapping[str, JSON]]) -> Iterator[TokenSequence]:
    """The sequences of the steps. A step continues a sequence if its prompt begins with all tokens of the sequence; any
    other step begins a new sequence."""
    now: _GrowingSequence | None = None
    for turn, step in enumerate(agents):
        metrics = step.get("metrics") or {}
        completion = metrics.get("completion_token_ids")
        if not completion:
            continue
        prompt = array("i", metrics.get("prompt_token_ids") or ())
        if now is None or not prompt or prompt[: len(now.sequence.ids)] != now.sequence.ids:
            if now is not None:
                yield now.done()
            now = _GrowingSequence()
        now.add(prompt, completion, metrics.get("logprobs") or (), turn, copied=bool(step.get("is_copied_context")))
    if now is not None:
        yield now.done()


class _GrowingSequence:
    """A sequence that further steps may continue."""

    def __init__(self) -> None:
        self.sequence = TokenSequence()
        self._log_probs: list[float] = []

    def add(
        self, prompt: array[int], completion: Sequence[int], log_probs: Sequence[float], turn: int, *, copied: bool
    ) -> None:
        sequence = self.sequence
        start = len(sequence.ids)
        if not prompt:
            sequence.problems.append(
                TokenProblem("prompt not told", f"step {turn} has no prompt_token_ids", severity="not told")
            )
        sequence.ids.extend(prompt[start:])
        if not start:
            sequence.prompt_length = len(prompt)
        seen = len(sequence.ids)
        sequence.runs.append(TokenRun(start, seen, "unknown" if start else "prompt", turn - 1))
        sequence.ids.extend(array("i", completion))
        fate = (False, "copied") if copied else (None, None)
        sequence.runs.append(TokenRun(seen, len(sequence.ids), "model", turn, *fate))
        if log_probs and len(log_probs) != len(completion):
            detail = f"step {turn}: {len(log_probs)} log-probs for {len(completion)} tokens"
            sequence.problems.append(TokenProblem("broken", detail, len(completion)))
        has_log_probs = len(log_probs) == len(completion)
        self._log_probs += log_probs if has_log_probs else [math.nan] * len(completion)

    def done(self) -> TokenSequence:
        sequence = self.sequence
        sequence.runs = merged(sequence.runs)
        if any(value == value for value in self._log_probs):
            sequence.engine = column(len(sequence.ids))
            fill(sequence.engine, sequence.runs, self._log_probs)
        return sequence


def _texts(steps: Sequence[Mapping[str, JSON]]) -> Iterator[Text]:
    turn = -1
    for step in steps:
        by_agent = step["source"] == "agent" and step.get("llm_call_count") != 0
        turn += by_agent
        author = _SOURCES[step["source"]] if by_agent or step["source"] != "agent" else "env"
        author = "prompt" if author == "env" and turn < 0 else author
        thought = f"<think>{step['reasoning_content']}</think>" if step.get("reasoning_content") else ""
        calls = "".join(
            f"\n{call['function_name']}({json.dumps(call['arguments'], ensure_ascii=False)})"
            for call in step.get("tool_calls") or ()
        )
        yield Text(author, f"{thought}{_text(step['message'])}{calls}\n", turn, None)
        for result in (step.get("observation") or {}).get("results", ()):
            yield Text("env", f"{_text(result.get('content'))}\n", turn)


def _text(content: Any) -> str:
    return "".join(texts_in(content))


def _unix(timestamp: JSON) -> float | None:
    if not isinstance(timestamp, str):
        return None
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None


def _reward(data: Mapping[str, JSON]) -> float | None:
    reward = ((data.get("final_metrics") or {}).get("extra") or {}).get("reward")
    return float(reward) if isinstance(reward, int | float) else None
