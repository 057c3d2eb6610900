"""Questions that need a single search or two searches, for training and for evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count as numbers
from itertools import islice
from pathlib import Path
from random import Random
from typing import Literal

from agentrl import Task
from agentrl_envs.fact_search.facts import Facts, Index, load_facts

SHARES = {"country": 0.46, "capital": 0.08, "two_hop": 0.46}
"""Kind of question -> its share of all questions."""


def make_tasks(split: Literal["train", "eval"], count: int, *, seed: int = 0) -> list[Task]:
    """The first `count` questions of a split, as tasks."""
    return list(islice(questions(split, seed=seed), count))


def questions(split: Literal["train", "eval"], *, seed: int = 0) -> Iterator[Task]:
    """Endless questions about entities of a split; `metadata["searches"]` has the queries of a perfect player."""
    facts, rng = load_facts(), Random(f"{split}-{seed}")
    index = Index(facts.passages())
    countries = [place for place in facts.countries if _asked(place.name, place.passage, facts, index, split)]
    cities = [city for city in facts.cities if _asked(city.name, city.passage, facts, index, split)]
    # The second hop looks up the country by name, which must find it; it need not be of the split itself.
    through = [city for city in cities if index.search(city.country.name, 1) == (city.country.passage,)]
    for i in numbers():
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        if kind == "country":
            city = rng.choice(cities)
            prompt, label, searches = f"What country is {city.name} in?", city.country.name, [city.name]
        elif kind == "capital":
            country = rng.choice(countries)
            prompt, label, searches = f"What is the capital of {country.name}?", country.capital, [country.name]
        else:
            city = rng.choice(through)
            prompt = f"What is the capital of the country that {city.name} is in?"
            label, searches = city.country.capital, [city.name, city.country.name]
        metadata = {"kind": kind, "searches": searches}
        yield Task(prompt=prompt, label=label, metadata=metadata, id=f"{split}-{i}", split=split)


def write_tasks(folder: Path, *, train: int = 6000, held_out: int = 300, seed: int = 0) -> tuple[Path, Path]:
    """Write train.jsonl and held_out.jsonl, for `agentrl train --data` and slime's --prompt-data."""
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "train.jsonl", folder / "held_out.jsonl"
    for file, tasks in zip(
        files, (make_tasks("train", train, seed=seed), make_tasks("eval", held_out, seed=seed)), strict=True
    ):
        rows = [{"id": t.id, "prompt": t.prompt, "label": t.label, "metadata": dict(t.metadata)} for t in tasks]
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return files


def _asked(name: str, passage: str, facts: Facts, index: Index, split: str) -> bool:
    """Whether a question may ask for `name`: the name is in the split, and a search for the name returns the
    passage."""
    return (name in facts.held_out) == (split == "eval") and index.search(name, 1) == (passage,)
