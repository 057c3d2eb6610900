"""Convert a session's tree to segments. Each sampled token is in the response of exactly one segment, trained or
masked. A line is a path through the tree that becomes a segment."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentrl.chat.options import SessionOptions
from agentrl.gateway.session.matching import START
from agentrl.gateway.session.nodes import Node, Prompt, joined_to
from agentrl.gateway.session.results import claims_text
from agentrl.gateway.session.threads import Thread, main_thread
from agentrl.gateway.session.tree import Tree
from agentrl.trajectory.arrays import require
from agentrl.trajectory.segment import Segment
from agentrl.trajectory.spans import MaskReason
from agentrl.trajectory.trajectory import SIDE, Trajectory, total_ledger
from agentrl.types import JSON, Message


@dataclass(frozen=True, slots=True)
class Line:
    """Consecutive replies that form a segment. The segment's prompt is everything before the first reply."""

    nodes: tuple[Node, ...]
    main: bool = False

    @property
    def top(self) -> Prompt:
        """The root of the conversation to which the line belongs."""
        return self.nodes[0].prompt.top

    def segment(self) -> Segment:
        """The tokens with their masks. Raises LedgerError if the engine was sent other tokens."""
        whole = Segment()
        for node in self.nodes:
            prompt = node.prompt
            if not whole.length:
                whole.append_prompt(prompt.whole())
            else:
                whole.append_observation(prompt.rendered)
            whole.append_turns(node.turn)
        return whole


def lines_of(tree: Tree, main: Thread | None) -> list[Line]:
    """All replies in lines, ordered by the start of each line, with the main line last.

    The main line leads to the last reply of the main conversation, or to the reply that is the agent's result. In any
    other line, each reply is followed by the child with the longest continuation, or by the latest of equal children.
    Delivered replies are preferred to undelivered replies. A reply of another branch begins a new line.
    """
    sampled = sorted((node for node in tree.nodes if node.turn.turns), key=lambda node: node.index)
    end = main.end if main is not None else None
    heirs = _heirs(sampled, end, set(main.nodes) if main is not None and main.answer is None else set[Node]())
    if end is not None:
        trunk = pairwise([*end.prompt.line(), end])
        heirs |= {before: node for before, node in trunk if before.branch == node.branch}
    inherited = set(heirs.values())
    return _main_last([Line(tuple(_line(node, heirs))) for node in sampled if node not in inherited], end)


def _main_last(lines: Sequence[Line], end: Node | None) -> list[Line]:
    """The lines, with the line of `end` at the end and marked as the main line."""
    last = next((line for line in lines if end in line.nodes), None)
    return [*(line for line in lines if line is not last), *([Line(last.nodes, main=True)] if last else [])]


def _heirs(sampled: Sequence[Node], end: Node | None, inside: Collection[Node]) -> dict[Node, Node]:
    """Each reply -> its child with the longest continuation. After `end`, only the replies of `inside` count."""
    heirs, depths = dict[Node, Node](), dict[Node, float]()
    for node in reversed(sampled):  # children come later than their parents
        depth = depths.setdefault(node, 1.0 if node.claimed else 0.5)
        parent = node.prompt.parent
        if parent is None or parent.branch != node.branch:
            continue
        if depth + 1 > depths.get(parent, 1.0) and (parent is not end or node in inside):
            heirs[parent], depths[parent] = node, depth + 1
    return heirs


def _line(node: Node, heirs: dict[Node, Node]) -> Iterator[Node]:
    yield node
    while node in heirs:
        node = heirs[node]
        yield node


def masked_for(
    node: Node, line: Line, main: Collection[Node], options: SessionOptions, *, closed: bool
) -> MaskReason | None:
    """The reason for masking a reply. None for a trained reply. `main`: the replies of the main conversation."""
    if (closed and node.action is None) or not node.claimed:
        return "undelivered"
    if line.main:
        return None
    if node.dropped:
        return "dropped" if options.dropped == "mask" else None
    return "side" if options.side == "mask" and _is_side(node, line, main) else None


def _branch(line: Line, main: Collection[Node]) -> str:
    """The branch name of the line's requests, or SIDE. "" for the lines of the main conversation."""
    side = not line.main and all(_is_side(node, line, main) for node in line.nodes)
    return line.nodes[0].branch or (SIDE if side else "")


def _is_side(node: Node, line: Line, main: Collection[Node]) -> bool:
    """Whether a reply is outside of the main conversation, or is a summary: a single reply that no request continues.

    A summary holds no calls, and no later request echoes the summary. Its prompt extends a prompt whose reply was
    continued, or lacks the tools of the other prompts.
    """
    first = line.nodes[0].prompt
    if node not in main or len(line.nodes) > 1 or node.reused or (node.sent is not None and node.sent.calls):
        return node not in main
    before = first.replaces.replies if first.replaces is not None else ()
    with_tools = first.tools != START or all(other.prompt.tools == START for other in main)
    return any(other.reused for other in before) or not with_tools


