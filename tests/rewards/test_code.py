"""Unit tests as a reward: right code earns 1, wrong code 0, and no lie is believed."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl import ConfigError, InfraError, Reward, SandboxError
from agentrl.rewards import ModelOutput, UnitTests
from agentrl.sandbox import ExecResult, SandboxKilledError
from agentrl_envs.coding.formats import functions
from agentrl_envs.coding.formats.functions import human_eval
from agentrl_envs.coding.formats.inside.check import says_the_same
from agentrl_envs.coding.suites import code_block, suite
from agentrl_sandbox.fake.backend import FakeBackend
from tests.envs.coding.attacks import ON_THE_VERDICT
from tests.sandbox.engine import REQUIRED, entered

ADD = "def add(a, b):\n    return a + b\n"
ASSERTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add('a', 'b') == 'ab'", "assert add(0, 0) == 0"]
SUM_OF_LINES = "import sys\nprint(sum(int(line) for line in sys.stdin))\n"
STREAMS = {"inputs": ["1\n2\n", ["3", "4"]], "outputs": ["3\n", ["7"]]}
RIGHT = Reward(1.0, {"passed": 1.0})
WRONG = Reward(0.0, {"passed": 0.0})


def fenced(code):
    return f"Here it is.\n```python\n{code}\n```\nDone."


def wrote(code, label, **given):
    return ModelOutput.of_turns([fenced(code)], label=label, **given)


@pytest.fixture
async def tests():
    """Closed after the test, as an event loop does that ends."""
    made = UnitTests("local", concurrency=4)
    yield made
    await made.close()


LABELS = {
    "asserts as text": "\n".join(ASSERTS),
    "HumanEval's row": {"test": "def check(candidate):\n    assert candidate(1, 2) == 3\n", "entry_point": "add"},
    "HumanEval's and a call": "def check(f):\n    assert f(1, 2) == 3\ncheck(add)",
    "test functions": """
from solution import add
def test_one():
    assert add(1, 2) == 3
def test_two():
    for x in range(3): assert add(x, x) == 2 * x""",
    "a module": "import solution\nassert solution.add(1, 2) == 3",
    "an error is right": """
def test():
    try:
        add(1, "")
        assert False
    except TypeError:
        pass""",
    "pytest": """from __future__ import annotations
import pytest
@pytest.mark.parametrize("x", [1, 2])
def test_it(x):
    assert add(x, x) == 2 * x
def test_error():
    with pytest.raises(TypeError): add(1, "")""",
    "unittest": """
