"""Trackers of a user: one that keeps its calls, and one that fails or hangs."""

from __future__ import annotations

import threading
from typing import ClassVar


class Recorder:
    calls: ClassVar = []

    def __init__(self, project="mine"):
        self.project = project

    def start(self, run):
        self.calls.append(("start", self.project, run))

    def metrics(self, step, figures):
        self.calls.append(("metrics", step, figures))

    def episodes(self, step, name, episodes):
        self.calls.append(("episodes", step, name, episodes))

    def finish(self):
        self.calls.append(("finish",))


class Broken(Recorder):
    """Raises in one of its methods, or never returns from it."""

    calls: ClassVar = []

    def __init__(self, at, hangs=False):
        super().__init__()
        self.at, self.hangs = at, hangs

    def fail(self, method):
        if method == self.at:
            if self.hangs:
                threading.Event().wait()
            raise SystemExit(f"no network\nin {method}")

    def start(self, run):
        self.fail("start")

    def metrics(self, step, figures):
        self.fail("metrics")

    def episodes(self, step, name, episodes):
        self.fail("episodes")

    def finish(self):
        self.fail("finish")


class NoProject(Recorder):
    def __init__(self):
        raise ValueError("set MY_KEY")
