"""What the attacks share; its text stands before that of each script. They run inside of a sandbox, as its user."""

import ctypes
import errno
import os
import platform
import sys

TOKEN, ARGS = sys.argv[1], sys.argv[2:]
LIBC = ctypes.CDLL(None, use_errno=True)
_X86 = platform.machine() == "x86_64"


def attempt(name, action):
    """Try something, and print a line of its name and the error, or `GOT THROUGH` and the result."""
    try:
        said = f"GOT THROUGH {action()!r}"
    except OSError as exc:
        said = errno.errorcode.get(exc.errno, str(exc))
    except Exception as exc:  # noqa: BLE001 - whatever keeps an attack from its end
        said = f"{type(exc).__name__} {exc}"
    print(f"{name}\t{said[:200]}", flush=True)


def syscall(x86, arm, *args):
    """A system call by its number on either machine; OSError if it fails."""
    result = LIBC.syscall(ctypes.c_long(x86 if _X86 else arm), *(_passed(arg) for arg in args))
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def call(name, *args):
    """A function of the C library; OSError if it fails."""
    result = getattr(LIBC, name)(*(_passed(arg) for arg in args))
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def _passed(arg):
    return ctypes.c_long(arg) if isinstance(arg, int) else arg


def daemonize():
    """True in a process that left its session, has no parent of its own kind and no environment; else False."""
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    LIBC.clearenv()
    return True
