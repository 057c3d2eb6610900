"""A watcher thread takes notes."""

import threading

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Watcher(Env):
    over: threading.Event | None = None

    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    def reset(self, task):
        self.over = threading.Event()
        self.notes = []
        self.watcher = threading.Thread(target=self.watch, args=(self.over,), daemon=True)
        self.watcher.start()
        return task.prompt

    def watch(self, over):
        while not over.wait(30):
            self.notes.append("still here")

    @tool
    def read(self) -> list[str]:
        """Read the notes."""
        return self.notes

    def score(self, trajectory):
        return float(trajectory.answer == self.task.label)

    def close(self):
        if self.over is not None:
            self.over.set()
