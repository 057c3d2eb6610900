"""Reads traces of verifiers (`traces.jsonl`, an episode on each line): a graph of messages with tokens.

A branch, from a root to a leaf, is a sequence. `mask` is 1 at sampled tokens.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import TypeVar

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

T = TypeVar("T")
Node = Mapping[str, JSON]
_ROLES: Mapping[str, Author] = {"assistant": "model", "tool": "env"}


def is_trace(data: JSON) -> bool:
    return isinstance(data, dict) and ("traces" in data or ("nodes" in data and "agent" in data))


def read(data: Mapping[str, JSON]) -> EpisodeRecord:
    """The record of an Episode of verifiers, or of a trace in an Episode. Raises KeyError, TypeError or ValueError for
    other data."""
    traces: Sequence[Mapping[str, JSON]] = data.get("traces", [data])
    sequences = _joined(map(_sequences, traces))
    calls, nodes = (_joined(trace.get(key, ()) for trace in traces) for key in ("calls", "nodes"))
    task = data.get("task") or (traces[0]["task"] if traces else {})
    errors = [*data.get("errors", ()), *_joined(trace.get("errors", ()) for trace in traces)]
    with_tokens = sequences if any(sequence.ids for sequence in sequences) else []
    return EpisodeRecord(
        count(_outline(data, traces, nodes, task, errors), with_tokens),
        "verifiers",
        with_tokens,
        texts=[] if with_tokens else list(_texts(nodes)),
        turns=[_turn(node, calls, i) for i, node in enumerate(nodes) if node.get("sampled")],
        messages=[node["message"] for node in nodes],
        facts={"task": task, "errors": errors, "info": [trace.get("info") for trace in traces]},
        linear=all(map(_linear, traces)),
        problems=_joined(map(_encoded_again, traces)),
    )


def _joined(parts: Iterable[Iterable[T]]) -> list[T]:
    return [*chain.from_iterable(parts)]


def _outline(
    data: Mapping[str, JSON],
    traces: Sequence[Mapping[str, JSON]],
    nodes: Sequence[Node],
    task: Mapping[str, JSON],
    errors: Sequence[Mapping[str, JSON]],
) -> Outline:
    messages, rewards = [node["message"] for node in nodes], _rewards(traces)
    first: Mapping[str, JSON] = traces[0] if traces else {}
    calls = _joined(trace.get("calls", ()) for trace in traces)
    return Outline(
        name=str(data.get("id", "")),
        task=str((task.get("data") or {}).get("idx") or task.get("key") or ""),
        step=(data.get("run") or {}).get("step"),
        reward=sum(rewards.values()) if rewards else None,
        reward_parts=rewards if len(rewards) > 1 else {},
        stop=first.get("stop_condition"),
        failure=f"{errors[-1].get('type')}: {errors[-1].get('message')}" if errors else None,
        turns=sum(bool(node.get("sampled")) for node in nodes),
        calls=dict(Counter(_joined(map(_calls, messages)))),
        started=(first.get("timing") or {}).get("start"),
        generate_s=round(sum(_seconds(call.get("time")) for call in calls), 4),
        answer=answer_of(messages),
    )


def _sequences(trace: Mapping[str, JSON]) -> Iterator[TokenSequence]:
    nodes: Sequence[Node] = trace["nodes"]
    inner = {node.get("parent") for node in nodes}
    agent, earlier = trace.get("agent") or {}, set[int]()
    accepted = {
        link["node"] for node in nodes for link in node.get("semantic_parents", ()) if link.get("type") == "compaction"
    }
    for number, leaf in enumerate(i for i in range(len(nodes)) if i not in inner):
        attempt = any(link.get("type") == "compaction_attempt" for link in nodes[leaf].get("semantic_parents", ()))
        reason = "other_agent" if agent.get("trainable") is False else None
        if attempt and leaf not in accepted:
            reason = "abandoned"
        path = _path(nodes, leaf)
        yield _branch(nodes, path, earlier, reason, f"{agent.get('name', 'agent')}, branch {number}")
        earlier.update(path)


def _path(nodes: Sequence[Node], leaf: int) -> list[int]:
    indices = list[int]()
    index: int | None = leaf
    while index is not None and len(indices) <= len(nodes):
        indices.append(index)
        index = nodes[index].get("parent")
    return indices[::-1]


def _branch(
    nodes: Sequence[Node], path: Sequence[int], earlier: set[int], reason: str | None, name: str
) -> TokenSequence:
    sequence, turn = TokenSequence(name=name), -1
    runs, log_probs, advantages, trainer = list[TokenRun](), list[float](), list[float](), list[float]()
    for index in path:
        node = nodes[index]
        start = len(sequence.ids)
        sequence.ids.extend(array("i", node.get("token_ids") or ()))
        if len(mask := node.get("mask") or ()) != len(node.get("token_ids") or ()):
            detail = f"message {index}: {len(mask)} mask values for {len(sequence.ids) - start} tokens"
            sequence.problems.append(TokenProblem("broken", detail, len(sequence.ids) - start))
        turn += bool(node.get("sampled"))
        why = "shared" if index in earlier and node.get("sampled") else reason
        node_runs = [_fated(run, why, turn) for run in _node_runs(node, start, sequence.problems, index)]
        runs += node_runs
        sampled = sum(run.length for run in node_runs if run.author == "model")
        for values, key in ((log_probs, "logprobs"), (advantages, "advantages"), (trainer, "trainer_logprobs")):
            values += _values(node, key, sampled)
    sequence.runs = merged(_as_prompt(runs))
    sequence.prompt_length = next((r.start for r in sequence.runs if r.author != "prompt"), len(sequence.ids))
    sequence.engine = _column(sequence, log_probs)
    sequence.advantages = _column(sequence, advantages)
    sequence.trainer = _column(sequence, trainer)
    return sequence


def _values(node: Node, key: str, sampled: int) -> Sequence[float]:
    """The values of the node's sampled tokens; NaN for each if the trace has a different number of values."""
    values: Sequence[float] = node.get(key) or ()
    return values if len(values) == sampled else [math.nan] * sampled


