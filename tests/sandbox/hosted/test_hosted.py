"""Hosted sandboxes: what differs from other back ends. The suite of all back ends is in tests/sandbox/backends."""

import asyncio

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import SandboxKilledError
from agentrl_sandbox import SandboxPool, SandboxSpec, open_backend
from agentrl_sandbox.hosted import scripts
from agentrl_sandbox.hosted.backend import HostedBackend
from tests.sandbox.backends.inside import becomes, count, long_time
from tests.sandbox.engine import entered
from tests.sandbox.hosted.vendor import SLIME, AsyncSandbox, E2BSandbox, Plain, machine, vendor_module

SPEC = SandboxSpec(image="a-template", network="open", read_only=False)


@pytest.fixture(autouse=True)
async def vendor():
    async with entered("bubblewrap"):  # or skipped: the vendor's machines are such
        with vendor_module():
            yield AsyncSandbox
    assert not AsyncSandbox.machines


class Stammering(Plain):
    """Each request reaches the machine twice, and the first answer is lost on its way."""

    async def exec(self, cmd, **options):
        assert options["idempotent"]
        await super().exec(cmd, **options)
        return await super().exec(cmd, **options)

    async def write_file(self, *args, **options):
        await super().write_file(*args, **options)
        await super().write_file(*args, **options)


@pytest.mark.thorough
async def test_requests_that_arrive_twice_change_nothing():
    async with HostedBackend(Stammering).sandbox(SPEC) as box:
        result = await box.exec("echo once >> log; cat; seq 40000; echo err >&2; exit 3", stdin=b"said\n" * 20_000)
        numbers = "".join(f"{i}\n" for i in range(1, 40_001))
        assert result == (3, "said\n" * 20_000 + numbers, "err\n")
        assert await box.read_file("log") == "once\n"
        assert (await box.exec("echo begun; sleep 30", timeout=0.5)).stdout == "begun\n"
        await box.write_file("a", b"\0" * 300_000)
        assert await box.read_bytes("a") == b"\0" * 300_000


@pytest.mark.thorough
async def test_output_comes_while_the_command_runs_and_nobody_waits():
    heard = asyncio.Queue()
    async with HostedBackend(machine).sandbox(SPEC) as box:
        assert not SLIME or isinstance(box.service, E2BSandbox)
        process = await box.start("cat", on_output=lambda stream, data: heard.put_nowait((stream, data)))
        for word in (b"one", b"two"):
            await process.send(word)
            assert await asyncio.wait_for(heard.get(), 20) == ("stdout", word)
        await process.kill()
        assert (await process.wait()).exit_code == 137


@pytest.mark.thorough
async def test_a_daemon_that_keeps_writing_does_not_hold_up_its_command():
    async with HostedBackend(Plain).sandbox(SPEC) as box:
        noise = "(setsid bash -c 'while sleep 0.01; do echo noise; done' &) ; seq 40000"
        result = await box.exec(noise, timeout=30)
        assert not result.timed_out
        assert "\n40000\n" in result.stdout


@pytest.mark.thorough
async def test_a_pool_makes_and_removes_them(vendor):
    async with SandboxPool(HostedBackend(machine), SPEC, size=1, grade=1, warm=0) as pool, pool.acquire() as box:
        assert (await box.exec("pwd", check=True)).stdout == "/work\n"
        assert list(vendor.machines) == [box.sandbox_id.removeprefix("hosted-")]


@pytest.mark.thorough
async def test_what_is_listed_is_what_this_process_has_open():
    backend = HostedBackend(machine)
    async with backend.sandbox(SPEC) as one, backend.sandbox(SPEC) as two:
        backend.sandbox(SPEC)
        assert [found.sandbox_id for found in await backend.list()] == [one.sandbox_id, two.sandbox_id]
        await backend.remove([one.sandbox_id])
        assert [found.sandbox_id for found in await backend.list()] == [two.sandbox_id]
        with pytest.raises(SandboxError, match=one.sandbox_id):
            await one.exec("true")


@pytest.mark.parametrize("awaits", [0, 1, 2, 3, 5, 30])
async def test_a_creation_that_is_cancelled_leaves_no_machine(awaits):
    box = HostedBackend(machine).sandbox(SPEC)
    task = asyncio.create_task(box.__aenter__())
    for _ in range(awaits):
        await asyncio.sleep(0.002)
    task.cancel()
    if (await asyncio.gather(task, return_exceptions=True))[0] is box:
        await box.close()


@pytest.mark.thorough
async def test_a_command_that_cannot_be_killed_costs_its_machine(monkeypatch, vendor):
    monkeypatch.setattr(scripts, "kill", lambda folder: "false")
    async with HostedBackend(machine).sandbox(SPEC) as box:
        with pytest.raises(SandboxKilledError, match="given up"):
            await box.exec("sleep 30", timeout=0.2)
        assert not vendor.machines
        with pytest.raises(SandboxError, match="not open"):
            await box.exec("true")