def write(
    trajectory: Trajectory,
    tree: Tree,
    options: SessionOptions,
    log: Sequence[Mapping[str, JSON]],
    *,
    closed: bool,
    sampled: int | None,
    result: JSON = None,
) -> Node | None:
    """Write the tree into a trajectory, and return the main line's last reply.

    `sampled`: the expected number of sampled tokens, or None if unknown. `result`: the agent's result. If the result
    holds text that is from no reply, `info["result_differs"]` is 1.

    Raises LedgerError if the number of sampled tokens differs.
    """
    thread = main_thread(tree, result)
    lines, main = lines_of(tree, thread), set[Node]() if thread is None else set(thread.nodes)
    reasons = {node: masked_for(node, line, main, options, closed=closed) for line in lines for node in line.nodes}
    segments = [_segment(line, main, reasons) for line in lines]
    ledger = total_ledger(segments)
    require(
        sampled in (None, ledger.sampled), f"the engine returned {sampled} tokens, and {ledger.sampled} are recorded"
    )
    places = {node: place for place, node in enumerate(sorted(reasons, key=lambda node: node.index))}
    trajectory.segments = segments or [Segment()]
    trajectory.order = [places[node] for node in reasons]
    trajectory.tools = lines[-1].top.head.tools if lines else ()
    trajectory.messages, nodes = _messages_and_nodes(lines, main, reasons, places)
    trajectory.session = {"nodes": nodes, **_split_log(log)}
    _add_prompts(trajectory, tree)
    if thread is not None and thread.answer is None and claims_text(result):
        trajectory.info["result_differs"] = 1
    trajectory.info["agent"] = _counts(lines, nodes, log)
    return lines[-1].nodes[-1] if lines else None


def _segment(line: Line, main: Collection[Node], reasons: Mapping[Node, MaskReason | None]) -> Segment:
    """The segment of a line, with its branch name. Replies are masked for their `reasons`."""
    segment = line.segment()
    segment.branch = _branch(line, main)
    for turn, node in enumerate(line.nodes):
        if (reason := reasons[node]) is not None:
            segment.mask(reason, turn=turn)
    return segment


def _messages_and_nodes(
    lines: Sequence[Line],
    main: Collection[Node],
    reasons: Mapping[Node, MaskReason | None],
    places: Mapping[Node, int],
) -> tuple[list[Message], list[JSON]]:
    """The messages of all lines, and the replies as JSON in order of time, each with the index of its message."""
    messages, nodes = list[Message](), list[JSON]()
    for index, line in enumerate(lines):
        for node in line.nodes:
            messages += node.prompt.messages
            reply = joined_to(messages, node.messages) if node.prompt.continued else node.messages
            kind = "main" if line.main else "side" if _is_side(node, line, main) else "earlier"
            about = {"line": kind, "segment": index, "turn": places[node], "message": len(messages)}
            nodes.append({**_node_json(node), **about, "masked": reasons[node]})
            messages += reply
    return messages, sorted(nodes, key=lambda node: node["id"])


def _split_log(log: Sequence[Mapping[str, JSON]]) -> dict[str, JSON]:
    audits = [line for line in log if line["event"] == "audit"]
    return {"requests": [line for line in log if line["event"] != "audit"], "audits": audits}


def _add_prompts(trajectory: Trajectory, tree: Tree) -> None:
    """Add the counts of the rendered prompts to the trajectory."""
    if cut := sum(prompt.rendered.cut for prompt in tree.prompts):
        trajectory.info["observation_tokens_cut"] = cut
    if special := sum(prompt.rendered.special for prompt in tree.prompts):
        trajectory.info["special_tokens"] = special
    for prompt in tree.prompts:
        trajectory.checks += prompt.rendered.checks


def _counts(lines: Sequence[Line], nodes: Sequence[JSON], log: Sequence[Mapping[str, JSON]]) -> dict[str, JSON]:
    """The counts for `Trajectory.info["agent"]`."""
    return {
        "replies": len(nodes),
        "requests": sum(line["event"] == "request" for line in log),
        "segments": len(lines),
        "roots": len({line.top for line in lines}),
        "dropped": sum(node["dropped"] for node in nodes),
        "undelivered": sum(node["masked"] == "undelivered" for node in nodes),
        "replayed": sum(line["event"] in ("join", "replay", "rest") for line in log),
        "refused": sum(line["event"] == "refused" for line in log),
        "audits": sum(line["event"] == "audit" for line in log),
    }


def _node_json(node: Node) -> dict[str, JSON]:
    prompt = node.prompt
    return {
        "id": node.index,
        "parent": None if prompt.parent is None else prompt.parent.index,
        "prompt": prompt.index,
        "branch": node.branch,
        "prompt_tokens": prompt.length,
        "sampled_tokens": len(node.turn.ids) - node.turn.prompt_length,
        "known": [reply.index for reply in prompt.known_replies.values()],
        "dropped": node.dropped,
        "delivered": node.delivered,
    }
