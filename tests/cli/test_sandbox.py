"""`agentrl sandbox` over a back end of the test's own. Those with real ones are in tests/sandbox."""

import time

import pytest
from typer.testing import CliRunner

from agentrl.cli import app

BACKEND = """
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl_sandbox.backend import FoundSandbox, Leftover
from agentrl_sandbox.local.backend import LocalBackend
from agentrl_sandbox.reaper import reaping

LIST = Path(__file__).with_name("boxes")


class Remembering(LocalBackend):
    name = "remembering"

    async def __aenter__(self):
        self.reaper = reaping(self)
        await self.reaper.__aenter__()
        return self

    async def __aexit__(self, *exc):
        await self.reaper.__aexit__(*exc)

    async def list(self):
        rows = [line.split() for line in LIST.read_text().splitlines()]
        return [
            FoundSandbox(name, "an-image", "owner", "a-run", float(end), gone == "gone") for name, end, gone in rows
        ]

    async def remove(self, sandbox_ids):
        kept = [line for line in LIST.read_text().splitlines() if line.split()[0] not in sandbox_ids]
        LIST.write_text("\\n".join(kept))


class Untidy(Remembering):
    async def leftovers(self):
        names = LIST.with_name("left").read_text().split()
        return [Leftover(name.partition("-")[0], name, "10 MB") for name in names]

    async def clear(self, left):
        LIST.with_name("left").write_text("image-2")
        return [one for one in left if one.name != "image-2"]


class Broken(LocalBackend):
    async def __aenter__(self):
        raise SandboxError("no engine here; start one")
"""


@pytest.fixture
def sandbox(tmp_path):
    """Runs the command on a back end of the file above."""
    (tmp_path / "backends.py").write_text(BACKEND)
    (tmp_path / "boxes").write_text(
        f"box-1 {time.time() + 100} lives\nbox-2 {time.time() + 100} gone\nbox-3 1.0 gone\n"
    )

    (tmp_path / "left").write_text("image-1 image-2 cgroup-1")

    def run(command, name="Remembering"):
        backend = f"{tmp_path}/backends.py:{name}"
        words = ["check", "sandbox", backend] if command == "check" else ["sandbox", command, "--backend", backend]
        return CliRunner().invoke(app, words)

    return run


def test_ls_shows_all_and_removes_nothing(sandbox):
    for _ in range(2):
        lines = sandbox("ls").stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["SANDBOX", "box-1", "box-2", "box-3"]
        assert "lives" in lines[1]
        assert lines[3].split()[1:] == ["a-run", "gone", "0", "s", "an-image"]


def test_gc_counts_what_it_removes(sandbox):
    assert sandbox("gc").stdout == "removed 2 sandboxes\n"
    assert sandbox("gc").stdout == "removed 0 sandboxes\n"
    assert sandbox("ls").stdout.count("\n") == 2


def test_what_else_is_left_is_shown_and_removed(sandbox):
    shown = sandbox("ls", "Untidy").stdout
    assert "left over; `agentrl sandbox gc` removes them:\nimage    image-1  (10 MB)\n" in shown
    assert sandbox("gc", "Untidy").stdout == "removed 2 sandboxes, 1 images, 1 cgroups\n"
    assert sandbox("ls", "Untidy").stdout.splitlines()[-1] == "image    image-2  (10 MB)"


@pytest.mark.thorough
def test_check_says_what_is_enforced_and_what_is_not(sandbox):
    result = sandbox("check")
    assert result.exit_code == 0
    assert "checked remembering: a first command had run after" in result.stdout
    assert result.stdout.startswith("warning: not enforced: ")
    broken = sandbox("check", "Broken")
    assert (broken.exit_code, broken.stdout.splitlines()[-1]) == (1, "1 error, 0 warnings")
    assert broken.stdout.startswith("error: no engine here; start one [")


@pytest.mark.parametrize("command", ["ls", "gc"])
def test_a_back_end_that_does_not_work_is_one_line_and_exit_code_2(sandbox, command):
    result = sandbox(command, "Broken")
    assert result.exit_code == 2
    assert "no engine here; start one" in result.output
    assert result.output.count("\n") == 1