@pytest.mark.thorough
async def test_a_machine_that_vanishes_is_said(vendor):
    async with HostedBackend(Plain).sandbox(SPEC) as box:
        running = asyncio.create_task(box.exec("sleep 30"))
        await asyncio.sleep(0.5)
        await vendor.machines[box.sandbox_id.removeprefix("hosted-")].kill()
        with pytest.raises(SandboxError, match=box.sandbox_id):
            await asyncio.wait_for(running, 10)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "answer", ["", "{token} 0", "{token} 0\n1\nQUJD", "{token} 0\n1\n!\n.\n0\n.\nover\n", "{token} x\n0\n.\n0\n.\n"]
)
async def test_an_answer_that_is_none_is_never_a_result(answer):
    class Odd(Plain):
        odd = False

        async def exec(self, cmd, **options):
            if not self.odd:
                return await super().exec(cmd, **options)
            token = cmd.rpartition("/agentrl/")[2].split()[0].strip("'")
            return 0, answer.replace("{token}", token), ""

    async with HostedBackend(Odd).sandbox(SPEC) as box:
        box.service.odd = True
        with pytest.raises(SandboxError, match=r"not what was asked|wrote into the machine's answers"):
            await box.exec("true")
        box.service.odd = False


async def test_an_image_that_lacks_something_is_said():
    class Bare(Plain):
        async def exec(self, cmd, **options):
            return await super().exec(cmd.replace("for tool in", "for tool in no-such-tool"), **options)

    with pytest.raises(SandboxError, match="image 'a-template' cannot be used: it lacks no-such-tool"):
        async with HostedBackend(Bare).sandbox(SPEC):
            pass


@pytest.mark.thorough
async def test_a_root_that_may_not_look_into_processes_is_helped_by_their_user():
    """As in a container: no CAP_SYS_PTRACE."""

    class Container(Plain):
        async def exec(self, cmd, *, user="root", **options):
            return await super().exec(
                cmd.replace("/environ", "/nowhere") if user == "root" else cmd, user=user, **options
            )

    async with HostedBackend(Container).sandbox(SPEC) as box:
        word = long_time()
        process = await box.start(f"(setsid sleep {word} &); sleep {word}")
        assert await becomes(box, word, 2)
        assert (await process.wait(0.1)).timed_out
        assert await count(box, word) == 0


async def test_no_room_for_a_process_is_the_sandboxs_own_doing():
    class Full(Plain):
        async def exec(self, cmd, **options):
            if "mkdir -m 700" in cmd:
                return 2, "", "sh: 1: Cannot fork\n"
            return await super().exec(cmd, **options)

    async with HostedBackend(Full).sandbox(SPEC) as box:
        with pytest.raises(SandboxKilledError, match="no room for another process"):
            await box.exec("true")


@pytest.mark.thorough
async def test_a_cancelled_command_is_cancelled_though_its_machine_is_gone(vendor):
    async with HostedBackend(Plain).sandbox(SPEC) as box:
        running = asyncio.create_task(box.exec("sleep 30"))
        await asyncio.sleep(0.5)
        box.service.exec = gone
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(SandboxError, match="not open"):
            await box.exec("true")


async def gone(cmd, **options):
    raise ConnectionError("the service is gone")


async def test_an_unknown_image_and_user_are_said():
    with pytest.raises(SandboxError, match="no-such-image"):
        async with HostedBackend(machine).sandbox(SPEC.model_copy(update={"image": "no-such-image"})):
            pass
    async with HostedBackend(machine).sandbox(SPEC) as box:
        with pytest.raises(SandboxError, match="nobody-knows"):
            await box.exec("true", user="nobody-knows")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"image": ""}, "name an image"),
        ({"network": "none"}, "network: open"),
        ({"read_only": True}, "read_only: false"),
        ({"sockets": {"/a": "/b"}}, "leave sockets out"),
    ],
)
def test_what_no_service_promises_is_refused(change, says):
    with pytest.raises(ConfigError, match=says):
        HostedBackend(machine).sandbox(SPEC.model_copy(update=change))


def test_a_class_is_named_by_its_path():
    backend = open_backend(f"hosted:{machine.__module__}:Plain")
    box = backend.sandbox(SPEC.model_copy(update={"lifetime_s": 90.0}))
    assert (backend.name, type(box.service), box.service.timeout) == ("hosted", Plain, 90)
    made = []
    HostedBackend(lambda image: made.append(image)).sandbox(SPEC)
    assert made == ["a-template"]
    for name, says in {"hosted": "name a class", "hosted:": "name a class", "hosted:os:sep": "is str, not"}.items():
        with pytest.raises(ConfigError, match=says):
            open_backend(name)
