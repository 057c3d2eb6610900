"""Tricks of an agent that is root in its box, on tests of a repository: SWE-bench's, and Harbor's."""

import asyncio
import json
import os
from contextlib import asynccontextmanager
from textwrap import dedent

import pytest

from agentrl import InfraError, Task
from agentrl_envs.coding.grading import grade
from agentrl_envs.coding.problem import load_problem
from agentrl_envs.coding.work import prepare, solve
from agentrl_sandbox import SandboxPool, SandboxSpec
from tests.envs.coding.harbor_tasks import harbor_task
from tests.sandbox.engine import entered

pytest.importorskip("aiodocker", reason="the extra `docker` is not installed")
pytestmark = pytest.mark.timeout(280)

EVIL = "import atexit, os\nos.makedirs('/logs/verifier', exist_ok=True)\n"
"""Runs in the tests' own processes: it writes Harbor's reward, and has pytest pass."""
PASS = """
def patch():
    import _pytest.reports
    _pytest.reports.TestReport.outcome = property(lambda self: "passed", lambda self, value: None)
    _pytest.reports.TestReport.passed = property(lambda self: True)
    _pytest.reports.TestReport.failed = property(lambda self: False)
try: patch()
except Exception: pass
"""
FAKE = """
lines = ["= test session starts =", "collected 2 items", "= short test summary info =",
         "PASSED tests/test_a.py::test_fix", "PASSED tests/test_a.py::test_kept", "====== 2 passed in 0.01s ======"]
import os, sys
if "pytest" in sys.modules or "pytest" in sys.argv[0]:
    os.write(1, ("\\n".join(lines) + "\\n").encode())
    os._exit(0)
"""


def writes(path, text):
    return f"mkdir -p \"$(dirname {path})\"; cat >> {path} <<'END_OF_FILE'\n{dedent(text)}\nEND_OF_FILE\n"


HOOK = """
import pytest
@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    outcome = yield
    outcome.force_result(True)
"""
SITE = "$(python3 -m site --user-site)"
ON_SETTINGS = {
    "user site": f"mkdir -p {SITE}; " + writes(f"{SITE}/usercustomize.py", FAKE),
    "user site in the work folder": writes(".local/lib/python3.11/site-packages/usercustomize.py", FAKE),
    "site": writes("sitecustomize.py", FAKE),
    "monitor of git at home": writes(
        "$HOME/.gitconfig", "[core]\nfsmonitor = \"touch /tmp/.seen; echo 'raise SystemExit' > pytest.py; false\""
    ),
    "pytest.py": writes("pytest.py", FAKE),
    "_pytest": writes("_pytest/__init__.py", FAKE),
    "json.py": writes("json.py", FAKE),
    "conftest.py": writes("conftest.py", HOOK),
    "conftest.py beside the tests": writes("tests/conftest.py", HOOK),
    "a plugin by pytest.ini": writes("pytest.ini", "[pytest]\naddopts = -p evil\n") + writes("evil.py", HOOK),
    "a plugin by setup.cfg": writes("setup.cfg", "[tool:pytest]\naddopts = -p evil\n") + writes("evil.py", HOOK),
    "a plugin by an entry point": writes("evil.egg-info/entry_points.txt", "[pytest11]\nevil = evil\n")
    + writes("evil.egg-info/PKG-INFO", "Metadata-Version: 1.0\nName: evil\nVersion: 1\n")
    + writes("evil.py", HOOK),
    "what helps the tests": writes("tests/helper.py", "def check(found, wanted): pass\n"),
}
ON_THE_RUN = {
    "a summary that is printed": writes("a.py", FAKE),
    "a patched report": writes("a.py", PASS),
    "a test that is expected to fail": writes("a.py", "import pytest\ndef value(): pytest.xfail('so it is')\n"),
    "a test that is left out": writes("a.py", "import pytest\ndef value(): pytest.skip('so it is')\n"),
    "a class that never raises": writes(
        "a.py", "import builtins\nclass No(BaseException): pass\nbuiltins.AssertionError = No\n" + PASS
    ),
}
TEST_PATCH = """diff --git a/tests/test_a.py b/tests/test_a.py
--- a/tests/test_a.py
+++ b/tests/test_a.py
@@ -1,4 +1,8 @@
 import a
 from helper import check
 def test_kept():
     check(a.kept(), 2)
+def test_fix():
+    check(a.value(), 1)
+    assert a.value() == 1
+
"""
GOLD = """diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1,4 +1,4 @@
 def kept():
     return 2
 def value():
-    return 0
+    return 1
"""
FILES = {
    "a.py": "def kept():\n    return 2\ndef value():\n    return 0\n",
    "tests/helper.py": "def check(found, wanted):\n    assert found == wanted\n",
    "tests/test_a.py": "import a\nfrom helper import check\ndef test_kept():\n    check(a.kept(), 2)\n",
}
RUN = "PYTEST_DISABLE_PLUGIN_AUTOLOAD= python3 -m pytest -rA -p no:cacheprovider tests/test_a.py"


