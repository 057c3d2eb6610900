"""Real databases beside a sandbox, from a compose file as for any web application: PostgreSQL, Redis, MariaDB.

AGENTRL_REQUIRE=databases .ci/docker.sh tests/sandbox/docker/test_databases.py: the first time it downloads 95 MB.
"""

import asyncio
import os
import signal
import sys
import time

import pytest

from agentrl.errors import SandboxError
from agentrl_envs.coding.formats.harbor import load
from agentrl_envs.coding.formats.harbor.compose import read_compose
from agentrl_envs.coding.validate import ValidationSettings, find_tasks, validate
from agentrl_sandbox.spec import SandboxSpec
from agentrl_sandbox.survey import collect
from tests.envs.coding.harbor_tasks import harbor_task
from tests.sandbox.docker.database_images import import_all
from tests.sandbox.docker.things import things
from tests.sandbox.engine import ALONE, REQUIRED

pytestmark = [
    pytest.mark.skipif("databases" not in REQUIRED, reason="AGENTRL_REQUIRE=databases runs it: 95 MB of packages"),
    pytest.mark.timeout(900),
    ALONE,
]

COUNT = 8
COMPOSE = """
services:
  main:
    image: database-client
    environment:
      DATABASE_URL: postgres://app:secret@db:5432/shop
    depends_on:
      db: {condition: service_healthy}
      cache: {condition: service_healthy}
    networks: [backend]
  db:
    image: postgres:15
    restart: unless-stopped
    env_file: db.env
    environment: {POSTGRES_PASSWORD: secret, POSTGRES_DB: shop}
    command: ["postgres", "-c", "max_connections=50", "-c", "shared_buffers=64MB"]
    volumes:
      - pgdata:/var/lib/postgresql/data
      - ./db:/docker-entrypoint-initdb.d:ro
    healthcheck:
      test: ["CMD-SHELL", "pg_isready -U $${POSTGRES_USER} -d $${POSTGRES_DB}"]
      interval: 5s
      timeout: 5s
      retries: 5
      start_period: 10s
    shm_size: 128mb
    stop_grace_period: 30s
    networks: [backend]
  cache:
    image: redis:7
    command: redis-server --save "" --appendonly yes
    user: redis
    volumes: ["cachedata:/data"]
    healthcheck: {test: [CMD, redis-cli, ping], interval: 3s, retries: 10}
    networks: [backend]
volumes: {pgdata: , cachedata: }
networks:
  backend: {driver: bridge, internal: true}
"""
LEDGER = """
  ledger:
    image: mariadb:10.11
    environment: {MARIADB_ROOT_PASSWORD: r, MARIADB_DATABASE: ledger, MARIADB_USER: app, MARIADB_PASSWORD: secret}
    volumes: ["./ledger.sql:/docker-entrypoint-initdb.d/ledger.sql:ro", "/var/lib/mysql"]
    tmpfs: [/run/mysqld]
    healthcheck: {test: [CMD, mariadb-admin, ping, -h, localhost], interval: 2s, retries: 30}
    networks: [backend]
volumes:"""
SCHEMA = """
CREATE TABLE products (id serial PRIMARY KEY, name text NOT NULL UNIQUE, price numeric(10, 2) NOT NULL);
INSERT INTO products (name, price) SELECT 'product ' || n, n * 1.5 FROM generate_series(1, 20000) n;
SELECT pg_sleep(2);
"""
GRANTS = """#!/bin/bash
psql -v ON_ERROR_STOP=1 -d "$POSTGRES_DB" -c "CREATE ROLE reader LOGIN PASSWORD 'r'; GRANT SELECT ON products TO reader"
"""
SOLVE = """#!/bin/bash
cat > /tmp/solve.py <<'END'
import os, psycopg2, pymysql, redis
with psycopg2.connect(os.environ["DATABASE_URL"]) as connection, connection.cursor() as cursor:
    cursor.execute("INSERT INTO products (name, price) SELECT 'answer', max(price) + 1 FROM products RETURNING price")
    (price,) = cursor.fetchone()
redis.Redis(host="cache").set("answer", str(price))
with pymysql.connect(host="ledger", user="app", password="secret", database="ledger") as connection:
    connection.cursor().execute("INSERT INTO entries (amount) VALUES (%s)", (price,))
    connection.commit()
END
python3 /tmp/solve.py
"""
TEST = """#!/bin/bash
price=$(PGPASSWORD=r psql -h db -U reader -d shop -At -c "SELECT price FROM products WHERE name = 'answer'")
kept=$(redis-cli -h cache get answer)
booked=$(mariadb -h ledger -u app -psecret ledger -N -e "SELECT sum(amount) FROM entries")
if [ "$price $kept $booked" = "30001.00 30001.00 30101.00" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


@pytest.fixture(scope="module", autouse=True)
def images():
    import_all()


@pytest.fixture
def environment(tmp_path):
    """A folder with the compose file of PostgreSQL and Redis, and what it names."""
    folder = harbor_task(tmp_path / "shop", dockerfile="FROM database-client\nWORKDIR /app\n", solve=SOLVE, test=TEST)
    environment = folder / "environment"
    (environment / "docker-compose.yaml").write_text(COMPOSE)
    (environment / "db.env").write_text("# who owns it\nPOSTGRES_USER=app\n")
    (environment / "db").mkdir()
    (environment / "db" / "01-schema.sql").write_text(SCHEMA)
    (environment / "db" / "02-grants.sh").write_text(GRANTS)
    return environment


def spec_of(environment, ready_s=300):
    found = read_compose(environment, {}, ready_s)
    return SandboxSpec(
        image=found.main.image, services=found.group, env=found.main.env, read_only=False, memory_mb=256, pids=64
    )


async def rows(box, query="SELECT name FROM products WHERE id > 20000"):
    return (await box.exec(f'psql "$DATABASE_URL" -At -c "{query}"', check=True)).stdout.split("\n")[:-1]


async def test_a_task_with_three_databases_is_validated(docker, environment, monkeypatch):
    monkeypatch.setattr("agentrl_envs.coding.validate.TIMES", 1)
    (environment / "docker-compose.yaml").write_text(COMPOSE.replace("\nvolumes:", LEDGER))
    (environment / "ledger.sql").write_text(
        "CREATE TABLE entries (amount decimal(10, 2)); INSERT INTO entries VALUES (100);"
    )
    (found,) = find_tasks(environment.parent, ValidationSettings(backend="docker"))
    assert set(load(found).spec["services"]["services"]) == {"db", "cache", "ledger"}
    (finding,) = await validate([found], ValidationSettings(backend="docker"))
    assert (finding.verdict, finding.reason) == ("good", "")


async def test_sandboxes_see_only_their_own_rows(docker, environment, capsys):
    spec, began, ready, closing = spec_of(environment), time.monotonic(), [], []

    async def play(number):
        async with docker.sandbox(spec) as box:
            ready.append(time.monotonic() - began)
            own = f"INSERT INTO products (name, price) VALUES ('of {number}', 1)"
            await box.exec(f'psql "$DATABASE_URL" -c "{own}" && redis-cli -h cache set of {number}', check=True)
            assert await rows(box) == [f"of {number}"]
            assert (await box.exec("redis-cli -h cache get of; redis-cli -h cache dbsize")).stdout == f"{number}\n1\n"
            sizes = [await used(docker, name) for name in box.siblings.names]
            await everyone.wait()
            ended = time.monotonic()
        closing.append(time.monotonic() - ended)
        assert await things(docker, box.sandbox_id) == (0, 0, 0)
        return sizes

    everyone = asyncio.Barrier(COUNT)
    sizes = await asyncio.gather(*map(play, range(COUNT)))
    with capsys.disabled():
        print(
            f"\n{COUNT} sandboxes at once: ready after {min(ready):.1f} to {max(ready):.1f} s, removed within "
            f"{max(closing):.1f} s; MiB of PostgreSQL {max(one[0] for one in sizes)}, of Redis "
            f"{max(one[1] for one in sizes)}"
        )


async def used(docker, container):
    """MiB that the engine counts, without files that the kernel can drop."""
    stats = await docker.engine.docker._query_json(f"containers/{container}/stats", params={"stream": "0"})
    memory = stats["memory_stats"]
    return (memory["usage"] - memory["stats"].get("total_inactive_file", 0)) >> 20


async def test_a_database_in_memory_of_a_user_without_root(docker, environment):
    """The settings of a careful author: tmpfs with options, a user, no capabilities, a read-only root."""
    volumes = "volumes:\n      - pgdata:/var/lib/postgresql/data\n"
    careful = """user: "999:999"
    init: true
    read_only: true
    cap_drop: [ALL]
    mem_limit: 256m
    tmpfs:
      - /tmp
      - /var/run/postgresql:uid=999,gid=999,mode=775
      - /var/lib/postgresql/data:size=200m,uid=999,gid=999,mode=0700
    volumes:
