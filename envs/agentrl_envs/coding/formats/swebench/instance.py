"""A SWE-bench instance, in the form of the data sets, with the settings for a run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agentrl import ConfigError
from agentrl._util.config_errors import problems

TESTBED = "/testbed"
"""The folder of the repository in the images."""

_CHANGED = re.compile(r"^diff --git a/(\S+) b/(\S+)$", re.MULTILINE)
Style: TypeAlias = Literal["pytest", "pytest itself", "unittest", "sympy"]

_PROGRESS = re.compile(r"\[ *\d+%\]")
_STYLES: dict[str, Style] = {
    "pytest-dev/pytest": "pytest itself",
    "django/django": "unittest",
    "sympy/sympy": "sympy",
    "parse_log_django": "unittest",
    "parse_log_sympy": "sympy",
}
_COMMANDS = {
    "pytest": "pytest -rA {files}",
    "pytest itself": "pytest -rA {files}",
    "unittest": "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 {modules}",
    "sympy": "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose {files}",
}


def _list(value: Any) -> Any:
    """The list in a field of a dataset row. In older rows the list is JSON text. Raises ValueError for other text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as exc:
        raise ValueError(f"neither a list nor JSON of one: {exc}") from exc


def _named(tests: tuple[str, ...]) -> tuple[str, ...]:
    """The names of tests, without `[100%]`: pytest prints this progress, and published lists have it as a test."""
    return tuple(test for test in tests if not _PROGRESS.fullmatch(test))


_Tests = Annotated[tuple[str, ...], BeforeValidator(_list), AfterValidator(_named)]


class Instance(BaseModel):
    """A row of the data set."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    instance_id: str
    repo: str = ""
    base_commit: str = ""
    patch: str = ""
    test_patch: str = ""
    problem_statement: str = ""
    hints_text: str = ""
    version: str = ""
    created_at: Any = ""
    environment_setup_commit: str = ""
    fail_to_pass: _Tests = Field(alias="FAIL_TO_PASS")
    pass_to_pass: _Tests = Field((), alias="PASS_TO_PASS")
    eval_script: str = ""
    """The script that runs the tests and marks the beginning and end of their output. Only newer rows have the
    script."""
    image: str = ""
    log_parser: str = ""
    test_command: str = ""
    """The test command of a row without an eval_script, if the project runs tests in an unusual way. The key is
    agentrl's, not SWE-bench's."""

    @property
    def style(self) -> Style:
        """The format of the log: a name in `logs.STYLES`."""
        repo = self.repo or self.instance_id.rpartition("-")[0].replace("__", "/")
        return _STYLES.get(self.log_parser) or _STYLES.get(repo, "pytest")

    @property
    def image_name(self) -> str:
        """The row's image, or the name that SWE-bench gives the image."""
        plain = self.instance_id.lower().replace("__", "_1776_")
        return self.image or f"swebench/sweb.eval.x86_64.{plain}:latest"

    def test_files(self) -> list[str]:
        """The files of the test patch."""
        return list(dict.fromkeys(new for _, new in _CHANGED.findall(self.test_patch)))

    def fixed_files(self) -> list[str]:
        """The files of the fix, if the row has a fix."""
        return list(dict.fromkeys(name for names in _CHANGED.findall(self.patch) for name in names))

    def command(self) -> str:
        """The command that runs the tests."""
        files = [file for file in self.test_files() if file.endswith(".py")]
        modules = [file.removeprefix("tests/").removesuffix(".py").replace("/", ".") for file in files]
        default = _COMMANDS[self.style].format(files=shlex.join(files), modules=shlex.join(modules))
        return self.test_command or default


def parse_instance(row: Any, where: str = "the row") -> Instance:
    """An instance from a row. Raises ConfigError with the mistake."""
    try:
        instance = Instance.model_validate(row)
    except ValidationError as exc:
        raise ConfigError(f"{where}: {problems(exc, Instance)}") from exc
    if not instance.fail_to_pass:
        raise ConfigError(f"{where}: {instance.instance_id} has an empty FAIL_TO_PASS: doing nothing would resolve it")
    return instance


def read_instances(path: Path) -> Iterator[Instance]:
    """The instances of a file: JSON lines, or a JSON list. Raises ConfigError with the line."""
    try:
        text = path.read_text(encoding="utf-8")
        rows = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [json.loads(line) for line in text.splitlines() if line]
        )
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    for number, row in enumerate(rows, 1):
        yield parse_instance(row, f"{path}, row {number}")