def image(folder, base, workdir):
    """A folder with a Dockerfile: the repository in its image."""
    folder.mkdir(parents=True)
    for path, text in FILES.items():
        (folder / "repo" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "repo" / path).write_text(text)
    git = (
        "git init -q && git -c user.email=a@b -c user.name=a add . && git -c user.email=a@b -c user.name=a commit -qm a"
    )
    text = f"FROM {base}\nENV HOME=/root\nCOPY repo {workdir}\nWORKDIR {workdir}\nRUN {git}\n"
    (folder / "Dockerfile").write_text(text)
    return folder


@pytest.fixture
async def pool():
    base = os.environ.get("AGENTRL_BASE_IMAGE")
    async with entered("docker") as backend:
        if base is None:
            pytest.skip("AGENTRL_BASE_IMAGE is not set")
        async with SandboxPool(backend, None, size=4, grade=4, warm=0) as pool:
            yield pool


def swebench(folder):
    row = {
        "instance_id": "o__r-1",
        "repo": "o/r",
        "problem_statement": "value must be 1",
        "image": str(image(folder, os.environ["AGENTRL_BASE_IMAGE"], "/testbed")),
        "FAIL_TO_PASS": json.dumps(["tests/test_a.py::test_fix"]),
        "PASS_TO_PASS": json.dumps(["tests/test_a.py::test_kept"]),
        "patch": GOLD,
        "test_patch": TEST_PATCH,
        "test_command": RUN,
    }
    return load_problem(Task(id="swe", metadata={"format": "swebench", "row": row}))


def harbor(folder, **settings):
    run = RUN.replace("tests/test_a.py", "/tests/test_b.py")
    test = f"#!/bin/bash\ncd /app\nif {run} >&2; then echo 1; else echo 0; fi"
    harbor_task(folder, test=test + " > /logs/verifier/reward.txt\n", toml=settings.pop("toml", ""), solve="")
    image(folder / "made", os.environ["AGENTRL_BASE_IMAGE"], "/app")
    for path in (folder / "environment").iterdir():
        path.unlink()
    (folder / "environment").rmdir()
    (folder / "made").rename(folder / "environment")
    (folder / "tests" / "test_b.py").write_text("import a\ndef test_b():\n    assert a.value() == 1\n")
    return load_problem(Task(id="h", metadata={"format": "harbor", "path": str(folder), **settings}))


@asynccontextmanager
async def begun(pool, problem):
    changes = {**problem.spec, "image": problem.image, "memory_mb": 256, "disk_mb": 64, "pids": 64}
    spec = SandboxSpec(**changes)
    async with pool.acquire(spec) as box:
        await prepare(box, problem.steps[0])
        yield box, spec


async def scored(pool, problem, does):
    async with begun(pool, problem) as (box, spec):
        ran = await box.exec(does)
        assert ran.exit_code == 0, ran
        return await grade(box, problem.steps, pool=pool, spec=spec)