def _column(sequence: TokenSequence, values: Sequence[float]) -> array[float] | None:
    """A column with `values` at the sampled tokens of the sequence. None if no token has a value."""
    if all(value != value for value in values):
        return None
    values_by_token = column(len(sequence.ids))
    return values_by_token if fill(values_by_token, sequence.runs, values) else None


def _node_runs(node: Node, start: int, problems: list[TokenProblem], index: int) -> Iterator[TokenRun]:
    authors = _authors(node)
    problems += _node_problems(node, authors, index)
    begin = start
    for author, group in groupby(authors):
        length = len(list(group))
        yield TokenRun(begin, begin + length, author, trained=author == "model")
        begin += length


def _authors(node: Node) -> list[Author]:
    """The author of each token. `mask` marks the sampled tokens; `is_content` tells a message's content from the
    template."""
    ids, mask, content = node.get("token_ids") or (), node.get("mask") or (), node.get("is_content") or ()
    other: Author = "env" if content else "unknown"
    unsampled: list[Author] = [other if inside else "template" for inside in content] if content else [other] * len(ids)
    unsampled += ["template"] * (len(ids) - len(unsampled))
    sampled = [*map(bool, mask), *[False] * len(ids)]
    return [
        "model" if is_sampled else author for author, is_sampled in zip(unsampled[: len(ids)], sampled, strict=False)
    ]


