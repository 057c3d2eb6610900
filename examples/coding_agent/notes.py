"""Tasks for a first coding agent: read a word in a file, and write the word to a second file.

    python examples/coding_agent/notes.py FOLDER      # writes train.jsonl and held_out.jsonl

The words are short so that `tiny` can read and write them. The files, the commands and the tests are real: see
`agentrl_envs.coding`. In a held-out task, the file to read has a word that it has in no training task.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from random import Random
from shlex import quote

from agentrl import Task
from agentrl.engine.scripted import Turn
from agentrl.sandbox import Sandbox
from agentrl.testing import call
from agentrl_envs.coding import CodingEnv, Grade, Problem, Solution, Step

HERE = Path(os.path.relpath(Path(__file__).parent))
_TEXT = """
water people time number sound hand air line land house world school food feet side boy life head page earth country
night picture eyes story day paper sun sea room city point white thing mother light father river children miles
"""
WORDS = _TEXT.split()
"""Words that are a single token of `tiny` after a space."""
HELD_OUT = 5
"""Every fifth pair of a file to read and its word occurs only in held-out tasks."""
FILES = 4
GUESSES = 0.7
"""The share of episodes in which the mediocre player guesses. More than half, so that a greedy imitator guesses."""


def make_tasks(split: str, count: int, *, seed: int = 0) -> list[Task]:
    rng, tasks = Random(f"{split}-{seed}"), list[Task]()
    while len(tasks) < count:
        files = dict(zip(rng.sample(WORDS, FILES), rng.sample(WORDS, FILES), strict=True))
        asked = rng.choice(list(files))
        if ((WORDS.index(asked) + WORDS.index(files[asked])) % HELD_OUT == 0) != (split == "eval"):
            continue
        metadata = {"format": f"{HERE / 'notes.py'}:load", "files": files, "asked": asked}
        prompt = f"Write the word in file {asked} to answer."
        tasks.append(Task(prompt=prompt, metadata=metadata, id=f"{split}-{len(tasks)}"))
    return tasks


class TheWord:
    """A test that runs in the clean sandbox: the file `answer` must have only the word."""

    def __init__(self, word: str) -> None:
        self.word = word

    async def grade(self, box: Sandbox) -> Grade:
        result = await box.exec(f'test "$(cat answer)" = {quote(self.word)}')
        return Grade(float(result.exit_code == 0), log=result.stderr)


def load(task: Task) -> Problem:
    files, asked = task.metadata["files"], task.metadata["asked"]
    setup = "; ".join(f"echo the word is {word} > {name}" for name, word in files.items())
    gold = Solution({"answer": files[asked] + "\n"})
    step = Step(str(task.prompt), TheWord(files[asked]), gold, setup=setup, carry=("answer",))
    return Problem((step,))


def perfect(task: Task) -> Generator[Turn, str, None]:
    """Reads the file, then writes the word."""
    read = yield call("bash", command=f"cat {task.metadata['asked']}")
    yield call("bash", command=f"echo {read.split()[-1]} > answer")
    yield "Done"


def mediocre(task: Task) -> Generator[Turn, str, None]:
    """Writes some word without reading, most of the time; else plays as `perfect` does.

    Imitation teaches to write commands and to copy from their output, but not to read before writing. Only reward
    teaches this.
    """
    rng = Random(f"mediocre-{task.id}")
    if rng.random() < GUESSES:
        yield call("bash", command=f"echo {rng.choice(WORDS)} > answer")
        yield "Done"
    else:
        yield from perfect(task)


class Imagined(CodingEnv):
    """The same tasks without a sandbox. `cat` and `echo` are imitated, to record thousands of demonstrations fast.

    A demonstration needs no reward. The text that the player reads equals the output of a sandbox exactly.
    """

    @classmethod
    def share(cls, config: object) -> None:  # type: ignore[override]
        return None

    async def reset(self, task: Task) -> str:
        self.files = {name: f"the word is {word}" for name, word in task.metadata["files"].items()}
        return str(task.prompt)

    async def bash(self, command: str) -> str:
        match command.split():
            case ["cat", name] if name in self.files:
                return self.files[name]
            case ["echo", *words, ">", name]:
                self.files[name] = " ".join(words)
                return "[no output]"
        return f"bash: line 1: {command}: command not found\n[exit code 127]"

    async def step(self, action):  # noqa: ANN001, ANN201
        return await self.run_tools(action)

    async def score(self, trajectory: object) -> float:  # type: ignore[override]
        word = self.task.metadata["files"][self.task.metadata["asked"]]
        return float(self.files.get("answer") == word)


def write_tasks(folder: Path, *, train: int = 3000, held_out: int = 200) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "train.jsonl", folder / "held_out.jsonl"
    for file, tasks in zip(files, (make_tasks("train", train), make_tasks("eval", held_out)), strict=True):
        rows = [{"id": task.id, "prompt": task.prompt, "metadata": dict(task.metadata)} for task in tasks]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return files


if __name__ == "__main__":
    for file in write_tasks(Path(sys.argv[1])):
        print(file)
