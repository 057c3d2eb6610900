"""What every back end of `agentrl.sandbox.Sandbox` does alike. A new back end joins `BACK_ENDS` and passes."""

import asyncio
import time

import pytest

from agentrl.errors import InfraError, SandboxError
from agentrl.sandbox import CANNOT_RUN, TIMED_OUT, CommandError, ExecResult, Sandbox
from agentrl_sandbox import ExecCall, FakeSandbox, LocalSandbox

BOTH = "echo out; echo err >&2; exit 3"
CAT = "cat"
SHOW = 'printf "%s" "$GREETING"'
PWD = "basename $PWD"
SLOW = "echo begun; sleep 30"
LOUD = "printf %010d 0"
LONG = "true " + "x" * (200 << 10)
NUL = "echo a\0b"


async def fake_shell(call: ExecCall) -> ExecResult:
    """The commands above, as a shell would answer them."""
    if call.cmd == SLOW:
        await asyncio.sleep(30)
    elif call.cmd in (LONG, NUL):
        return ExecResult(CANNOT_RUN, stderr="cannot run the command")
    return {
        BOTH: ExecResult(3, "out\n", "err\n"),
        CAT: ExecResult(0, (call.stdin or b"").decode(errors="replace")),
        SHOW: ExecResult(0, call.env.get("GREETING", "")),
        PWD: ExecResult(0, f"{(call.cwd or '/root').rsplit('/', 1)[-1]}\n"),
        LOUD: ExecResult(0, "0" * 10),
        "true": ExecResult(0),
    }[call.cmd]


BACK_ENDS = {
    "fake": lambda: FakeSandbox(fake_shell),
    "local": lambda: LocalSandbox(trusted=True),
}


@pytest.fixture(params=BACK_ENDS)
def closed(request):
    return BACK_ENDS[request.param]()


@pytest.fixture
async def sandbox(closed):
    async with closed as sandbox:
        yield sandbox


async def test_is_a_sandbox_with_an_id(sandbox):
    assert isinstance(sandbox, Sandbox)
    assert sandbox.sandbox_id


async def test_a_command_answers_code_and_both_streams(sandbox):
    result = await sandbox.exec(BOTH)
    exit_code, stdout, stderr = result
    assert (exit_code, stdout, stderr) == (3, "out\n", "err\n")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert not result.timed_out
    assert not result.truncated


@pytest.mark.parametrize("data", [None, b"", b"a\nb", "é".encode() * 100_000])
async def test_stdin_is_what_was_given_else_empty(sandbox, data):
    result = await sandbox.exec(CAT, stdin=data, timeout=10)
    assert result == (0, (data or b"").decode(), "")


async def test_bytes_that_are_no_utf8_do_not_break_a_result(sandbox):
    assert (await sandbox.exec(CAT, stdin=b"a\xffb")).stdout == "a\ufffdb"


async def test_env_reaches_the_command(sandbox):
    assert (await sandbox.exec(SHOW, env={"GREETING": "hello you"})).stdout == "hello you"
    assert (await sandbox.exec(SHOW)).stdout == ""


async def test_cwd_is_where_a_command_starts(sandbox):
    await sandbox.write_file("/workspace/x", "")
    assert (await sandbox.exec(PWD, cwd="/workspace")).stdout == "workspace\n"


async def test_timeout_is_a_result(sandbox):
    begun = time.monotonic()
    result = await sandbox.exec(SLOW, timeout=0.3)
    assert (result.exit_code, result.timed_out) == (TIMED_OUT, True)
    assert 0.25 < time.monotonic() - begun < 5


async def test_output_is_cut_at_max_output(sandbox):
    result = await sandbox.exec(LOUD, max_output=4)
    assert (result.exit_code, result.stdout, result.truncated) == (0, "00\n[... 6 bytes left out ...]\n00", True)


async def test_output_of_just_max_output_is_whole(sandbox):
    result = await sandbox.exec(LOUD, max_output=10)
    assert (result.stdout, result.truncated) == ("0" * 10, False)


@pytest.mark.parametrize("max_output", [0, -1])
async def test_no_output_is_kept_when_none_is_wanted(sandbox, max_output):
    result = await sandbox.exec(LOUD, max_output=max_output)
    assert (result.stdout, result.truncated) == ("", True)


async def test_check_is_silent_on_success(sandbox):
    assert await sandbox.exec("true", check=True) == (0, "", "")