"""
    assert volumes in COMPOSE
    (environment / "docker-compose.yaml").write_text(COMPOSE.replace(volumes, careful))
    async with docker.sandbox(spec_of(environment)) as box:
        assert await rows(box, "SELECT count(*) FROM products") == ["20000"]


async def state(docker, container):
    return (await docker.engine.docker._query_json(f"containers/{container}/json"))["State"]


async def test_databases_that_are_killed(docker, environment):
    """One that restarts has what was committed; one that does not is gone, and nothing else with it."""
    async with docker.sandbox(spec_of(environment)) as box:
        db, cache = box.siblings.names
        await rows(box, "INSERT INTO products (name, price) VALUES ('kept', 1)")
        begun = await state(docker, db)
        os.kill(begun["Pid"], signal.SIGKILL)
        await until(lambda: is_again(docker, db, begun))
        await until(lambda: answers(box))
        assert await rows(box) == ["kept"]
        os.kill((await state(docker, cache))["Pid"], signal.SIGKILL)
        assert "Could not connect" in (await box.exec("sleep 1; redis-cli -h cache ping")).stderr
        await box.ping()
        assert await rows(box) == ["kept"]


async def test_a_query_that_needs_too_much_memory(docker, environment):
    """The kernel kills it, PostgreSQL starts anew by itself, and the agent goes on."""
    async with docker.sandbox(spec_of(environment)) as box:
        await rows(box, "INSERT INTO products (name, price) VALUES ('kept', 1)")
        greedy = "SELECT count(x) FROM (SELECT array_agg(md5(n::text)) x FROM generate_series(1, 30000000) n) y"
        said = await box.exec(f'psql "$DATABASE_URL" -c "{greedy}"', timeout=300)
        assert said.exit_code == 2
        assert "server closed the connection unexpectedly" in said.stderr
        await until(lambda: answers(box))
        assert await rows(box) == ["kept"]
        await box.ping()


async def is_again(docker, container, before):
    now = await state(docker, container)
    return now["Running"] and now["StartedAt"] != before["StartedAt"]


async def answers(box):
    return (await box.exec('psql "$DATABASE_URL" -c "SELECT 1"')).exit_code == 0


async def until(what):
    async with asyncio.timeout(60):
        while not await what():  # noqa: ASYNC110 - as an agent sees it
            await asyncio.sleep(0.2)


async def test_a_first_script_that_fails_is_told(docker, environment):
    (environment / "db" / "01-schema.sql").write_text("CREATE TABEL products ();")
    text = COMPOSE.replace("restart: unless-stopped", 'restart: "no"')
    (environment / "docker-compose.yaml").write_text(text)
    box = docker.sandbox(spec_of(environment))
    with pytest.raises(SandboxError, match=r"its service db ended with exit code 3.*syntax error at or near \"TABEL\""):
        async with box:
            pass
    assert await things(docker, box.sandbox_id) == (0, 0, 0)


OWNER = """
import asyncio, sys
from agentrl_sandbox import SandboxSpec, open_backend

async def main():
    async with open_backend("docker") as backend:
        box = await backend.sandbox(SandboxSpec.model_validate_json(sys.stdin.read())).__aenter__()
        print(box.sandbox_id, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_owner_leaves_nothing_after_the_sweep(docker, environment):
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    owner.stdin.write(spec_of(environment).model_dump_json().encode())
    owner.stdin.close()
    sandbox_id = (await owner.stdout.readline()).decode().strip()
    assert await things(docker, sandbox_id) == (4, 1, 3)
    owner.kill()
    await owner.wait()
    await until(lambda: swept(docker, sandbox_id))


async def swept(docker, sandbox_id):
    await collect("docker")
    return await things(docker, sandbox_id) == (0, 0, 0)
