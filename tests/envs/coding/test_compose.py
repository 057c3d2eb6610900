"""A task's docker-compose.yaml: what becomes of each of its keys."""

import io
import tarfile
from pathlib import Path
from textwrap import dedent

import pytest

from agentrl import ConfigError, Task
from agentrl_envs.coding.formats.harbor import CannotRunError, load
from agentrl_envs.coding.formats.harbor.compose_values import Variables, env_file, mapping, megabytes, seconds
from agentrl_envs.coding.formats.harbor.environment import made_from
from agentrl_envs.coding.images import images_of
from agentrl_sandbox.docker.services import packed_folder
from agentrl_sandbox.services import HealthCheck, Mount
from agentrl_sandbox.spec import SandboxSpec
from tests.envs.coding.harbor_tasks import harbor_task


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "task" / "environment"
    made.mkdir(parents=True)
    (made / "Dockerfile").write_text("FROM base\n")
    return made


def db_with(setting):
    image = "" if setting.startswith("image:") else "    image: x\n"
    return f"services:\n  main: {{}}\n  db:\n{image}    {setting}\n"


def compose(folder, text, **kwargs):
    (folder / "docker-compose.yaml").write_text(dedent(text))
    return made_from(folder, bases={"postgres:17": "local-postgres"}, installed=False, **kwargs)


def with_db(db, main="{}", rest=""):
    return f"services: {{main: {main}, db: {db}}}\n{rest}"


def test_a_database_beside_the_agent(folder):
    made = compose(
        folder,
        """
        services:
          main:
            build: {context: "${CONTEXT_DIR}", dockerfile: Dockerfile}
            image: ${MAIN_IMAGE_NAME}
            command: ["bash", "-lc", "/app/fill.py && sleep infinity"]
            environment: ["PG_HOST=postgres", "HTTP_PROXY=${HTTP_PROXY:-}", TEST_DIR]
            volumes: ["${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}"]
            depends_on: {postgres: {condition: service_healthy}}
            deploy: {resources: {limits: {cpus: "${CPUS}", memory: "${MEMORY}"}}}
          postgres:
            image: postgres:17
            environment: {POSTGRES_PASSWORD: "a$$b", N: 3, SSL: on, AT: 10:30, DAY: 2026-01-01, MODE: 0600}
            ports: ["5432:5432"]
            command: postgres -c 'max_connections=10'
            volumes: [pg-data:/var/lib/postgresql/data]
            mem_limit: 512m
            healthcheck: {test: pg_isready -U x, interval: 5s, timeout: 1m30s, retries: 30}
        volumes: {pg-data: }
        """,
        variables={"CPUS": "2", "MEMORY": "2048M"},
    )
    db = made.services.services["postgres"]
    assert made.image == str(folder)
    assert (made.main.cpus, made.main.memory_mb) == (2.0, 2048)
    assert made.main.command == "bash -lc '/app/fill.py && sleep infinity'"
    assert made.main.env == {"PG_HOST": "postgres", "HTTP_PROXY": "", "TEST_DIR": "/tests"}
    assert (db.image, db.memory_mb) == ("local-postgres", 512)
    assert db.env.pop("POSTGRES_PASSWORD") == "a$b"
    assert db.env == {"N": "3", "SSL": "on", "AT": "10:30", "DAY": "2026-01-01", "MODE": "0600"}
    assert db.command == ("postgres", "-c", "max_connections=10")
    assert db.mounts == (Mount(path="/var/lib/postgresql/data", volume="pg-data"),)
    test = ("CMD-SHELL", "pg_isready -U x")
    assert db.health == HealthCheck(test=test, interval_s=5, timeout_s=90, retries=30)
    assert made.services.main.after == {"postgres": "healthy"}
    assert made.services.main.mounts == ()


def test_a_service_is_built_with_its_arguments_up_to_its_stage(folder):
    (folder / "api").mkdir()
    (folder / "api" / "Dockerfile.dev").write_text(
        "ARG V=1\nFROM base:$V AS tools\nARG NAME=x\nRUN echo $NAME\nFROM tools AS last\nRUN never\n"
    )
    build = "{context: ./api, dockerfile: Dockerfile.dev, target: tools, args: {V: 2, NAME: 'a b'}}"
    made = compose(folder, with_db(f"{{build: {build}}}"))
    text = Path(made.services.services["db"].image, "Dockerfile").read_text()
    assert text == "ARG V=2\nFROM base:$V AS tools\nARG NAME='a b'\nRUN echo $NAME\n"
    with pytest.raises(CannotRunError, match="no stage other"):
        compose(folder, with_db(f"{{build: {build.replace('tools', 'other')}}}"))


