"""Each episode works in a folder."""

import shutil
import tempfile
from pathlib import Path

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Folder(Env):
    folder = None

    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    def reset(self, task):
        self.folder = Path(tempfile.mkdtemp())
        return task.prompt

    @tool
    def note(self, text: str) -> str:
        """Write a note."""
        (self.folder / "note.txt").write_text(text, errors="replace")
        return "written"

    def close(self):
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
