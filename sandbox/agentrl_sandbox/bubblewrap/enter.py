"""Run one command in an open box. This separate program uses only the standard library: each `exec` of a sandbox starts
the program anew, so each import costs time: `ctypes` itself would take a third of the program's CPU time, and its core
`_ctypes` suffices.

The program joins the box's namespaces and forks. The child joins the command's cgroup, drops all privileges, loads the
seccomp filter and executes the command. The parent waits for the child, and ends with the same status. Errors before
the command runs are written to a pipe, which is closed once the command runs.
"""

from __future__ import annotations

import _ctypes
import errno
import os
import resource
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes long to import
    from typing import Any, NoReturn

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 24, 38, 22
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, _PR_SET_CHILD_SUBREAPER = 47, 4, 36
_SECCOMP_MODE_FILTER = 2
_SIGKILL, _SIGPIPE, _SIGXFSZ = 9, 13, 25  # the module signal takes long to import
_SYS_SETNS = {"x86_64": 308, "aarch64": 268}
_CAPSET_VERSION = 0x20080522


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class _Short(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "H"


class _Bytes(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "z"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


class _Filter(_ctypes.Structure):
    """`struct sock_fprog` of the kernel."""

    _fields_ = [("length", _Short), ("program", _Bytes)]  # noqa: RUF012 - the form that ctypes wants


_LIBC = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]


def _function(name: str) -> Any:
    """A function of libc."""
    return _Function(_ctypes.dlsym(_LIBC, name))


prctl = _function("prctl")


def main(order: dict[str, Any]) -> None:
    sys.path.clear()  # no imports may follow once the box's files are visible
    report = order["said"]
    os.set_inheritable(report, False)
    try:
        cgroups = [os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in order["cgroups"]]
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")  # out of memory, commands go before the holder of the box
        _enter(order)
        alive, keepalive = os.pipe()  # `held` is closed when this process ends
        child = os.fork()
        if child == 0:
            os.close(keepalive)
            _become(order, cgroups, alive)
    except OSError as exc:
        _fail(report, exc)
    os.close(report)
    os.closerange(0, 3)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _fail(report: int, exc: OSError) -> NoReturn:
    os.write(report, f"{exc.errno or 0} {exc.filename or exc.strerror}".encode(errors="replace"))
    os._exit(125)


def _checked(result: int, subject: str) -> None:
    if result < 0:
        raise OSError(_ctypes.get_errno(), subject)


def _enter(order: dict[str, Any]) -> None:
    if order["uid"] is not None:
        os.setgroups([])
        os.setresgid(*[order["uid"]] * 3)
        os.setresuid(*[order["uid"]] * 3)
    number = _SYS_SETNS[os.uname().machine]
    _checked(_function("syscall")(number, order["box"], order["namespaces"]), "the sandbox's namespaces")


def _become(order: dict[str, Any], cgroups: list[int], alive: int) -> NoReturn:
    try:
        for file in cgroups:
            os.write(file, b"0")
        prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        if select.select([alive], [], [], 0)[0]:
            os._exit(125)
        os.setsid()
        os.umask(0o022)
        try:
            os.chdir(order["cwd"])
        except OSError as exc:
            raise OSError(errno.ENOTDIR, "cwd", "cwd") from exc
        for limit, value in order["limits"]:
            resource.setrlimit(limit, (value, value))
        for number in (_SIGPIPE, _SIGXFSZ):  # Python ignores both
            _function("signal")(number, None)
        _give_up_rights(order["filter"])
        os.closerange(3, order["said"])
        os.closerange(order["said"] + 1, 4096)
        if order["adopt"]:
            _adopt(order)
        _run(order["argv"], order["env"])
    except OSError as exc:
        _fail(order["said"], exc)


def _run(argv: list[str], env: dict[str, str]) -> NoReturn:
    """Like os.execvpe, but without imports: os.execvpe would import the box's modules here."""
    last: OSError = FileNotFoundError(errno.ENOENT, argv[0])
    for folder in [""] if "/" in argv[0] else env.get("PATH", "").split(":"):
        try:
            os.execve(os.path.join(folder, argv[0]), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as exc:
            last = exc
    raise last


def _adopt(order: dict[str, Any]) -> None:
    """If the command has no cgroup, stay as the parent of all processes that outlive the command, so that they can be
    killed."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        return
    os.close(order["said"])
    os.closerange(0, 3)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _give_up_rights(program: bytes) -> None:
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(64):
        prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = _CAPSET_VERSION.to_bytes(4, sys.byteorder) + bytes(4)
    _checked(_function("capset")(header, bytes(24)), "capabilities")
    _checked(prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if program:
        filter_program = _Filter(len(program) // 8, program)
        _checked(
            prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _ctypes.byref(filter_program), 0, 0), "the seccomp filter"
        )
