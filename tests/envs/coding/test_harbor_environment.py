import pytest

from agentrl import ConfigError
from agentrl_envs.coding.formats.harbor import CannotRunError
from agentrl_envs.coding.formats.harbor.dockerfile import assignments, filled, parse
from agentrl_envs.coding.formats.harbor.environment import made_from
from agentrl_envs.coding.formats.shell_words import commands, fetches, installs
from agentrl_envs.coding.formats.starting import needs_network


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "environment"
    made.mkdir()
    (made / "data.txt").write_text("1\n")
    (made / "run.sh").write_text("true\n")
    (made / "run.sh").chmod(0o755)
    return made


def dockerfile(folder, text):
    (folder / "Dockerfile").write_text(text)
    return folder


def test_instructions_keep_their_lines_flags_and_documents():
    text = (
        "# a comment\n"
        "FROM --platform=linux/amd64 base AS one\n"
        "\n"
        "RUN first && \\\n"
        "    # between\n"
        "    second\n"
        "COPY --chown=1:1 <<EOF /a\n"
        "RUN no\n"
        "EOF\n"
        'CMD ["sh", "-c", "x"]'
    )
    found = parse(text)
    assert [(one.line, one.end, one.name) for one in found] == [
        (2, 3, "FROM"), (4, 7, "RUN"), (7, 10, "COPY"), (10, 11, "CMD")
    ]  # fmt: skip
    assert found[0].flags == {"platform": "linux/amd64"}
    assert found[1].value == "first &&     second"
    assert found[2].documents == {"EOF": "RUN no\n"}
    assert found[3].listed() == ["sh", "-c", "x"]


def test_a_document_that_does_not_end_is_refused():
    with pytest.raises(ConfigError, match="line 1"):
        parse("RUN <<EOF\necho\n")


def test_variables_of_env_and_arg():
    one, two, three = parse("ENV A=1 B='two words'\nENV C  three words\nARG D")
    assert assignments(one) == {"A": "1", "B": "two words"}
    assert assignments(two) == {"C": "three words"}
    assert assignments(three) == {}
    assert filled("$A/${B:-x}/${C-y}/${E:+z}/\\$A", {"A": "1", "E": "e"}) == "1/x/y/z/$A"


def test_a_folder_that_needs_no_change_is_built_as_it_is(folder):
    made = made_from(dockerfile(folder, "FROM base\nWORKDIR /app\nUSER dev:dev\n"), bases={}, installed=False)
    assert (made.image, made.workdir, made.user) == (str(folder), "/app", "dev")


def test_base_images_are_mapped_and_stages_are_not(folder):
    text = 'ARG V=3.13\nFROM docker.io/library/python:${V}-slim AS made\nFROM made\nWORKDIR /a\nWORKDIR b\nCMD ["x"]\n'
    made = made_from(dockerfile(folder, text), bases={"python:3.13-slim": "local", "made": "no"}, installed=False)
    assert made.image != str(folder)
    with open(f"{made.image}/Dockerfile") as file:
        assert file.read() == 'ARG V=3.13\nFROM local AS made\nFROM made\nWORKDIR /a\nWORKDIR b\nCMD ["x"]\n'
    assert made.workdir == "/a/b"
    with open(f"{made.image}/data.txt") as file:
        assert file.read() == "1\n"


def test_the_same_content_gives_the_same_copy(folder):
    dockerfile(folder, "FROM a\n")
    first = made_from(folder, bases={"a": "b"}, installed=False).image
    assert made_from(folder, bases={"a": "b"}, installed=False).image == first
    (folder / "data.txt").write_text("2\n")
    assert made_from(folder, bases={"a": "b"}, installed=False).image != first


