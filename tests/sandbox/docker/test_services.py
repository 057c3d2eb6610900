"""The services beside a sandbox: how they start, what they share, what holds them, and that nothing of them is left."""

import asyncio
import contextlib
import socket
import time

import pytest
from pydantic import ValidationError

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import SandboxKilledError
from agentrl_sandbox import survey
from agentrl_sandbox.backend import open_backend
from agentrl_sandbox.services import HealthCheck, Mount, Placed, Service, ServiceGroup
from tests.sandbox.docker.conftest import SMALL
from tests.sandbox.docker.things import things

WEB = ("sh", "-c", "mkdir -p /www && cd /www && echo it is $NAME > name && exec python3 -m http.server 8000")
GET = "python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())' "
UNHEALTHY = HealthCheck(test=("CMD-SHELL", "echo not yet; false"), interval_s=0.2, retries=2)
BIG = ("sh", "-c", "head -c 100000000 /dev/zero | tail -c 90000000")
QUICK = HealthCheck(test=("CMD-SHELL", "true"), interval_s=0.2, retries=2)
NEVER = QUICK.model_copy(update={"test": ("CMD", "false"), "retries": 1000})
HOME = {"default": ()}


@pytest.fixture
def service(base):
    def made(**fields):
        fields = {"image": base, "networks": HOME, "memory_mb": 64, "pids": 32, **fields}
        return Service(**fields)

    return made


def spec(main=None, volumes=(), **services):
    group = ServiceGroup(
        services=services,
        main=main or Placed(networks=HOME),
        volumes=volumes if isinstance(volumes, dict) else dict.fromkeys(volumes, ""),
        ready_s=60,
    )
    return SMALL.model_copy(update={"services": group, "read_only": False})


WAYS_OUT = """
import socket, struct, sys, threading
own = struct.unpack("!I", socket.inet_aton(sys.argv[2]))[0]
gateway = socket.inet_ntoa(struct.pack("!I", (own & ~63) + 1))
def reach(host, port):
    try:
        socket.create_connection((host, port), 1.5).close()
        print("reached", host)
    except OSError as exc:
        pass
hosts = (gateway, *sys.argv[3:], "a.example")
tries = [threading.Thread(target=reach, args=(host, int(sys.argv[1]))) for host in hosts]
[one.start() for one in tries]
[one.join() for one in tries]
"""


SHOWS = (
    "mkdir /www; cd /www; cat /proc/self/status /task/task.json > shown; "
    "stat -c '%n %u:%g %a' /mem >> shown; grep /mem /proc/mounts >> shown; "
    "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null >> shown; "
    "exec python3 -m http.server 8000"
)


async def test_a_service_has_names_files_and_limits_and_no_way_out(docker, service, tmp_path):
    (tmp_path / "task.json").write_text("a task")
    files = {"/task/task.json": str(tmp_path / "task.json")}
    mounts = (Mount(path="/mem", owner="7:8", mode="750", size_mb=3),)
    names = {"default": ("other",)}
    web = service(command=("sh", "-c", SHOWS), networks=names, files=files, mounts=mounts, health=QUICK)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        here = probe.getsockname()[0]
    wanted = spec(Placed(networks=HOME, files=files), web=web).model_copy(update={"env": {"NO_PROXY": "localhost"}})
    async with docker.sandbox(wanted) as box:
        assert (await box.exec("echo $NO_PROXY")).stdout == "localhost,web,other\n"
        shown = (await box.exec(f"cat /task/task.json; {GET} http://other:8000/shown", check=True)).stdout
        assert shown.count("a task") == 2
        for line in ("CapBnd:\t00000000000404fb", "NoNewPrivs:\t1", str(64 << 20), "/mem 7:8 750", "size=3072k"):
            assert line in shown
        assert (await box.exec("cat /proc/self/status", user="root")).stdout.count("0000000000000000") >= 4
        own = box.siblings.addresses["default", "main"]
        await box.write_file("ways.py", WAYS_OUT)
        assert (await box.exec(f"python3 ways.py {port} {own} {here} 1.1.1.1", check=True)).stdout == ""
        assert await things(docker, box.sandbox_id) == (2, 1, 0)
        with pytest.raises(ConfigError, match=r"services \(web\), whose data no snapshot holds"):
            await box.snapshot()
    server.close()
    assert await things(docker, box.sandbox_id) == (0, 0, 0)