import unittest
class TestAdd(unittest.TestCase):
    def test_it(self): self.assertEqual(add(1, 2), 3)""",
}
NO_ADD = ["def add(a, b):\n    return None\n", "def ad(a, b):\n    return a + b\n", "", "def add(a, b) return a + b"]


@pytest.mark.thorough
@pytest.mark.parametrize("label", LABELS)
async def test_a_label_tells_right_from_wrong(label, tests):
    wrong = NO_ADD if label == "asserts as text" else NO_ADD[: label in ("HumanEval's row", "test functions", "pytest")]
    found = await asyncio.gather(*[tests.grade(wrote(code, LABELS[label])) for code in (ADD, *wrong)])
    assert found == [RIGHT, *[WRONG] * len(wrong)]


@pytest.mark.parametrize(
    "label",
    [
        ASSERTS,
        json.dumps(ASSERTS),
        {"test": LABELS["asserts as text"], "entry_point": "add"},
        {"test_list": ASSERTS, "test_setup_code": "", "challenge_test_list": []},
        {"reward_model": {"ground_truth": json.dumps({"test_list": ASSERTS})}},
    ],
)
def test_other_forms_of_the_same_tests(label):
    found = suite(label)
    text = found.job["test"].strip()
    assert (text, found.job["names"]) == (LABELS["asserts as text"], ["add"])


@pytest.mark.thorough
async def test_the_share_is_a_part_and_on_request_the_reward(tests):
    most = wrote("def add(a, b):\n    return a + b if isinstance(a, int) else 0\n", ASSERTS)
    assert await tests.grade(most) == Reward(0.0, {"passed": 0.75})
    tests.partial = True
    assert await tests.grade(most) == Reward(0.75, {"passed": 0.75})


@pytest.mark.thorough
async def test_tests_that_were_not_reached_count_as_failed(tests):
    label = (
        "def test_it():\n    assert add(1, 2) == 3\n    x = add(3, 4)\n    assert x == 7\n    assert add(0, 0) == 0\n"
    )
    code = "def add(a, b):\n    if a == 3: raise SystemExit(0)\n    return a + b\n"
    assert (await tests.grade(wrote(code, label))).parts == {"passed": 1 / 3}


@pytest.mark.thorough
async def test_programs_read_stdin_and_write_stdout(tests):
    floats = {"inputs": [""], "outputs": ["1 0.3333333"]}
    cases = [
        (SUM_OF_LINES, STREAMS, 1.0),
        (SUM_OF_LINES, json.dumps(STREAMS), 1.0),
        (
            f"def main():\n    {SUM_OF_LINES.splitlines()[1]}\nimport sys\nif __name__ == '__main__': main()",
            STREAMS,
            1.0,
        ),
        ("print(3)", STREAMS, 0.5),
        (f"{SUM_OF_LINES}sys.exit(1)", STREAMS, 0.0),
        ("print(1, 1/3)", floats, 1.0),
        ("print(1, 0.3334)", floats, 0.0),
        ("print(1.0, 1/3)", floats, 1.0),
        ("print(1)\nprint(1/3)", floats, 0.0),
    ]
    found = await asyncio.gather(*[tests.grade(wrote(code, label)) for code, label, _ in cases])
    assert [grade.parts["passed"] for grade in found] == [share for *_, share in cases]


@pytest.mark.thorough
async def test_a_function_that_is_called_like_a_builtin_one(tests):
    label = "assert sum(10, 15) == 6"  # the divisors that both have
    right = "def sum(a, b):\n    return __builtins__['sum'](x for x in range(1, min(a, b)) if a % x == b % x == 0)"
    assert await tests.grade(wrote(right, label)) == RIGHT
    replaced = "def add(a, b): return 0\ndef set(*a): return 0\ndef abs(*a): return 0\n"
    assert await tests.grade(wrote(replaced, "assert set(add([1], [2])) == set([1, 2])")) == WRONG


async def test_what_stands_beside_humanevals_function_is_the_tasks_own(tests):
    row = {task.id: dict(task.metadata) for task in human_eval()}["HumanEval/32"]
    forged = "def poly(xs, x): return 0.0\ndef find_zero(xs): return 0.0\n"
    assert await tests.grade(wrote(forged, row)) == WRONG
    with pytest.raises(ConfigError, match="test uses poly, which it does not define; add the task's prompt"):
        await tests.grade(wrote(forged, {"test": row["test"], "entry_point": "find_zero"}))


# --- held-out solutions -------------------------------------------------------------------------------------------

MUTANTS = {
    "HumanEval/0": ("distance < threshold", "distance > threshold"),
    "HumanEval/38": ("encode_cyclic(encode_cyclic(s))", "encode_cyclic(s)"),
    "HumanEval/53": ("x + y", "x - y"),
    "HumanEval/130": ("i % 2 == 0", "i % 2 == 1"),
}


@pytest.mark.thorough
async def test_humanevals_solutions_are_right_and_their_mutants_wrong(tests):
    rows = {task.id: dict(task.metadata) for task in human_eval()}

    async def both(name):
        row, (old, new) = rows[name], MUTANTS[name]
        gold = row["prompt"] + row["canonical_solution"]
        mutant = row["prompt"] + row["canonical_solution"].replace(old, new)
        assert mutant != gold, name
        return [(await tests.grade(wrote(code, row))).value for code in (gold, mutant)]

    assert await asyncio.gather(*map(both, MUTANTS)) == [[1.0, 0.0]] * len(MUTANTS)


# --- lies ---------------------------------------------------------------------------------------------------------

ON_ALL = ("exits_at_once", "forges_the_verdict", "reads_the_secret", "kills_the_tests")
ON_FUNCTIONS = ("prints_passed", "equals_everything", "replaces_builtins", "forges_replies")
LIES = {
    name: ON_THE_VERDICT[name][0].split("'END_OF_ATTACK'\n", 1)[1].rsplit("\nEND_OF_ATTACK", 1)[0]
    for name in (*ON_ALL, *ON_FUNCTIONS)  # tests/envs/coding/test_functions.py plays the others
}
LIES |= {
    "exits_with_success": "import sys\nsys.exit(0)",
    "patches_pytest_and_ast": """
import ast, builtins, sys, types
class Anything(types.ModuleType):
    def __getattr__(self, name): return lambda *a, **k: True
for name in ("pytest", "_pytest", "unittest", "json", "check", "tests"):
    sys.modules[name] = Anything(name)
builtins.compile = builtins.exec = builtins.__import__ = lambda *a, **k: None
""",
    "reads_the_tests_from_disk": """
