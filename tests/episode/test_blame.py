"""Which exceptions are the world's, by what they are."""

import errno
import io
import os
import socket
import sqlite3
import ssl
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from email.message import Message
from pathlib import Path

import pytest

from agentrl import ConfigError, Env, EnvFactory, InfraError, Task
from agentrl.errors import Failure
from agentrl.monitor.metrics import failed_at
from agentrl.testing import rollout


def made(number):
    return OSError(number, "text", "a/path")


def raised(call):
    try:
        call()
    except OSError as exc:
        return exc
    raise AssertionError


def http(status):
    return urllib.error.HTTPError("http://x", status, "no", Message(), io.BytesIO())


def requests_error(name, status=None, text="no"):
    requests = pytest.importorskip("requests")
    given = {}
    if status is not None:
        given["response"] = requests.Response()
        given["response"].status_code = status
    return getattr(requests.exceptions, name)(text, **given)


def slow():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: __import__("time").sleep(0.05)).result(timeout=0.001)


WORLD = {
    "refused": lambda: raised(lambda: socket.create_connection(("127.0.0.1", 1))),
    "reset": ConnectionResetError,
    "broken pipe": lambda: made(errno.EPIPE),
    "timeout": TimeoutError,
    "timeout of a thread": lambda: raised(slow),
    "disk full": lambda: made(errno.ENOSPC),
    "quota": lambda: made(errno.EDQUOT),
    "disk broken": lambda: made(errno.EIO),
    "no memory": lambda: made(errno.ENOMEM),
    "too many files": lambda: made(errno.EMFILE),
    "no process": lambda: made(errno.EAGAIN),
    "network away": lambda: made(errno.ENETUNREACH),
    "host away": lambda: made(errno.EHOSTUNREACH),
    "port taken": lambda: made(errno.EADDRINUSE),
    "no such host": lambda: socket.gaierror(-2, "Name or service not known"),
    "tls": lambda: ssl.SSLError(1, "handshake failure"),
    "certificate": lambda: ssl.SSLCertVerificationError(1, "expired"),
    "url: refused": lambda: urllib.error.URLError(ConnectionRefusedError()),
    "url: 503": lambda: http(503),
    "url: 429": lambda: http(429),
    "requests: refused": lambda: requests_error("ConnectionError"),
    "requests: timeout": lambda: requests_error("Timeout"),
    "requests: 502": lambda: requests_error("HTTPError", 502),
    "text of a library": lambda: OSError("the server died"),
    "infra": lambda: InfraError("down"),
    "a group": lambda: ExceptionGroup("two", [ConnectionResetError(), InfraError("down")]),
}
BUG = {
    "missing": lambda: raised(lambda: os.stat("no/such/file")),
    "missing, in words": lambda: FileNotFoundError("no row 7"),
    "a folder": lambda: raised(lambda: os.open("/", os.O_WRONLY)),
    "no folder": lambda: raised(lambda: os.stat("/dev/null/x")),
    "refused": lambda: made(errno.EACCES),
    "exists": lambda: made(errno.EEXIST),
    "not empty": lambda: made(errno.ENOTEMPTY),
    "too long": lambda: raised(lambda: os.stat("x" * 5000)),
    "closed": lambda: made(errno.EBADF),
    "not writable": lambda: raised(lambda: io.BytesIO().fileno()),
    "read-only": lambda: made(errno.EROFS),
    "no such process": lambda: made(errno.ESRCH),
    "url: missing file": lambda: urllib.error.URLError(FileNotFoundError(2, "no")),
    "url: scheme": lambda: urllib.error.URLError("unknown url type: htp"),
    "url: 404": lambda: http(404),
    "requests: 404": lambda: requests_error("HTTPError", 404),
    "requests: no scheme": lambda: requests_error("MissingSchema"),
    "key": lambda: KeyError("x"),
    "a group": lambda: ExceptionGroup("two", [ConnectionResetError(), FileNotFoundError(2, "no")]),
}


@pytest.mark.parametrize("name", WORLD)
def test_what_the_world_did(name):
    assert Failure.of(WORLD[name](), "reset").kind == "environment"


@pytest.mark.parametrize("name", BUG)
def test_what_is_a_bug(name):
    assert Failure.of(BUG[name](), "reset").kind == "bug"


async def test_a_wrong_path_is_a_bug_with_its_line(renderer):
    class Reads(Env):
        def reset(self, task):
            return Path(task.metadata["path"]).read_text()

        async def score(self, trajectory):
            return 1.0

    played = await rollout(Reads(), Task(prompt="?", metadata={"path": "no/such"}), ["x"], renderer=renderer)
    assert (played.failure.kind, played.failure.boundary) == ("bug", "reset")
    line = Reads.reset.__code__.co_firstlineno + 1
    assert failed_at(played.failure) == f"tests/episode/test_blame.py:{line} FileNotFoundError"


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError(errno.ENOSPC, "full"), InfraError), (FileNotFoundError(2, "no"), ConfigError)]
)
async def test_share_is_judged_by_the_same_rule(error, raised):
    class Shares(Env):
        @classmethod
        def share(cls, config):
            raise error

        async def score(self, trajectory):
            return 1.0

    with pytest.raises(raised, match=r"Shares\.share"):
        async with EnvFactory(Shares):
            pass


def test_an_error_whose_text_cannot_be_made_is_still_a_failure():
    class Mute(ValueError):
        def __str__(self) -> str:
            raise AttributeError("no text")

    error = Mute()
    error.__cause__ = Mute()
    assert Failure.of(error, "step").error == "Mute"


@pytest.mark.parametrize("chained", [False, True])
def test_an_object_of_another_thread_has_a_remedy(chained):
    with closing(sqlite3.connect(":memory:")) as connection, ThreadPoolExecutor(1) as pool:
        error = pool.submit(connection.execute, "select 1").exception()
    raised = RuntimeError("no answer")
    raised.__cause__ = error
    words = Failure.of(raised if chained else error, "step").error
    assert "connect with sqlite3.connect(..., check_same_thread=False), or write the methods as `async def`" in words
