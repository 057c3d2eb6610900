"""Tasks, a corpus and demonstrations for the parts of benchmarks.gpu that use the embedded trainer."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from agentrl import EnvFactory, Task, Trajectory
from agentrl.engine.scripted import Turn
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from agentrl.rollout.data.tasks import load_tasks
from agentrl.testing import rollout
from agentrl.types import Limits
from agentrl_envs.search_r1 import make_row, searcher, write_rows

ROOT = Path(__file__).resolve().parent.parent
_HELD_OUT = 0.2
"""The share of held-out questions, for a corpus of the user. Search-R1's corpus then has 960."""
_FEW = 2400
"""The number of generated questions for demonstrations and for training."""
_SHOWN = 4
"""Every fourth question is for demonstrations, and is no task of RL: the warm start teaches the format only."""
GUESSES = 0.65
"""The share of demonstrations of a search that guess. More than half, so that a greedy imitator guesses."""


@dataclass(frozen=True, slots=True)
class Data:
    train: Path
    held_out: Path
    shown: Path
    """The file with the tasks of the demonstrations."""
    corpus: Path | None
    player: Callable[[Task], Generator[Turn, str, None]]
    """The scripted player whose episodes the warm start imitates."""
    about: str


def demo_data(folder: Path) -> Data:
    from agentrl_envs.fact_search import mediocre, write_tasks

    train, held_out = write_tasks(folder)
    return Data(train, held_out, train, None, mediocre, "the demo's questions about cities and countries")


def search_data(folder: Path, given: str | None, *, plain: bool) -> Data:
    """Write questions and a corpus. With `plain`, a prompt is the question alone, for a model that spells most
    words."""
    folder.mkdir(parents=True, exist_ok=True)
    files = _given(folder, Path(given)) if given else _made(folder)
    shown = folder / "shown.jsonl"
    for file in files:
        rows = [json.loads(line) for line in _lines(file)]
        write_lines(file, ({**row, "prompt": _prompt(row, plain)} for row in rows))
    _divide(files[0], shown)
    counted = (folder / "corpus.jsonl", files[0], shown, files[1])
    passages, train, demonstrated, held_out = (len(_lines(file)) for file in counted)
    source = "the corpus given" if given else "made by the repository, of cities and countries"
    about = f"{source}: {passages} passages, {train} questions, {demonstrated} in demonstrations, {held_out} held out"
    return Data(*files, shown, folder / "corpus.jsonl", unsure(shown), about)


def unsure(shown: Path) -> Callable[[Task], Generator[Turn, str, None]]:
    """A player that mostly gives the answer to another question without a search, and otherwise plays as the searcher.

    Imitation teaches to search and to read, but not that a search is worthwhile, which RL teaches. Imitation of the
    searcher alone would leave little to learn, as the searcher always searches.
    """
    answers = [json.loads(row)["reward_model"]["ground_truth"]["target"][0] for row in _lines(shown)]

    def player(task: Task) -> Generator[Turn, str, None]:
        rng = Random(f"unsure-{task.id}")
        return _guess(rng, answers) if rng.random() < GUESSES else searcher(task)

    return player


def _guess(rng: Random, answers: Sequence[str]) -> Generator[Turn, str, None]:
    yield f"<think> I think I know it. </think> <answer> {rng.choice(answers)} </answer>"


def _divide(train: Path, shown: Path) -> None:
    """Move every fourth question to `shown`. The words of a question decide, so a repeated question is in a single
    file."""
    sides: tuple[list[Any], list[Any]] = ([], [])
    for row in map(json.loads, _lines(train)):
        question = json.dumps(row["prompt"], sort_keys=True)
        sides[zlib.crc32(question.encode()) % _SHOWN == 0].append(row)
    write_lines(shown, sides[True])
    write_lines(train, sides[False])


def _given(folder: Path, source: Path) -> tuple[Path, Path]:
    """Write the questions of a user's corpus as rows. A searcher looks up the question, then the titles that support
    its answer."""
    from benchmarks.search import questions

    shutil.copyfile(source / "corpus.jsonl", folder / "corpus.jsonl")  # its index is made beside it
    with_searches = ({**qa, "searches": [qa["question"], *titles]} for qa, titles in questions(source))
    write_lines(folder / "qa.jsonl", with_searches)
    return write_rows(folder / "qa.jsonl", folder, test_share=_HELD_OUT)


def _made(folder: Path) -> tuple[Path, Path]:
    _, train, held_out = _facts().write(folder, train=_FEW)
    return train, held_out


def _facts() -> ModuleType:
    file = ROOT / "examples/search_r1/facts.py"
    spec = importlib.util.spec_from_file_location("search_r1_facts", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _prompt(row: Mapping[str, Any], plain: bool) -> Any:
    question = row["prompt"][-1]["content"].rpartition("Question: ")[2].strip()
    if plain:
        return [{"role": "user", "content": question}]
    return make_row(question, ["-"])["prompt"]


def demonstrations(file: Path, data: Data, config: Mapping[str, Any], count: int) -> int:
    """Record up to `count` episodes of the player in this model's tokens. Episodes that
    searched without success are left out; guesses are not. Returns the number of episodes."""
    renderer = load_renderer(load_tokenizer(config["model"]))
    tasks = load_tasks(data.shown, split="train")[:count]
    limits = Limits(**config["limits"])

    async def play() -> list[dict[str, Any]]:
        async with EnvFactory(config["env"], config.get("env_config", {})) as envs:
            played = [
                await rollout(envs.make(), task, data.player(task), renderer=renderer, limits=limits) for task in tasks
            ]
        return [one.to_json() for one in played if data.corpus is None or one.reward or _guessed(one)]

    rows = asyncio.run(play())
    write_lines(file, rows)
    return len(rows)


def _guessed(trajectory: Trajectory) -> bool:
    return trajectory.stop == "done" and not trajectory.info.get("searches")


def even(trajectory: Trajectory) -> float:
    """The share of even ids among the sampled tokens: a reward that a model can earn after a few steps."""
    sampled = [token for action in trajectory.actions for token in action.tokens]
    return sum(token % 2 == 0 for token in sampled) / max(len(sampled), 1)


def _lines(file: Path) -> list[str]:
    with file.open(encoding="utf-8") as opened:  # str.splitlines would break a text at its own separators
        return list(opened)


def write_lines(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
