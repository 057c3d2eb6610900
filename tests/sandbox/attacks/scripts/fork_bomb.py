"""plain: each process makes others. hidden: the others leave their session, lose their parent and the environment.

ARGS: plain or hidden. It ends by itself at 3000 processes, so that a machine survives a sandbox that does not hold it.
"""

import mmap
import os
import time

from common import ARGS, daemonize

made = mmap.mmap(-1, 8)


def count():
    number = int.from_bytes(made[:8], "little") + 1
    made[:8] = number.to_bytes(8, "little")
    return number


while count() < 3000:
    try:
        if ARGS[0] == "hidden":
            daemonize()
        else:
            os.fork()
    except BlockingIOError:
        time.sleep(0.02)
time.sleep(600)
