"""Runs the tests of a task, and calls the agent's functions by messages. This sandbox has no file of the agent.

The agent's code runs in a second sandbox (candidate.py), which returns plain data only. So the code can neither see the
tests, replace `assert`, return an object that equals every value, nor reach this process.

On stdin: first a job as JSON, then a line for each question: "+" and the reply, or "-" and the reason for no reply. On
stdout: messages as JSON, each after a signature. The key is in the job.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import decimal
import functools
import hmac
import json
import math
import os
import re
import sys
import types
from collections.abc import Callable
from typing import Any

WHOLE = re.compile(r"[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")


class GoneError(Exception):
    """The agent's process has ended, takes too long, or does not speak the protocol."""


class Opaque:
    """Anything but plain data: a function ("f"), an exception class ("x") or another object ("o"). Equals no value."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: str, description: Any) -> None:
        self.kind, self.description = kind, description

    def __eq__(self, other: object) -> bool:
        return False

    def __bool__(self) -> bool:
        raise TypeError(f"the work returned a {self.description}, which is not plain data")


class Host:
    """The parent process. Messages to the parent are numbered and signed, so that no other process can fake
    messages."""

    def __init__(self) -> None:
        self.lines, self.out = os.fdopen(os.dup(0), "rb"), os.dup(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # what tests read and print is not the host's
        self.job: dict[str, Any] = json.loads(self.lines.readline())
        self.key, self.number = bytes.fromhex(self.job.pop("key")), 0

    def tell(self, kind: str, *arguments: Any) -> None:
        text = json.dumps([kind, *arguments])
        signature = hmac.new(self.key, f"{self.number} {text}".encode(), "sha256").hexdigest()
        self.number += 1
        data = f"{signature} {text}\n".encode()
        while data:
            data = data[os.write(self.out, data) :]

    def ask(self, kind: str, *arguments: Any) -> str:
        """Send a question to the parent, and return the reply. Raises GoneError without a reply."""
        self.tell(kind, *arguments)
        line = self.lines.readline().decode("utf-8", "replace")
        if not line.startswith("+"):
            raise GoneError(line[1:].strip() or "the work no longer answers")
        return line[1:]


class Candidate:
    """The agent's functions, as the tests call them."""

    def __init__(self, host: Host, sources: dict[str, str]) -> None:
        self.host, self.sources = host, sources
        self.exceptions: dict[str, Any] = {}
        self.running = False

    def start(self) -> None:
        self.host.tell("start")
        self.running = True

    def ask(self, *request: Any) -> Any:
        """Send a request to the agent's process, and return the value. If the agent's code raised an exception, raises
        an exception of the same name. Raises GoneError without a readable reply."""
        try:
            tag, content = json.loads(self.host.ask("ask", request))
            if tag == "-":
                raise GoneError(str(content))
            if tag != "e":
                return self._value(tag, content)
            error = self.exception(content[0])(*self._value(*content[1]))
        except (ValueError, TypeError, RecursionError, MemoryError) as exc:
            raise GoneError(f"the work sent no reply that can be read: {exc}") from None
        raise error

    def _value(self, tag: str, content: Any) -> Any:
        if tag == "d":
            return {self._value(*key): self._value(*item) for key, item in content}
        if tag in ("l", "t", "s"):
            return {"l": list, "t": tuple, "s": set}[tag](self._value(*item) for item in content)
        if tag in ("f", "x", "o"):
            return Opaque(tag, content)
        return content.encode("latin-1") if tag == "b" else complex(*content) if tag == "c" else plain(content)

    def exception(self, names: list[str]) -> Any:
        """An exception class for the agent's class, derived from the nearest built-in Exception class in `names`.

        StopIteration becomes a RuntimeError, as in generators. Otherwise a test such as `all(map(f, ...))` would end
        its loop.
        """
        builtin = [vars(builtins).get(name) for name in names]
        base = next((value for value in builtin if isinstance(value, type) and is_error(value)), Exception)
        if issubclass(base, (StopIteration, StopAsyncIteration)):
            base = RuntimeError
        if base.__name__ == names[0]:
            return base
        return self.exceptions.setdefault(names[0], type(str(names[0]), (base,), {}))

    def function(self, module: str, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            return self.ask("call", module, name, encode(list(arguments)), encode(keywords))

        call.__name__ = name
        return call

    def module(self, name: str) -> types.ModuleType:
        """A stand-in for a module of the agent, with functions, exceptions and, while the module runs, plain values."""
        errors = exceptions_in(self.sources.get(name, ""))

        class Module(types.ModuleType):
            def __getattr__(proxy, attribute: str) -> Any:  # noqa: N805 - self is the candidate
                if attribute.startswith("__"):
                    raise AttributeError(attribute)
                if attribute in errors:
                    return self.exception([attribute, *errors[attribute]])
                value = self.ask("get", name, attribute) if self.running else Opaque("f", attribute)
                return self.function(name, attribute) if isinstance(value, Opaque) and value.kind == "f" else value

        return Module(name)


def exceptions_in(source: str) -> dict[str, list[str]]:
    """Name -> names of base classes, for the exceptions that a source text defines. The text is parsed, not run."""
    try:
        body = ast.parse(source).body
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    classes: dict[str, list[str]] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            bases += [other for base in bases for other in classes.get(base, [])]
            if any(isinstance(vars(builtins).get(base), type) and is_error(vars(builtins)[base]) for base in bases):
                classes[node.name] = bases
    return classes


def is_error(kind: type) -> bool:
    return issubclass(kind, Exception)


def plain(value: Any) -> Any:
    if not isinstance(value, (bool, int, float, str, type(None))):
        raise ValueError("not plain")
    return value


class Tally:
    """Counts the assertions."""

    def __init__(self) -> None:
        self.passed, self.total = 0, 0
        self.log: list[str] = []

    def record(self, holds: Callable[[], Any], line: str) -> None:
        self.total += 1
        try:
            good = bool(holds())
            why = "is false"
        except Exception as exc:  # noqa: BLE001 - whatever is raised, the assertion does not hold
            good, why = False, f"{type(exc).__name__}: {exc}"
        self.passed += good
        if not good and len(self.log) < 20:
            self.log.append(f"{line}  # {why}")

    def attempt(self, run: Callable[[], Any], asserts: int) -> bool:
        """Run a function with `asserts` assertions. Returns whether the function returned without an exception; if not,
        all assertions that were not reached count as failed."""
        before = self.total
        try:
            run()
        except Exception as exc:  # noqa: BLE001 - a call outside an assertion
            self.total += max(1, asserts - (self.total - before))
            self.log.append(f"{type(exc).__name__}: {exc}")
            return False
        return True


class Asserts(ast.NodeTransformer):
    """Rewrites `assert x` so that each assertion is counted. An assertion that is always true, like `assert True`, is
    dropped."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        if isinstance(node.test, ast.Constant) and node.test.value:
            return ast.copy_location(ast.Pass(), node)
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        line = ast.unparse(node)[:200] if hasattr(ast, "unparse") else f"line {node.lineno}"
        called = ast.Name("__record__", ast.Load())
        call = ast.Call(called, [ast.Lambda(nothing, node.test), ast.Constant(line)], [])
        return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), node))


def check_function(job: dict[str, Any], candidate: Candidate) -> Tally:
    """Run HumanEval's tests: the function `check(candidate)` in `test`, with the other definitions of `prompt`."""
    tally = Tally()
    candidate.start()
    names: dict[str, Any] = {"__name__": "check", "__record__": tally.record}
    exec(compile(job["prompt"], "prompt", "exec"), names)
    function = names[job["entry_point"]] = candidate.function(job["module"], job["entry_point"])
    test = ast.parse(job["test"])
    asserts = count_asserts(test)
    exec(compile(Asserts().visit(test), "test", "exec"), names)
    tally.attempt(lambda: names["check"](function), asserts)
    return tally


def count_asserts(node: ast.AST) -> int:
    return sum(isinstance(child, ast.Assert) for child in ast.walk(node))


def check_text(job: dict[str, Any], candidate: Candidate) -> Tally:
    """Run assertions and test functions in `test`, which use `names` of the agent's module, or import the module.

    Each statement counts alone: a statement that fails does not end the rest.
    """
    tally = Tally()
    candidate.start()
    work = sys.modules[job["module"]] = candidate.module(job["module"])
    names: dict[str, Any] = {"__name__": "tests", "__record__": tally.record}
    for name in job["names"]:
        with contextlib.suppress(Exception):  # it is missing: what uses it fails
            names[name] = getattr(work, name)
    functions = {}
    for node in ast.parse(job["test"]).body:
        asserts = count_asserts(node)
        if isinstance(node, ast.FunctionDef):
            functions[node.name], asserts = asserts, 0
        code = compile(ast.Module([Asserts().visit(node)], []), "tests", "exec")
        tally.attempt(functools.partial(exec, code, names), asserts)
    for name, asserts in functions.items():
        if is_test(name) and name in names:
            before = tally.total
            if tally.attempt(names[name], asserts) and tally.total == before:
                tally.record(lambda: True, name)
    return tally


def is_test(name: str) -> bool:
    return name == "test" or name.startswith("test_")


def check_streams(job: dict[str, Any], candidate: Candidate) -> Tally:
    """Run the agent's file as a program: each input must lead to the expected output."""
    tally = Tally()
    candidate.start()
    for number, (text, expected) in enumerate(job["streams"], 1):

        def holds(text: str = text, expected: str = expected) -> bool:
            return says_the_same(candidate.ask("run", job["program"], text), expected)

        tally.record(holds, f"test {number}")
    return tally


def says_the_same(output: Any, expected: str) -> bool:
    """Whether both texts have the same words in the same lines.

    A decimal fraction may differ by a millionth. A whole number may be written as a fraction: 3.0 for 3.
    """
    if not isinstance(output, str):
        return False
    lines, expected_lines = ([line.split() for line in text.rstrip().splitlines()] for text in (output, expected))
    return list(map(len, lines)) == list(map(len, expected_lines)) and all(
        map(is_word, output.split(), expected.split())
    )


def is_word(word: str, expected: str) -> bool:
    if word == expected:
        return True
    if not NUMBER.fullmatch(word):
        return False
    if WHOLE.fullmatch(expected):
        return not WHOLE.fullmatch(word) and decimal.Decimal(word) == decimal.Decimal(expected)
    if "." not in expected:
        return False
    with contextlib.suppress(ValueError):
        return math.isclose(float(word), float(expected), rel_tol=1e-6, abs_tol=1e-6)
    return False


def check_folder(job: dict[str, Any], candidate: Candidate) -> Tally:
    """Run pytest over a folder of tests. The tests import the agent's modules by name."""
    sys.path[:0] = [job["pytest"]]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    for name in job["modules"]:
        sys.modules[name] = candidate.module(name)
    tally = Tally()

    unfinished: set[str] = set()

    class Count:
        def pytest_collection_finish(self, session: Any) -> None:
            unfinished.update(item.nodeid for item in session.items)
            candidate.start()

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "teardown":
                unfinished.discard(report.nodeid)
            if report.failed or (report.when == "call" and report.passed):
                tally.total += 1
                tally.passed += report.passed
                if report.failed:
                    tally.log.append(f"{report.nodeid}: {str(report.longrepr)[-400:]}")

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                tally.total += 1
                tally.log.append(f"{report.nodeid}: {str(report.longrepr)[-400:]}")
                need_modules(host=candidate.host, error=str(report.longrepr))

    run = ["-p", "no:cacheprovider", "-q", "-c", os.devnull, "--rootdir", job["tests"], "--tb=short"]
    code = pytest.main(
        [*run, "--import-mode=importlib", "--continue-on-collection-errors", job["tests"]], plugins=[Count()]
    )
    if unfinished or code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        tally.total += max(len(unfinished), 1)  # it was ended early: what passed until then is not all
        tally.log.append(f"pytest ended with exit code {int(code)} before {len(unfinished)} tests")
    return tally


def need_modules(host: Host, error: str) -> None:
    """End this process if tests could not be loaded because a module is missing in the image. The agent's
    modules are never missing, as they are stand-ins."""
    if "ModuleNotFoundError" in error:
        host.tell("unstarted", error[-400:])
        os._exit(0)


def import_beside(job: dict[str, Any]) -> None:
    """Import the modules that the tests need in addition to the agent's. If a module is missing, the tests do not
    begin: the agent is not to blame. An import in a `try` of the tests may fail."""
    tests = ast.parse(job.get("test", ""))
    tried = {id(child) for node in ast.walk(tests) if isinstance(node, ast.Try) for child in ast.walk(node)}
    for node in ast.walk(tests):
        if id(node) not in tried and isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if job["module"] not in [name.partition(".")[0] for name in names]:
                exec(compile(ast.Module([node], []), "tests", "exec"), {})


def main() -> None:
    host = Host()
    job = host.job
    import_beside(job)
    host.tell("begun")
    candidate = Candidate(host, job.get("sources", {}))
    kinds = {"tests": check_folder, "streams": check_streams, "names": check_text, "entry_point": check_function}
    tally = next(check for key, check in kinds.items() if key in job)(job, candidate)
    host.tell("verdict", {"passed": tally.passed, "total": tally.total, "log": "\n".join(tally.log)[-4000:]})
    os._exit(0)


def encode(value: Any) -> Any:
    """The same as `encode` in candidate.py, which is a separate program."""
    kind = type(value)
    if kind in (bool, int, float, str, type(None)):
        return ["v", value]
    for tag, base in (("l", list), ("t", tuple), ("s", (set, frozenset))):
        if isinstance(value, base):
            return [tag, [encode(item) for item in value]]
    if isinstance(value, dict):
        return ["d", [[encode(key), encode(item)] for key, item in value.items()]]
    if isinstance(value, (bytes, bytearray)):
        return ["b", bytes(value).decode("latin-1")]
    if isinstance(value, complex):
        return ["c", [value.real, value.imag]]
    raise TypeError(f"a test passed a {kind.__name__}, which is not plain data")


if __name__ == "__main__":
    main()