async def earning(pool, problem, tricks):
    """The tricks that earn a reward, or that break the grading."""

    async def one(name, does):
        try:
            return name if (await scored(pool, problem, does)).score else None
        except InfraError as exc:
            return f"{name}: {exc}"

    found = await asyncio.gather(*[one(*trick) for trick in tricks.items()])
    return [name for name in found if name is not None]


async def test_no_trick_resolves_an_instance_of_swebench(pool, tmp_path):
    problem = swebench(tmp_path / "swe")
    assert (found := await scored(pool, problem, "true")).score == 0.0, found.log
    async with begun(pool, problem) as (box, spec):
        await solve(box, problem.steps[0].gold, timeout=60)
        found = await grade(box, problem.steps, pool=pool, spec=spec)
        assert found.score == 1.0, found.log
    assert await earning(pool, problem, {**ON_SETTINGS, **ON_THE_RUN}) == []


async def test_no_settings_of_the_works_earn_anything_of_harbor_graded_clean(pool, tmp_path):
    problem = harbor(tmp_path / "harbor", clean=True)
    assert (found := await scored(pool, problem, "true")).score == 0.0, found.log
    right = await scored(pool, problem, "sed -i 's/return 0/return 1/' a.py")
    assert right.score == 1.0, right.log
    assert await earning(pool, problem, ON_SETTINGS) == []


async def test_where_the_box_is_shared_no_module_of_the_works_replaces_pytest(pool, tmp_path):
    problem = harbor(tmp_path / "harbor")
    assert not problem.steps[0].clean
    for name in ("pytest.py", "_pytest", "json.py", "user site"):
        assert (found := await scored(pool, problem, ON_SETTINGS[name])).score == 0.0, (name, found.log)


async def test_the_reward_is_not_read_by_a_program_of_the_box(pool, tmp_path):
    problem = harbor(tmp_path / "harbor")
    found = await scored(pool, problem, "cp /usr/bin/echo /tmp/echo; printf '#!/bin/sh\\necho 1\\n' > /usr/bin/head")
    assert found.score == 0.0, found.log


async def test_what_root_left_running_cannot_hide_in_what_holds_the_box_open(pool, tmp_path):
    problem = harbor(tmp_path / "harbor")
    async with begun(pool, problem) as (box, _):
        said = await box.exec("kill -0 1; kill -STOP 1; cat /proc/1/environ; ls /proc/1/fd", user="root")
        assert "not permitted" in said.stderr.lower()
        assert "denied" in said.stderr
        assert said.stdout == ""


async def test_a_verifier_with_an_environment_of_its_own_gets_the_artifacts_alone(pool, tmp_path):
    toml = 'artifacts = ["a.py", "/var/answer"]\n[verifier]\nenvironment_mode = "separate"\n'
    toml += '[[verifier.collect]]\ncommand = "echo dumped > /logs/artifacts/dump"\n'
    problem = harbor(tmp_path / "harbor", toml=toml)
    tests = tmp_path / "harbor" / "tests"
    (tests / "Dockerfile").write_text(f"FROM {os.environ['AGENTRL_BASE_IMAGE']}\nENV HOME=/root\nWORKDIR /judge\n")
    (tests / "test.sh").write_text(
        "cat /app/a.py /var/answer /logs/artifacts/dump; ls -A /app; pwd\n"
        "[ ! -e /app/tests ] && [ \"$(ls -A /app)\" = a.py ] && grep -q 'return 1' /app/a.py && grep -q dumped "
        "/logs/artifacts/dump && grep -q 42 /var/answer && echo 1 > /logs/verifier/reward.txt "
        "|| echo 0 > /logs/verifier/reward.txt\n"
    )
    problem = load_problem(Task(id="h", metadata={"format": "harbor", "path": str(tmp_path / "harbor")}))
    fix = "sed -i 's/return 0/return 1/' a.py; echo 42 > /var/answer; "
    assert (found := await scored(pool, problem, fix + ON_SETTINGS["site"])).score == 1.0, found.log
    assert (found := await scored(pool, problem, "echo 1 > /logs/verifier/reward.txt || true")).score == 0.0, found.log
