"""Cancellation at every await: of creation, of a command, of closing. Nothing is left."""

import asyncio

import pytest

from tests.sandbox.docker.conftest import SMALL
from tests.sandbox.docker.interrupting import at_each_await

pytestmark = pytest.mark.timeout(300)


async def test_cancelled_creation_leaves_nothing(docker):
    await docker.prepare("")
    made = []

    async def create():
        made.append(docker.sandbox(SMALL))
        await made[-1].__aenter__()

    cancelled = [number async for number in at_each_await(create)]
    whole = made.pop()
    left = {found.sandbox_id for found in await docker.list()}
    assert whole.sandbox_id in left
    await whole.__aexit__(None, None, None)
    assert len(cancelled) >= 2
    assert not left & {box.sandbox_id for box in made}
    print(f"creation cancelled at each of {len(cancelled)} awaits: 0 containers left")


async def test_cancelled_at_any_time_creation_leaves_nothing(docker):
    """An await may be cancelled early or late: of 32 creations at once, each is cancelled a little later."""
    await docker.prepare("")
    boxes = [docker.sandbox(SMALL) for _ in range(32)]
    tasks = [asyncio.create_task(box.__aenter__()) for box in boxes]
    for task in tasks:
        await asyncio.sleep(0.06)
        task.cancel()
    await asyncio.wait(tasks)
    open_ones = {box.sandbox_id for box, task in zip(boxes, tasks, strict=True) if not task.cancelled()}
    assert {found.sandbox_id for found in await docker.list()} & {box.sandbox_id for box in boxes} == open_ones
    assert len(open_ones) < 32
    await asyncio.gather(*(box.close() for box in boxes))
    assert not {found.sandbox_id for found in await docker.list()} & {box.sandbox_id for box in boxes}


async def test_a_new_image_is_prepared_for_others_when_one_is_cancelled(docker, base, tmp_path):
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN echo {tmp_path} > /made\n")
    spec = SMALL.model_copy(update={"image": str(tmp_path), "workdir": "/elsewhere"})
    made = []

    async def create():
        made.append(docker.sandbox(spec))
        await made[-1].__aenter__()

    first = asyncio.create_task(create())
    second = asyncio.create_task(create())
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.wait([first, second])
    assert first.cancelled()
    assert await made[1].read_file("/made") == f"{tmp_path}\n"
    await made[1].__aexit__(None, None, None)
    assert not {found.sandbox_id for found in await docker.list()} & {box.sandbox_id for box in made}


async def test_a_cancelled_command_leaves_no_process(box):

    async def run():
        await box.exec("sleep 0.4; echo done")

    cancelled = [number async for number in at_each_await(run)]
    assert len(cancelled) >= 2
    assert (await box.exec("ps -e -o stat=,args= | grep -c '[s]leep 0.4'")).stdout == "0\n"


async def test_closing_is_finished_when_it_is_cancelled(docker):
    closing = docker.sandbox(SMALL)
    await closing.__aenter__()
    task = asyncio.create_task(closing.close())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closing.sandbox_id not in {found.sandbox_id for found in await docker.list()}
