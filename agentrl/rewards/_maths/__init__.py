"""Whether two mathematical answers are the same.

A text is read whole, into a tree, or not at all. Values are compared exactly, or with many digits. Expressions with
variables are compared at many points. An unreadable text equals only a text with the same characters.

A grader's process loads this package as a folder, so this package imports nothing of agentrl.
"""

from __future__ import annotations

from dataclasses import replace

from .comparing import same_answer
from .nodes import CONSTANTS, MathNode, UnreadableError, free_names
from .reading import read, spelling

__all__ = ["same"]


def same(answer: str, labels: list[str]) -> bool:
    """Whether the answer equals a label."""
    return any(_same(answer, label) for label in labels)


def _same(answer_text: str, label_text: str) -> bool:
    if not answer_text.strip() or not label_text.strip():
        return False
    if answer_text.strip() == label_text.strip() or spelling(answer_text) == spelling(label_text) != ():
        return True
    try:
        label, answer = read(label_text), read(answer_text)
        return same_answer(label, answer) or _same_but_for_case(label, answer)
    except (UnreadableError, RecursionError):
        return False


def _same_but_for_case(label: MathNode, answer: MathNode) -> bool:
    """Whether both are equal after a change to small letters. False if a side needs capitals to tell two variables
    apart."""
    names = [free_names(node) for node in (label, answer)]
    folded = [{text.lower() for text in side} for side in names]
    if names[0] == names[1] or folded[0] != folded[1] or any(map(_loses, names, folded)) or folded[0] & CONSTANTS:
        return False
    return same_answer(label.map(_fold), answer.map(_fold))


def _loses(names: set[str], folded: set[str]) -> bool:
    return len(folded) < len(names)


def _fold(node: MathNode) -> MathNode:
    return replace(node, text=node.text.lower()) if node.kind in ("name", "call") else node