def _node_problems(node: Node, authors: Sequence[Author], index: int) -> Iterator[TokenProblem]:
    """Problems of a message: sampled tokens outside of the model's replies, and tokens inside of replies that were not
    sampled."""
    trained = authors.count("model")
    if not node.get("sampled"):
        if trained:
            yield TokenProblem("trained, but not sampled", f"message {index} is no reply of the model", trained)
        return
    if not authors:
        yield TokenProblem("reply without tokens", f"message {index} was sampled, and has no tokens")
    content = [*(node.get("is_content") or ()), *[False] * len(authors)]
    first = authors.index("model") if trained else len(authors)
    masked = sum(
        author != "model" and (i > first or bool(inside))
        for i, (author, inside) in enumerate(zip(authors, content, strict=False))
    )
    if masked:
        yield TokenProblem("masked without a reason", f"within the reply of message {index}", masked)


def _fated(run: TokenRun, reason: str | None, turn: int) -> TokenRun:
    trained = run.author == "model" and reason is None
    return TokenRun(run.start, run.stop, run.author, turn, trained, reason if run.author == "model" else None)


def _as_prompt(runs: Sequence[TokenRun]) -> Iterator[TokenRun]:
    is_sampled = False
    for run in runs:
        is_sampled |= run.author == "model"
        yield run if is_sampled else TokenRun(run.start, run.stop, "prompt")


def _encoded_again(trace: Mapping[str, JSON]) -> Iterator[TokenProblem]:
    """Replies of the model that came back in other tokens: a second child of the same message, with the same text."""
    nodes: Sequence[Node] = trace["nodes"]
    sampled = {(node.get("parent"), _words(node)): i for i, node in enumerate(nodes) if node.get("sampled")}
    for i, node in enumerate(nodes):
        message = node["message"]
        if node.get("sampled") or message.get("role") != "assistant":
            continue
        original = sampled.get((node.get("parent"), _words(node)))
        if original is None:
            continue
        tokens = sum(nodes[original].get("mask") or ())
        detail = f"message {i} holds the words of reply {original} in other tokens; a second sample begins there"
        yield TokenProblem("encoded again", detail, tokens)


def _words(node: Node) -> str:
    message = node["message"]
    calls = [(call.get("name"), call.get("arguments")) for call in message.get("tool_calls") or ()]
    return f"{''.join(texts_in(message.get('content'))).strip()}{calls}"


def _linear(trace: Mapping[str, JSON]) -> bool:
    return not any(node.get("semantic_parents") for node in trace["nodes"])


def _rewards(traces: Sequence[Mapping[str, JSON]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for trace in traces:
        for name, reward in (trace.get("rewards") or {}).items():
            if reward is not None:
                value = reward["score"] * reward.get("weight", 1.0) if isinstance(reward, Mapping) else float(reward)
                totals[name] = totals.get(name, 0.0) + value
    return totals


def _calls(message: Mapping[str, JSON]) -> list[str]:
    return [str(call.get("name")) for call in message.get("tool_calls") or ()]


def _seconds(span: Mapping[str, JSON] | None) -> float:
    return max(0.0, (span.get("end") or 0.0) - (span.get("start") or 0.0)) if span else 0.0


def _turn(node: Node, calls: Sequence[Mapping[str, JSON]], index: int) -> TurnFacts:
    call = next((call for call in calls if call.get("node") == index), {})
    return TurnFacts(
        call.get("finish_reason"),
        _calls(node["message"]),
        generate_s=_seconds(call.get("time")) if call else None,
        sampled=sum(node.get("mask") or ()) or None,
    )


def _texts(nodes: Sequence[Node]) -> Iterator[Text]:
    turn = -1
    for node in nodes:
        message = node["message"]
        sampled = bool(node.get("sampled"))
        turn += sampled
        author: Author = "model" if sampled else "env" if turn >= 0 else "prompt"
        calls = "".join(f"\n{call.get('name')}({call.get('arguments')})" for call in message.get("tool_calls") or ())
        body = "".join(texts_in(message.get("content")))
        yield Text(author, f"{message.get('role')}: {body}{calls}\n", turn, None)
