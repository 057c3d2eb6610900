"""An agent's session as a tree: the model's replies, and how the agent sent them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.style import Style
from rich.text import Text

from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON

_DIM, _TRAINED, _MASKED, _AUDIT = Style(dim=True), Style(color="green"), Style(color="red"), Style(color="yellow")

# A tool's output may hold escape sequences, which must not reach the terminal: controls are drawn as pictures.
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"}
_PICTURES |= {0x7F: "\u2421", **dict.fromkeys(range(0x80, 0xA0), "\ufffd")}


def visible(text: str) -> str:
    return text.translate(_PICTURES)


def session_tree(trajectory: Trajectory, width: int) -> Iterator[Text]:
    """A line for each of the model's replies. Replies of the same segment are aligned; branches are indented."""
    session = trajectory.session or {}
    nodes: Sequence[Mapping[str, JSON]] = session.get("nodes", ())
    below: dict[int | None, list[Mapping[str, JSON]]] = {}
    for node in nodes:
        below.setdefault(node["parent"], []).append(node)
    audits: dict[int, list[Mapping[str, JSON]]] = {}
    for audit in session.get("audits", ()):
        audits.setdefault(audit["node"], []).append(audit)
    waiting, seen = [(root, 0) for root in reversed(below.get(None, []))], set[int]()
    while waiting:
        node, depth = waiting.pop()
        mark = "  " if node["segment"] in seen else "- "
        seen.add(node["segment"])
        yield _line(node, trajectory, "  " * depth + mark, width)
        yield from (_audit(audit, depth, width) for audit in audits.get(node["id"], ()))
        children = below.get(node["id"], [])
        same = [child for child in children if child["segment"] == node["segment"]]
        other = [child for child in children if child["segment"] != node["segment"]]
        waiting += [(child, depth) for child in same]  # the line continues after its branches
        waiting += [(child, depth + 1) for child in reversed(other)]
    yield from _refusals(session.get("requests", ()), width)


def _refusals(requests: Sequence[Mapping[str, JSON]], width: int) -> Iterator[Text]:
    """A line for each message with which the gateway refused requests, and how often. Requests after the session's end
    are left out."""
    lines = [line for line in requests if line["event"] == "refused" and line["kind"] != "closed"]
    counted = Counter(": ".join(filter(None, [line.get("what"), line["message"]])) for line in lines)
    for message, times in counted.items():
        often = f" {times} times" if times > 1 else ""
        yield _cut(Text(visible(f"- refused{often}: {message}"), _AUDIT), width)


def _line(node: Mapping[str, JSON], trajectory: Trajectory, mark: str, width: int) -> Text:
    text = _said(trajectory, node["turn"])
    kind = "dropped" if node["dropped"] else node["line"]
    branch = f" {node['branch']}" if node["branch"] else ""
    repeated = f", repeats {', '.join(f'#{repeated}' for repeated in node['known'])}" if node["known"] else ""
    head = f"#{node['id']} {kind}{branch}: {node['prompt_tokens']} + {node['sampled_tokens']} tokens"
    masked = f", masked {node['masked']}" if node["masked"] else ""
    line = Text(mark)
    line.append(visible(head), _MASKED if masked else _TRAINED)
    line.append(visible(f"{masked}{repeated}"))
    line.append(visible(f"  {text}"), _DIM)
    return _cut(line, width)


def _said(trajectory: Trajectory, turn: int) -> str:
    """The text that the model wrote in a turn, as a single line. Empty if no segment has the turn."""
    for segment, places in trajectory.by_segment(range(len(trajectory.turns))):
        if turn in places:
            index = places.index(turn)
            return repr(segment.said[index].text) if index < len(segment.said) else "(incomplete)"
    return ""


def _audit(audit: Mapping[str, JSON], depth: int, width: int) -> Text:
    texts = {name: text for name, text in audit.items() if name not in ("at", "event", "kind", "node")}
    details = ", ".join(f"{_in_words(name)} {text!r:.120}" for name, text in texts.items())
    return _cut(Text(visible(f"{'  ' * depth}      {_in_words(audit['kind'])}: {details}"), _AUDIT), width)


def _in_words(name: str) -> str:
    """A key of the session's log in readable words: `told` marks messages that an agent sent back."""
    return name.replace("told", "sent back").replace("_", " ")


def _cut(line: Text, width: int) -> Text:
    line.truncate(max(width, 40), overflow="ellipsis")
    return line