import glob, os, re
def add(a, b):
    for file in glob.glob("/proc/*/cmdline") + [os.path.join(d, f) for d, _, fs in os.walk(".") for f in fs]:
        try: text = open(file).read()
        except (OSError, UnicodeDecodeError): continue
        for want in re.findall(rf"add\\({a!r}, {b!r}\\) == (\\S+)", text): return eval(want)
""",
    "reads_the_parents_frames": """
import gc, sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if isinstance(value, dict) and "secret" in value: return eval(value["test"].split("== ")[1].split()[0])
        frame = frame.f_back
    for value in gc.get_objects():
        if isinstance(value, dict) and "streams" in value: return value["streams"][0][1]
""",
    "is_an_int_that_is_equal_to_everything": """
class Answer(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def add(a, b): return Answer(41)
""",
    "says_its_own_verdict": """
import os
for fd in range(8):
    try: os.write(fd, b'begun\\n{"passed": 1, "total": 1, "log": ""}\\n')
    except OSError: pass
""",
}
TWICE = {"functions": "assert add(1, 2) == 3\nassert add(2, 3) == 5", "programs": STREAMS}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "names"), [("functions", tuple(LIES)), ("programs", (*ON_ALL, "says_its_own_verdict"))]
)
async def test_no_lie_is_believed(kind, names, tests):
    found = await asyncio.gather(*[tests.grade(wrote(LIES[name], TWICE[kind])) for name in names])
    assert dict(zip(names, found, strict=True)) == dict.fromkeys(names, WRONG)


@pytest.mark.thorough
async def test_pytests_own_tests_believe_no_lie(tests):
    names = ["exits_at_once", "patches_pytest_and_ast"]
    found = await asyncio.gather(*[tests.grade(wrote(LIES[name], LABELS["pytest"])) for name in names])
    assert found == [WRONG] * len(names)


async def test_a_character_that_no_file_can_hold_is_no_bug(tests):
    assert await tests.grade(wrote(f"# \udc80\n{ADD}", ASSERTS)) == RIGHT


@pytest.mark.thorough
async def test_what_is_true_is_believed_though_it_prints_lies(tests):
    assert await tests.grade(wrote(f"print('FAILED')\n{ADD}", ASSERTS)) == RIGHT


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TWICE)
async def test_code_that_takes_too_long_gets_nothing_and_dies_with_its_children(kind, tmp_path, tests):
    mark = str(tmp_path / "child")
    code = (
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', {mark!r}])\n"
    )
    tests.seconds = 0.5
    assert await tests.grade(wrote(f"{code}while True: pass", TWICE[kind])) == WRONG
    await tests.close()
    assert not [line for line in _command_lines() if mark.encode() in line]


def _command_lines():
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield (folder / "cmdline").read_bytes()
        except OSError:
            continue


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["bubblewrap", "docker"])
async def test_where_it_isolates_code_that_uses_up_its_sandbox_gets_nothing(backend):
    async with entered(backend):
        pass
    codes = [ADD, "held = []\nwhile True: held.append(bytearray(1 << 24))", LIES["reads_the_secret"]]
    if backend in REQUIRED:  # these take their time
        codes.append("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
    tests = UnitTests(backend, seconds=5, concurrency=2, spec={"memory_mb": 128, "pids": 64, "disk_mb": 16})
    found = await asyncio.gather(*[tests.grade(wrote(code, ASSERTS)) for code in codes])
    await tests.close()
    assert found == [RIGHT, *[WRONG] * (len(codes) - 1)]


# --- the world ----------------------------------------------------------------------------------------------------


def no_python(call):
    return ExecResult(127, "", "bash: python3: not found")


def lost(call):
    raise SandboxError("its connection was lost")


def killed(call):
    raise SandboxKilledError("it used up its memory")


class Broken(FakeBackend):
    script = no_python

    def __init__(self):
        super().__init__(type(self).script)


class Closed(FakeBackend):
    async def __aenter__(self):
        raise SandboxError("no engine answers; start it")


@pytest.mark.parametrize(("script", "said"), [(no_python, "the tests did not begin"), (lost, "connection was lost")])
async def test_a_sandbox_that_breaks_is_a_failure_and_no_zero(script, said, monkeypatch):
    monkeypatch.setattr(Broken, "script", script)
    tests = UnitTests(f"{__name__}:Broken", concurrency=1)
    with pytest.raises(InfraError, match=said):
        await tests.grade(wrote(ADD, ASSERTS))
    await tests.close()


async def test_tests_that_import_what_the_sandbox_lacks_are_a_failure_and_no_zero(tests):
    with pytest.raises(InfraError, match="No module named 'no_such_module'"):
        await tests.grade(wrote(ADD, f"import no_such_module\n{ASSERTS[0]}"))


async def test_a_back_end_that_does_not_open_is_a_failure_each_time():
    tests = UnitTests(f"{__name__}:Closed", concurrency=1)
    for _ in range(2):
        with pytest.raises(SandboxError, match="no engine answers; start it"):
            await tests.grade(wrote(ADD, ASSERTS))


async def test_a_sandbox_that_the_code_ended_is_a_zero(monkeypatch):
    monkeypatch.setattr(Broken, "script", killed)
    tests = UnitTests(f"{__name__}:Broken", concurrency=1)
    assert await tests.grade(wrote(ADD, ASSERTS)) == WRONG
    await tests.close()


@pytest.mark.thorough
async def test_slime_hands_over_a_label_as_json(tests):
    given = {"prompt": "p", "label": json.dumps(STREAMS), "metadata": {}, "loss_mask": None, "reward": None}
    sample = SimpleNamespace(**given, response=fenced(SUM_OF_LINES), index=0, group_index=0)
    assert await tests(SimpleNamespace(hf_checkpoint="tiny"), sample) == 1.0


@pytest.mark.thorough
def test_the_sandboxes_end_with_the_event_loop_and_each_loop_has_its_own(tmp_path):
    code = f"open({str(tmp_path / 'where')!r}, 'a').write(__file__ + '\\n')\n{ADD}"
    tests = UnitTests("local", concurrency=2)

    async def both():
        return await asyncio.gather(*[tests.grade(wrote(code, ASSERTS)) for _ in range(2)])

    assert [asyncio.run(both()) for _ in range(2)] == [[RIGHT, RIGHT]] * 2
    files = set((tmp_path / "where").read_text().split())
    assert len(files) == 4
    assert not [file for file in files if os.path.exists(os.path.dirname(file))]


async def test_without_a_block_there_is_nothing_to_run_and_no_sandbox_is_made():
    tests = UnitTests("nowhere")
    for turn in (
        ADD,
        "",
        f"<think>{fenced(ADD)}",
        f"```python\n{ADD}",
        f"```bash\n{ADD}\n```",
        fenced(ADD + "#" * 20_000),
    ):
        assert await tests.grade(ModelOutput.of_turns([turn], label=ASSERTS)) == WRONG
    observed = ModelOutput.of_turns(["no code"], observed=(fenced(ADD),), prompt=fenced(ADD), label=ASSERTS)
    assert await tests.grade(observed) == WRONG


@pytest.mark.parametrize(
    ("word", "wanted", "same"),
    [
        ("3.0", "3", True),
        ("3.", "3", True),
        ("-0.0", "0", True),
        ("1e+20", "100000000000000000000", True),
        ("3", "3.0", True),
        ("3.0000001", "3.0", True),
        ("3.0000001", "3", False),
        ("3.5", "3", False),
        ("007", "7", False),
        ("1e999999999", "7", False),
        ("nan", "3", False),
        ("3.0", "three", False),
        ("1_0.0", "10", False),
        ("True", "1", False),
    ],
)
def test_a_whole_number_may_be_printed_as_a_fraction(word, wanted, same):
    assert says_the_same(f"x {word}\n", f"x {wanted}") is same


@pytest.mark.thorough
async def test_a_module_that_the_image_lacks_is_named(tests, caplog, monkeypatch):
    monkeypatch.setattr(functions, "_warned", set())
    for label in (ASSERTS, STREAMS, LABELS["pytest"]):
        answer = wrote(f"import no_such_lib.linalg as la\nimport json, collections.abc\n{ADD}", label)
        assert await tests.grade(answer) == WRONG
    assert await tests.grade(wrote("def add(a, b): pass", ASSERTS)) == WRONG
    said = [record.message for record in caplog.records if "lacks" in record.message]
    assert said == [
        "the work imports no_such_lib, which the sandbox's image lacks; use an image that has it "
        "(code that needs it gets 0)"
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "label",
    [
        "import no_such_lib\nassert add(1, 2) == 3",
        "def test():\n    import no_such_lib\n    assert add(1, 2) == 3",
        "import pytest\nimport no_such_lib\ndef test_it(tmp_path):\n    assert add(1, 2) == 3",
    ],
)
async def test_tests_that_need_a_missing_module_are_no_zero_of_the_code(tests, label):
    with pytest.raises(InfraError, match=r"the tests did not begin.*no_such_lib"):
        await tests.grade(wrote(ADD, label))


@pytest.mark.thorough
async def test_tests_may_try_an_import(tests):
    label = "try:\n    import no_such_lib\nexcept ImportError:\n    pass\nassert add(1, 2) == 3"
    assert await tests.grade(wrote(ADD, label)) == RIGHT


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```\na\n```\n```py\nb\n```", "b\n"),
        ("```python\na\n```\nprints\n```text\n3\n```", "a\n"),
        ("~~~~ Python3 title\n```\n~~~\n~~~~", "```\n~~~\n"),
        ("1. so:\n   ```python\n   def f():\n       pass\n   ```", "def f():\n    pass\n"),
        ("```python\r\na\r\n```", "a\n"),
        ("```python\nprint(3)\n```\nIt prints:\n```\n3\n```", "print(3)\n"),
        ("```python\na\n```\n```\n>>> f(1)\n2\n```", "a\n"),
        ("```python\na\n```\nBetter:\n```\ndef f():\n    pass\n```", "def f():\n    pass\n"),
        ("```\na\n```\n```\nb\n```", "b\n"),
        ("1. so:\n\n    ```python\n    def f():\n        pass\n    ```", "def f():\n    pass\n"),
        ("- so:\n\t```python\n\tdef f():\n\t    pass\n\t```", "def f():\n    pass\n"),
        ("- ```python\n  def f():\n      pass\n  ```", "def f():\n    pass\n"),
        ("10. ```python\n    a\n    ```", "a\n"),
        ('      ```python\n      s = """\nx\n"""\n      ```', 's = """\nx\n"""\n'),
        (
            '```python\ndef f():\n    """\n    ```\n    x\n    ```\n    """\n```',
            'def f():\n    """\n    ```\n    x\n    ```\n    """\n',
        ),
        ("```python\nif x:\n\ta\n```", "if x:\n\ta\n"),
        ("```python:solution.py\na\n```\n```\n3\n```", "a\n"),
        ("```{.python}\na\n```", "a\n"),
        ("```python\n```", ""),
        ("```python\na\n```\n```python\nb", None),
        ("`a`", None),
    ],
)
def test_the_last_block_counts(text, code):
    assert code_block(text) == code


@pytest.mark.parametrize(
    ("label", "why"),
    [
        (None, "it is neither a text"),
        (3, "it is neither a text"),
        ("", "does not name the function"),
        ("assert add(1", "it is not valid Python"),
        ("add(1, 2)", "it asserts nothing"),
        ("assert len([]) == sum([])", "does not name the function"),
        ({"tests": ASSERTS}, "write its tests under test"),
        ({"test": ASSERTS}, "test must be a text"),
        ({"test": "def check(f):\n    pass", "entry_point": "add"}, "it asserts nothing"),
        ({"test": "def check(f):\n    assert f()", "entry_point": "Solution().add"}, "entry_point the name"),
        ({"inputs": ["1"], "outputs": []}, "there are 1 inputs and 0 outputs"),
        ({"inputs": [[1]], "outputs": [[2]]}, "one of the inputs is neither a text"),
        ({"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}, "write them as asserts"),
        ("def check(f):\n    assert abs(f(1, 2)) == 3", "name the function that `check` gets as entry_point"),
        ("async def test_it():\n    assert await add(1, 2) == 3", "async function"),
        ("import pytest\nassert add(1, 2) == 3", "must be in test functions"),
    ],
)
async def test_a_label_without_tests_is_refused_by_name(label, why):
    with pytest.raises(ConfigError, match=f"the label .*{why}") as refused:
        await UnitTests("nowhere").grade(wrote(ADD, label))
    assert repr(label)[:200] in str(refused.value)


@pytest.mark.parametrize("given", [{"seconds": 0}, {"concurrency": 0}, {"spec": {"memory": 1}}, {"backend": "nowhere"}])
async def test_a_setting_that_cannot_work_is_refused(given):
    with pytest.raises(ConfigError):
        await UnitTests(**given).grade(wrote(ADD, ASSERTS))


@pytest.mark.thorough
def test_it_has_one_name_under_both_hosts_and_only_its_users_import_sandboxes():
    code = "import sys; from agentrl.rewards import em; "
    code += "print([name for name in sys.modules if name.startswith(('agentrl_sandbox', 'agentrl_envs'))]); "
    code += "from agentrl.rewards import unit_tests as one; "
    code += "from agentrl._util.loading import load_object as load; "
    code += "assert one is load('agentrl.rewards:unit_tests') is load('agentrl.rewards.unit_tests'); "
    code += "print([name for name in ('aiodocker', 'torch', 'transformers') if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n[]\n"
