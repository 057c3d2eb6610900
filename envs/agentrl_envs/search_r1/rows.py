"""Rows in the format of Search-R1's data, which slime's flags and agentrl's commands read unchanged.

{"data_source": "nq", "prompt": [{"role": "user", "content": "..."}], "ability": "fact-reasoning",
 "reward_model": {"style": "rule", "ground_truth": {"target": ["Paris"]}}, "extra_info": {"split": "train", "index": 0}}
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.rollout.data.data_files import read_rows
from agentrl.types import JSON
from agentrl_envs.search_r1.prompts import Form, prompt_of

_EXAMPLE = '{"question": "Capital of France?", "golden_answers": ["Paris"]}'


def make_row(
    question: str,
    answers: Sequence[str],
    *,
    source: str = "qa",
    extra: Mapping[str, JSON] | None = None,
    form: Form = "tags",
) -> dict[str, JSON]:
    """A row of data. `extra` becomes extra_info, such as the split and the index in the split."""
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": prompt_of(question, form)}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": list(answers)}},
        "extra_info": dict(extra or {}),
    }


def write_rows(
    qa: Path, folder: Path, *, test_share: float = 0.1, seed: int = 0, form: Form = "tags"
) -> tuple[Path, Path]:
    """Write train.jsonl and test.jsonl of a JSONL file {"question", "golden_answers", "source"?, ...} into `folder`.

    Of each source, `test_share` of the questions (rounded to the nearest) are held out. The choice depends on `seed`
    and the words alone, so a repeated question is in a single split. Other keys go into extra_info.

    Raises ConfigError (`file:line: problem; remedy`) for a row that is not a question with answers.
    """
    rows = [_checked(row, f"{qa}:{number}") for number, row in read_rows(qa, f"write {_EXAMPLE}")]
    if not rows:
        raise ConfigError(f"{qa}: no question in it; write {_EXAMPLE}")
    held_out = _held_out(rows, test_share, seed)
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "train.jsonl", folder / "test.jsonl"
    for file, split in zip(files, ("train", "test"), strict=True):
        of_split = [row for row in rows if (_key(row) in held_out) == (split == "test")]
        prepared = (_made(row, split, index, form) for index, row in enumerate(of_split))
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in prepared), encoding="utf-8")
    return files


def _checked(row: JSON, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: not an object; write {_EXAMPLE}")
    question, answers = row.get("question"), row.get("golden_answers")
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(f'{where}: no "question"; write {_EXAMPLE}')
    answers = [answers] if isinstance(answers, str) else answers
    usable = isinstance(answers, list) and all(isinstance(answer, str) and answer.strip() for answer in answers)
    if not usable or not answers:
        raise ConfigError(f'{where}: "golden_answers" must be a list of texts that are not empty; write {_EXAMPLE}')
    if not isinstance(row.get("source", ""), str):
        raise ConfigError(f'{where}: "source" must be a text, the name of the data set')
    return {**row, "source": row.get("source", "qa"), "golden_answers": answers}


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["source"], " ".join(row["question"].casefold().split())


def _held_out(rows: Iterable[Mapping[str, Any]], share: float, seed: int) -> set[tuple[str, str]]:
    by_source: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        by_source.setdefault(row["source"], set()).add(_key(row))
    held_out: set[tuple[str, str]] = set()
    for keys in by_source.values():
        shuffled = sorted(keys, key=lambda key: hashlib.sha256(f"{seed}/{key[0]}/{key[1]}".encode()).digest())
        held_out.update(shuffled[: math.floor(share * len(keys) + 0.5)])
    return held_out


def _made(row: Mapping[str, Any], split: str, index: int, form: Form) -> dict[str, JSON]:
    more = {key: value for key, value in row.items() if key not in ("question", "golden_answers", "source")}
    extra = {**more, "split": split, "index": index}
    return make_row(row["question"], row["golden_answers"], source=row["source"], extra=extra, form=form)
