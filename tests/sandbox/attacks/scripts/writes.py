"""Tries to write wherever a sandbox should not. Each name in the output is a path."""

import os

from common import TOKEN, attempt

FOLDERS = "/ /bin /dev /etc /home /lib /mnt /opt /proc /root /run /sbin /srv /sys /usr /usr/bin /usr/lib /var /var/tmp"
FILES = """
/bin/sh /usr/bin/python3 /etc/passwd /etc/shadow /etc/hosts /etc/hostname /etc/resolv.conf /etc/ld.so.preload
/proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/drop_caches /proc/sys/vm/overcommit_memory
/proc/sys/kernel/modprobe /proc/sys/fs/binfmt_misc/register /proc/sysrq-trigger /proc/1/oom_score_adj /proc/1/mem
/proc/1/uid_map /proc/1/root/etc/passwd /proc/1/cwd/x /proc/1/fd/0 /proc/irq/default_smp_affinity /proc/bus/pci/00
/sys/kernel/uevent_helper /sys/power/state /sys/kernel/mm/transparent_hugepage/enabled /sys/fs/cgroup/pids.max
/sys/fs/cgroup/memory.max /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/memory/release_agent
/sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory/cgroup.procs /sys/fs/cgroup/pids/cgroup.procs
/dev/mem /dev/kmem /dev/kmsg /dev/port /dev/sda /dev/vda /dev/loop0 /dev/loop-control /dev/fuse /dev/kvm
/dev/net/tun /dev/vhost-net /dev/vsock /dev/rtc0 /dev/cpu/0/msr /dev/console /dev/tty /dev/tty0 /dev/mapper/control
"""


def make(path):
    with open(path, "w") as file:
        file.write(TOKEN)


def overwrite(path):
    file = os.open(path, os.O_WRONLY)  # neither created nor made shorter
    if os.path.isdir(f"/proc/self/fd/{file}"):
        raise IsADirectoryError
    os.close(file)


for folder in FOLDERS.split():
    attempt(f"{folder.rstrip('/')}/{TOKEN}", lambda folder=folder: make(f"{folder.rstrip('/')}/{TOKEN}"))
for path in FILES.split():
    attempt(path, lambda path=path: overwrite(path))
for kind in ("link", "symlink"):
    attempt(f"{kind} /usr/{TOKEN}", lambda kind=kind: getattr(os, kind)("/etc/passwd", f"/usr/{TOKEN}"))
attempt(
    "unlink in /usr", lambda: os.unlink(f"/usr/missing-{TOKEN}")
)  # a read-only folder is told before a missing file
attempt("mkdir in /usr", lambda: os.mkdir(f"/usr/{TOKEN}"))
attempt("device 1:1", lambda: os.mknod(f"device-{TOKEN}", 0o60666, os.makedev(254, 0)))
attempt("device 1:2", lambda: os.mknod(f"device-{TOKEN}", 0o20666, os.makedev(1, 1)))
attempt("link /etc/shadow", lambda: os.link("/etc/shadow", f"shadow-{TOKEN}"))
