"""Graders that misbehave, for `test_workers.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time


def add(a, b):
    return a + b


def pid():
    return os.getpid()


def never():
    while True:
        pass


def huge():
    return len(str(9 ** (9**9)))  # inside C code, where no signal handler of Python's runs


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def wrong():
    raise KeyError("no such key")


def broken():
    raise ConnectionError("nobody answers")


def missing():
    with open("no/such/labels.json") as file:
        return file.read()


def child(file):
    """Start a process of its own, and never return."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(file, "w") as out:
        out.write(str(started.pid))
    time.sleep(600)


def sleeps(answer, label):
    time.sleep(600)


def equal(answer, label):
    return float(answer == label)


def modules(names):
    """Which of these modules the process has imported."""
    return [name for name in names if name in sys.modules]
