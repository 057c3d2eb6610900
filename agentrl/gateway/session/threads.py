"""Group a session's requests into threads (conversations), and find the agent's main thread.

No API states the thread of a request. The evidence is: the echoed replies, the opening (instructions or first text),
the tools, the branch name in the headers, and later requests of older threads. The agent's own result outweighs all
evidence, if the result is a reply or a part of a reply. A root is a prompt that begins a conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, TypeAlias

from agentrl.chat.request import Entry
from agentrl.gateway.session.matching import START
from agentrl.gateway.session.nodes import Node, Prompt
from agentrl.gateway.session.results import answer_of, holds
from agentrl.gateway.session.tree import Tree
from agentrl.types import JSON

_RUN = 8
"""Number of consecutive words of a reply that count as a quote in a later prompt. A whole shorter reply counts, too."""
_SHORTEST = 8
"""Minimum number of characters of a reply, or of an argument of a call, that is recognized within other text."""
_INSTRUCTIONS = ("system", "developer")

Evidence: TypeAlias = Literal["words", "place", "opening", "task"]
"""Evidence that a thread continues an earlier thread, the strongest first. words: the text of the first request. place:
echoed replies after another opening. opening: only the opening. task: echoed replies, although a call in these replies
holds the thread's task."""
_EVIDENCE: tuple[Evidence, ...] = ("words", "place", "opening", "task")


class Thread:
    """Requests that continue each other, in order of arrival."""

    def __init__(self, first: Prompt) -> None:
        self.prompts = [first]
        self.source: Thread | None = None
        """The thread with the replies echoed by the first request, if the first request does not continue the
        thread."""
        self.answer: Node | None = None
        """The reply that is the agent's answer, if the agent's result shows which."""

    @property
    def first(self) -> Prompt:
        return self.prompts[0]

    @property
    def branch(self) -> str:
        return self.first.branch

    @property
    def roots(self) -> Iterator[Prompt]:
        return (prompt for prompt in self.prompts if prompt.parent is None)

    @property
    def nodes(self) -> list[Node]:
        """The replies, in order of time."""
        replies = [node for prompt in self.prompts for node in prompt.replies if node.turn.turns]
        return sorted(replies, key=lambda node: node.index)

    @property
    def end(self) -> Node | None:
        """The answer, or else the last reply. Complete, delivered replies are preferred."""
        return self.answer or max(
            self.nodes, key=lambda node: (node.claimed and node.action is not None, node.index), default=None
        )

    @property
    def goes_on(self) -> bool:
        """Whether a request of the thread echoes an earlier reply of the thread, perhaps within a user's text."""
        if any(prompt.parent or prompt.tells for prompt in self.prompts):
            return True
        replies = [node.sent.text.strip() for node in self.nodes if node.sent is not None]
        texts = [entry.text for root in self.prompts[1:] for entry in root.entries]
        return any(len(reply) >= _SHORTEST and reply in text for reply in replies for text in texts)

    @property
    def read(self) -> bool:
        """Whether the client got a reply of the thread."""
        return any(node.claimed and node.action is not None for node in self.nodes)

    @property
    def talks(self) -> bool:
        """Whether the thread has tools, or echoes its own replies."""
        return self.first.tools != START or self.goes_on

    @property
    def unfinished(self) -> bool:
        """Whether the last reply holds calls, so that another request with the results should follow."""
        return self.end is not None and self.end.sent is not None and bool(self.end.sent.calls)

    def is_named_in(self, root: Prompt) -> bool:
        """Whether a text of a root holds an id of this thread's last reply, as in a history that is written out as
        text."""
        end = self.end
        return end is not None and any(end.id in entry.text for entry in root.entries)

    def asked_after(self, prompt: Prompt) -> bool:
        """Whether a request of this thread came later than the first request with `prompt`."""
        return any(other.requests[-1] > prompt.requests[0] for other in self.prompts)


def main_thread(tree: Tree, result: JSON = None) -> Thread | None:
    """The main thread; None before the first reply. `result`: the agent's own result, or None."""
    prompts = sorted(
        (prompt for prompt in tree.prompts if prompt.length and prompt.requests), key=lambda p: p.requests[0]
    )
    tasks = _tasks(tree)
    threads = _echo_threads(prompts, tasks)
    for evidence in _EVIDENCE:  # the weaker ones need to know how far each thread goes
        threads = _joined(threads, tasks, evidence)
    threads = [thread for thread in threads if thread.nodes]
    main = _main(threads, tasks)
    return main if main is None or result is None else _with_result(result, threads, main)


