"""More ways to earn a reward on a repository or a Harbor task without solving it: see `test_more_tricks.py`."""

import contextlib
import io
import os
import shlex
import tarfile
from dataclasses import replace

import pytest

from agentrl import Task
from agentrl.sandbox import ExecResult
from agentrl_envs.coding.formats.swebench import load as load_instance
from agentrl_envs.coding.formats.swebench.instance import TESTBED
from agentrl_envs.coding.work import WorkError, carry
from agentrl_sandbox import FakeSandbox, LocalSandbox
from tests.envs.coding.harbor_tasks import harbor_task
from tests.envs.coding.tricks import ISOLATED, earned, played, put, told
from tests.sandbox.engine import REQUIRED, entered

pytestmark = pytest.mark.timeout(300)

# --- SWE-bench --------------------------------------------------------------------------------------------------------

TEST_PATCH = """diff --git a/test_a.py b/test_a.py
--- a/test_a.py
+++ b/test_a.py
@@ -1,2 +1,6 @@
 def test_kept():
     pass
+
+def test_fix():
+    import a
+    assert a.value == 1
"""
ROW = {
    "instance_id": "o__r-1",
    "repo": "o/r",
    "problem_statement": "value must be 1",
    "FAIL_TO_PASS": ["test_a.py::test_fix"],
    "PASS_TO_PASS": ["test_a.py::test_kept"],
    "test_patch": TEST_PATCH,
    "test_command": "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 pytest -rA test_a.py",
}
REPO = {"a.py": "value = 0\n", "test_a.py": "def test_kept():\n    pass\n", ".gitignore": "__pycache__\n"}
_COMMIT = "git init -q && git add . && git -c user.name=a -c user.email=a@b commit -qm first\n"


def load_repo(task):
    """The instance over a repository that is made here. In bubblewrap it has that back end's one user."""
    made = load_instance(Task(id=task.id, metadata={"format": "swebench", "row": ROW}))
    step = replace(made.steps[0], files=REPO, setup=_COMMIT + made.steps[0].setup)
    spec = made.spec if task.metadata["box"] == "docker" else {"workdir": TESTBED}
    return replace(made, steps=(step,), image="", spec=spec)


_NO_ERRORS = """
from _pytest.reports import TestReport
def without_error(kind, item, call, made=TestReport.from_item_and_call.__func__):
    call.excinfo = None
    return made(kind, item, call)
TestReport.from_item_and_call = classmethod(without_error)
"""
# What a process of root's does to a machine's pytest, once the grader's git or Python starts it.
_POISON = f"""
import glob, os
for file in glob.glob("/usr/lib/python3/dist-packages/_pytest/runner.py"):
    try:
        with open(file, "a") as out: out.write({_NO_ERRORS!r})
    except OSError: pass
"""
_LYING_TAR = """#!/usr/bin/python3
import io, os, sys, tarfile
if "-cf" not in sys.argv: os.execv("/usr/bin/tar.real", sys.argv)
out = tarfile.open(fileobj=sys.stdout.buffer, mode="w|")
link = tarfile.TarInfo("./x"); link.type, link.linkname = tarfile.SYMTYPE, "/usr/lib/python3/dist-packages"
out.addfile(link)
data = open("/tmp/pth", "rb").read()
file = tarfile.TarInfo("./x/zz.pth"); file.size = len(data)
out.addfile(file, io.BytesIO(data)); out.close()
"""
_PTH = "import os; os.path.isdir('/testbed') and open('/testbed/a.py', 'w').write('value = 1\\n')"

