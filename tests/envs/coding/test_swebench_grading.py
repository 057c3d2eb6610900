import json

import pytest

from agentrl import ConfigError
from agentrl_envs.coding.formats.swebench import grade_log, parse_instance, read_instances
from agentrl_envs.coding.formats.swebench.grading import END, EXIT_CODE, START
from agentrl_envs.coding.formats.swebench.logs import read_log


def instance(fail, kept=(), **fields):
    row = {"instance_id": "o__r-1", "FAIL_TO_PASS": json.dumps(fail), "PASS_TO_PASS": list(kept), **fields}
    return parse_instance(row)


def log(output, code=None):
    behind = "" if code is None else f"{EXIT_CODE}: {code}\n"
    return f"+ git apply\n+ : '{START}'\n{output}\n+ : '{END}'\n{behind}+ git checkout abc\n"


def summary(*lines, total):
    return "\n".join(
        ["=== test session starts ===", "=== short test summary info ===", *lines, f"=== {total} in 0.10s ==="]
    )


FIX, KEPT = "tests/a.py::test_fix", "tests/a.py::test_kept"
GOOD = summary(f"PASSED {FIX}", f"PASSED {KEPT}", total="2 passed")


def test_lists_may_be_lists_or_json_and_a_row_without_tests_is_refused():
    assert instance([FIX], [KEPT]).fail_to_pass == (FIX,)
    assert instance([FIX], [KEPT, "[100%]"]).pass_to_pass == (KEPT,)
    with pytest.raises(ConfigError, match="doing nothing would resolve it"):
        instance([])
    with pytest.raises(ConfigError, match="FAIL_TO_PASS"):
        parse_instance({"instance_id": "a", "FAIL_TO_PASS": "[oops"})
    with pytest.raises(ConfigError, match="instance_id"):
        parse_instance({"FAIL_TO_PASS": []})


def test_rows_of_either_kind_of_file_are_read(tmp_path):
    row = {"instance_id": "a__b-1", "FAIL_TO_PASS": ["t"], "image": "i", "log_parser": "parse_log_django"}
    for text in (json.dumps([row]), json.dumps(row) + "\n\n"):
        (tmp_path / "rows").write_text(text)
        (found,) = read_instances(tmp_path / "rows")
        assert (found.style, found.image_name) == ("unittest", "i")
    (tmp_path / "rows").write_text('{"instance_id": "a"}\n')
    with pytest.raises(ConfigError, match="row 1"):
        list(read_instances(tmp_path / "rows"))


def test_an_instance_is_resolved_if_every_test_passes():
    report = grade_log(instance([FIX], [KEPT]), log(GOOD))
    assert (report.resolved, report.share()) == (True, {"fail_to_pass": 1.0, "pass_to_pass": 1.0})


@pytest.mark.parametrize(
    ("fixed", "kept", "resolved"),
    [
        ("PASSED", "PASSED", True),
        ("PASSED", "XFAIL", True),
        ("PASSED", "SKIPPED", True),
        ("SKIPPED", "PASSED", False),
        ("XFAIL", "PASSED", True),
        ("FAILED", "PASSED", False),
        ("PASSED", "FAILED", False),
        ("PASSED", "ERROR", False),
    ],
)
def test_what_counts_as_passed(fixed, kept, resolved):
    lines = [f"{fixed} {FIX} - reason", f"{kept} {KEPT}"] if fixed == "FAILED" else [f"{fixed} {FIX}", f"{kept} {KEPT}"]
    words = {"PASSED": "passed", "FAILED": "failed", "SKIPPED": "skipped", "XFAIL": "xfailed", "ERROR": "error"}
    counts = [f"{(fixed, kept).count(status)} {word}" for status, word in words.items() if status in (fixed, kept)]
    report = grade_log(instance([FIX], [KEPT]), log(summary(*lines, total=", ".join(counts))))
    assert report.resolved is resolved
    assert report.fail_to_pass[FIX] is (fixed in ("PASSED", "XFAIL"))


def test_a_test_that_the_log_does_not_name_has_not_passed():
    report = grade_log(instance([FIX], [KEPT]), log(summary(f"PASSED {FIX}", total="1 passed")))
    assert (report.resolved, report.share()) == (False, {"fail_to_pass": 1.0, "pass_to_pass": 0.0})
    assert KEPT in report.reason


SPOOFS = {
    "exit code": log(GOOD, 1),
    "printed by a test that failed": log(f"PASSED {FIX}\n" + summary(f"FAILED {FIX} - no", total="1 failed, 1 passed")),
    "printed beside the real summary": log(summary(f"PASSED {FIX}", f"PASSED {KEPT}", total="1 passed")),
    "a second summary": log(GOOD + "\n" + summary(f"PASSED {FIX}", total="1 passed")),
    "a second end": log(f"{GOOD}\n{END}\nFAILED {FIX}\n"),
    "a second start": log(f"FAILED {FIX}\n{START}\n{GOOD}"),
    "no summary at all, and a code": log(f"PASSED {FIX}\nPASSED {KEPT}", 137),
    "patch not applied": log(GOOD) + ">>>>> Patch Apply Failed\n",
}


@pytest.mark.parametrize("spoof", SPOOFS.values(), ids=SPOOFS)
def test_a_printed_passed_proves_nothing(spoof):
    report = grade_log(instance([FIX], [KEPT]), spoof)
    assert not report.resolved
    assert not report.broken
    assert report.reason


