"""Something that would outlive its command's deadline. ARGS: how.

daemon: leaves its session, closes its files, ignores signals. orphan: as daemon, and kills or stops what watches the
command. stubborn: ignores signals and stops itself. Each writes the time to ./beat for as long as it lives.
"""

import contextlib
import os
import signal
import time

from common import ARGS, TOKEN, daemonize


def deaf():
    for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)


def beat():
    while True:
        with open(f"beat-{TOKEN}", "w") as file:
            file.write(str(time.monotonic()))
        time.sleep(0.05)


def parents():
    """Those above this process, but for the sandbox's first one."""
    found, pid = [], os.getppid()
    while pid > 1:
        found.append(pid)
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rsplit(")", 1)[1].split()[1])
    return found


def each(signal_number, pids):
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal_number)


how = ARGS[0]
watchers = parents()
if how == "stubborn":
    if not os.fork():
        beat()
    deaf()
    os.kill(os.getpid(), signal.SIGSTOP)
elif daemonize():
    deaf()
    if how != "daemon":
        os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        each(signal.SIGSTOP, watchers[1:])
        each(signal.SIGKILL if how == "orphan" else signal.SIGSTOP, watchers)
    else:
        os.closerange(0, 100)
    beat()
time.sleep(600)
