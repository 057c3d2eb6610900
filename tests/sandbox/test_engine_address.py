"""Where an engine is, as Docker's own client finds it."""

import hashlib
import json

import pytest

pytest.importorskip("aiodocker", reason="the extra `docker` is not installed")

from agentrl.errors import ConfigError, SandboxError
from agentrl_sandbox import open_backend
from agentrl_sandbox.docker.addresses import engine_address
from agentrl_sandbox.docker.engine import DockerClient
from agentrl_sandbox.needs import needs
from agentrl_sandbox.spec import SandboxSpec


@pytest.fixture(autouse=True)
def docker_folder(tmp_path, monkeypatch):
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path


def context(folder, name, host, **more):
    meta = folder / "contexts/meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host, **more}}}))


def test_the_order_is_that_of_docker_s_client(docker_folder, monkeypatch):
    context(docker_folder, "one", "ssh://me@one")
    context(docker_folder, "two", "tcp://two:2375")
    assert engine_address().address.startswith("unix://")
    (docker_folder / "config.json").write_text('{"currentContext": "one"}')
    assert engine_address().address == "ssh://me@one"
    monkeypatch.setenv("DOCKER_CONTEXT", "two")
    assert (engine_address().address, engine_address().tls) == ("tcp://two:2375", ())
    monkeypatch.setenv("DOCKER_HOST", "unix:///here.sock")
    assert engine_address().address == "unix:///here.sock"
    assert engine_address("one").address == "ssh://me@one"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("box-1", "'box-1' is neither an engine's address nor a context"),
        ("ftp://box", "begins with unix://, tcp:// or ssh://"),
        ("ssh://me:secret@box", "log in by a key"),
        ("ssh://", "write ssh://USER@HOST"),
        ("ssh://-oProxyCommand=ls", "does not begin with a dash"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_remedy(name, said):
    with pytest.raises(ConfigError, match=said):
        engine_address(name)


def test_docker_s_client_reaches_an_engine_with_tls(docker_folder, monkeypatch):
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    assert engine_address("tcp://box:2376").tls == ("--host", "tcp://box:2376")
    assert engine_address("ssh://box").tls == ()
    monkeypatch.delenv("DOCKER_TLS_VERIFY")
    assert engine_address("tcp://box:2376").tls == ()
    context(docker_folder, "trusting", "tcp://box:2376", SkipTLSVerify=True)
    assert engine_address("trusting").tls == ("--context", "trusting")


async def test_an_engine_with_tls_needs_docker_s_client(monkeypatch):
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("PATH", "/nowhere")
    client = DockerClient("tcp://127.0.0.1:2376")
    with pytest.raises(SandboxError, match="there is no program docker; install its package"):
        await client.connect()
    await client.close()


async def test_the_message_of_docker_s_client_is_passed_on(docker_folder, monkeypatch):
    program = docker_folder / "docker"
    program.write_text("#!/bin/sh\nexec >&-\nsleep 0.2\necho 'x509: unknown authority' >&2\n")  # as late as Docker's
    program.chmod(0o755)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("PATH", str(docker_folder), prepend=":")
    client = DockerClient("tcp://127.0.0.1:2376")
    with pytest.raises(SandboxError, match="cannot be reached: x509: unknown authority"):
        await client.connect()
    await client.close()


async def test_an_address_without_tls_is_warned_of(caplog):
    for address, warned in (("tcp://127.0.0.1:1", False), ("tcp://box:2375", True)):
        client = DockerClient(address)
        await client.close()
        assert ("has no TLS" in caplog.text) == warned


def test_hosts_are_named_once_each():
    for names in ("docker:ssh://one,ssh://one", "docker:ssh://one,"):
        with pytest.raises(ConfigError, match="write each host once"):
            open_backend(names)


def test_needs_name_the_hosts():
    (engines, _) = needs("docker:ssh://one,ssh://two", SandboxSpec(), 4)
    assert engines == "a container engine on each of ssh://one, ssh://two"
