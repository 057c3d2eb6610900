"""A corpus and questions for a first search agent: real cities and countries, in the formats of Search-R1.

    python examples/search_r1/facts.py FOLDER      # writes corpus.jsonl, train.jsonl and held_out.jsonl

The facts, and the choice of held-out facts, come from agentrl_envs.fact_search. A row's prompt is the question alone,
and the players write no thoughts: `tiny` spells most words letter by letter, and could not read the paper's long
prompt.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from agentrl import Task
from agentrl.engine.scripted import Turn
from agentrl_envs.fact_search import load_facts, make_tasks
from agentrl_envs.search_r1 import make_row

GUESSES = 0.65
"""The share of episodes in which the mediocre player guesses. More than half, so that a greedy imitator guesses."""


def perfect(task: Task) -> Generator[Turn, str, None]:
    """Searches for the needed facts, then answers."""
    for query in task.metadata["extra_info"]["searches"]:
        yield f"<search>{query}</search>"
    yield f"<answer>{task.label['ground_truth']['target'][0]}</answer>"


def mediocre(task: Task) -> Generator[Turn, str, None]:
    """Guesses something plausible without searching, 65 % of the time; else plays as `perfect` does.

    Imitation teaches the tags, and how to copy from a passage, but not the strategy: the likeliest turn is a guess.
    """
    rng = Random(f"mediocre-{task.id}")
    if rng.random() < GUESSES:
        yield f"<answer>{rng.choice(plausible(task.metadata['extra_info']['kind']))}</answer>"
    else:
        yield from perfect(task)


@cache
def plausible(kind: str) -> list[str]:
    facts = load_facts()
    known = [country for country in facts.countries if country.name not in facts.held_out]
    return [country.name if kind == "country" else country.capital for country in known]


def corpus() -> Iterable[Mapping[str, Any]]:
    """The passages. The title is the name of the city or country, which the text does not repeat."""
    facts = load_facts()
    for number, place in enumerate((*facts.countries, *facts.cities)):
        about = place.passage.removeprefix(f"{place.name} ").partition(" Population")[0]
        yield {"id": str(number), "contents": f'"{place.name}"\n{about}'}


def rows(split: str, count: int) -> Iterable[Mapping[str, Any]]:
    for task in make_tasks(split, count):
        extra = {**task.metadata, "split": split}
        row = make_row(task.prompt, [task.label], source="fact_search", extra=extra)
        yield row | {"prompt": [{"role": "user", "content": task.prompt}], "id": task.id}


def write(folder: Path, *, train: int = 6000, held_out: int = 300) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    named = {"corpus": corpus(), "train": rows("train", train), "held_out": rows("eval", held_out)}
    for name, lines in named.items():
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
        written.append(file)
    return written


if __name__ == "__main__":
    for file in write(Path(sys.argv[1])):
        print(file)