def test_files_and_folders_of_the_task_are_copied(folder):
    (folder / "init.sql").write_text("x")
    (folder / "conf").mkdir()
    mounts = "[./init.sql:/docker-entrypoint-initdb.d/1.sql:ro, ./conf:/etc/conf, ./missing:/data, /anonymous]"
    made = compose(folder, with_db(f"{{image: x, volumes: {mounts}, tmpfs: /run}}"))
    db = made.services.services["db"]
    assert db.files == {"/docker-entrypoint-initdb.d/1.sql": str(folder / "init.sql")}
    assert [one.path for one in db.mounts] == ["/etc/conf", "/data", "/anonymous", "/run"]
    conf, missing, anonymous, memory = (one.volume for one in db.mounts)
    assert made.services.volumes == {conf: str(folder / "conf"), missing: "", anonymous: ""}
    assert memory == ""


def test_folders_in_memory_have_owner_permissions_and_size(folder):
    short = "/data:rw,noexec,size=200m,uid=999,gid=998,mode=0700"
    long = "{type: tmpfs, target: /long, tmpfs: {size: 8388608}}"
    made = compose(folder, with_db(f"{{image: x, tmpfs: ['{short}', /run], volumes: [{long}]}}"))
    shown = [(one.path, one.owner, one.mode, one.size_mb) for one in made.services.services["db"].mounts]
    assert shown == [("/long", "0:0", "1777", 8), ("/data", "999:998", "0700", 200), ("/run", "0:0", "1777", 0)]


@pytest.mark.parametrize("option", ["uid=x", "mode=rwx", "size=big", "gid=0%2Cdev"])
def test_folders_in_memory_with_wrong_options(folder, option):
    with pytest.raises(ConfigError, match=r"db: .*(tmpfs|size)"):
        compose(folder, with_db(f"{{image: x, tmpfs: '/data:{option}'}}"))


def test_logs_that_a_service_mounts_are_shared_with_main(folder):
    logs = "[{type: bind, source: '${HOST_AGENT_LOGS_PATH}', target: '${ENV_AGENT_LOGS_PATH}'}]"
    made = compose(folder, with_db(f"{{image: x, volumes: {logs}}}"))
    assert made.services.main.mounts == made.services.services["db"].mounts
    assert made.services.main.mounts[0].path == "/logs/agent"


def test_networks_and_names(folder):
    made = compose(
        folder,
        """
        services:
          main: {networks: [front]}
          db:
            image: x
            container_name: the-db
            networks: {front: {aliases: ["db-${COMPOSE_PROJECT_NAME}"]}, back: }
            extra_hosts: ["old.example=10.0.0.1"]
          web: {image: x, links: ["db:database"], networks: [back], network_mode: ""}
        networks: {front: {external: true, name: shared}, back: {internal: true}}
        """,
    )
    db = made.services.services["db"]
    assert db.networks == {"front": ("db-task", "the-db", "database"), "back": ("the-db", "database")}
    assert db.hosts == ("old.example:10.0.0.1",)
    assert made.services.main.networks == {"front": ()}
    assert made.services.closed == ("back",)


def test_a_volume_of_the_agents_alone_needs_no_services(folder):
    made = compose(
        folder,
        "services: {main: {volumes: ['data:/var/lib/x'], tmpfs: [/run], working_dir: /app, user: 10:10}}\n"
        "volumes: {data: }\n",
    )
    assert made.services is None
    assert (made.main.folders, made.workdir, made.user) == (("/var/lib/x",), "/app", "10:10")


def test_anchors_are_merged(folder):
    text = (
        "x-common: &common {image: x, environment: {A: 1}}\n"
        "services: {main: , db: {<<: *common, user: 5}, web: {<<: *common, environment: {B: 2}}}\n"
    )
    db, web = compose(folder, text).services.services.values()
    assert (db.env, db.user, web.env) == ({"A": "1"}, "5", {"B": "2"})


def test_a_profile_that_nobody_asks_for_is_left_out(folder):
    assert compose(folder, with_db("{image: x, profiles: [debug]}")).services is None


def test_main_cannot_have_a_profile(folder):
    with pytest.raises(ConfigError, match="main: it has profiles"):
        compose(folder, "services: {main: {build: ., profiles: [debug]}}")


