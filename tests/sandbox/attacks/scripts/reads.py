"""Looks for what is not this sandbox's. ARGS: the mark that processes and files of the host or a neighbour carry."""

import ctypes
import glob
import os

from common import ARGS, attempt, syscall

MARK = ARGS[0].encode()
OWN = {str(os.getpid()), str(os.getppid())}


def read(path, most=1 << 20):
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except OSError:
        return b""


def content(path):
    with open(path, "rb") as file:
        return file.read(64)


def pids():
    return [name for name in os.listdir("/proc") if name.isdecimal()]


def marked(kinds):
    found = [f"{pid}/{kind}" for pid in pids() for kind in kinds if MARK in read(f"/proc/{pid}/{kind}")]
    return [path for path in found if path.split("/")[0] not in above()]


def above():
    """This process and those above it carry the mark, as an argument."""
    found, pid = [], str(os.getpid())
    while pid and pid != "0":
        found.append(pid)
        pid = read(f"/proc/{pid}/stat").rsplit(b")", 1)[-1].split()[1].decode() if read(f"/proc/{pid}/stat") else ""
    return found


def roots():
    """Other root folders than our own, reached through processes."""
    own = os.stat("/")
    found = []
    for path in glob.glob("/proc/[0-9]*/root") + glob.glob("/proc/[0-9]*/cwd/../../../../.."):
        try:
            stat = os.stat(f"{path}/.")
        except OSError:
            continue
        if (stat.st_dev, stat.st_ino) != (own.st_dev, own.st_ino):
            found.append(path)
    return found


def files():
    found = []
    for folder, names, entries in os.walk("/", onerror=lambda error: None):
        names[:] = [name for name in names if os.path.join(folder, name) not in ("/proc", "/sys")]
        found += [os.path.join(folder, name) for name in names + entries if ARGS[0] in name]
    return found


def report(name, found):
    print(f"{name}\t{found if found else 'nothing'}", flush=True)


report("cmdline and environ", marked(["cmdline", "environ"]))
report("other roots", roots())
report("files", files())
report("processes", len(pids()))
report("sockets", MARK.decode() if MARK in read("/proc/net/unix") else "")
report("addresses", [line for line in read("/proc/kallsyms").splitlines()[:50] if not line.startswith(b"0" * 16)])
for path in ("/proc/kcore", "/proc/1/mem", "/proc/kmsg", "/dev/mem", "/dev/kmsg", "/dev/vda", "/proc/vmcore"):
    attempt(path, lambda path=path: content(path) or "")
attempt("syslog", lambda: syscall(103, 116, 3, ctypes.create_string_buffer(100), 100))
