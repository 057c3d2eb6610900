"""Search-R1's rewards: exact match, and the format and retrieval shaping of its second paper (arXiv 2505.15117)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrl.errors import ConfigError
from agentrl.rewards.answers import LONGEST, tagged, targets
from agentrl.rewards.grader import Grader
from agentrl.rewards.labels import check_label
from agentrl.rewards.text import is_match, is_within
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import Reward, Task

_TEXT = r"(?:(?!</?(?:think|search|information|answer)>).)*"
# A chat template may open the thought in the prompt, so the turn need not.
_THOUGHT = rf"\s*(?:<think>)?{_TEXT}</think>\s*"
_SEARCHED = re.compile(rf"{_THOUGHT}<search>{_TEXT}</search>\s*", re.DOTALL)
_ANSWERED = re.compile(rf"{_THOUGHT}<answer>{_TEXT}</answer>\s*", re.DOTALL)
_FOUND = re.compile(rf"\s*<information>({_TEXT})</information>\s*", re.DOTALL)
_PASSAGES = re.compile(r"<information>(.*?)</information>", re.DOTALL)


@dataclass(frozen=True)
class SearchR1(Grader):
    """Exact match of the last <answer>, shaped by the format and by the passages that the searches returned.

    | answer | format holds | format is broken |
    |---|---|---|
    | right | 1 | 1 - structure |
    | wrong | structure (+ retrieval, if a passage holds a right answer) | final |
    | none | the same | 0 |

    In the format, each turn is a thought and a search, followed by a single <information>. The last turn is a thought
    and an answer.
    """

    structure: float = 0.0
    final: float = 0.0
    retrieval: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.final <= self.structure + self.retrieval < 1:
            raise ConfigError(
                f"SearchR1: {self}: a wrong answer must earn less than a right one, and a broken format no more than a "
                "good one; keep 0 <= final <= structure + retrieval < 1"
            )

    def check_task(self, task: Task) -> None:
        check_label(task.label)

    async def grade(self, output: ModelOutput) -> Reward:
        rights, answer = targets(output.label), tagged(output.answer)
        right = answer is not None and is_match(answer, rights)
        formed = has_format(output)
        retrieved = formed and any(is_within(passage, rights) for passage in passages(output))
        if right:
            value = 1.0 if formed else 1.0 - self.structure
        elif formed:
            value = self.structure + (self.retrieval if retrieved else 0.0)
        else:
            value = 0.0 if answer is None else self.final
        return Reward(value, {"em": float(right), "format": float(formed), "retrieved": float(retrieved)})


def has_format(output: ModelOutput) -> bool:
    """Whether every turn and every observation has Search-R1's form."""
    *searches, last = output.turns or ("",)
    results = output.observed[: len(searches)]
    if len(results) < len(searches) or any(len(text) > LONGEST for text in (*output.turns, *results)):
        return False
    turns = all(_SEARCHED.fullmatch(turn) for turn in searches) and bool(_ANSWERED.fullmatch(last))
    return turns and all(_FOUND.fullmatch(text) for text in results)


def passages(output: ModelOutput) -> list[str]:
    """The texts in <information> tags of the observations. Tags in the model's turns do not count."""
    return [passage for text in output.observed for passage in _PASSAGES.findall(text)]
