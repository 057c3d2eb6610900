"""FakeSandbox: what it adds to the protocol for those who write tests with it."""

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult
from agentrl_sandbox import ExecCall, FakeSandbox


async def test_a_mapping_answers_by_the_exact_command():
    async with FakeSandbox({"ls": ExecResult(0, "a\n"), "ls b": ExecResult(2, "", "no b")}) as box:
        assert await box.exec("ls") == (0, "a\n", "")
        assert await box.exec("ls b") == (2, "", "no b")


@pytest.mark.parametrize("script", [None, {}, {"ls": ExecResult(0)}])
async def test_a_command_outside_the_script_is_a_mistake_of_the_test(script):
    async with FakeSandbox(script) as box:
        with pytest.raises(LookupError, match="no reply to 'rm x'; add it to the script"):
            await box.exec("rm x")


async def test_a_function_sees_the_whole_call():
    async with FakeSandbox(lambda call: ExecResult(0, f"{call.user} in {call.cwd}")) as box:
        assert (await box.exec("whoami", user="agent", cwd="/repo")).stdout == "agent in /repo"


async def test_calls_are_recorded_in_order_also_those_that_fail():
    async with FakeSandbox({"a": ExecResult(0)}) as box:
        await box.exec("a", env={"K": "v"}, timeout=5, idempotent=False, stdin=b"in", max_output=9)
        with pytest.raises(LookupError):
            await box.exec("b")
    assert [call.cmd for call in box.calls] == ["a", "b"]
    assert box.calls[0] == ExecCall("a", "agent", {"K": "v"}, 5, False, False, None, b"in", 9)


@pytest.mark.parametrize("error", [SandboxError("the container died"), TimeoutError("the script's own")])
async def test_a_script_can_break_the_sandbox(error):
    def broken(call):
        raise error

    async with FakeSandbox(broken) as box:
        with pytest.raises(type(error), match=str(error)):
            await box.exec("ls")


async def test_files_given_and_written_are_to_be_seen():
    async with FakeSandbox(files={"etc/motd": "hi", "/bin/x": b"\x7fELF"}) as box:
        assert await box.read_file("/etc/motd") == "hi"
        await box.write_file("/etc/../new", "text")
    assert box.files == {"/etc/motd": b"hi", "/bin/x": b"\x7fELF", "/new": b"text"}


async def test_the_flags_of_a_scripted_result_are_kept():
    async with FakeSandbox({"ls": ExecResult(0, "half", timed_out=True, truncated=True)}) as box:
        result = await box.exec("ls")
    assert (result.stdout, result.timed_out, result.truncated) == ("half", True, True)


async def test_max_output_counts_bytes_not_characters():
    async with FakeSandbox({"ls": ExecResult(0, "ééé", "e")}) as box:
        result = await box.exec("ls", max_output=4)
    assert (result.stdout, result.stderr) == ("é\n[... 2 bytes left out ...]\né", "e")
    assert result.truncated