def test_an_exit_code_of_the_caller_counts_where_the_log_has_none():
    assert grade_log(instance([FIX]), log(GOOD), exit_code=0).resolved
    assert not grade_log(instance([FIX]), log(GOOD), exit_code=1).resolved
    assert grade_log(instance([FIX]), log(GOOD, 0), exit_code=1).resolved


@pytest.mark.parametrize(
    "empty", ["", "+ git apply\n", log(""), log("cannot open shared object file"), f"{START}\n{GOOD}"]
)
def test_a_log_without_tests_says_nothing_of_the_work(empty):
    report = grade_log(instance([FIX]), empty)
    assert (report.resolved, report.broken) == (False, True)


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'pytest'",
        "bash: pytest: command not found",
        "OSError: [Errno 101] Network is unreachable",
        "Traceback (most recent call last):\nReadTimeoutError: HTTPSConnectionPool(host='pypi.org', port=443)",
    ],
)
def test_a_runner_that_could_not_start_says_nothing_of_the_work(text):
    for output in (log(text), f"{text}\n{log('')}"):
        assert grade_log(instance([FIX]), output).broken


def test_work_that_cannot_be_loaded_is_no_broken_log():
    report = grade_log(instance([FIX]), log("Traceback (most recent call last):\nImportError: no x"))
    assert (report.resolved, report.broken) == (False, False)


def test_results_beside_the_marks_are_found():
    between = f"{GOOD}\n+ : '{START}'\na warning\n+ : '{END}'\n"
    assert grade_log(instance([FIX], [KEPT]), between).resolved


def test_names_that_were_cut_stand_for_those_that_begin_so_if_they_agree():
    cut = "a.py::test_x[one"
    full = [f"PASSED {cut} two]", f"XFAIL {cut} three]"]
    assert grade_log(instance([cut]), log(summary(*full, total="1 passed, 1 xfailed"))).resolved
    mixed = [f"PASSED {cut} two]", f"FAILED {cut} three]"]
    assert not grade_log(instance([cut]), log(summary(*mixed, total="1 passed, 1 failed"))).resolved
    whole = "a.py::test_x[one]"
    assert not grade_log(instance([whole]), log(summary(f"PASSED {whole}x", total="1 passed"))).resolved


def test_folders_of_a_file_that_is_a_parameter_do_not_matter():
    output = log(summary("PASSED a.py::test_f[/home/x/data.py]", total="1 passed"))
    assert grade_log(instance(["a.py::test_f[/data.py]"]), output).resolved


def test_verbose_lines_and_colours_of_pytest():
    lines = ["a.py::test_one \x1b[32mPASSED\x1b[0m [ 50%]", "a.py::test_two[a b] FAILED", "SKIPPED [3] a.py:4: no"]
    assert read_log("\n".join(lines), "pytest").statuses == {
        "a.py::test_one": "PASSED",
        "a.py::test_two[a b]": "FAILED",
    }


def test_pytest_that_tests_itself_prints_summaries_of_inner_runs():
    inner = summary("FAILED test_x.py::test - no", total="1 failed")
    output = log(f"{inner}\n" + summary("PASSED testing/test_a.py::test_a", total="1 passed"))
    assert grade_log(instance(["testing/test_a.py::test_a"], repo="pytest-dev/pytest"), output).resolved
    assert not grade_log(instance(["testing/test_a.py::test_a"]), output).resolved


UNITTEST = """test_ok (m.Case) ... ok
test_said (m.Case) ... something printed
ok
test_doc (m.Case)
What it is about. ... ok
test_bad (m.Case) ... FAIL
test_skip (m.Case) ... skipped 'no'
test_known (m.Case) ... expected failure
  Applying admin.0001_initial... OK
======================================================================
FAIL: test_bad (m.Case)
Its docstring.
----------------------------------------------------------------------
Ran 6 tests in 0.1s

FAILED (failures=1)
"""


def test_the_lines_of_unittest():
    assert read_log(UNITTEST, "unittest").statuses == {
        "test_ok (m.Case)": "PASSED",
        "test_said (m.Case)": "PASSED",
        "What it is about.": "PASSED",
        "test_bad (m.Case)": "FAILED",
        "test_bad": "FAILED",
        "Its docstring.": "FAILED",
        "test_skip (m.Case)": "SKIPPED",
        "test_known (m.Case)": "XFAIL",
    }


def test_a_second_run_of_unittest_is_doubted():
    case = instance(["test_ok (m.Case)"], repo="django/django")
    assert grade_log(case, log(UNITTEST)).resolved
    spoof = UNITTEST + "test_ok (m.Case) ... ok\nRan 1 test in 0.0s\n\nOK\n"
    assert "reports 2 times" in grade_log(case, log(spoof)).reason


def test_the_lines_of_sympy():
    output = (
        "sympy/core/tests/test_a.py[3] \ntest_one ok\ntest_two F\ntest_three E\ntest_four f\n"
        "____________ sympy/core/tests/test_a.py:test_two ____________\n"
        "====== tests finished: 1 passed, 1 failed, in 0.10 seconds ======\n"
    )
    assert read_log(output, "sympy").statuses == {
        "test_one": "PASSED",
        "test_two": "FAILED",
        "test_three": "ERROR",
        "test_four": "XFAIL",
        "sympy/core/tests/test_a.py:test_two": "FAILED",
    }