def _with_result(result: JSON, threads: Sequence[Thread], main: Thread) -> Thread:
    """The thread of the answer that the result shows, or else the main thread.

    Replies to requests without a branch name are preferred.
    """
    nodes = sorted((node for thread in threads for node in thread.nodes), key=lambda node: node.index)
    nodes = [node for node in nodes if node.claimed and node.action is not None]
    likely, sure = main.nodes if main.talks else (), main.first.tools != START
    for among in ([node for node in nodes if not node.branch], nodes):
        if (answer := answer_of(result, among, likely, sure=sure)) is not None:
            break
    else:
        return main
    ended = next(thread for thread in threads if answer in thread.nodes)
    if ended.source is main:
        main.prompts += ended.prompts
        ended = main
    ended.answer = answer
    return ended


def _echo_threads(prompts: Iterable[Prompt], tasks: Mapping[str, Node]) -> list[Thread]:
    """Group requests into threads: a request joins the thread whose replies it echoes after the same opening."""
    threads = dict[Prompt, Thread]()
    for prompt in prompts:
        before = _before(prompt)
        source = None if before is None else threads.get(before.prompt)
        fits = source is not None and source.branch == prompt.branch and _last_words(prompt) not in tasks
        if source is not None and fits and _opens_alike(prompt.top, source.roots):
            source.prompts.append(prompt)
            threads[prompt] = source
        else:
            threads[prompt] = Thread(prompt)
            threads[prompt].source = source
    return list(dict.fromkeys(threads.values()))


def _before(prompt: Prompt) -> Node | None:
    """The latest reply that a prompt echoes, preferably after the same opening."""
    echoed = [*([prompt.parent] if prompt.parent else []), *prompt.tells]
    alike = [node for node in echoed if _opens_alike(prompt.top, [node.prompt.top])]
    return next(reversed(alike or echoed), None)


def _joined(threads: Iterable[Thread], tasks: Mapping[str, Node], evidence: Evidence) -> list[Thread]:
    """Join each thread to the earlier thread that it continues, after a summary or with other tools."""
    joined, into = list[Thread](), dict[Thread, Thread]()
    for thread in threads:
        thread.source = None if thread.source is None else into.get(thread.source, thread.source)
        earlier = _continued(thread, joined, tasks, evidence)
        if earlier is None:
            joined.append(thread)
        else:
            earlier.prompts += thread.prompts
            into[thread] = earlier
    return joined


def _continued(
    thread: Thread, earlier: Sequence[Thread], tasks: Mapping[str, Node], evidence: Evidence
) -> Thread | None:
    """The earlier thread that a thread continues. None for a sub-agent, a title, a summary."""
    first = thread.first
    if thread.source is None:
        return None if _delegated(thread, tasks) else _best(thread, earlier, evidence)
    early = evidence == "words" or (evidence != "task" and _last_words(first) in tasks)
    if early or thread.source.branch != first.branch or thread.source.asked_after(first):
        return None
    latest = _before(first)
    unfinished = latest is not None and latest.sent is not None and bool(latest.sent.calls)
    return thread.source if first.tools != START or thread.source.first.tools == START or unfinished else None


def _best(thread: Thread, earlier: Sequence[Thread], evidence: Evidence) -> Thread | None:
    """The earlier thread that a thread without echoes continues: the thread with the best fit, or the first of equal
    threads."""
    root = thread.first
    fits = {other: _fit(root, other) for other in earlier if other.branch == root.branch}
    best = max(fits, key=lambda other: fits[other], default=None)
    if best is None or fits[best] > (0 if evidence in ("opening", "task") else 1):
        return best
    for summary in earlier:
        other = summary.source or _quoted(summary.first, earlier) if summary.first.tools == START else None
        if other in fits and _may_go_on(root, other) and _retells(root, other, summary):
            return other
    return None


def _may_go_on(root: Prompt, thread: Thread) -> bool:
    return not thread.asked_after(root) and any(earlier.tools == root.tools for earlier in thread.roots)


