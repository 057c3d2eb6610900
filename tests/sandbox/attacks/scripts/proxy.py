"""Attacks the proxy of a list of hosts. ARGS: seconds."""

import contextlib
import socket
import time

from common import ARGS

END = time.monotonic() + float(ARGS[0])
HEADS = [
    b"GET http://169.254.169.254/latest/meta-data/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n",
    b"CONNECT [::ffff:169.254.169.254]:443 HTTP/1.1\r\nHost: [::ffff:169.254.169.254]:443\r\n\r\n",
    b"CONNECT 0x7f000001:443 HTTP/1.1\r\nHost: 0x7f000001:443\r\n\r\n",
    b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost:22\r\n\r\n",
    b"GET http://pypi.org@127.0.0.1/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n",
    b"GET http://pypi.org/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /" + b"a" * 30_000,
    b"\0" * 20_000,
    b"\r\n" * 9_000,
    b"GET http://%s.evil.org/ HTTP/1.1\r\nHost: x\r\n\r\n",
]
held, count, answers = [], 0, set()
while time.monotonic() < END:
    with contextlib.suppress(OSError):
        link = socket.create_connection(("127.0.0.1", 3128), 0.2)
        link.settimeout(0.2)
        link.sendall(HEADS[count % len(HEADS)])
        count += 1
        if count % 3:
            answers.add(link.recv(100).split(b"\r\n")[0].decode(errors="replace"))
            link.close()
        else:
            held.append(link)
print(count, *sorted(answers), sep="\n")