async def test_networks_keep_services_apart_and_may_be_shared(docker, service):
    api = service(command=("sleep", "1000"), networks={"front": (), "back": ()})
    proxy = service(command=WEB, networks={}, within="api")
    db = service(command=WEB, networks={"back": ()})
    async with docker.sandbox(spec(Placed(networks={"front": ()}), api=api, proxy=proxy, db=db)) as box:
        assert "it is" in (await box.exec(f"{GET} http://api:8000/name")).stdout
        assert (await box.exec(f"{GET} http://db:8000/name")).exit_code == 1


async def test_each_sandbox_has_its_own_volumes_and_networks(docker, service, tmp_path):
    (tmp_path / "seed.txt").write_text("seed")
    volumes = {"shared": "", "seeded": str(tmp_path)}
    mounts = (Mount(path="/shared", volume="shared"), Mount(path="/seeded", volume="seeded", read_only=True))
    writes = service(
        command=("sh", "-c", "cp /seeded/seed.txt /shared/; uname -n >> /shared/seed.txt; true"), mounts=mounts
    )
    wanted = spec(Placed(networks=HOME, mounts=mounts, after={"init": "completed"}), volumes, init=writes)
    async with docker.sandbox(wanted) as one, docker.sandbox(wanted) as two:
        assert await things(docker, one.sandbox_id) == (3, 1, 2)
        assert (await one.exec("cat /shared/seed.txt; echo x > /shared/seed.txt")).stdout == "seedinit\n"
        assert (await two.exec("cat /shared/seed.txt")).stdout == "seedinit\n"
        fill = "for i in 1 2 3 4 5 6 7 8 9; do head -c 15000000 /dev/zero > /shared/$i || exit 1; done"
        assert "No space left" in (await one.exec(fill)).stderr  # at half the memory of the largest that has it
        assert (await one.exec("touch /seeded/x", user="root")).exit_code
    assert (tmp_path / "seed.txt").read_text() == "seed"
    assert await things(docker, one.sandbox_id) == await things(docker, two.sandbox_id) == (0, 0, 0)


async def test_services_start_in_their_order(docker, service):
    mounts = (Mount(path="/order", volume="order"),)

    def one(name, **fields):
        return service(
            mounts=mounts, command=("sh", "-c", f"{fields.pop('do', '')} echo {name} >> /order/n; sleep 99"), **fields
        )

    last = one("last", after={"slow": "healthy", "first": "completed"})
    slow = one(
        "slow",
        do="sleep 0.5; touch /ready;",
        health=QUICK.model_copy(update={"test": ("CMD", "test", "-e", "/ready"), "retries": 20}),
    )
    first = service(mounts=mounts, command=("sh", "-c", "sleep 0.8; echo first >> /order/n"))
    main = Placed(networks=HOME, mounts=mounts)
    async with docker.sandbox(spec(main, ("order",), last=last, slow=slow, first=first)) as box:
        *others, end = (await box.exec("cat /order/n")).stdout.split()
        assert (sorted(others), end) == (["first", "slow"], "last")


SCRIPTS_FIRST = (
    "cd /tmp && python3 -m http.server 8000 --bind 127.0.0.1 & touch /up; sleep 1.5; kill $!; wait; sleep 0.2; "
    "exec python3 -m http.server 8000"
)


@pytest.fixture
def with_port(base, tmp_path):
    """An image that declares a port."""
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nEXPOSE 8000\n")
    return str(tmp_path)


@pytest.mark.parametrize("interval_s", [0.2, 20.0])
async def test_a_service_that_passes_its_check_before_it_can_be_reached(docker, service, with_port, interval_s):
    """As databases do while they run their first scripts, whether the engine asks them or we."""
    check = HealthCheck(test=("CMD", "test", "-e", "/up"), interval_s=interval_s)
    web = service(image=with_port, command=("sh", "-c", SCRIPTS_FIRST), health=check)
    async with docker.sandbox(spec(Placed(networks=HOME, after={"web": "healthy"}), web=web)) as box:
        await box.exec(f"{GET} http://web:8000/", check=True)


async def test_a_service_that_never_listens_is_healthy_by_its_check(docker, service, with_port, monkeypatch):
    monkeypatch.setattr("agentrl_sandbox.docker.readiness._MUTE_S", 0.5)
    async with docker.sandbox(spec(work=service(image=with_port, command=("sleep", "99"), health=QUICK))) as box:
        await box.ping()


FAILURES = {
    "exit": ({"command": ("sh", "-c", "echo no such database; exit 3")}, "exit code 3.*no such database"),
    "program": ({"command": ("no-such-program",)}, "does not start.*no-such-program"),
    "unhealthy": ({"command": ("sleep", "99"), "health": UNHEALTHY}, "not healthy.*not yet"),
    "memory": ({"command": BIG, "health": NEVER}, "memory was used up|exit code 137"),
}  # fmt: skip


