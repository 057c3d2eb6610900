"""Function tasks: gold scores 1, the stub 0, and no lie is believed."""

import pytest

from agentrl import ConfigError, InfraError, Task
from agentrl.sandbox import ExecResult
from agentrl_envs.coding.formats.functions import human_eval
from agentrl_envs.coding.problem import load_problem
from agentrl_envs.coding.work import place, prepare
from agentrl_sandbox import FakeSandbox, LocalSandbox
from tests.envs.coding.attacks import ON_THE_VERDICT

TEST = """
def check(candidate):
    assert True
    for x in range(4):
        assert candidate(2 * x) == x, "no"
    assert candidate((2, 4)) == (1, 2)
"""
ROW = {
    "prompt": 'def half(x):\n    """Half of x."""\n',
    "test": TEST,
    "entry_point": "half",
    "canonical_solution": "    return tuple(half(y) for y in x) if isinstance(x, tuple) else x // 2\n",
}
SLOW = {"never_ends", "leaves_plugins", "answers_with_too_much"}


@pytest.fixture
async def box():
    async with LocalSandbox(trusted=True) as box:
        yield box


async def graded(box, source, task=None, seconds=None):
    step = load_problem(task or Task(metadata={"format": "function", **ROW})).steps[0]
    await prepare(box, step)
    await place(box, {"solution.py": source} if isinstance(source, str) else source)
    grader = step.grader if seconds is None else type(step.grader)(step.grader.job, step.grader.files, seconds)
    async with LocalSandbox(trusted=True) as tests:
        return await grader.grade_apart(box, box if isinstance(box, FakeSandbox) else tests)


@pytest.mark.thorough
async def test_gold_scores_one_the_stub_zero_and_half_is_half(box):
    gold = load_problem(Task(metadata={"format": "function", **ROW})).steps[0].gold.files
    assert (await graded(box, gold)).score == 1.0
    stub = await graded(box, ROW["prompt"])
    assert (stub.score, stub.parts) == (0.0, {"tests": 0.0})
    half = await graded(box, "def half(x): return x // 2\n")
    assert (half.score, half.parts) == (0.0, {"tests": 0.8})
    assert "candidate((2, 4)) == (1, 2)  # TypeError" in half.log
    wrong_type = await graded(box, "def half(x): return [1, 2] if isinstance(x, tuple) else x // 2\n")
    assert wrong_type.parts == {"tests": 0.8}


@pytest.mark.thorough
async def test_what_is_defined_beside_the_function_serves_the_tests_too(box):
    tasks = {task.id: task for task in human_eval()}
    assert len(tasks) == 164
    for name in ("HumanEval/32", "HumanEval/33", "HumanEval/38"):
        gold = load_problem(tasks[name]).steps[0].gold.files
        assert (await graded(box, gold, tasks[name])).score == 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(set(ON_THE_VERDICT) - SLOW))
async def test_no_lie_is_believed(box, name):
    await prepare(box, load_problem(Task(metadata={"format": "function", **ROW})).steps[0])
    for command in ON_THE_VERDICT[name]:
        await box.exec(command, check=True)
    found = await graded(box, {})
    assert found.score == 0.0, found
    assert found.parts["tests"] == 0.0


@pytest.mark.thorough
async def test_what_is_true_is_still_believed_after_a_harmless_lie(box):
    found = await graded(box, "print('FAILED')\n" + ROW["prompt"] + ROW["canonical_solution"] + "\nprint('FAILED')")
    assert found.score == 1.0


@pytest.mark.thorough
async def test_code_that_never_ends_scores_zero_at_its_deadline(box):
    assert (await graded(box, "while True: pass", seconds=0.5)).score == 0.0
    found = await graded(box, "def half(x):\n    while x: pass\n    return x", seconds=0.5)
    assert found.score == 0.0
    assert "took too long" in found.log


async def test_a_sandbox_in_which_no_test_can_begin_is_an_error_and_no_score():
    async with FakeSandbox(lambda call: ExecResult(127, "", "bash: python3: not found")) as box:
        with pytest.raises(InfraError, match=r"the tests did not begin .exit code 127.: bash: python3: not found"):
            await graded(box, "")


def test_a_row_without_its_keys_is_refused():
    with pytest.raises(ConfigError, match=r"task 'x'.*entry_point.*is missing"):
        load_problem(Task(id="x", metadata={"format": "function", "prompt": "", "test": ""}))


# --- folders ----------------------------------------------------------------------------------------------------------

TESTS = """
import pytest
from clock import TooLateError, minutes, when
import clock

@pytest.fixture
def noon(): return 12 * 60

def test_minutes(noon): assert minutes("12:00") == noon
def test_when(): assert when(61) == ("1", "01")
def test_constant(): assert clock.DAY == 1440
def test_errors():
    with pytest.raises(ValueError, match="no time"): minutes("x")
    with pytest.raises(TooLateError): minutes("25:00")
"""
SOLUTION = """
DAY = 1440
class TooLateError(ValueError): pass
def minutes(text):
    hours, _, rest = text.partition(":")
    if not rest: raise ValueError("no time")
    if int(hours) > 23: raise TooLateError
    return int(hours) * 60 + int(rest)
def when(minute): return str(minute // 60), f"{minute % 60:02}"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "clock.py").write_text("def minutes(text): pass\ndef when(minute): pass\n")
    (tmp_path / "clock_test.py").write_text(TESTS)
    (tmp_path / "instruction.md").write_text("Tell the time.")
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution" / "clock.py").write_text(SOLUTION)
    return Task(id="clock", metadata={"format": "folder", "path": str(tmp_path)})


@pytest.mark.thorough
async def test_a_folder_with_a_stub_and_pytest_files(folder, box):
    step = load_problem(folder).steps[0]
    assert (step.instruction, step.carry) == ("Tell the time.", ("clock.py",))
    stub = await graded(box, {}, folder)
    assert (stub.score, stub.parts) == (0.0, {"tests": 0.0})
    gold = await graded(box, step.gold.files, folder)
    assert (gold.score, gold.parts) == (1.0, {"tests": 1.0}), gold.log
    partly = await graded(box, {"clock.py": SOLUTION.replace("1440", "1441")}, folder)
    assert (partly.score, partly.parts) == (0.0, {"tests": 0.75})
    assert "test_constant" in partly.log


@pytest.mark.thorough
async def test_the_work_finds_no_tests_while_it_runs(folder, box):
    spy = "import os\nfound = [file for _, _, files in os.walk('.') for file in files]\n"
    spy += "assert not [file for file in found if 'test' in file], found\n"
    found = await graded(box, {"clock.py": SOLUTION + spy}, folder)
    assert found.score == 1.0, found.log


@pytest.mark.thorough
async def test_a_plugin_that_the_work_brings_is_not_used(folder, box):
    forged = "import os, sys\nsys.stderr.write('4 passed')\nos._exit(0)\n"
    assert (await graded(box, {"clock.py": forged, "conftest.py": forged}, folder)).parts == {"tests": 0.0}


def test_a_folder_without_tests_or_instruction_is_refused(tmp_path):
    task = Task(id="t", metadata={"format": "folder", "path": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"task 't'.*no tests"):
        load_problem(task)
    (tmp_path / "test_a.py").touch()
    with pytest.raises(ConfigError, match="no stub"):
        load_problem(task)
    (tmp_path / "a.py").touch()
    with pytest.raises(ConfigError, match="no instruction"):
        load_problem(task)
