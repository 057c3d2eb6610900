"""The seccomp filter of a box, as a BPF program made by libseccomp.

The filter refuses the same calls as Docker's default profile without capabilities: new namespaces, mounts, kernel
modules and keys, tracing of the kernel, io_uring, clocks. Sockets other than Unix, IP and netlink are refused too,
as sockets of virtual machines (AF_VSOCK) ignore namespaces. Programs of a different architecture are killed.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import functools
import socket
import tempfile

from agentrl.errors import SandboxError

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_EQUAL, _GREATER, _MASKED_EQUAL = 4, 6, 7
_NEW_NAMESPACES = (0x00000080, 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
_TERMINAL_INPUT, _CONSOLE_INPUT = 0x5412, 0x541C  # TIOCSTI and TIOCLINUX type for the user of a terminal
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)

# fmt: off
REFUSED = (
    "acct", "add_key", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime", "create_module",
    "delete_module", "fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "get_kernel_syms",
    "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp",
    "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mount", "mount_setattr", "move_mount",
    "move_pages", "name_to_handle_at", "nfsservctl", "open_by_handle_at", "open_tree", "perf_event_open",
    "pidfd_getfd", "pivot_root", "process_madvise", "process_vm_readv", "process_vm_writev", "query_module",
    "quotactl", "quotactl_fd", "reboot", "request_key", "setdomainname", "sethostname", "setns", "settimeofday",
    "stime", "swapoff", "swapon", "sysfs", "syslog", "umount", "umount2", "unshare", "uselib", "userfaultfd",
    "ustat", "vhangup", "vm86", "vm86old",
)
# fmt: on


class _Comparison(ctypes.Structure):
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


@functools.cache
def program() -> bytes:
    """The bytes of the filter. Raises SandboxError if libseccomp is missing."""
    library = _library()
    context = ctypes.c_void_p(library.seccomp_init(_ALLOW))
    try:
        for name in REFUSED:
            _refuse(library, context, name)
        for flag in _NEW_NAMESPACES:
            _refuse(library, context, "clone", _Comparison(0, _MASKED_EQUAL, flag, flag))
        _refuse(
            library, context, "clone3", number=errno.ENOSYS
        )  # clone3's flags are invisible; libc falls back to clone
        for request in (_TERMINAL_INPUT, _CONSOLE_INPUT):
            _refuse(library, context, "ioctl", _Comparison(1, _MASKED_EQUAL, 0xFFFFFFFF, request))
        for family in range(max(_FAMILIES) + 1):
            if family not in _FAMILIES:
                _refuse(library, context, "socket", _Comparison(0, _EQUAL, family, 0))
        _refuse(library, context, "socket", _Comparison(0, _GREATER, max(_FAMILIES), 0))
        with tempfile.TemporaryFile() as file:
            _checked(library.seccomp_export_bpf(context, file.fileno()), "export")
            file.seek(0)
            return file.read()
    finally:
        library.seccomp_release(context)


def _library() -> ctypes.CDLL:
    name = ctypes.util.find_library("seccomp") or "libseccomp.so.2"
    try:
        library = ctypes.CDLL(name)
    except OSError:
        raise SandboxError("bubblewrap sandboxes need libseccomp; install the system package libseccomp2") from None
    library.seccomp_init.restype = ctypes.c_void_p
    return library


def _refuse(
    library: ctypes.CDLL,
    context: ctypes.c_void_p,
    name: str,
    *comparisons: _Comparison,
    number: int = errno.EPERM,
) -> None:
    call = library.seccomp_syscall_resolve_name(name.encode())
    if call < 0:  # unknown here
        return
    array = (_Comparison * len(comparisons))(*comparisons)
    action = ctypes.c_uint32(_ERRNO | number)
    _checked(library.seccomp_rule_add_array(context, action, call, len(comparisons), array), name)


def _checked(result: int, subject: str) -> None:
    if result < 0:
        raise SandboxError(f"libseccomp cannot make the filter: {subject}: error {-result}")