REFUSED = {
    "image: /etc": "the image /etc is refused",
    "image: ../../x.tar": r"the image \.\./\.\./x.tar is refused",
    "env_file: ./link/passwd": "env_file ./link/passwd is refused",
    "privileged: true": "privileged is refused: it is a way out",
    "network_mode: host": "network_mode host is refused",
    "network_mode: 'container:x'": "network_mode container:x is refused",
    "volumes: ['/etc:/etc']": "/etc is refused: only files of the task's own folder",
    "volumes: ['../../..:/x']": r"mount of \.\./\.\./\.\. is refused",
    "volumes: ['~/.ssh:/x']": "~/.ssh is refused",
    "volumes: ['./link:/x']": "link is refused",
    "volumes: ['/var/run/docker.sock:/var/run/docker.sock']": "whoever reaches the engine owns the machine",
    "volumes: [{type: bind, source: /run/docker.sock, target: /x}]": "whoever reaches the engine",
    "volumes: [{type: npipe, source: x, target: /x}]": "type npipe is refused",
    "volumes: ['${HOST_VERIFIER_LOGS_PATH}:/x']": "the service could write the reward",
    "devices: ['/dev/fuse']": "devices is refused",
    "cap_add: [SYS_ADMIN]": "cap_add SYS_ADMIN is refused",
    "pid: host": "pid is refused",
    "ipc: host": "ipc host is refused",
    "userns_mode: host": "userns_mode is refused",
    "uts: host": "uts is refused",
    "cgroup_parent: /": "cgroup_parent is refused",
    "sysctls: [net.core.somaxconn=1]": "sysctls is refused",
    "security_opt: ['seccomp:unconfined']": "security_opt seccomp:unconfined is refused",
    "runtime: other": "runtime is refused",
    "extra_hosts: ['host.docker.internal:host-gateway']": "the address of the machine",
    "secrets: [x]": "secrets is refused: mount the file",
    "deploy: {replicas: 3}": "more than one replica is refused",
    "deploy: {resources: {reservations: {devices: [{driver: nvidia}]}}}": "reservations.devices is refused",
    "env_file: /etc/passwd": "env_file /etc/passwd is refused",
    "build: /etc": "a build in /etc is refused",
    "build: {context: ., network: host}": "build.network is refused",
    "build: {context: ., dockerfile: /etc/passwd}": "the Dockerfile /etc/passwd is refused",
    "build: {context: ., additional_contexts: {x: /}}": "build.additional_contexts is refused",
    "build: https://example.com/x.git": "only folders of the task can be built",
    "networks: {default: {ipv4_address: 10.0.0.5}}": "a fixed address is refused",
    "new_key: 1": "new_key is refused: it is not known here",
}


@pytest.mark.parametrize("setting", REFUSED)
def test_what_leads_out_of_the_sandbox_is_refused_by_name(folder, setting):
    (folder / "link").symlink_to("/etc")
    with pytest.raises(CannotRunError, match=f"docker-compose.yaml: db: .*{REFUSED[setting]}"):
        compose(folder, db_with(setting))


TOP = {
    "volumes: {v: {driver_opts: {type: none, o: bind, device: /etc}}}": "can reach the machine's files",
    "volumes: {v: {driver: nfs}}": "can reach the machine's files",
    "volumes: {v: {external: true}}": "external data is not part of the task",
    "networks: {n: {driver: macvlan}}": "can reach the machine's network",
    "networks: {n: {driver_opts: {parent: eth0}}}": "can reach the machine's network",
    "networks: {n: {ipam: {config: [{subnet: 10.0.0.0/8}]}}}": "two sandboxes could not run at a time",
    "include: [/etc/x.yaml]": "include is refused",
    "secrets: {x: {file: /etc/shadow}}": "secrets is refused",
}


@pytest.mark.parametrize("setting", TOP)
def test_what_leads_out_at_the_top_is_refused_too(folder, setting):
    with pytest.raises(CannotRunError, match=TOP[setting]):
        compose(folder, with_db("{image: x}", rest=setting))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (with_db("{image: x, volumes: ['data:/x']}"), "the volume data is not declared"),
        (with_db("{image: x, networks: [n]}"), "the network n is not declared"),
        (with_db("{}"), "db: it has neither an image nor a build"),
        (with_db("[1]"), "db: a service is a mapping"),
        (with_db("{image: x, mem_limit: much}"), "'much' is not a size"),
        (with_db("{image: x, healthcheck: {test: x, interval: soon}}"), "'soon' is not a time"),
        (with_db("{image: x, depends_on: {main: {condition: service_healthy}}}"), "waits for main"),
        (with_db("{image: x, depends_on: [web]}"), "waits for web, which is no service"),
        (with_db("{image: x, depends_on: {main: {condition: later}}}"), "'later' is none of service_started"),
        (with_db('{image: x, command: "it\'s"}'), "No closing quotation"),
        (with_db("{image: '${X:?write X}'}"), "the variable X is needed: write X"),
        (with_db("{image: '${X'}"), "does not end"),
        (with_db("{image: x, restart: sometimes}"), "restart"),
        ("services: {db: {image: x}}", "names no service main"),
        ("services: [1]", "names no service main"),
    ],
)
def test_mistakes_are_told_with_their_place(folder, text, said):
    with pytest.raises(ConfigError, match=f"docker-compose.yaml.*{said}"):
        compose(folder, text)


