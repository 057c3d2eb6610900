"""Multiple choice: whether a model chose the right option, by letter or by text."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import ConfigError
from agentrl.rewards.answers import boxed, short_answer
from agentrl.rewards.grader import Grader
from agentrl.rewards.labels import check_label
from agentrl.rewards.letters import Rank, chosen
from agentrl.rewards.text import is_match, normalise
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import JSON, Task

_ANY = string.ascii_uppercase[:10]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a question, and the right option."""

    letters: Sequence[str]
    right: str | None
    """The letter of the right option. None if the label names neither an option nor a text."""
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Letter -> the texts that mean the same option."""
    stand_in: str = ""
    """The letter in `letters` for a right answer whose text is no option; "" if no such letter is needed."""

    @classmethod
    def of(cls, label: JSON, metadata: Mapping[str, JSON]) -> Options:
        """Read the options. `label` is a letter, an index, or the text of an option; `metadata` is as in `Gpqa`."""
        choices = _choices(metadata)
        letters = [str(letter).upper() for letter in metadata.get("valid_letters") or _ANY[: len(choices) or None]]
        texts = {letter: [text] for text, letter in zip(choices, letters, strict=False)}
        right = _right_letter(label, metadata.get("correct_letter"), cls(letters, None, texts))
        names = _right_texts(label if right is None else None, metadata)
        stand_in = max({*string.ascii_uppercase} - {*letters}, default="") if right is None and names else ""
        right = right or stand_in or None
        if right is not None and names:
            texts[right] = [*texts.get(right, ()), *names]
        return cls([*letters, stand_in] if stand_in else letters, right, texts, stand_in)

    def chosen_in(self, text: str) -> str | None:
        r"""The letter that the text chooses: in the last \boxed{}, else in its statements. None if the text chooses no
        letter."""
        text = short_answer(text)
        for part in filter(None, (boxed(text), text)):
            letter, rank = max((self._read(part), chosen(self._lettered(part), self.letters)), key=_rank_of)
            if letter is not None or rank is Rank.ANSWER:
                return letter
        return None

    def _read(self, text: str) -> tuple[str | None, Rank]:
        return chosen(self._masked(text), self.letters)

    def _masked(self, text: str) -> str:
        """The text with `stand_in` doubled where it stands alone, so that this letter, which is no option, is not
        chosen."""
        mark = self.stand_in
        return re.sub(rf"(?<!\w){mark}(?!\w)", 2 * mark, text, flags=re.IGNORECASE) if mark else text

    def _lettered(self, text: str) -> str:
        """The text with the letters of options in place of their texts."""
        tokens = list(re.finditer(r"\S+", text))
        words = [normalise(token[0]).split() for token in tokens]
        named = [(normalise(name).split(), letter) for letter, names in self.texts.items() for name in names]
        named.sort(key=lambda pair: -len(pair[0]))
        parts, done, i = list[str](), 0, 0
        while i < len(tokens):
            end, letter = next(((place, letter) for name, letter in named if (place := _end(words, i, name))), (0, ""))
            if end:
                tail = re.search(r"[.,;:!?]*$", tokens[end - 1][0])
                parts += [self._masked(text[done : tokens[i].start()]), f"({letter})", tail[0] if tail else ""]
                done = tokens[end - 1].end()
            i = max(end, i + 1)
        return "".join([*parts, self._masked(text[done:])])


def _rank_of(read: tuple[str | None, Rank]) -> tuple[bool, Rank]:
    letter, rank = read
    return letter is not None or rank is Rank.ANSWER, rank


def _end(words: Sequence[Sequence[str]], start: int, name: Sequence[str]) -> int:
    """The index after `name` in `words` if `name` stands at `start`, else 0."""
    end, read = start, list[str]()
    while words[start] and end < min(start + 2 * len(name), len(words)) and len(read) < len(name):
        read += words[end]
        end += 1
        if read != name[: len(read)]:
            return 0
    return end if name and read == name else 0


class Gpqa(Grader):
    r"""The reward is 1 if the model chose the right option, else 0.

    The label is a letter, an index or the text of an option. `metadata` may hold choices, valid_letters,
    correct_letter, correct_answer and answer_text. `letters.py` describes how a choice is read. `box`: only the last
    \boxed{} is read.
    """

    def __init__(self, *, box: bool = False) -> None:
        self.box = box

    async def grade(self, output: ModelOutput) -> float:
        options = Options.of(output.label, output.metadata)
        answer = (boxed(output.answer) or "") if self.box else output.answer
        return float(options.right is not None and options.chosen_in(answer) == options.right)

    def check_task(self, task: Task) -> None:
        options = Options.of(task.label, task.metadata)
        if options.stand_in:
            check_label(task.label, one_line=True)
        if options.right not in options.letters:
            raise ConfigError(
                f"gpqa can never pay the label {task.label!r:.80}: it is none of the options "
                f"{', '.join(options.letters)}; write a letter, an index from 0, or the text of an option"
            )


def _choices(metadata: Mapping[str, JSON]) -> list[str]:
    choices: Any = metadata.get("choices") or ()
    return [str(choice) for choice in (choices.values() if isinstance(choices, Mapping) else choices)]


def _right_texts(label: JSON, metadata: Mapping[str, JSON]) -> list[str]:
    """The texts of the right answer: from the metadata, and from a label that is not a single letter."""
    texts = [str(metadata[key]) for key in ("correct_answer", "answer_text") if metadata.get(key)]
    if isinstance(label, str) and len(label.strip()) > 1:
        texts.append(label.strip())
    return texts


def _right_letter(label: JSON, correct: JSON, options: Options) -> str | None:
    letters = options.letters
    if isinstance(correct, str) and correct.strip():
        return correct.strip().upper()
    if isinstance(label, int | float):
        return letters[int(label)] if 0 <= label < len(letters) else None
    text = str(label or "").strip()
    for letter, names in options.texts.items():
        if is_match(text, list(names)):
            return letter
    read, rank = chosen(text, letters)
    return read if rank >= Rank.CONCLUDED else None