def _quoted(root: Prompt, threads: Iterable[Thread]) -> Thread | None:
    """The thread whose prompts or replies are quoted in a root without tools."""
    here = set[tuple[str, ...]]().union(*(_runs(entry.text) for entry in root.entries))
    for thread in threads:
        texts = [entry.text for prompt in thread.prompts for entry in prompt.entries if entry.role != "system"]
        replies = [node.sent.text for node in thread.nodes if node.sent is not None]
        if root not in thread.prompts and any(not here.isdisjoint(_runs(text)) for text in (*texts, *replies)):
            return thread
    return None


@dataclass(frozen=True, slots=True)
class _Likeness:
    """The resemblance between a root and the roots of a thread."""

    opening: bool
    """Whether tools and instructions are the same."""
    instructions: bool
    """Whether the instructions are the same."""
    task: bool
    """Whether the user's first text is the same."""

    @classmethod
    def of(cls, root: Prompt, thread: Thread) -> _Likeness:
        return cls(
            _opens_alike(root, thread.roots),
            _opens_alike(root, thread.roots, any_tools=True),
            any(_alike(_task(earlier), _task(root)) for earlier in thread.roots),
        )


def _fit(root: Prompt, thread: Thread) -> int:
    """How well a root without echoes fits a thread, from 0 (not at all) to 4. 1: only the opening fits.

    With the same instructions, tools and task, the root is the thread's own history in rewritten form. Otherwise the
    thread must have ended.
    """
    alike = _Likeness.of(root, thread)
    if alike.opening and (alike.task or root.grown_from in thread.prompts):
        return 4
    if thread.asked_after(root):
        return 0
    if thread.unfinished and (alike.task or thread.is_named_in(root)):
        return 2  # it handed the task over
    return _fit_after_end(root, thread, alike)


def _fit_after_end(root: Prompt, thread: Thread, alike: _Likeness) -> int:
    """`_fit` of a root that began after the thread's end."""
    with_tools = thread.first.tools != START
    if with_tools and root.tools == START:
        return 2 * int(alike.instructions and alike.task)  # a last answer without tools
    if not with_tools and not alike.opening and (root.tools != START or _opening(root)[0] == "system"):
        return 0  # a title, a commit message, a verdict: it may quote the answer
    if _retells(root, thread):
        return 3
    if alike.instructions and alike.task:
        return 2
    return int(alike.opening or (with_tools and (alike.instructions or _is_bare(root, thread))))


def _is_bare(root: Prompt, thread: Thread) -> bool:
    """Whether a root has no instructions, but the tools of an unfinished thread."""
    same_tools = any(earlier.tools == root.tools for earlier in thread.roots)
    return _opening(root)[0] == "user" and thread.unfinished and same_tools


def _main(threads: Sequence[Thread], tasks: Mapping[str, Node]) -> Thread | None:
    """The main thread: the first thread with tools or with echoes of its own replies. Otherwise the longest thread, and
    the last of equally long threads.

    A sub-agent, recognized by a task in another thread's call or by a header, does not count. A late thread with quotes
    of the last replies of several threads joins the work of these threads.
    """
    candidates = _candidates(threads, tasks)
    if candidates and _joins(candidates[-1], candidates[:-1]):
        return candidates[-1]
    talks = next((thread for thread in candidates if thread.talks), None)
    return talks or max(reversed(candidates), key=lambda thread: (thread.read, len(thread.prompts)), default=None)


def _candidates(threads: Sequence[Thread], tasks: Mapping[str, Node]) -> list[Thread]:
    """The threads that may be the main thread. If no thread fulfils all conditions, the conditions are relaxed."""
    unnamed = [thread for thread in threads if not thread.branch]
    independent = [thread for thread in threads if thread.first.parent is None and thread.source is None]
    candidates = [thread for thread in independent if not thread.branch] or unnamed or independent
    return [thread for thread in candidates if not _delegated(thread, tasks)] or candidates or list(threads)


