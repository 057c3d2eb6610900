"""ARGS: bytes or inodes, and a folder. Writes files there until it is refused, and prints how much it wrote."""

import os

from common import ARGS, TOKEN, attempt

kind, folder = ARGS
place = os.path.join(folder, f"fill-{TOKEN}")
made = 0


def add_bytes(number):
    with open(f"{place}/{number}", "wb", buffering=0) as file:
        for _ in range(4):
            yield file.write(b"x" * (1 << 20))


def add_files(number):
    for name in range(1000):
        open(f"{place}/{number}-{name}", "wb").close()
        yield 1


def main():
    global made
    os.mkdir(place)
    for number in range(500):
        for size in (add_bytes if kind == "bytes" else add_files)(number):
            made += size
    return made


attempt("fill", main)
print(f"made\t{made}")
