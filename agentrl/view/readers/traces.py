"""Reads traces of verifiers (`traces.jsonl`, one episode a line): a graph of messages, each with its tokens.

A branch, from a root to a leaf, is one sequence. `mask` is 1 at sampled tokens.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

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

Node = Mapping[str, JSON]
_ROLES: Mapping[str, Author] = {"assistant": "model", "tool": "env"}


def is_trace(data: JSON) -> bool:
    return isinstance(data, dict) and ("traces" in data or ("nodes" in data and "agent" in data))


def read(data: Mapping[str, JSON]) -> EpisodeRecord:
    """An Episode of verifiers, or one of its traces. Raises KeyError, TypeError or ValueError if it is neither."""
    traces: Sequence[Mapping[str, JSON]] = data.get("traces", [data])
    sequences = [sequence for trace in traces for sequence in _sequences(trace)]
    calls = [call for trace in traces for call in trace.get("calls", ())]
    nodes = [node for trace in traces for node in trace["nodes"]]
    messages = [node["message"] for node in nodes]
    rewards = _rewards(traces)
    task = data.get("task") or (traces[0]["task"] if traces else {})
    errors = [*data.get("errors", ()), *(error for trace in traces for error in trace.get("errors", ()))]
    outline = Outline(
        name=str(data.get("id", "")),
        task=str((task.get("data") or {}).get("idx") or task.get("key") or ""),
        step=(data.get("run") or {}).get("step"),
        reward=sum(rewards.values()) if rewards else None,
        reward_parts=rewards if len(rewards) > 1 else {},
        stop=traces[0].get("stop_condition") if traces else None,
        failure=f"{errors[-1].get('type')}: {errors[-1].get('message')}" if errors else None,
        turns=sum(bool(node.get("sampled")) for node in nodes),
        calls=dict(Counter(name for message in messages for name in _calls(message))),
        started=(traces[0].get("timing") or {}).get("start") if traces else None,
        generate_s=round(sum(_seconds(call.get("time")) for call in calls), 4),
        answer=answer_of(messages),
    )
    with_tokens = sequences if any(sequence.ids for sequence in sequences) else []
    return EpisodeRecord(
        count(outline, with_tokens),
        "verifiers",
        with_tokens,
        texts=[] if with_tokens else list(_texts(nodes)),
        turns=[_turn(node, calls, i) for i, node in enumerate(nodes) if node.get("sampled")],
        messages=messages,
        facts={"task": task, "errors": errors, "info": [trace.get("info") for trace in traces]},
        linear=all(_linear(trace) for trace in traces),
        problems=[problem for trace in traces for problem in _encoded_again(trace)],
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
            values_of_node = node.get(key) or ()
            values += values_of_node if len(values_of_node) == sampled else [float("nan")] * sampled
    sequence.runs = merged(_as_prompt(runs))
    sequence.prompt_length = next((r.start for r in sequence.runs if r.author != "prompt"), len(sequence.ids))
    sequence.engine = _column(sequence, log_probs)
    sequence.advantages = _column(sequence, advantages)
    sequence.trainer = _column(sequence, trainer)
    return sequence


def _column(sequence: TokenSequence, values: Sequence[float]) -> array[float] | None:
    """None where no token has a value."""
    if all(value != value for value in values):
        return None
    values_by_token = column(len(sequence.ids))
    return values_by_token if fill(values_by_token, sequence.runs, values) else None


def _node_runs(node: Node, start: int, problems: list[TokenProblem], index: int) -> Iterator[TokenRun]:
    """The mask says what was sampled; `is_content`, if it is there, tells body from template."""
    ids, mask, content = node.get("token_ids") or (), node.get("mask") or (), node.get("is_content") or ()
    author: Author = "env" if content else "unknown"
    fates = list[Author]()
    for i in range(len(ids)):
        inside = i < len(content) and content[i]
        fates.append("model" if i < len(mask) and mask[i] else author if inside or not content else "template")
    first = next((i for i, fate in enumerate(fates) if fate == "model"), None)
    lost = 0
    if node.get("sampled"):
        if not ids:
            problems.append(TokenProblem("reply without tokens", f"message {index} was sampled, and has no tokens"))
        for i, fate in enumerate(fates):
            if fate != "model" and ((first is not None and i > first) or (i < len(content) and content[i])):
                lost += 1
    elif first is not None:
        count_of = fates.count("model")
        problems.append(TokenProblem("trained, but not sampled", f"message {index} is no reply of the model", count_of))
    if lost:
        problems.append(TokenProblem("masked without a reason", f"within the reply of message {index}", lost))
    begin = start
    for fate, group in groupby(fates):
        length = len(list(group))
        yield TokenRun(begin, begin + length, fate, trained=fate == "model")
        begin += length


def _fated(run: TokenRun, reason: str | None, turn: int) -> TokenRun:
    trained = run.author == "model" and reason is None
    return TokenRun(run.start, run.stop, run.author, turn, trained, reason if run.author == "model" else None)


def _as_prompt(runs: Sequence[TokenRun]) -> Iterator[TokenRun]:
    is_sampled = False
    for run in runs:
        is_sampled |= run.author == "model"
        yield run if is_sampled else TokenRun(run.start, run.stop, "prompt")


def _encoded_again(trace: Mapping[str, JSON]) -> Iterator[TokenProblem]:
    """Replies that came back with other tokens: a message beside a sampled one, with the same words."""
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