@pytest.mark.parametrize(
    ("cmd", "options", "message"),
    [
        (BOTH, {}, "failed with exit code 3: err"),
        (SLOW, {"timeout": 0.2}, "timed out; raise timeout"),
        (LOUD, {"max_output": 4}, "wrote more than was kept; raise max_output"),
        (NUL, {}, "failed with exit code 126"),
    ],
)
async def test_check_raises_on_failure_timeout_and_truncation(sandbox, cmd, options, message):
    with pytest.raises(CommandError, match=message) as caught:
        await sandbox.exec(cmd, check=True, **options)
    assert caught.value.cmd == cmd
    assert "\n" not in str(caught.value)
    assert not await _raises(sandbox.exec(cmd, **options))


async def _raises(awaitable):
    return isinstance((await asyncio.gather(awaitable, return_exceptions=True))[0], BaseException)


@pytest.mark.parametrize("cmd", [LONG, NUL], ids=["long", "nul"])
async def test_a_command_no_shell_can_take_is_the_writers_fault(sandbox, cmd):
    result = await sandbox.exec(cmd)
    assert result.exit_code == CANNOT_RUN
    assert result.stderr.startswith("cannot run the command")


async def test_cancellation_is_prompt_and_leaves_the_sandbox_usable(sandbox):
    task = asyncio.create_task(sandbox.exec(SLOW))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await task
    assert await sandbox.exec("true", check=True)


async def test_commands_run_side_by_side(sandbox):
    begun = time.monotonic()
    results = await asyncio.gather(
        *(sandbox.exec(CAT, stdin=str(i).encode()) for i in range(8)),
        *(sandbox.exec(SLOW, timeout=0.5) for _ in range(4)),
    )
    assert [r.stdout for r in results[:8]] == [str(i) for i in range(8)]
    assert all(r.timed_out for r in results[8:])
    assert time.monotonic() - begun < 1.9  # in a row the four timeouts alone would take 2 s


@pytest.mark.parametrize("content", ["", "grüße\n", "x" * 300_000])
async def test_text_is_read_as_it_was_written(sandbox, content):
    await sandbox.write_file("/deep/down/a file", content)
    assert await sandbox.read_file("/deep/down/a file") == content


async def test_bytes_and_host_files_are_written(sandbox, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"\x00from the host")
    await sandbox.write_file("/a", source)
    await sandbox.write_file("/b", b"bytes \xff")
    assert await sandbox.read_file("/a") == "\x00from the host"
    assert await sandbox.read_file("/b") == "bytes \ufffd"


async def test_a_write_replaces_the_file(sandbox):
    await sandbox.write_file("/a", "a longer text")
    await sandbox.write_file("/a", "short")
    assert await sandbox.read_file("/a") == "short"


async def test_text_that_utf8_cannot_hold_is_written_with_a_mark(sandbox):
    await sandbox.write_file("/a", "a\ud800b")
    assert await sandbox.read_file("/a") == "a?b"


@pytest.mark.parametrize("path", ["a/b", "/a/b", "//a/./b", "/a/../a/b", "/../../a/b", "../a/b"])
async def test_paths_name_one_file(sandbox, path):
    await sandbox.write_file("/a/b", "here")
    assert await sandbox.read_file(path) == "here"


@pytest.mark.parametrize("path", ["/nowhere", "nowhere", "/no/where", "/nul\0here"])
async def test_a_missing_file_is_not_an_infrastructure_error(sandbox, path):
    with pytest.raises(FileNotFoundError) as caught:
        await sandbox.read_file(path)
    assert not isinstance(caught.value, InfraError)
    assert caught.value.filename == path


async def test_a_missing_host_file_is_said(sandbox, tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        await sandbox.write_file("/a", tmp_path / "absent")
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("/a")


@pytest.mark.parametrize("state", ["new", "closed"])
async def test_a_sandbox_that_is_not_open_says_so(closed, state):
    if state == "closed":
        async with closed:
            pass
    for use in (
        lambda: closed.exec("true"),
        lambda: closed.write_file("/a", "x"),
        lambda: closed.read_file("/a"),
    ):
        with pytest.raises(SandboxError, match=f"{closed.sandbox_id} is not open"):
            await use()


async def test_an_error_inside_is_not_swallowed(closed):
    with pytest.raises(ZeroDivisionError):
        async with closed:
            raise ZeroDivisionError
