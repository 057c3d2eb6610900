"""Turns a session's tree into segments. Each sampled token is in the response of exactly one, trained or masked."""

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
from agentrl.trajectory.segment import Segment, require
from agentrl.trajectory.spans import MaskReason
from agentrl.trajectory.trajectory import SIDE, Trajectory, total_ledger
from agentrl.types import JSON, Message


@dataclass(frozen=True, slots=True)
class Line:
    """Replies that follow each other in one segment. Its prompt is everything before the first of them."""

    nodes: tuple[Node, ...]
    main: bool = False

    @property
    def top(self) -> Prompt:
        """The root above it."""
        return self.nodes[0].prompt.top

    def segment(self) -> Segment:
        """The tokens, with the masks that they had. Raises LedgerError if the engine was sent other tokens."""
        made = Segment()
        for node in self.nodes:
            prompt = node.prompt
            if not made.length:
                made.append_prompt(prompt.whole())
            else:
                made.append_observation(prompt.rendered)
            made.append_turns(node.turn)
        return made


def lines_of(tree: Tree, main: Thread | None) -> list[Line]:
    """All replies in lines, in the order in which the lines began, but the main line last.

    The main line leads to the end of the main thread, and no further if that is the agent's own result. In any other
    line, each reply is followed by its deepest child, or the latest one if several are equally deep. A reply that the
    client never got comes after those that it got. The replies of a line have one branch: another one that continues it
    begins a line.
    """
    heirs, depths = dict[Node, Node](), dict[Node, float]()
    sampled = sorted((node for node in tree.nodes if node.turn.turns), key=lambda node: node.index)
    end = main.end if main is not None else None
    trunk = [] if end is None else [*end.prompt.line(), end]
    inside = set(main.nodes) if main is not None and main.answer is None else set[Node]()
    for node in reversed(sampled):  # children come later than their parents
        depth = depths.setdefault(node, 1.0 if node.claimed else 0.5)
        parent = node.prompt.parent
        if parent is None or parent.branch != node.branch:
            continue
        if depth + 1 > depths.get(parent, 1.0) and (parent is not end or node in inside):
            heirs[parent], depths[parent] = node, depth + 1
    heirs |= {before: node for before, node in pairwise(trunk) if before.branch == node.branch}
    inherited = set(heirs.values())
    lines = [Line(tuple(_line(node, heirs))) for node in sampled if node not in inherited]
    last = next((line for line in lines if end in line.nodes), None)
    return [*(line for line in lines if line is not last), *([Line(last.nodes, main=True)] if last else [])]


def _line(node: Node, heirs: dict[Node, Node]) -> Iterator[Node]:
    yield node
    while node in heirs:
        node = heirs[node]
        yield node


def masked_for(
    node: Node, line: Line, main: Collection[Node], options: SessionOptions, *, closed: bool
) -> MaskReason | None:
    """Why a reply is not trained. None if it is. `main`: the replies of the main thread."""
    if (closed and node.action is None) or not node.claimed:
        return "undelivered"
    if line.main:
        return None
    if node.dropped:
        return "dropped" if options.dropped == "mask" else None
    return "side" if options.side == "mask" and _is_side(node, line, main) else None


def _branch(line: Line, main: Collection[Node]) -> str:
    """The name of a line's branch: that of its requests, or SIDE. "" for the main line, and for what led to it."""
    side = not line.main and all(_is_side(node, line, main) for node in line.nodes)
    return line.nodes[0].branch or (SIDE if side else "")


def _is_side(node: Node, line: Line, main: Collection[Node]) -> bool:
    """Whether a reply is outside the main thread, or is a summary, which is a single reply that leads nowhere.

    A summary holds no calls, and no later request echoes it. Its prompt grew from one with another reply that was
    continued, or it lacks the tools that the other prompts have.
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

    `sampled`: the number of sampled tokens that must be written, or None if it is unknown. `result`: what the agent
    returned. If it holds text that is no reply's, `info["result_differs"]` is 1.

    Raises LedgerError if the numbers differ.
    """
    thread = main_thread(tree, result)
    lines, main = lines_of(tree, thread), set(thread.nodes) if thread is not None else set[Node]()
    places = {node: place for place, node in enumerate(sorted((n for line in lines for n in line.nodes), key=_time))}
    nodes, segments, messages = list[JSON](), list[Segment](), list[Message]()
    for line in lines:
        segment = line.segment()
        segment.branch = _branch(line, main)
        for turn, node in enumerate(line.nodes):
            if (reason := masked_for(node, line, main, options, closed=closed)) is not None:
                segment.mask(reason, turn=turn)
            kind = "main" if line.main else "side" if _is_side(node, line, main) else "earlier"
            messages += node.prompt.messages
            reply = joined_to(messages, node.messages) if node.prompt.continued else node.messages
            about = {"line": kind, "segment": len(segments), "turn": places[node], "message": len(messages)}
            nodes.append({**_node_json(node), **about, "masked": reason})
            messages += reply
        segments.append(segment)
    ledger = total_ledger(segments)
    require(
        sampled in (None, ledger.sampled), f"the engine returned {sampled} tokens, and {ledger.sampled} are recorded"
    )
    trajectory.segments = segments or [Segment()]
    trajectory.order = [places[node] for line in lines for node in line.nodes]
    trajectory.messages = messages
    trajectory.tools = lines[-1].top.head.tools if lines else ()
    nodes.sort(key=lambda node: node["id"])
    audits = [line for line in log if line["event"] == "audit"]
    trajectory.session = {
        "nodes": nodes,
        "requests": [line for line in log if line["event"] != "audit"],
        "audits": audits,
    }
    cut = sum(prompt.rendered.cut for prompt in tree.prompts)
    if cut:
        trajectory.info["observation_tokens_cut"] = cut
    if special := sum(prompt.rendered.special for prompt in tree.prompts):
        trajectory.info["special_tokens"] = special
    if thread is not None and thread.answer is None and claims_text(result):
        trajectory.info["result_differs"] = 1
    for prompt in tree.prompts:
        trajectory.checks += prompt.rendered.checks
    trajectory.info["agent"] = {
        "replies": len(nodes),
        "requests": sum(line["event"] == "request" for line in log),
        "segments": len(segments),
        "roots": len({line.top for line in lines}),
        "dropped": sum(node["dropped"] for node in nodes),
        "undelivered": sum(node["masked"] == "undelivered" for node in nodes),
        "replayed": sum(line["event"] in ("join", "replay", "rest") for line in log),
        "refused": sum(line["event"] == "refused" for line in log),
        "audits": len(audits),
    }
    return lines[-1].nodes[-1] if lines else None


def _time(node: Node) -> int:
    return node.index


def _node_json(node: Node) -> dict[str, JSON]:
    prompt = node.prompt
    return {
        "id": node.index,
        "parent": None if prompt.parent is None else prompt.parent.index,
        "prompt": prompt.index,
        "branch": node.branch,
        "prompt_tokens": prompt.length,
        "sampled_tokens": len(node.turn.ids) - node.turn.prompt_length,
        "known": [known.index for known in prompt.known.values()],
        "dropped": node.dropped,
        "delivered": node.delivered,
    }
