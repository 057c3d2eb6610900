import math
import re

import pytest

from agentrl import InfraError
from agentrl.sandbox import CommandError, ExecResult
from agentrl_envs.coding.formats.harbor.config import Collect
from agentrl_envs.coding.formats.harbor.verify import HarborGrader, read_rewards
from agentrl_sandbox import FakeSandbox, LocalSandbox


class Box(FakeSandbox):
    """Plays the commands of the grader; `writes` is what test.sh leaves in /logs/verifier."""

    def __init__(self, writes, files=None, *, hangs=False):
        super().__init__(self.play, files=files)
        self.writes, self.hangs, self.tested_with = writes, hangs, {}

    def play(self, call):
        for path in re.findall(r"rm (?:-rf )?(?:-- )?(/.*)", call.cmd):
            for gone in path.split():
                for name in [name for name in self.files if name == gone or name.startswith(gone + "/")]:
                    del self.files[name]
        if "test.sh) >" in call.cmd:
            self.tested_with = {path: text for path, text in self.files.items() if "/.agentrl-tests-" not in path}
            for name, content in self.writes.items():
                self.files[f"/logs/verifier/{name}"] = content.encode()
            return ExecResult(7, timed_out=self.hangs)
        if match := re.search(r"head -c \d+ -- (\S+)", call.cmd):
            content = self.files.get(match[1])
            return ExecResult(1) if content is None else ExecResult(0, content.decode())
        return ExecResult(0)


@pytest.fixture
def tests(tmp_path):
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test.sh").write_text("true\n")
    return folder


async def graded(tests, writes, files=None, **options):
    hangs = options.pop("hangs", False)
    async with Box(writes, files, hangs=hangs) as box:
        return await HarborGrader((tests,), **options).grade(box), box


async def test_the_reward_is_read_whatever_the_exit_code(tests):
    grade, box = await graded(tests, {"reward.txt": "0.5\n", "test-stdout.txt": "half"}, user="dev", env={"A": "1"})
    assert (grade.score, grade.log) == (0.5, "half")
    ran = next(call for call in box.calls if "test.sh) >" in call.cmd)
    assert (ran.user, ran.env) == ("dev", {"A": "1"})


async def test_what_the_agent_left_is_removed_before_the_tests_are_placed(tests):
    left = {"/logs/verifier/reward.json": '{"reward": 1}', "/tests/conftest.py": "evil", "/app/x": "work"}
    grade, box = await graded(tests, {"reward.txt": "0"}, left)
    assert grade.score == 0.0
    assert sorted(box.tested_with) == ["/app/x", "/tests/test.sh"]
    assert all(call.user == "root" for call in box.calls if "rm " in call.cmd)


async def test_an_image_keeps_its_own_files_in_tests(tests):
    _, box = await graded(tests, {"reward.txt": "1"}, {"/tests/data": "1"}, fresh=False)
    assert sorted(box.tested_with) == ["/tests/data", "/tests/test.sh"]


async def test_the_agent_does_not_see_the_tests_in_its_next_step(tests):
    _, box = await graded(tests, {"reward.txt": "1"}, more=True)
    assert not [path for path in box.files if path.startswith(("/tests", "/logs"))]


async def test_json_comes_first_and_its_other_numbers_are_parts(tests):
    grade, _ = await graded(tests, {"reward.txt": "0", "reward.json": '{"reward": 0.25, "style": 1}'})
    assert (grade.score, dict(grade.parts)) == (0.25, {"reward": 0.25, "style": 1.0})
    grade, _ = await graded(tests, {"reward.json": '{"a": 0, "b": 1}'})
    assert grade.score == 0.5


async def test_hooks_run_before_the_tests_are_there(tests):
    _, box = await graded(tests, {"reward.txt": "1"}, collect=(Collect(command="dump", user="0"),))
    assert box.calls[0].cmd == "dump"


async def test_no_reward_is_an_error_with_what_the_tests_said(tests):
    with pytest.raises(InfraError, match=r"neither reward\.json nor reward\.txt; test\.sh wrote: no pytest here"):
        await graded(tests, {"test-stdout.txt": "no pytest here"})
    with pytest.raises(InfraError, match="did not end within 600 s"):
        await graded(tests, {"reward.txt": "1"}, hangs=True)


async def test_nothing_is_removed_where_commands_see_this_machine(tests):
    async with LocalSandbox(trusted=True) as box:
        with pytest.raises(CommandError, match="files of this machine"):
            await HarborGrader((tests,)).grade(box)


@pytest.mark.parametrize("written", ["", " \n", "nan", "inf", "-inf", "1e999", "yes", "1 2", "[1]"])
def test_a_text_that_is_not_one_finite_number_is_an_error(written):
    with pytest.raises(ValueError, match=r"reward\.txt"):
        read_rewards(None, written)


@pytest.mark.parametrize(
    "written",
    ["", "{", "1", "[1]", "{}", '{"reward": "1"}', '{"reward": NaN}', '{"reward": 1e999}', '{"reward": null}',
     '{"reward": 1, "other": Infinity}', '{"reward": 1' + "0" * 400 + "}"],
)  # fmt: skip
def test_json_that_is_not_finite_numbers_is_an_error_even_beside_a_good_text(written):
    with pytest.raises(ValueError, match=r"reward\.json"):
        read_rewards(written, "1")


def test_finite_numbers_are_read():
    assert read_rewards(None, " -0.5\n") == {"reward": -0.5}
    assert read_rewards('{"reward": true}', None) == {"reward": 1.0}
    assert math.isfinite(read_rewards(None, "1e300")["reward"])


NO_RUNNER = "curl: (6) Could not resolve host: astral.sh\n/tests/test.sh: line 8: uvx: command not found\n"


@pytest.mark.parametrize("writes", [{"reward.txt": "0"}, {"reward.json": '{"reward": 0, "style": 0}'}])
async def test_tests_that_could_not_start_are_no_zero_of_the_agents(tests, writes):
    with pytest.raises(InfraError, match=r"did not start \(.*uvx: command not found\)"):
        await graded(tests, {**writes, "test-stdout.txt": NO_RUNNER})


async def test_a_reward_of_tests_that_ran_counts_whatever_failed_before(tests):
    grade, _ = await graded(tests, {"reward.txt": "0", "test-stdout.txt": f"{NO_RUNNER}=== 1 failed in 0.12s ===\n"})
    assert grade.score == 0.0
    grade, _ = await graded(tests, {"reward.txt": "1", "test-stdout.txt": NO_RUNNER})
    assert grade.score == 1.0
