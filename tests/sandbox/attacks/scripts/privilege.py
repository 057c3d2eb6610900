"""Tries to become more than a user, or to reach the kernel. First, what this process may do."""

import contextlib
import ctypes
import fcntl
import os
import re
import resource
import subprocess
import time

from common import TOKEN, attempt, call, syscall

with open("/proc/self/status") as file:
    STATUS = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
for field in ("Uid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"):
    print(f"{field}\t{STATUS[field]}")
FILTERED = []
for pid in filter(str.isdecimal, os.listdir("/proc")):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        FILTERED.append(any(line.split() == ["Seccomp:", "2"] for line in file))
print(f"all filtered\t{all(FILTERED)}")


def limits(pid):
    """Its cgroups, but for the folder of its command."""
    with open(f"/proc/{pid}/cgroup") as file:
        return {tuple(re.sub(r"/c\d+$", "", line.strip()).split(":", 2)[1:]) for line in file}


print(f"limits of 1\t{limits(1) == limits('self')}")
NEW = {
    "user": 0x10000000,
    "mount": 0x20000,
    "pid": 0x20000000,
    "network": 0x40000000,
    "ipc": 0x8000000,
    "uts": 0x4000000,
}
NULL = None


def forked(action):
    """Do it in a child, whose result is told: it may change what this process is."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = f"ok {action()}"
        except OSError as exc:
            said = str(exc.errno)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    if said.isdecimal():
        raise OSError(int(said), "refused")
    return said or "died"


def clone(flags):
    """As fork(2), in a namespace of its own."""
    pid = syscall(56, 220, flags | 17, 0, 0, 0, 0)
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)


def clone3(flags):
    args = (ctypes.c_uint64 * 11)(flags, 0, 0, 0, 17)
    pid = syscall(435, 435, ctypes.byref(args), ctypes.sizeof(args))
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)


def setuid_programs():
    """Run each, asking for what only root can do."""
    found = subprocess.run("find / -xdev -perm /6000 -type f 2>/dev/null", shell=True, capture_output=True, text=True)
    gained = []
    for program in found.stdout.split():
        asked = {"su": ["-c", "id -u", "root"], "mount": ["-t", "tmpfs", "x", "/mnt"]}.get(
            os.path.basename(program), []
        )
        said = subprocess.run([program, *asked], stdin=-3, capture_output=True, timeout=5, check=False)
        if said.stdout.strip() == b"0" or (asked and not said.returncode):
            gained.append(program)
    if not gained:
        raise PermissionError(1, "nothing gained")
    return gained


def become_root():
    os.setuid(0)


def own_setuid():
    """A copy of a shell that says it is root's."""
    path = f"/tmp/shell-{TOKEN}"
    subprocess.run(["cp", "/bin/sh", path], check=True)
    os.chmod(path, 0o6755)
    os.chown(path, 0, 0)


def type_into_terminal():
    fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), 0x5412, b"x")


def raise_limit(kind):
    resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


for name, flag in NEW.items():
    attempt(f"unshare {name}", lambda flag=flag: forked(lambda: call("unshare", flag)))
attempt("clone user", lambda: clone(NEW["user"]))
attempt("clone3 user", lambda: clone3(NEW["user"]))
for kind in ("user", "mnt", "pid", "net"):
    attempt(f"setns 1 {kind}", lambda kind=kind: call("setns", os.open(f"/proc/1/ns/{kind}", os.O_RDONLY), 0))
attempt("mount", lambda: call("mount", b"none", b"/mnt", b"tmpfs", 0, NULL))
attempt("mount proc", lambda: call("mount", b"none", b"/tmp", b"proc", 0, NULL))
attempt("remount /", lambda: call("mount", b"none", b"/", NULL, 32 | 4096, NULL))
attempt("bind /", lambda: call("mount", b"/", b"/tmp", NULL, 4096, NULL))
attempt("umount /tmp", lambda: call("umount2", b"/tmp", 2))
attempt("umount /proc/kcore", lambda: call("umount2", b"/proc/kcore", 2))
attempt("pivot_root", lambda: syscall(155, 41, b"/tmp", b"/tmp"))
attempt("fsopen", lambda: syscall(430, 430, b"tmpfs", 0))
attempt("open_tree", lambda: syscall(428, 428, -100, b"/", 1))
attempt("chroot", lambda: os.chroot("/tmp"))
attempt("ptrace 1", lambda: call("ptrace", 16, 1, 0, 0))
attempt("read memory of 1", lambda: syscall(310, 270, 1, NULL, 0, NULL, 0, 99))
attempt("keyctl", lambda: syscall(250, 219, 0, -3, 1))
attempt("add_key", lambda: syscall(248, 217, b"user", TOKEN.encode(), b"x", 1, -3))
attempt("bpf", lambda: syscall(321, 280, 0, ctypes.create_string_buffer(128), 128))
attempt("perf_event_open", lambda: syscall(298, 241, ctypes.create_string_buffer(b"\1" + bytes(127)), 0, -1, -1, 0))
attempt("userfaultfd", lambda: syscall(323, 282, 0))
attempt("kcmp", lambda: syscall(312, 272, 1, 1, 0, 0, 0))
attempt("setuid programs", setuid_programs)
attempt("setuid 0", lambda: forked(become_root))
attempt("own setuid program", own_setuid)
attempt("TIOCSTI", type_into_terminal)
attempt("sethostname", lambda: call("sethostname", b"evil", 4))
attempt("clock_settime", lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()))
attempt("settimeofday", lambda: call("settimeofday", (ctypes.c_long * 2)(0, 0), NULL))
attempt("kill 1", lambda: (os.kill(1, 9), time.sleep(0.1))[1])
attempt("stop 1", lambda: os.kill(1, 19))
for name in ("CORE", "FSIZE"):
    attempt(f"limit {name}", lambda name=name: raise_limit(getattr(resource, f"RLIMIT_{name}")))