def test_variables_are_the_tasks_alone(folder, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THIS_PROCESS", "secret")
    (folder / ".env").write_text("# a comment\nFROM_FILE='in a file'\nexport B=2 # two\n")
    env = "[SECRET_OF_THIS_PROCESS, 'A=${SECRET_OF_THIS_PROCESS}-', 'F=$FROM_FILE', 'T=${OF_TASK:-none}', 'B=${B}']"
    made = compose(folder, with_db(f"{{image: x, environment: {env}}}"), variables={"OF_TASK": "task"})
    assert made.services.services["db"].env == {"A": "-", "F": "in a file", "T": "task", "B": "2"}


def test_a_link_of_the_authors_reads_nothing_outside(folder, tmp_path):
    (tmp_path / "secret").write_text("KEY=secret\n")
    (folder / ".env").symlink_to(tmp_path / "secret")
    assert compose(folder, with_db("{image: x, environment: [KEY]}")).services.services["db"].env == {}
    (folder / "data").mkdir()
    (folder / "data" / "link").symlink_to(tmp_path / "secret")
    (source,) = compose(folder, with_db("{image: x, volumes: ['./data:/x']}")).services.volumes.values()
    with tarfile.open(fileobj=io.BytesIO(packed_folder(source))) as packed:
        assert [(one.name, one.issym(), one.linkname) for one in packed] == [("link", True, str(tmp_path / "secret"))]


def test_a_file_that_grows_without_end_is_refused(folder):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"x-a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    for text in ("\n".join(lines), "x-a: &a [*a]"):
        with pytest.raises(ConfigError, match="alias"):
            compose(folder, f"{text}\nservices: {{main: }}\n")


def test_forms_of_variables():
    fill = Variables({"A": "1", "E": ""}).fill
    assert fill("$A ${A} $$A ${E:-x} ${E-x} ${N:-${A}2} ${A:+y} ${E:+y} ${N+y} $N.") == "1 1 $A x  12 y   ."
    assert fill({"k": ["$A", 1, None]}) == {"k": ["1", 1, None]}
    for wrong in ("${}", "$ 1", "${A!x}", "${A"):
        with pytest.raises(ConfigError):
            fill(wrong)


def test_values():
    assert [seconds(one) for one in ("1m30s", "500ms", "0s", "2h")] == [90, 0.5, 0, 7200]
    assert [megabytes(one) for one in ("512m", "2g", "1GiB", 1 << 20, "1b")] == [512, 2048, 1024, 1, 1]
    assert mapping(["A=1", "B", "C"], {"B": "2"}) == {"A": "1", "B": "2"}
    with pytest.raises(ConfigError, match="cannot be read"):
        env_file(Path("/nowhere"))


def test_a_task_with_services_as_a_problem(tmp_path):
    folder = harbor_task(tmp_path / "task", toml="[environment]\nmemory_mb = 512\nbuild_timeout_sec = 99\n")
    (folder / "environment" / "docker-compose.yaml").write_text(
        "services:\n"
        "  main: {command: ./serve.sh --all, environment: {A: b}, healthcheck: {test: [CMD, test, -e, /up]}}\n"
        "  db: {image: 'postgres:17', deploy: {resources: {limits: {memory: '${MEMORY}'}}}}\n"
    )
    task = Task(id="t", metadata={"format": "harbor", "path": str(folder), "base": {"postgres:17": "mine"}})
    problem = load(task)
    spec = SandboxSpec.model_validate({**problem.spec, "image": problem.image})
    assert spec.images == (str(folder / "environment"), "mine")
    assert images_of([task], SandboxSpec()) == list(spec.images)
    assert (spec.total_memory_mb, spec.services.ready_s, spec.env["A"]) == (1024, 99, "b")
    assert "nohup setsid ./serve.sh --all" in problem.steps[0].setup
    assert "test -e /up" in problem.steps[0].setup


def test_a_hook_in_another_service_is_refused(tmp_path):
    folder = harbor_task(tmp_path, toml='[[verifier.collect]]\ncommand = "x"\nservice = "db"\n')
    with pytest.raises(CannotRunError, match="a collect hook runs in the service db"):
        load(Task(id="t", metadata={"format": "harbor", "path": str(folder)}))