@pytest.mark.parametrize("how", FAILURES)
async def test_a_service_that_fails_is_told_with_its_log(docker, service, how, monkeypatch):
    monkeypatch.setattr("agentrl_sandbox.docker.readiness._SURE_S", 3.0)  # a busy machine ends nothing at once
    fields, said = FAILURES[how]
    box = docker.sandbox(spec(db=service(**fields), web=service(command=("sleep", "99"))))
    with pytest.raises(SandboxError, match=f"its service db.*({said})"):
        async with box:
            pass
    assert await things(docker, box.sandbox_id) == (0, 0, 0)


async def test_a_service_that_is_never_ready_is_given_up(docker, service):
    db = service(command=("sh", "-c", "echo still loading; sleep 99"), health=NEVER)
    wanted = spec(db=db)
    group = wanted.services.model_copy(update={"ready_s": 1.5})
    box = docker.sandbox(wanted.model_copy(update={"services": group}))
    began = time.monotonic()
    with pytest.raises(SandboxError, match=r"its service db was not ready within 1\.5 s.*still loading"):
        await box.__aenter__()
    assert time.monotonic() - began < 15
    assert await things(docker, box.sandbox_id) == (0, 0, 0)


GREEDY = """
import http.server as h
class H(h.BaseHTTPRequestHandler):
    do_GET = lambda self: globals().update(x=bytearray(b"1" * 10**9))
h.HTTPServer(("", 8000), H).serve_forever()
"""


async def test_an_agent_that_exhausts_a_service_ends_nothing_else(docker, service):
    async with docker.sandbox(spec(db=service(command=("python3", "-c", GREEDY)))) as box:
        await asyncio.sleep(0.3)
        assert (await box.exec(f"{GET} http://db:8000/")).exit_code
        assert (await box.exec("echo alive")).stdout == "alive\n"
        await box.ping()


async def test_a_service_that_fills_the_disk_ends_its_sandbox(docker, service):
    fills = service(
        command=("sh", "-c", "for i in 1 2 3 4 5 6; do head -c 10000000 /dev/zero > /f$i; done; sleep 99"), disk_mb=20
    )
    async with docker.sandbox(spec(db=fills)) as box:
        with pytest.raises(SandboxKilledError, match="its service db: its disk was used up"):
            await box.exec("sleep 30")


@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.7])
async def test_an_opening_that_is_cancelled_leaves_nothing(docker, service, after_s):
    wanted = spec(
        Placed(networks=HOME, mounts=(Mount(path="/v", volume="v"),)), ("v",), db=service(command=("sleep", "99"))
    )
    box = docker.sandbox(wanted)
    opening = asyncio.create_task(box.__aenter__())
    await asyncio.sleep(after_s)
    opening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await opening
    await box.close()
    assert await things(docker, box.sandbox_id) == (0, 0, 0)


async def test_what_is_left_without_a_container_is_found(docker, service):
    """An owner that was killed before its first container was created."""
    wanted = spec(db=service(command=("sleep", "99"))).model_copy(update={"lifetime_s": 0.1})
    box = docker.sandbox(wanted)
    await box.siblings.make_network("default")
    await box.siblings.make_volume("v", 1)
    await asyncio.sleep(0.2)
    (found,) = [one for one in await docker.list() if one.sandbox_id == box.sandbox_id]
    assert found.gone
    assert await survey.collect("docker") >= 1
    assert await things(docker, box.sandbox_id) == (0, 0, 0)


@pytest.mark.parametrize("name", ["bubblewrap", "local"])
async def test_other_back_ends_refuse_services_by_name(name):
    group = ServiceGroup(services={"db": Service(image="postgres")})
    with pytest.raises(ConfigError, match="no services beside them; use the back end docker"):
        open_backend(name).sandbox(SMALL.model_copy(update={"services": group}))


@pytest.mark.parametrize(
    ("services", "said"),
    [
        ({"a": {"after": {"b": "started"}}, "b": {"after": {"a": "healthy"}}}, "a -> b -> a"),
        ({"a": {"after": {"b": "started"}}}, "waits for b, which is no service"),
        ({"../a": {}}, "cannot be a name"),
        ({"main": {}}, "is the sandbox itself"),
        ({"a": {"mounts": [{"path": "/x", "volume": "v"}]}}, "none of the volumes"),
        ({"a": {"within": "main"}}, "cannot share the network of main"),
    ],
)
def test_groups_that_do_not_fit_together(services, said):
    with pytest.raises(ValidationError, match=said):
        ServiceGroup.model_validate({"services": {name: {"image": "x", **one} for name, one in services.items()}})