REPO_TRICKS = {
    # No code of the work need run: Python prefers a package to a module, and pytest is told the module's own file. The
    # tests that count are those of the test patch.
    "a_package_in_front_of_the_tests": [
        put("test_a/__init__.py", f"__file__ = '{TESTBED}/test_a.py'\ndef test_kept(): pass\ndef test_fix(): pass")
    ],
    # How tests are run is no part of a fix, as with conftest.py: a new configuration is not taken over.
    "configures_the_runner_anew": [
        put("pytest.ini", "[pytest]\naddopts = helpers"),
        put("helpers/conftest.py", _NO_ERRORS),
    ],
    "git_configuration_elsewhere_and_hooks": [
        put(".config/git/config", f"[core]\n\thooksPath = {TESTBED}/hooks"),
        put("hooks/post-checkout", f"#!/usr/bin/python3{_POISON}"),
        "chmod +x hooks/post-checkout; cp hooks/post-checkout hooks/post-index-change; mkdir -p /tmp/.config/git; "
        "cp .config/git/config /tmp/.config/git/; cp -r .config ~/ 2>/dev/null; true",
    ],
    "a_path_file_in_the_user_site": [
        f"for home in {TESTBED} ~ /tmp /root; do for v in 3.9 3.10 3.11 3.12 3.13; do "
        "folder=$home/.local/lib/python$v/site-packages; mkdir -p $folder && "
        f"echo {shlex.quote(_PTH)} > $folder/zz.pth; done; done 2>/dev/null; true"
    ],
    "shims_in_place_of_programs": [
        put("shim", '#!/bin/sh\necho value = 1 > /testbed/a.py\nexec /usr/bin/$(basename $0) "$@"'),
        "chmod +x shim; for folder in /usr/local/bin ~/.local/bin ~/bin . /usr/local/sbin; do mkdir -p $folder; "
        "for name in git pytest python3; do cp shim $folder/$name; done; done 2>/dev/null; true",
    ],
    "attributes_and_a_folder_in_place_of_tests": [
        put(".gitattributes", "test_a.py text eol=crlf working-tree-encoding=UTF-16 merge=ours -diff"),
        "rm test_a.py; mkdir test_a.py; echo 'def test_fix(): pass' > test_a.py/test_a.py",
    ],
    "a_link_in_place_of_tests": [
        "echo 'def test_fix(): pass\ndef test_kept(): pass' > mine.py; ln -sf mine.py test_a.py; chmod 444 mine.py"
    ],
    "an_archive_that_writes_through_a_link": [
        f"echo {shlex.quote(_PTH)} > /tmp/pth; cp /usr/bin/tar /usr/bin/tar.real && ln -s /tmp x",
        put("/usr/bin/tar.new", _LYING_TAR),
        "chmod +x /usr/bin/tar.new; mv /usr/bin/tar.new /usr/bin/tar",
    ],
}


QUICK = ("honest", "a_package_in_front_of_the_tests", "configures_the_runner_anew")


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ISOLATED)
@pytest.mark.parametrize("name", ["honest", *REPO_TRICKS])
async def test_a_repository_pays_for_no_trick(backend, name):
    if backend not in REQUIRED and name not in QUICK:
        pytest.skip("takes half a minute: .ci/docker.sh runs it")
    async with entered(backend):
        pass
    task = Task(id="repo", metadata={"format": f"{__file__}:load_repo", "box": backend})
    found = await played(backend, task, *REPO_TRICKS.get(name, ["echo value = 1 > a.py"]))
    assert earned(found) == float(name == "honest"), told(found)


async def test_what_is_carried_writes_through_no_link(tmp_path):
    """A sandbox in which the agent is root may send a link, and a file below it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        link, file = tarfile.TarInfo("./x"), tarfile.TarInfo("./x/evil.pth")
        link.type, link.linkname, file.size = tarfile.SYMTYPE, str(tmp_path), 4
        archive.addfile(link)
        archive.addfile(file, io.BytesIO(b"evil"))

    class Lying(FakeSandbox):
        async def exec(self, cmd, **how):
            how["on_output"]("stdout", made.getvalue())
            return ExecResult(0)

    async with LocalSandbox(trusted=True) as clean, Lying() as lying:
        with contextlib.suppress(WorkError):  # refused: the reward is 0
            await carry(lying, clean, ("x",))
    assert list(tmp_path.iterdir()) == []


# --- Harbor -----------------------------------------------------------------------------------------------------------

_REWARD = "then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
PLAIN = f'#!/bin/bash\nif [ "$(cat /app/answer.txt 2>/dev/null)" = 42 ]; {_REWARD}'
SLOW = f'#!/bin/bash\nsleep 1; if [ "$(cat /app/answer.txt 2>/dev/null)" = 42 ]; {_REWARD}'
COMPARES = f"#!/bin/bash\nif cmp -s /tests/expected.txt /app/answer.txt; {_REWARD}"
LOGIN = f'#!/bin/bash -l\n. ~/.bashrc 2>/dev/null\nif [ "$(cat /app/answer.txt 2>/dev/null)" = 42 ]; {_REWARD}'
PYTEST = f"#!/bin/bash\ncd /app\nif python3 -m pytest -q -p no:cacheprovider /tests/check_it.py; {_REWARD}"
CHECK = "def test_it():\n    with open('/app/answer.txt') as file: assert file.read().strip() == '42'\n"
AGENT = '[agent]\nuser = "agent"\n'
DOCKERFILE = "FROM base\nWORKDIR /app\nRUN mkdir -m 777 /logs\n"  # as many tasks leave it for their agents

# Each process lives for less than a listing of all processes takes, so none of those that are listed can be stopped.
_COMET = """
import os, time
end = time.monotonic() + 20
for _ in range(40):  # more to list, and so more time between a listing and what is done with it
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
for _ in range(3):
    if os.fork() == 0: break
