# ruff: noqa: ASYNC110 - files and polls are how processes tell a test what they do
"""Workers as child processes and as Ray actors: real processes, a job that does what it is told.

Ray is not among the project's own needs: .ci/miles.sh FOLDER tests/workers runs these tests with it.
"""

import asyncio
import os
import signal

import pytest

from agentrl.errors import ConfigError, EngineLostError, InfraError
from agentrl.workers import JobOrder, WorkerLostError, WorkerPool
from agentrl.workers.base import NoPlaceError, encoded
from agentrl.workers.pipes import PipeTransport
from tests.workers.pools import JOB, ask, lives, pids, until
from tests.workers.pools import cluster as cluster
from tests.workers.pools import workers as workers


@pytest.mark.thorough
async def test_requests_go_to_the_least_busy_worker(workers, tmp_path):
    async with workers() as pool:
        waiting = [ask(pool, "until", f"go{i}") for i in range(2)]
        first, second = sorted(pids(tmp_path))
        await until(lambda: [seat.pending for seat in pool.seats] == [1, 1])
        third = ask(pool, "until", "go2")
        (tmp_path / "go0").touch()
        assert (await waiting[0]).result[1] in (first, second)
        busy = {seat.pending for seat in pool.seats}
        assert busy == {0, 2} or busy == {1}
        for name in ("go1", "go2"):
            (tmp_path / name).touch()
        await asyncio.gather(*waiting, third)
        assert [seat.pending for seat in pool.seats] == [0, 0]
    assert sorted(pids(tmp_path, "closed")) == [first, second]
    await until(lambda: not lives(first) and not lives(second))


@pytest.mark.thorough
async def test_an_error_keeps_its_class(workers, tmp_path):
    async with workers(1) as pool:
        with pytest.raises(ConfigError, match="no such task"):
            await ask(pool, "refuse", "no such task")
        with pytest.raises(EngineLostError, match="gone"):
            await ask(pool, "lose", "gone")
        with pytest.raises(RuntimeError, match=r"worker 0 \(process \d+.*\): KeyError: 'zebra'\n(.|\n)*noisy_job.py"):
            await ask(pool, "bug", "zebra")
        with pytest.raises(ConfigError, match="the answer of an episode cannot be sent to a worker"):
            await ask(pool, "unsendable")
        assert (await ask(pool, "echo", "still there")).result[0] == "still there"


@pytest.mark.thorough
async def test_a_killed_worker_loses_no_request(workers, tmp_path, caplog):
    async with workers() as pool:
        asked = [ask(pool, "until", "go") for _ in range(200)]
        await until(lambda: [seat.pending for seat in pool.seats] == [100, 100])
        victim = pids(tmp_path)[0]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: len(pids(tmp_path)) == 3)
        (tmp_path / "go").touch()
        answers = await asyncio.gather(*asked)
        assert len(answers) == 200
        again = [answer for answer in answers if answer.lost]
        assert len(again) == 100
        [lost] = {answer.lost for answer in again}
        assert len(lost) == 1
        assert f"process {victim}" in lost[0]
        assert victim not in {answer.result[1] for answer in answers}
    assert "another one takes its place" in caplog.text


@pytest.mark.thorough
async def test_a_request_that_ends_two_workers_is_given_up(workers, tmp_path):
    async with workers() as pool:
        with pytest.raises(WorkerLostError, match=r"two workers ended while they played it: worker .*; worker "):
            await ask(pool, "kill")
        answer = await ask(pool, "once", "a")
        assert len(answer.lost) == 1


@pytest.mark.thorough
async def test_a_job_that_cannot_be_opened_is_a_mistake_of_the_configuration(workers, tmp_path):
    (tmp_path / "refuse").touch()
    with pytest.raises(ConfigError, match="share failed: no corpus"):
        async with workers():
            pass


@pytest.mark.thorough
async def test_a_worker_that_ends_at_its_start_again_ends_the_run_with_its_own_words(workers, tmp_path, request):
    (tmp_path / "die").touch()
    words = "" if "ray" in request.node.name else r"\. It said last:\ncannot allocate"  # Ray has printed them
    with pytest.raises(ConfigError, match=f"worker 0 ended again before it was ready{words}"):
        async with workers(1):
            pass


@pytest.mark.thorough
@pytest.mark.parametrize("losses", [1, 2])
async def test_a_worker_that_is_lost_while_it_is_started_gets_a_second_try(tmp_path, losses):
    class Loses(PipeTransport):
        left = losses

        async def open(self, number):
            self.left -= 1
            if self.left >= 0:
                raise WorkerLostError("worker 0 could not be started: its node is gone")
            return await super().open(number)

    pool = WorkerPool(transport=Loses(), order=JobOrder(JOB, str(tmp_path)), size=1)
    if losses == 1:
        async with pool:
            assert (await ask(pool, "echo", "on")).result[0] == "on"
    else:
        with pytest.raises(ConfigError, match=r"its node is gone; worker 0 ended again before it was ready$"):
            await pool.__aenter__()


