"""Writes 512 MB to each of stdout and stderr, without one newline."""

import os

piece = b"x" * (1 << 20)
for _ in range(512):
    for stream in (1, 2):
        left = memoryview(piece)
        while left:
            left = left[os.write(stream, left) :]
