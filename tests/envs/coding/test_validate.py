import json
import os

import pytest
from typer.testing import CliRunner

from agentrl import ConfigError, Task
from agentrl.cli import app
from agentrl.errors import SandboxError
from agentrl_envs.coding.grading import end_processes
from agentrl_envs.coding.problem import Grade, Problem, Solution, Step
from agentrl_envs.coding.validate import Play, ValidationSettings, counts, find_tasks, judge, validate
from agentrl_sandbox import SandboxSpec
from tests.envs.coding.harbor_tasks import harbor_task
from tests.sandbox.engine import entered


class Grader:
    """1 if answer.txt holds `right`."""

    def __init__(self, right="42", seen=()):
        self.right, self.seen = right, list(seen)

    async def grade(self, box):
        if self.seen:
            return Grade(self.seen.pop(0))
        try:
            return Grade(float((await box.read_file("answer.txt")).strip() == self.right), log="looked")
        except FileNotFoundError:
            return Grade(0.0, log="no answer.txt")


def problem(answer="42", *, grader=None, right="42", **fields):
    gold = Solution({"answer.txt": answer}) if answer else None
    return Problem((Step("answer", grader or Grader(right), gold, clean=False, **fields),))


PROBLEMS = {
    "good": lambda: problem(),
    "wrong": lambda: problem("41"),
    "open": lambda: problem(right="", files={"answer.txt": ""}),
    "unsolved": lambda: problem(""),
    "unstable": lambda: problem(grader=Grader(seen=[0, 0, 1, 0])),
    "unset": lambda: problem(setup="exit 3"),
    "slow": lambda: problem(setup="sleep 60"),
}
KEPT = {}


def load(task):
    if task.id == "refused":
        raise ConfigError("no such thing")
    return KEPT.setdefault(task.id, PROBLEMS[task.id]())


def tasks(*names):
    KEPT.clear()
    return [Task(id=name, metadata={"format": f"{__name__}:load"}) for name in names]


@pytest.mark.thorough
async def test_each_way_in_which_a_task_can_be_broken():
    seen = []
    names = ["good", "wrong", "open", "unsolved", "unstable", "unset", "refused"]
    found = await validate(tasks(*names), ValidationSettings(backend="local"), on_finding=seen.append)
    assert {one.id: one.verdict for one in found} == {
        "good": "good",
        "wrong": "oracle failed",
        "open": "no-op rewarded",
        "unsolved": "no oracle",
        "unstable": "flaky",
        "unset": "error",
        "refused": "error",
    }
    assert [one.id for one in found] == names
    assert len(seen) == len(names)
    good, wrong = found[:2]
    assert (good.noop, good.oracle, good.reason) == ([0.0, 0.0], [1.0, 1.0], "")
    assert wrong.reason == "the solution scored 0 and 0: looked"
    assert "exit code 3" in found[5].reason
    assert counts(found)["error"] == 2


@pytest.mark.thorough
async def test_a_deadline_is_kept():
    (found,) = await validate(tasks("slow"), ValidationSettings(backend="local", deadline=0.3))
    assert (found.verdict, found.noop) == ("deadline", [None, None])


@pytest.mark.parametrize(
    ("noop", "oracle", "verdict"),
    [
        ([0, 0], [1, 1], "good"),
        ([0, 0.2], [1, 1], "no-op rewarded"),
        ([1, None], [], "no-op rewarded"),
        ([0, 0], [1, 0], "flaky"),
        ([0, 0], [1, None], "flaky"),
        ([0, 0], [0.5, 0.5], "oracle failed"),
        ([0, 0], [2, 2], "oracle failed"),
        ([-1, -1], [1, 1], "good"),
        ([None, None], [None, None], "error"),
        ([0, 0], [], "no oracle"),
    ],
)
def test_the_verdict(noop, oracle, verdict):
    assert judge([Play(score) for score in noop], [Play(score) for score in oracle])[0] == verdict