def test_installed_packages_are_left_out_and_the_rest_is_kept(folder):
    text = (
        "FROM base\n"
        "RUN apt-get update && apt-get install -y gcc \\\n"
        "    && ln -s a b && rm -rf /var/lib/apt/lists/*\n"
        "RUN pip install --no-cache-dir numpy==2\n"
        "RUN echo 'pip install x && y' > /readme; curl -O http://there/x\n"
        "COPY data.txt /app/\n"
    )
    made = made_from(dockerfile(folder, text), bases={}, installed=True)
    with open(f"{made.image}/Dockerfile") as file:
        assert file.read() == (
            "FROM base\n"
            "RUN { ln -s a b; } || true\n"
            "\n"
            "RUN echo 'pip install x && y' > /readme; curl -O http://there/x\n"
            "COPY data.txt /app/\n"
        )
    assert made.left_out[0] == "line 2: apt-get update"
    assert len(made.left_out) == 4
    assert made.fetches == ["line 5: curl"]
    assert made_from(folder, bases={}, installed=False).fetches == ["line 2: apt-get", "line 4: pip", "line 5: curl"]


def test_a_missing_dockerfile_cannot_be_run(folder):
    with pytest.raises(CannotRunError, match="no Dockerfile"):
        made_from(folder, bases={}, installed=False)


COMPOSE = """services:
  main:
    build:
      context: ${CONTEXT_DIR}/..
      dockerfile: ${CONTEXT_DIR}/Dockerfile
    command: ["sh", "-c", "sleep infinity"]
    environment: ["TEST_DIR=${TEST_DIR}"]
    volumes: ["${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}"]
"""


def test_one_service_that_builds_in_the_tasks_folder(folder):
    dockerfile(folder, "FROM base\nCOPY app/ /app\n")
    (folder / "docker-compose.yaml").write_text(COMPOSE)
    (folder.parent / "app").mkdir()
    (folder.parent / "app" / "x").write_text("1")
    made = made_from(folder, bases={}, installed=False)
    with open(f"{made.image}/Dockerfile") as text, open(f"{made.image}/app/x") as x:
        assert (text.read(), x.read()) == ("FROM base\nCOPY app/ /app\n", "1")
    (folder / "docker-compose.yaml").write_text(COMPOSE.replace("${CONTEXT_DIR}/..", "."))
    assert made_from(folder, bases={}, installed=False).image == str(folder)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    command:", "    privileged: true\n    command:", "privileged"),
        ("${HOST_VERIFIER_LOGS_PATH}:", "/etc:", "/etc"),
        ("${CONTEXT_DIR}/..", "../../..", "a build in"),
        ("main:", "other:", "names no service main"),
    ],
)
def test_what_a_compose_file_asks_beyond_that_is_refused(folder, old, new, said):
    dockerfile(folder, "FROM base\n")
    (folder / "docker-compose.yaml").write_text(COMPOSE.replace(old, new))
    with pytest.raises(ConfigError, match=said):
        made_from(folder, bases={}, installed=False)


def test_commands_are_split_outside_of_quotes_and_brackets():
    script = "a && (b; c) || d 'x;y' \\; e\nf"
    assert list(commands(script)) == [("", "a"), ("&&", "(b; c)"), ("||", "d 'x;y' \\; e"), ("\n", "f")]


@pytest.mark.parametrize(
    ("command", "so"),
    [
        ("apt-get install -y x", True),
        ("DEBIAN_FRONTEND=noninteractive apt-get -qq update", True),
        ("python3 -m pip install x", True),
        ("rm -rf /var/lib/apt/lists/*", True),
        ("rm -rf /app", False),
        ("apt-cache search x", False),
        ("python -m pytest install", False),
        ("echo apt-get install", False),
    ],
)
def test_what_installs(command, so):
    assert installs(command) is so


def test_what_was_said_for_want_of_a_network():
    assert needs_network("test.sh: line 3: uvx: command not found") == ["uvx"]
    assert needs_network("curl: (6) Could not resolve host") == ["Could not resolve host"]
    assert needs_network("The command '/bin/sh -c git clone x' returned a non-zero code: 1") == ["git clone"]
    assert needs_network("The command '/bin/sh -c make' returned a non-zero code: 2; curl: not found") == []
    assert needs_network("AssertionError: pip install") == []


def test_what_fetches():
    script = (
        "set -e\napt-get update\nif ! curl -LsSf x | sh; then exit 1; fi\nuvx -w pytest \\\n  pytest\ngit clone y\n"
    )
    assert fetches(script) == ["apt-get", "curl", "uvx", "git clone"]