else: os._exit(0)
os.setsid()
step = 0
while time.monotonic() < end:
    try: child = os.fork()
    except OSError: continue
    if child: os._exit(0)
    step += 1
    if step % 16 == 0:
        try:
            mine = f"/logs/verifier/.{os.getpid()}"
            with open(mine, "w") as file: file.write('{"reward": 1}')
            os.rename(mine, "/logs/verifier/reward.json")
        except OSError: pass
"""

HARBOR_TRICKS = {
    "comets_outlive_the_killing": (SLOW, {}, [put("comet.py", _COMET), "python3 comet.py > /dev/null 2>&1; sleep 0.2"]),
    # The link leads nowhere while the agent works. It is no work of its own, wherever it is graded.
    "links_to_the_expected_answer": (COMPARES, {}, ["ln -s /tests/expected.txt answer.txt"]),
    "links_to_the_expected_answer_and_is_carried": (
        COMPARES,
        {"clean": True},
        ["ln -s /proc/self/root/tests/expected.txt answer.txt"],
    ),
    "links_by_way_of_the_tests_own_folder": (
        COMPARES.replace("if cmp", "cd /tests; if cmp"),
        {},
        ["echo > expected.txt; ln -s /proc/self/cwd /tmp/here; ln -s /tmp/here/expected.txt answer.txt"],
    ),
    "links_to_what_the_tests_have_open": (COMPARES, {"clean": True}, ["ln -s /dev/fd/3 answer.txt"]),
    "start_up_files_of_shells": (
        LOGIN,
        {"clean": True},
        [
            "for home in ~ /app; do for file in .bashrc .profile .bash_profile .bash_login; do "
            "echo 'cat() { echo 42; }' > $home/$file; done; done"
        ],
    ),
    # pytest.py is known. What pytest itself imports is the same cause.
    "modules_that_pytest_imports": (
        PYTEST,
        {"clean": True},
        ["for name in pluggy iniconfig packaging attr; do echo 'import os; os._exit(0)' > /app/$name.py; done"],
    ),
    "result_files_made_ahead": (
        PLAIN,
        {},
        [
            "mkdir -p /logs/verifier; cd /logs/verifier; echo '{\"reward\": 1}' > /tmp/one; chmod 444 /tmp/one; "
            "ln -s /tmp/one reward.json; mkdir -p reward.txt/x; mkfifo test-stdout.txt; ln /tmp/one reward.toml; "
            "chmod 555 ."
        ],
    ),
}


LOCKS = (
    "mkdir -p /logs/verifier/x; chmod 555 /logs/verifier/x /logs/verifier",
    "mkdir -p /tmp/.agentrl-tests/x; chmod 555 /tmp/.agentrl-tests",
    "rm -rf /logs/verifier; ln -s /app /logs/verifier; ln -s /dev/stdout log; ln -s nowhere.txt broken",
)


@pytest.mark.parametrize("command", LOCKS)
@pytest.mark.parametrize(("answer", "reward"), [("42", 1.0), ("41", 0.0)])
async def test_folders_that_the_agent_has_locked_do_not_keep_it_from_being_graded(tmp_path, command, answer, reward):
    async with entered("docker"):
        pass
    folder = harbor_task(tmp_path / "task", toml=AGENT, test=PLAIN, dockerfile=DOCKERFILE)
    base = {"base": os.environ["AGENTRL_BASE_IMAGE"]}
    task = Task(id="locked", metadata={"format": "harbor", "path": str(folder), "base": base})
    found = await played("docker", task, f"echo {answer} > answer.txt; {command}")
    assert (found.failure, found.reward) == (None, reward), told(found)


@pytest.mark.parametrize("name", ["honest", "honest_and_carried", *HARBOR_TRICKS])
async def test_a_harbor_task_pays_for_no_trick(tmp_path, name):
    """The agent is an unprivileged user: as root it could replace any program of the box that it shares."""
    async with entered("docker"):
        pass
    honest = (COMPARES, {"clean": True} if "carried" in name else {}, ["echo 42 > answer.txt"])
    script, settings, commands = HARBOR_TRICKS.get(name, honest)
    folder = harbor_task(tmp_path / "task", toml=AGENT, test=script, dockerfile=DOCKERFILE)
    (folder / "tests" / "expected.txt").write_text("42\n")
    (folder / "tests" / "check_it.py").write_text(CHECK)
    base = {"base": os.environ["AGENTRL_BASE_IMAGE"]}
    task = Task(id=name, metadata={"format": "harbor", "path": str(folder), "base": base, **settings})
    for _ in range(4 if name.startswith("comets") else 1):  # a race: it won one in three at 779f39e
        found = await played("docker", task, *commands)
        assert earned(found) == float(name.startswith("honest")), told(found)