def test_tasks_are_found_in_folders_and_files(tmp_path):
    harbor_task(tmp_path / "harbor" / "a")
    (harbor,) = find_tasks(tmp_path / "harbor", ValidationSettings(base={"x": "y"}, installed=True))
    assert (harbor.id, harbor.metadata["base"], harbor.metadata["installed"]) == ("a", {"x": "y"}, True)
    (tmp_path / "folders" / "two").mkdir(parents=True)
    for name in ("two.py", "two_test.py"):
        (tmp_path / "folders" / "two" / name).write_text("")
    assert [task.id for task in find_tasks(tmp_path / "folders", ValidationSettings())] == ["two"]
    row = {"prompt": "x", "id": "row", "metadata": {"format": "harbor", "path": "p", "installed": False}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (task,) = find_tasks(tmp_path / "rows.jsonl", ValidationSettings(base={"x": "y"}, installed=True))
    assert (task.metadata["base"], task.metadata["installed"]) == ({"x": "y"}, False)
    (tmp_path / "empty").mkdir()
    for place in ("empty", "gone"):
        with pytest.raises(ConfigError, match=place):
            find_tasks(tmp_path / place, ValidationSettings())


def rows(path, *names):
    made = [{"prompt": "x", "id": task.id, "metadata": dict(task.metadata)} for task in tasks(*names)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return str(path)


def test_the_command_prints_the_broken_ones_and_their_reasons(tmp_path):
    data = rows(tmp_path / "rows.jsonl", "good", "wrong", "refused")
    ran = CliRunner().invoke(app, ["check", data, "--backend", "local"])
    assert ran.exit_code == 1, ran.output
    assert "3/3 " in ran.stderr
    assert "checked tasks: 3: 1 good, 1 oracle failed, 1 error" in ran.stdout
    assert "the solution scored 0 and 0: looked" in ran.stdout
    found = json.loads(CliRunner().invoke(app, ["check", data, "--backend", "local", "--json"]).stdout)["figures"]
    assert found["verdicts"] == {"good": 1, "oracle failed": 1, "error": 1}
    assert [row["oracle"] for row in found["tasks"]] == [[1.0, 1.0], [0.0, 0.0], []]


def test_the_command_succeeds_if_all_are_good(tmp_path):
    ran = CliRunner().invoke(app, ["check", rows(tmp_path / "rows.jsonl", "good"), "--backend", "local"])
    assert (ran.exit_code, ran.stdout) == (0, "checked tasks: 1: 1 good\n0 errors, 0 warnings\n")


def test_wrong_commands_end_with_one_line(tmp_path):
    data = rows(tmp_path / "rows.jsonl", "good")
    for given in (["gone.jsonl"], [data, "--base", "x"], [data, "--gold", "x.py:gold"]):
        ran = CliRunner().invoke(app, ["check", *given])
        assert ran.exit_code == 2
        assert ran.stderr.startswith("error: ")


@pytest.mark.timeout(600)
async def test_harbor_tasks_in_containers(tmp_path):
    async with entered("docker") as backend:
        base = {"base": os.environ.get("AGENTRL_BASE_IMAGE", "")}
        try:
            await backend.prepare(base["base"])
        except SandboxError as exc:
            pytest.skip(str(exc))
    harbor_task(tmp_path / "good")
    harbor_task(tmp_path / "open", dockerfile="FROM base\nWORKDIR /app\nRUN echo 42 > answer.txt\n")
    harbor_task(
        tmp_path / "offline", dockerfile="FROM base\nRUN pip install x && true\nRUN curl -f http://localhost:9/x\n"
    )
    toml = '[[steps]]\nname = "one"\nmin_reward = 1\n[[steps]]\nname = "two"\n'
    harbor_task(tmp_path / "steps", toml=toml, steps=("one", "two"))
    user = 'FROM base\nRUN useradd -m dev || echo "dev:x:1234:1234::/app:/bin/sh" >> /etc/passwd\n'
    user += "RUN mkdir /app && chown 1234 /app\nWORKDIR /app\nUSER 1234\n"
    harbor_task(tmp_path / "user", dockerfile=user)
    settings = ValidationSettings(backend="docker", base=base, installed=True, concurrency=6)
    found = {one.id: one for one in await validate(find_tasks(tmp_path, settings), settings)}
    assert {name: one.verdict for name, one in found.items()} == {
        "good": "good",
        "open": "no-op rewarded",
        "offline": "cannot run here",
        "steps": "good",
        "user": "good",
    }, found
    assert "curl" in found["offline"].reason


@pytest.mark.parametrize("user", ["root", "agent"])
async def test_what_the_agent_left_running_is_ended_and_its_sandbox_is_not(user):
    async with entered("docker") as backend, backend.sandbox(SandboxSpec(user=user, read_only=False)) as box:
        await box.exec("setsid sleep 1001 & (trap '' TERM; sleep 1002) &", check=True)
        left = "for it in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $it; echo; done | grep -c '^sleep 100[12]'"
        assert (await box.exec(left)).stdout == "2\n"
        await end_processes(box)
        assert (await box.exec(left)).stdout == "0\n"
        assert (await box.exec("echo alive", check=True)).stdout == "alive\n"
