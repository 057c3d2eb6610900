"""ARGS: one (process), many (processes), memfd (memory that belongs to a file), shared (to none). At most 3 GB."""

import mmap
import os
import sys

from common import ARGS

MB = 1 << 20
PAGE = b"x" * MB


def hog(most):
    return [bytearray(PAGE) for _ in range(most)]


def memfd():
    for _ in range(600):
        file = os.memfd_create("hog")
        for _ in range(5):  # a file may have 8 MB
            os.write(file, PAGE)


def shared():
    kept = []
    for _ in range(3000):
        kept.append(mmap.mmap(-1, MB))
        kept[-1].write(PAGE)


def many():
    children = []
    for _ in range(20):
        if not (child := os.fork()):
            hog(150)
            os._exit(0)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print("killed", codes.count(-9))
    sys.exit(128 + 9 if -9 in codes else 0)


{"one": lambda: hog(3000), "many": many, "memfd": memfd, "shared": shared}[ARGS[0]]()
print("GOT THROUGH")
