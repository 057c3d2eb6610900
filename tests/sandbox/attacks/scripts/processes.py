"""ARGS: what to leave behind. zombies: 40 of them, and their parent. full: no room for another process.

signals: a process that kills whatever it may, without end.
"""

import os
import signal
import time

from common import ARGS, daemonize


def zombies():
    for _ in range(40):
        if not os.fork():
            os._exit(0)
    time.sleep(600)


def full():
    while True:
        try:
            if not os.fork():
                time.sleep(600)
        except BlockingIOError:
            time.sleep(0.01)


def signals():
    for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    while True:
        os.kill(-1, signal.SIGKILL)
        time.sleep(0.001)


if daemonize():
    os.closerange(0, 100)
    {"zombies": zombies, "full": full, "signals": signals}[ARGS[0]]()
time.sleep(0.7)
