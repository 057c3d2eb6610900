import json
import subprocess
import sys

import pytest

from agentrl import ConfigError, InfraError, Task
from agentrl.sandbox import ExecResult
from agentrl_envs.coding.formats.swebench import grade_log, parse_instance
from agentrl_envs.coding.formats.swebench.grading import END, START
from agentrl_envs.coding.formats.swebench.task import _TEST_PATCH, HIDE_HISTORY, evaluation, tests_own
from agentrl_envs.coding.problem import load_problem
from agentrl_sandbox import FakeSandbox

TEST_PATCH = """diff --git a/test_a.py b/test_a.py
--- a/test_a.py
+++ b/test_a.py
@@ -1,2 +1,5 @@
 def test_kept():
     pass
+
+def test_fix():
+    assert __import__("a").value == 1
"""
ROW = {
    "instance_id": "o__r-1",
    "repo": "o/r",
    "problem_statement": "value must be 1",
    "FAIL_TO_PASS": '["test_a.py::test_fix"]',
    "PASS_TO_PASS": '["test_a.py::test_kept"]',
    "test_patch": TEST_PATCH,
    "test_command": f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -rA -p no:cacheprovider test_a.py",
}


@pytest.fixture
def repo(tmp_path):
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "a.py").write_text("value = 0\n")
    (folder / "test_a.py").write_text("def test_kept():\n    pass\n")
    bash(
        folder,
        "git init -q && git config user.email a@b && git config user.name a && git add . && git commit -qm first "
        "&& git tag old && git checkout -qb later && echo 'value = 1' > a.py && git commit -qam 'the fix' "
        "&& git tag fixed && git checkout -q old && git remote add origin /nowhere && git stash list",
    )
    return folder


def bash(folder, script):
    ran = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def test_the_history_keeps_no_commit_that_came_later(repo):
    fixed = bash(repo, "git rev-parse fixed")[1].strip()
    code, said = bash(repo, HIDE_HISTORY)
    assert code == 0, said
    assert "the fix" not in bash(repo, "git log --all --oneline; git reflog; git tag; git branch -a")[1]
    assert bash(repo, f"git cat-file -e {fixed}")[0] != 0
    assert bash(repo, "git remote")[1] == ""
    assert bash(repo, "git log --oneline; git status --short")[1].count("\n") == 1


def test_a_history_that_cannot_be_hidden_is_an_error(repo):
    (repo / ".git" / "objects" / "keep.keep").write_text("")
    bash(repo, "git repack -qad && for pack in .git/objects/pack/*.pack; do touch ${pack%.pack}.keep; done")
    code, said = bash(repo, HIDE_HISTORY)
    assert code == 1
    assert "later commits" in said


@pytest.mark.parametrize(("value", "resolved"), [("0", False), ("1", True)])
def test_the_script_runs_the_tests_and_its_log_is_graded(repo, tmp_path, value, resolved):
    (repo / "a.py").write_text(f"value = {value}\n")
    (repo / "test_a.py").write_text("the agent's own tests\n")
    instance = parse_instance(ROW)
    (tmp_path / "patch").write_text(TEST_PATCH)
    script = evaluation(instance).replace("cd /testbed", f"cd {repo}").replace(_TEST_PATCH, str(tmp_path / "patch"))
    _, log = bash(tmp_path, script)
    report = grade_log(instance, log)
    assert (report.resolved, report.pass_to_pass) == (resolved, {"test_a.py::test_kept": True}), log


def test_a_row_becomes_a_problem(tmp_path):
    problem = load_problem(Task(metadata={"format": "swebench", "row": {**ROW, "patch": "diff"}}))
    (step,) = problem.steps
    assert problem.image == "swebench/sweb.eval.x86_64.o_1776_r-1:latest"
    assert step.instruction == "value must be 1"
    assert "source /opt/miniconda3/bin/activate testbed" in problem.activate
    assert step.setup.startswith(HIDE_HISTORY)
    assert step.gold.command.startswith("git apply")
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW))
    named = {"format": "swebench", "path": str(tmp_path / "rows.jsonl")}
    assert load_problem(Task(id="o__r-1", metadata=named)).steps[0].gold is None
    with pytest.raises(ConfigError, match="no instance 'other'"):
        load_problem(Task(id="other", metadata=named))
    with pytest.raises(ConfigError, match="as `row`"):
        load_problem(Task(metadata={"format": "swebench"}))


def test_usual_commands_of_the_projects():
    django = parse_instance(
        {**ROW, "test_command": "", "repo": "django/django", "test_patch": "diff --git a/x b/tests/m/t.py"}
    )
    assert django.command().endswith("--parallel 1 m.t")
    assert parse_instance({**ROW, "test_command": ""}).command() == "pytest -rA test_a.py"
    assert evaluation(parse_instance({**ROW, "eval_script": "own"})) == "own"


async def graded(result):
    grader = load_problem(Task(metadata={"format": "swebench", "row": ROW})).steps[0].grader
    async with FakeSandbox(lambda call: result if "bash -c" in call.cmd else ExecResult(0)) as box:
        return await grader.grade(box)


async def test_a_run_that_told_nothing_is_an_error_and_a_flood_is_not():
    with pytest.raises(InfraError, match="no test output"):
        await graded(ExecResult(127, "bash: git: not found"))
    assert (await graded(ExecResult(0, "x", truncated=True))).score == 0.0
    assert (await graded(ExecResult(124, f"{START}\nx", timed_out=True))).score == 0.0


async def test_a_script_that_never_reached_its_tests_is_an_error():
    with pytest.raises(InfraError, match="did not reach its tests within 1800 s: Retrying"):
        await graded(ExecResult(124, "Retrying", timed_out=True))
    with pytest.raises(InfraError, match="names no test"):
        await graded(ExecResult(0, f"{START}\nTraceback (most recent call last):\nNo module named pytest\n{END}\n"))


def test_what_python_prefers_to_a_file_of_tests_is_the_tests_own():
    patch = "diff --git a/{0} b/{0}\n"
    row = {"instance_id": "o__r-1", "FAIL_TO_PASS": ["suite.py::test_fix"]}
    instance = parse_instance({**row, "patch": patch.format("a.py"), "test_patch": patch.format("suite.py")})
    own = tests_own(instance)
    assert all(map(own, ("suite/__init__.py", "suite.cpython-311-x86_64-linux-gnu.so", "b/test_c/__init__.py")))
    assert not any(map(own, ("a.py", "suites.py", "suite_of/b.py", "latest/b.py", ".hidden")))