class Full(PipeTransport):
    """Has a place for worker 1 once another one is ready, or for `places` starts of it."""

    def __init__(self, pool, places=0):
        self.pool, self.places = pool, places

    async def open(self, number):
        while number and not self.places and not any(seat.ready for seat in self.pool().seats):
            await asyncio.sleep(0.01)
        if number:
            self.places -= 1
        if self.places < 0:
            raise NoPlaceError(f"no place for worker {number}")
        return await super().open(number)


@pytest.mark.thorough
async def test_a_worker_without_a_place_at_the_start_ends_the_run(tmp_path):
    pool = WorkerPool(transport=Full(lambda: pool), order=JobOrder(JOB, str(tmp_path)), size=2)
    with pytest.raises(NoPlaceError, match="no place for worker 1"):
        async with asyncio.timeout(20), pool:
            pass


@pytest.mark.thorough
async def test_a_worker_without_a_place_later_is_missed_by_nobody(tmp_path, caplog):
    pool = WorkerPool(transport=Full(lambda: pool, places=1), order=JobOrder(JOB, str(tmp_path)), size=2)
    async with pool:
        os.kill(pool.seats[1].pid, signal.SIGKILL)
        await until(lambda: "no place for worker 1; 1 workers are left" in caplog.text)
        assert (await ask(pool, "echo", "on")).result == ("on", pool.seats[0].pid)


@pytest.mark.thorough
async def test_a_worker_that_cannot_be_replaced_ends_every_request(workers, tmp_path):
    async with workers(1) as pool:
        waiting = ask(pool, "until", "never")
        await until(lambda: pool.seats[0].pending)
        (tmp_path / "die").touch()
        os.kill(pids(tmp_path)[0], signal.SIGKILL)
        with pytest.raises(ConfigError, match="ended again before it was ready"):
            await waiting
        depths = set()
        for _ in range(3):
            with pytest.raises(ConfigError, match="ended again before it was ready") as caught:
                await ask(pool, "echo")
            depths.add(len(caught.traceback))
        assert len(depths) == 1, "one error answers every request, and its traceback does not grow"


@pytest.mark.thorough
async def test_workers_that_end_again_and_again_end_the_run(workers, tmp_path):
    async with workers(1) as pool:
        with pytest.raises(ConfigError, match="ended 5 times without finishing an episode"):  # noqa: PT012
            while True:
                with pytest.raises(WorkerLostError):
                    await ask(pool, "kill")


@pytest.mark.thorough
async def test_an_abort_concerns_its_own_epoch_only(workers, tmp_path):
    async with workers() as pool:
        old = [ask(pool, "wait", i) for i in range(4)]
        await until(lambda: sum(seat.pending for seat in pool.seats) == 4)
        late = pool.epoch
        pool.abort()
        assert [answer.result[1] for answer in await asyncio.gather(*old)] == ["aborted"] * 4
        pool.next_epoch()
        new = [ask(pool, "wait", i) for i in range(4)]
        await until(lambda: sum(seat.pending for seat in pool.seats) == 4)
        for seat in pool.seats:
            seat.link.tell("abort", late)  # an abort of the last rollout that arrives now
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in new)
        pool.abort()
        await asyncio.gather(*new)


@pytest.mark.thorough
async def test_a_cancelled_request_is_cancelled_in_its_worker(workers, tmp_path):
    async with workers(1) as pool:
        waiting = ask(pool, "until", "never")
        await until(lambda: pool.seats[0].pending)
        while "never" not in (await pool.status())[0]:
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until((tmp_path / "never.cancelled").exists)
        assert await pool.status() == [[]]


@pytest.mark.thorough
async def test_closing_cancels_what_is_played(workers, tmp_path):
    async with workers() as pool:
        waiting = ask(pool, "until", "never")
        await until(lambda: any(seat.pending for seat in pool.seats))
    assert (tmp_path / "never.cancelled").exists()
    with pytest.raises(InfraError, match="closed"):
        await waiting


@pytest.mark.thorough
async def test_a_request_goes_home_if_its_worker_lives(workers, tmp_path):
    async with workers() as pool:
        answer = await ask(pool, "echo")
        for _ in range(3):
            assert (await ask(pool, "echo", home=answer.worker)).result[1] == answer.result[1]
        os.kill(answer.result[1], signal.SIGKILL)
        await until(lambda: len(pids(tmp_path)) == 3)
        assert (await ask(pool, "echo", home=answer.worker)).result[1] != answer.result[1]


async def test_what_a_worker_prints_is_shown_with_its_number(workers, request, capfd):
    if "ray" in request.node.name:
        pytest.skip("Ray prints it")
    async with workers(1) as pool:
        await ask(pool, "print", "corpus loaded")
        await until(lambda: any("corpus" in line for line in pool.seats[0].link.last_words().splitlines()))
    assert "worker 0: corpus loaded\n" in capfd.readouterr().err


def test_what_cannot_be_sent_is_named():
    with pytest.raises(ConfigError, match="task 7 cannot be sent to a worker"):
        encoded({"open": lambda: 0}, "task 7")