def _joins(last: Thread, others: Sequence[Thread]) -> bool:
    """Whether a thread quotes the whole last replies of threads with several tasks, and no other thread goes on
    afterwards."""
    if any(other.asked_after(last.first) for other in others):
        return False
    ends = {_task(node.prompt.top): node.sent for other in others for node in other.nodes if not node.prompts}
    texts = [entry.text for entry in last.first.entries if entry.role != "assistant"]
    quoted = {end.text for end in ends.values() if end and any(holds(text, end.text.strip()) for text in texts)}
    return len(quoted) > 1


def _opening(root: Prompt) -> tuple[str, str]:
    """The instructions at a root's beginning, or else the user's first text."""
    texts = list[str]()
    for entry in root.entries:
        if entry.role not in _INSTRUCTIONS:
            break
        texts.append(entry.text)
    return ("system", "\n".join(texts)) if texts else ("user", _task(root))


def _task(root: Prompt) -> str:
    return next((entry.text for entry in root.entries if entry.role == "user"), "")


def _opens_alike(root: Prompt, others: Iterable[Prompt], *, any_tools: bool = False) -> bool:
    """Whether a root has the tools and instructions of another root, apart from a different date or summary."""
    kind, text = _opening(root)
    for other in others:
        if other is root:
            return True
        kind_there, text_there = _opening(other)
        same = (any_tools or other.tools == root.tools) and kind == kind_there
        if same and _alike(text, text_there, edges=kind == "system"):
            return True
    return False


def _alike(first: str, second: str, *, edges: bool = False) -> bool:
    """Whether the longer text begins with nine tenths of the shorter text. With `edges`, equal text at both ends
    counts."""
    shorter, longer = sorted((first, second), key=len)
    shared = _shared(shorter, longer)
    if edges:
        shared += _shared(shorter[shared:][::-1], longer[shared:][::-1])
    return shared >= len(shorter) - len(shorter) // 10 and bool(shorter or not longer)


def _shared(shorter: str, longer: str) -> int:
    """The length of the common beginning of two texts, in characters."""
    if longer.startswith(shorter):
        return len(shorter)
    return next(i for i, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b)


def _retells(root: Prompt, thread: Thread, said_by: Thread | None = None) -> bool:
    """Whether a root quotes replies within new text, such as a summary.

    Text is new if no root of the thread holds it. The replies are from the thread, or from `said_by`.
    """
    texts = {entry.text for earlier in thread.roots for entry in earlier.entries}
    skipped = ("assistant", *(_INSTRUCTIONS if _opens_alike(root, thread.roots, any_tools=True) else ()))
    fresh = [entry.text for entry in root.entries if entry.role not in skipped and entry.text not in texts]
    here = set[tuple[str, ...]]().union(*(_runs(text) for text in fresh))
    replies = [node.sent.text for node in (said_by or thread).nodes if node.sent is not None]
    return any(not here.isdisjoint(_runs(text)) for text in replies)


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = text.split()
    return zip(*(words[start:] for start in range(_RUN)), strict=False)


def _tasks(tree: Tree) -> dict[str, Node]:
    """Each text in the arguments of a call -> the first reply with such a call."""
    tasks = dict[str, Node]()
    for node in tree.nodes:
        for call in node.sent.calls if node.sent is not None else ():
            for text in _texts(call.arguments):
                if len(text) >= _SHORTEST:
                    tasks.setdefault(text.strip(), node)
    return tasks


def _delegated(thread: Thread, tasks: Mapping[str, Node]) -> bool:
    """Whether a thread begins with a task from a call in another thread, surrounded by little other text."""
    texts = [entry.text.strip() for entry in takewhile(_no_history, thread.first.entries) if entry.role == "user"]
    nodes = set(thread.nodes)
    for text in texts:
        givers = (node for task, node in tasks.items() if 2 * len(task) >= len(text) and task in text)
        if any(node not in nodes and not _opens_with(node.prompt.top, text) for node in givers):
            return True
    return False


def _opens_with(root: Prompt, text: str) -> bool:
    return any(entry.text.strip() == text for entry in root.entries)


def _no_history(entry: Entry) -> bool:
    return entry.role not in ("assistant", "tool")


def _last_words(prompt: Prompt) -> str:
    """The user's last text. In a copy of the history, the text may be the task of a sub-agent."""
    last = prompt.entries[-1] if prompt.entries else None
    return last.text.strip() if last is not None and last.role == "user" else ""


def _texts(value: JSON) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)
