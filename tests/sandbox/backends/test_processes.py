"""Processes: what they see, and that none outlives its time."""

import asyncio
import time

import pytest

from agentrl.errors import ConfigError
from tests.sandbox.backends.inside import REAL, appears, becomes, count, long_time, started

pytestmark = pytest.mark.parametrize("backend", REAL, indirect=True)

ESCAPES = {
    "background": "{} & wait",
    "setsid": "setsid {} & wait",
    "double fork": "(setsid sh -c '{} & {}' &) ; wait; {}",
    "nohup": "trap '' TERM HUP INT; nohup setsid {} >/dev/null 2>&1 & wait",
    "python daemon": (
        'python3 -c "import os; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); '
        "os.chdir('/'); [os.close(n) for n in (0, 1, 2)]; os.execvp('sleep', '{}'.split())\"; {}"
    ),
}


@pytest.mark.parametrize("how", ESCAPES)
async def test_a_timeout_kills_the_whole_tree(box, how):
    word = long_time()
    process = await box.start(ESCAPES[how].replace("{}", f"sleep {word}"))
    await started(box, word)
    assert (await process.wait(0.1)).timed_out
    assert await count(box, word) == 0


@pytest.mark.thorough
async def test_a_command_that_is_killed_runs_none_of_its_traps(box):
    """The kernel wakes stopped processes whose group loses its last parent: they must be dead by then."""
    trapping = "trap ': > hup' HUP; while :; do sleep 0.2; done"
    await box.exec(f'for i in $(seq 40); do bash -c "{trapping}" & done; wait', timeout=1)
    assert (await box.exec("ls hup 2>/dev/null")).stdout == ""


@pytest.mark.parametrize("how", ESCAPES)
async def test_cancellation_kills_the_whole_tree(box, how):
    word = long_time()
    task = asyncio.create_task(box.exec(ESCAPES[how].replace("{}", f"sleep {word}")))
    await started(box, word)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await count(box, word) == 0


async def test_kill_kills_the_whole_tree(box):
    word = long_time()
    process = await box.start(f"setsid sleep {word} & echo x > begun; sleep {word}")
    await appears(box, "begun")
    await process.kill()
    assert await count(box, word) == 0
    assert (await process.wait()).exit_code == 128 + 9


@pytest.mark.thorough
async def test_other_commands_are_left_alone(box):
    mine, other = long_time(), long_time()
    process = await box.start(f"sleep {other}")
    await box.exec(f"sleep {other} > /dev/null 2>&1 &", check=True)
    assert (await box.exec(f"sleep {mine}", timeout=0.3)).timed_out
    assert await becomes(box, other, 2)
    await process.kill()
    assert await count(box, other) == 1


async def test_the_background_of_a_command_that_ended_lives_on(box):
    word, begun = long_time(), time.monotonic()
    await box.exec(f"sleep {word} & echo $! > pid", check=True)  # it holds the pipes
    assert time.monotonic() - begun < 5
    assert await count(box, word) == 1


async def test_cancellation_at_any_moment_of_the_start_leaves_nothing(box):
    word = long_time()
    for steps in range(12):
        task = asyncio.create_task(box.exec(f"sleep {word} & sleep {word} & wait"))
        for _ in range(steps):
            await asyncio.sleep(0)
            time.sleep(0.005)  # noqa: ASYNC251 - holds up the loop, not the shell, which has children by now
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await becomes(box, word, 0)


@pytest.mark.thorough
async def test_what_came_before_a_timeout_is_kept(box):
    result = await box.exec("echo begun; sleep 30", timeout=1)
    assert (result.stdout, result.timed_out) == ("begun\n", True)


async def test_endless_output_is_cut_and_counted(box):
    seen = 0

    def add(stream, data):
        nonlocal seen
        seen += len(data)

    result = await box.exec("yes | head -c 50000000; echo done >&2", max_output=1000, timeout=60, on_output=add)
    assert (result.exit_code, result.stderr, result.truncated) == (0, "done\n", True)
    assert result.stdout == "y\n" * 250 + "\n[... 49,999,000 bytes left out ...]\n" + "y\n" * 250
    assert seen == 50_000_005


async def test_a_command_that_ignores_its_stdin_is_fine(box):
    assert await box.exec("echo hi", stdin=b"x" * 3_000_000) == (0, "hi\n", "")


async def test_much_stdin_waits_for_its_reader(box):
    data = bytes(range(256)) * 20_000
    result = await box.exec("sleep 0.3; md5sum | cut -c-32; md5sum /dev/null | cut -c-32", stdin=data)
    assert result.stdout.split() == ["dcf6a99f83b3a50b2ff3ecc6490d966f", "d41d8cd98f00b204e9800998ecf8427e"]


async def test_a_started_command_talks(box):
    heard = asyncio.Queue()
    process = await box.start(
        "while read line; do echo got $line; done; echo end", on_output=lambda _, data: heard.put_nowait(data)
    )
    for word in (b"one", b"two"):
        await process.send(word + b"\n")
        assert await asyncio.wait_for(heard.get(), 5) == b"got " + word + b"\n"
    await process.close_stdin()
    assert await process.wait(5) == (0, "got one\ngot two\nend\n", "")


async def test_sending_to_a_command_that_ended_is_a_broken_pipe(box):
    process = await box.start("exit 3")
    assert (await process.wait(5)).exit_code == 3
    with pytest.raises(BrokenPipeError):
        await process.send(b"x")


async def test_a_wait_that_is_cancelled_does_not_kill(box):
    process = await box.start("cat")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.wait(), 0.2)
    await process.send(b"alive")
    await process.close_stdin()
    assert (await process.wait(5)).stdout == "alive"


async def test_death_by_signal_is_told_as_a_shell_does(box):
    assert (await box.exec("kill -9 $$")).exit_code == 128 + 9


async def test_a_missing_cwd_is_said(box):
    await box.write_file("file", "")
    for cwd in ("/nowhere", "nowhere", "file"):
        with pytest.raises(FileNotFoundError, match="no such folder in the sandbox") as caught:
            await box.exec("true", cwd=cwd)
        assert caught.value.filename == cwd


async def test_the_environment_is_not_inherited(box, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    stdout = (await box.exec("env", env={"MINE": "1"}, check=True)).stdout
    assert "SOME_API_KEY" not in stdout
    assert "MINE=1" in stdout
    assert {"PATH", "HOME", "LANG"} <= {line.partition("=")[0] for line in stdout.splitlines()}


@pytest.mark.parametrize("spec", [{"env": {"FROM_SPEC": "yes", "BOTH": "spec"}}], indirect=True)
async def test_the_specs_environment_reaches_each_command(box):
    assert (await box.exec("echo $FROM_SPEC $BOTH", env={"BOTH": "call"})).stdout == "yes call\n"


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"": "x"}, {"A": "x\0y"}])
async def test_an_environment_that_cannot_be_is_refused(box, env):
    with pytest.raises(ConfigError, match="no environment can hold"):
        await box.exec("true", env=env)


async def test_a_command_has_no_terminal_and_only_three_open_files(box):
    assert (await box.exec("ls /proc/self/fd | wc -l; tty")).stdout == "4\nnot a tty\n"


async def test_a_closing_sandbox_ends_what_runs_in_it(closed):
    async with closed as box:
        running = asyncio.create_task(box.exec("echo x > begun; sleep 30"))
        await appears(box, "begun")
    with pytest.raises(Exception, match=closed.sandbox_id):
        await asyncio.wait_for(running, 5)
