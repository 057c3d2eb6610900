"""Write the tree of a session into the session's log file, and read the tree back."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from agentrl.chat.request import Call, Entry, Reply, ReplyCall, ReplyUsage
from agentrl.gateway.session.matching import head_digest, tools_digest
from agentrl.gateway.session.nodes import Head, Node, Prompt
from agentrl.gateway.session.tree import Tree
from agentrl.image import Image, images_in
from agentrl.trajectory.segment import Segment
from agentrl.types import JSON, Message, Rendered, RenderedImage, RenderedSpan


def of_prompt(prompt: Prompt) -> dict[str, JSON]:
    """A prompt as JSON: entries and tokens."""
    rendered = prompt.rendered
    return {
        "parent": None if prompt.parent is None else prompt.parent.index,
        "entries": [_entry_json(entry) for entry in prompt.entries],
        "digest": prompt.digest.hex(),
        "known": [[index, node.index] for index, node in prompt.known_replies.items()],
        "tells": [node.index for node in prompt.tells],
        "asked_tools": prompt.tools.hex(),
        "branch": prompt.branch,
        "head": None if prompt.parent else _head_json(prompt.head),
        "continued": prompt.continued,
        "number": prompt.number,
        "grown_from": None if prompt.grown_from is None else prompt.grown_from.index,
        "rendered": _rendered_json(rendered),
        "messages": list(prompt.messages),
    }


def of_reply(node: Node) -> dict[str, JSON]:
    """A reply as JSON: tokens, and the form that the client got."""
    assert node.reply is not None
    return {"id": node.id, "sampled": node.turn.to_json(), "reply": asdict(node.reply), "calls": dict(node.call_ids)}


def tree_of(lines: Sequence[Mapping[str, JSON]], tag: str, *, as_sent: bool) -> Tree:
    """Rebuild a tree from the lines of a log, without incomplete replies."""
    tree, prompts = Tree(as_sent=as_sent, tag=tag), dict[int, Prompt]()
    nodes, answers = dict[int, Node](), dict[int, list[Node]]()
    early_requests = dict[int, list[int]]()
    """Index of a prompt without tokens -> the numbers of the prompt's requests."""
    branches = {line["request"]: line["branch"] for line in lines if line["event"] == "request"}
    for line in lines:
        if line["event"] == "prompt":
            prompt = prompts[line["prompt"]] = _prompt(line, prompts, nodes)
            for number in early_requests.pop(prompt.index, ()):
                prompt.ask(number, branches[number])
            tree.keep(prompt)
        elif line["event"] == "reply":
            node = nodes[line["node"]] = _node(line, prompts[line["prompt"]], branches[line["request"]], tree)
            answers.setdefault(line["request"], []).append(node)
        elif line["event"] == "request" and line["prompt"] in prompts:
            prompts[line["prompt"]].ask(line["request"], line["branch"])
        elif line["event"] == "request":
            early_requests.setdefault(line["prompt"], []).append(line["request"])
        elif line["event"] in ("delivered", "lost"):
            for node in answers.get(line["request"], ()):
                node.delivered, node.lost = line["event"] == "delivered", line["event"] == "lost"
    return tree


def _head_json(head: Head) -> dict[str, JSON]:
    return {"tools": list(head.tools), "branch": head.branch, "template_kwargs": dict(head.template_kwargs)}


def _head(data: Mapping[str, JSON]) -> Head:
    tools, arguments = tuple(data["tools"]), data.get("template_kwargs", {})
    digest = tools_digest(tools)
    return Head(tools, head_digest(digest, arguments), data["branch"], arguments, digest)


def _entry_json(entry: Entry) -> dict[str, JSON]:
    """An entry as JSON. An image is replaced by its digest, because the prompt's messages hold the image."""
    parts = [part if isinstance(part, str) else {"image": part.digest} for part in entry.parts]
    return {**asdict(replace(entry, parts=())), **({"parts": parts} if parts else {})}


def _rendered_json(rendered: Rendered) -> dict[str, JSON]:
    media = [[image.start, image.stop, image.image.digest] for image in rendered.media]
    return {**asdict(replace(rendered, media=())), "tokens": list(rendered.tokens), "media": media}


def _prompt(line: Mapping[str, JSON], prompts: Mapping[int, Prompt], nodes: Mapping[int, Node]) -> Prompt:
    parent = None if line["parent"] is None else nodes[line["parent"]]
    if parent is not None:
        parent.echoed = parent.delivered = True
    head, rendered, images = line["head"], line["rendered"], _images(line["messages"])
    prompt = Prompt(
        line["prompt"],
        parent,
        tuple(_entry(entry, images) for entry in line["entries"]),
        bytes.fromhex(line["digest"]),
        {index: nodes[node] for index, node in line["known"]},
        parent.prompt.head if parent else _head(head),
        line["number"],
        prompts.get(line["grown_from"]),
        tuple(nodes[node] for node in line["tells"]),
        bytes.fromhex(line["asked_tools"]),
        line["branch"],
        line.get("continued", False),
    )
    spans = tuple(RenderedSpan(**span) for span in rendered["spans"])
    rest = (rendered["thinking"], rendered["cut"], rendered.get("special", 0))
    media = tuple(RenderedImage(start, stop, images[digest]) for start, stop, digest in rendered.get("media", ()))
    prompt.rendered = Rendered(array("i", rendered["tokens"]), spans, *rest, media=media)
    prompt.messages, prompt.length = line["messages"], line["tokens"]
    return prompt


def _node(line: Mapping[str, JSON], prompt: Prompt, branch: str, tree: Tree) -> Node:
    data = line["reply"]
    reply = Reply(
        **{**data, "calls": tuple(ReplyCall(**c) for c in data["calls"]), "usage": ReplyUsage(**data["usage"])}
    )
    turn = Segment.from_json(line["sampled"])
    node = Node(line["node"], prompt, line["id"], branch, turn)
    tree.nodes.append(node)
    prompt.replies.append(node)
    tree.settle(node, turn.said[-1], reply, line["calls"])
    return node


def _entry(data: Mapping[str, JSON], images: Mapping[str, Image]) -> Entry:
    lists = {name: tuple(data[name]) for name in ("receipts", "loads")}
    parts = tuple(part if isinstance(part, str) else images[part["image"]] for part in data.get("parts", ()))
    return Entry(**{**data, **lists, "calls": tuple(Call(**call) for call in data["calls"]), "parts": parts})


def _images(messages: Sequence[Message]) -> dict[str, Image]:
    """Digest -> image, for all images in messages."""
    return {image.digest: image for message in messages for image in images_in(message.get("content"))}


def read(lines: Iterable[str]) -> list[dict[str, JSON]]:
    """Read the lines of a log file. An incomplete last line, left by a process that died, is skipped."""
    records = list[dict[str, JSON]]()
    *whole, last = [line for line in lines if line.strip()] or [""]
    records += map(json.loads, whole)
    with suppress(ValueError):
        records.append(json.loads(last))
    return records
