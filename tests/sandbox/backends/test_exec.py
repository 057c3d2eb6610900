"""Commands: what every back end does alike, FakeSandbox too."""

import asyncio
import time

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox import CANNOT_RUN, TIMED_OUT, CommandError, Sandbox, Snapshot
from tests.sandbox.backends.fake_shell import BOTH, CAT, LONG, LOUD, NUL, PWD, SHOW, SLOW


async def test_is_a_sandbox_with_an_id(box):
    assert isinstance(box, Sandbox)
    assert box.sandbox_id


async def test_a_command_answers_code_and_both_streams(box):
    result = await box.exec(BOTH)
    exit_code, stdout, stderr = result
    assert (exit_code, stdout, stderr) == (3, "out\n", "err\n")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert not result.timed_out
    assert not result.truncated


@pytest.mark.parametrize("data", [None, b"", b"a\nb", "é".encode() * 100_000])
async def test_stdin_is_what_was_given_else_empty(box, data):
    result = await box.exec(CAT, stdin=data, timeout=10)
    assert result == (0, (data or b"").decode(), "")


async def test_bytes_that_are_no_utf8_do_not_break_a_result(box):
    assert (await box.exec(CAT, stdin=b"a\xffb")).stdout == "a\ufffdb"


async def test_env_reaches_the_command(box):
    assert (await box.exec(SHOW, env={"GREETING": "hello you"})).stdout == "hello you"
    assert (await box.exec(SHOW)).stdout == ""


async def test_cwd_is_where_a_command_starts(box):
    assert (await box.exec(PWD)).stdout == "work\n"
    await box.write_file("/work/some folder/x", "")
    for path in ("/work/some folder", "some folder", "/work/../work/some folder/"):
        assert (await box.exec(PWD, cwd=path)).stdout == "some folder\n"


async def test_timeout_is_a_result(box):
    begun = time.monotonic()
    result = await box.exec(SLOW, timeout=0.3)
    assert (result.exit_code, result.timed_out) == (TIMED_OUT, True)
    assert 0.25 < time.monotonic() - begun < 5


async def test_output_is_cut_at_max_output(box):
    result = await box.exec(LOUD, max_output=4)
    assert (result.exit_code, result.stdout, result.truncated) == (0, "00\n[... 6 bytes left out ...]\n00", True)


async def test_output_of_just_max_output_is_whole(box):
    result = await box.exec(LOUD, max_output=10)
    assert (result.stdout, result.truncated) == ("0" * 10, False)


@pytest.mark.parametrize("max_output", [0, -1])
async def test_no_output_is_kept_when_none_is_wanted(box, max_output):
    result = await box.exec(LOUD, max_output=max_output)
    assert (result.stdout, result.truncated) == ("", True)


async def test_check_is_silent_on_success(box):
    assert await box.exec("true", check=True) == (0, "", "")


@pytest.mark.parametrize(
    ("cmd", "options", "message"),
    [
        (BOTH, {}, "failed with exit code 3: err"),
        (SLOW, {"timeout": 0.2}, "timed out; raise timeout"),
        (LOUD, {"max_output": 4}, "wrote more than was kept; raise max_output"),
        (NUL, {}, "failed with exit code 126"),
    ],
)
async def test_check_raises_on_failure_timeout_and_truncation(box, cmd, options, message):
    with pytest.raises(CommandError, match=message) as caught:
        await box.exec(cmd, check=True, **options)
    assert caught.value.cmd == cmd
    assert "\n" not in str(caught.value)
    assert not await _raises(box.exec(cmd, **options))


async def _raises(awaitable):
    return isinstance((await asyncio.gather(awaitable, return_exceptions=True))[0], BaseException)


@pytest.mark.parametrize("cmd", [LONG, NUL], ids=["long", "nul"])
async def test_a_command_no_shell_can_take_is_the_writers_fault(box, cmd):
    result = await box.exec(cmd)
    assert result.exit_code == CANNOT_RUN
    assert result.stderr.startswith("cannot run the command")


async def test_cancellation_is_prompt_and_leaves_the_sandbox_usable(box):
    task = asyncio.create_task(box.exec(SLOW))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await task
    assert await box.exec("true", check=True)


@pytest.mark.thorough
async def test_commands_run_side_by_side(box):
    begun = time.monotonic()
    results = await asyncio.gather(
        *(box.exec(CAT, stdin=str(i).encode()) for i in range(16)),
        *(box.exec(SLOW, timeout=2) for _ in range(8)),
    )
    assert [r.stdout for r in results[:16]] == [str(i) for i in range(16)]
    assert all(r.timed_out for r in results[16:])
    assert time.monotonic() - begun < 14  # in a row the eight timeouts alone would take 16 s


@pytest.mark.parametrize("state", ["new", "closed"])
async def test_a_sandbox_that_is_not_open_says_so(closed, state, tmp_path):
    if state == "closed":
        async with closed:
            pass
    for use in (
        lambda: closed.exec("true"),
        lambda: closed.start("true"),
        lambda: closed.write_file("a", "x"),
        lambda: closed.read_file("a"),
        lambda: closed.read_bytes("a"),
        lambda: closed.upload(tmp_path, "a"),
        lambda: closed.download("a", tmp_path / "a"),
        lambda: closed.snapshot(),
        lambda: closed.restore(Snapshot(b"", ("/work", "/tmp"))),
        lambda: closed.ping(),
    ):
        with pytest.raises(SandboxError, match=f"{closed.sandbox_id} is not open"):
            await use()


async def test_a_sandbox_is_used_once(closed):
    async with closed:
        with pytest.raises(SandboxError, match="make a new one"):
            await closed.__aenter__()
    with pytest.raises(SandboxError, match="make a new one"):
        await closed.__aenter__()


async def test_an_error_inside_is_not_swallowed(closed):
    with pytest.raises(ZeroDivisionError):
        async with closed:
            raise ZeroDivisionError


async def test_ping_is_silent_while_all_is_well(box):
    assert await box.ping() is None


async def test_output_is_streamed_beyond_what_is_kept(box):
    pieces = []
    result = await box.exec(BOTH, max_output=0, on_output=lambda stream, data: pieces.append((stream, data)))
    assert result == (3, "", "")
    assert result.truncated
    assert sorted(pieces) == [("stderr", b"err\n"), ("stdout", b"out\n")]


async def test_what_on_output_raises_reaches_the_caller(box):
    def broken(stream, data):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await box.exec(BOTH, on_output=broken)
    assert await box.exec("true", check=True)


async def test_a_started_command_takes_stdin_and_answers(box):
    process = await box.start(CAT)
    await process.send(b"hello ")
    await process.send(b"you")
    await process.close_stdin()
    assert await process.wait(10) == (0, "hello you", "")
    assert await process.wait() == (0, "hello you", "")
    await process.kill()
    with pytest.raises(BrokenPipeError):
        await process.send(b"more")


async def test_a_started_command_is_killed_when_a_wait_takes_too_long(box):
    process = await box.start(SLOW)
    result = await process.wait(0.3)
    assert (result.exit_code, result.timed_out) == (TIMED_OUT, True)


async def test_a_killed_command_says_so(box):
    process = await box.start(SLOW)
    await process.kill()
    await process.kill()
    assert (await process.wait(5)).exit_code == 128 + 9


async def test_a_command_no_shell_can_take_can_be_started(box):
    process = await box.start(NUL)
    assert (await process.wait()).exit_code == CANNOT_RUN
