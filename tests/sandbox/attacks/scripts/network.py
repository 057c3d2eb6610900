"""Tries to reach something. ARGS: port on the host's loopback, name of an abstract socket, paths of sockets, addresses.

The addresses, in one argument, are those of the host.
"""

import socket

from common import ARGS, attempt

PORT, ABSTRACT, PATHS, ADDRESSES = int(ARGS[0]), ARGS[1], ARGS[2].split(), ARGS[3].split()


def connect(family, kind, address):
    with socket.socket(family, kind) as link:
        link.settimeout(1)
        link.connect(address)
        link.send(b"x")
        return address


def raw(family, kind, protocol=0):
    socket.socket(family, kind, protocol).close()


TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM
for host in ["127.0.0.1", "localhost", "169.254.169.254", "172.17.0.1", "10.0.0.1", "1.1.1.1", *ADDRESSES]:
    attempt(f"tcp {host}", lambda host=host: connect(socket.AF_INET, TCP, (host, PORT)))
attempt("tcp ::1", lambda: connect(socket.AF_INET6, TCP, ("::1", PORT)))
attempt("metadata", lambda: connect(socket.AF_INET, TCP, ("169.254.169.254", 80)))
attempt("dns", lambda: connect(socket.AF_INET, UDP, ("8.8.8.8", 53)))
attempt("name", lambda: socket.getaddrinfo("example.com", 80))
attempt("abstract", lambda: connect(socket.AF_UNIX, TCP, f"\0{ABSTRACT}"))
for path in [*PATHS, "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock"]:
    attempt(f"unix {path}", lambda path=path: connect(socket.AF_UNIX, TCP, path))
attempt("raw", lambda: raw(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("packet", lambda: raw(socket.AF_PACKET, socket.SOCK_RAW, 3))
attempt("vsock", lambda: raw(40, TCP))
attempt("alg", lambda: connect(38, socket.SOCK_SEQPACKET, ("hash", "md5")))
print("interfaces\t" + " ".join(name for _, name in socket.if_nameindex()))
