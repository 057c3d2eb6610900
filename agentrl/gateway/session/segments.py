"""From a session's tree to segments: each sampled token stands in the response of exactly one, trained or masked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentrl.gateway.options import SessionOptions
from agentrl.gateway.session.tree import Node, Prompt, Tree
from agentrl.render.base import Rendered
from agentrl.segment import Segment, require
from agentrl.spans import MaskReason
from agentrl.trajectory import Trajectory, total_ledger
from agentrl.types import JSON, Message

_QUOTED = 40
"""The shortest reply, in characters, that is taken for a summary where a later prompt quotes it."""


@dataclass(frozen=True, slots=True)
class Line:
    """Replies that follow each other in one segment. Its prompt is everything before the first of them."""

    nodes: tuple[Node, ...]
    main: bool = False

    @property
    def top(self) -> Prompt:
        """The root above it."""
        return self.nodes[0].prompt.top

    @property
    def depth(self) -> int:
        """Replies from the root to its end."""
        return len(self.nodes[0].prompt.line()) + len(self.nodes)

    def segment(self) -> Segment:
        """The tokens, masked as they were before. Raises LedgerError if the engine was sent other tokens."""
        made = Segment()
        for node in self.nodes:
            prompt = node.prompt
            if not made.length:
                made.append_prompt(Rendered(prompt.ids(), (), prompt.rendered.thinking))
            else:
                made.append_observation(prompt.rendered)
            made.append_turns(node.turn)
        return made


def lines_of(tree: Tree) -> list[Line]:
    """All replies in lines, in the order in which the lines began, but the main line last.

    A line goes on behind a reply with its deepest child, the latest of them if there are several. A reply that the
    client never got comes after those that it got.
    """
    heirs, depths = dict[Node, Node](), dict[Node, float]()
    sampled = [node for node in tree.nodes if node.turn.turns]
    for node in reversed(sampled):  # children come later than their parents
        depth = depths.setdefault(node, 1.0 if node.claimed else 0.5)
        parent = node.prompt.parent
        if parent is not None and depth + 1 > depths.get(parent, 1.0):
            heirs[parent], depths[parent] = node, depth + 1
    inherited = set(heirs.values())
    lines = [Line(tuple(_line(node, heirs))) for node in sampled if node not in inherited]
    main = _main(lines)
    return [*(line for line in lines if line is not main), *([Line(main.nodes, main=True)] if main else [])]


def _line(node: Node, heirs: dict[Node, Node]) -> Iterator[Node]:
    yield node
    while node in heirs:
        node = heirs[node]
        yield node


def _main(lines: Sequence[Line]) -> Line | None:
    """The line in which the agent's main conversation ended."""
    work = main_work(lines)
    own = [line for line in lines if line.top in work[-1:]]
    return max(own, key=lambda line: (line.nodes[-1].claimed, line.depth, line.nodes[-1].index), default=None)


def main_work(lines: Sequence[Line]) -> list[Prompt]:
    """The roots of the main conversation, in order: the first one with tools, and those that go on with it.

    A client goes on in a new root when it drops its first reply, or makes its history shorter: then old replies stand
    in the new prompt, or a summary does.
    """
    roots = sorted({line.top for line in lines}, key=lambda root: root.index)
    unnamed = [root for root in roots if not root.head.branch] or roots
    first = next((root for root in unnamed if root.head.tools), unnamed[0] if unnamed else None)
    if first is None:
        return []
    work, nodes = [first], [node for line in lines for node in line.nodes]
    for root in roots:
        if root.index > first.index and root.head.branch == first.head.branch and _goes_on(root, work, nodes):
            work.append(root)
    return work


def _goes_on(root: Prompt, work: Sequence[Prompt], nodes: Sequence[Node]) -> bool:
    """Whether a root tells replies of the main conversation, or a summary of it. One without tools makes a summary."""
    alike = root.head.digest == work[0].head.digest
    if any(node.prompt.top in work for node in root.known.values()):
        return alike or bool(root.head.tools)
    before = [node.sent.text for node in nodes if node.sent and node.prompt.index < root.index]
    said = [text for text in before if len(text) >= _QUOTED]
    quoted = any(text in entry.text for entry in root.entries if entry.role != "assistant" for text in said)
    return alike and (root.grown_from in work or quoted)


def masked_for(
    node: Node, line: Line, work: Sequence[Prompt], options: SessionOptions, *, closed: bool
) -> MaskReason | None:
    """Why a reply is not trained; None if it is."""
    if (closed and node.action is None) or not node.claimed:
        return "undelivered"
    if line.main:
        return None
    if node.dropped:
        return "dropped" if options.dropped == "mask" else None
    return "side" if options.side == "mask" and _is_side(line, work) else None


def _is_side(line: Line, work: Sequence[Prompt]) -> bool:
    """Whether the line is none of the main conversation, or branches off it and leads nowhere: a summary."""
    before = line.nodes[0].prompt.grown_from
    return line.top not in work or (before is not None and any(node.reused for node in before.replies))


def write(
    trajectory: Trajectory,
    tree: Tree,
    options: SessionOptions,
    log: Sequence[Mapping[str, JSON]],
    *,
    closed: bool,
    sampled: int | None,
) -> Node | None:
    """Write the tree into a trajectory, and return the main line's last reply.

    `sampled`: tokens that must stand there; None if nobody knows.

    Raises LedgerError if they do not.
    """
    lines = lines_of(tree)
    work, nodes, turns = main_work(lines), list[JSON](), 0
    segments, messages = list[Segment](), list[Message]()
    for line in lines:
        segment = line.segment()
        kind = "main" if line.main else "side" if _is_side(line, work) else "earlier"
        for turn, node in enumerate(line.nodes):
            if (reason := masked_for(node, line, work, options, closed=closed)) is not None:
                segment.mask(reason, turn=turn)
            nodes.append(_node_json(node, kind, len(segments), turns + turn, reason))
            messages += [*node.prompt.messages, *node.messages]
        turns += len(line.nodes)
        segments.append(segment)
    ledger = total_ledger(segments)
    require(sampled in (None, ledger.sampled), f"the engine returned {sampled} tokens, of which {ledger.sampled} stand")
    trajectory.segments = segments or [Segment()]
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


def _node_json(node: Node, kind: str, segment: int, turn: int, masked: str | None) -> JSON:
    prompt = node.prompt
    return {
        "id": node.index,
        "parent": None if prompt.parent is None else prompt.parent.index,
        "prompt": prompt.index,
        "line": kind,
        "branch": prompt.head.branch,
        "segment": segment,
        "turn": turn,
        "prompt_tokens": prompt.length,
        "sampled_tokens": len(node.turn.ids) - node.turn.prompt_length,
        "known": [known.index for known in prompt.known.values()],
        "dropped": node.dropped,
        "delivered": node.delivered,
        "masked": masked,
    }
