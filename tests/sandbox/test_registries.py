"""Names of images, and the credentials that Docker's client has for their registries."""

import base64
import json

import pytest

from agentrl.errors import ConfigError
from agentrl_sandbox.docker.registries import ImageName, credentials

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.13-slim", "docker.io/library/python:3.13-slim"),
        ("me/mine", "docker.io/me/mine:latest"),
        ("ghcr.io/a/b/c:1", "ghcr.io/a/b/c:1"),
        ("localhost:5000/x", "localhost:5000/x:latest"),
        (f"quay.io/a/b:1@{DIGEST}", f"quay.io/a/b@{DIGEST}"),
    ],
)
def test_names_are_read_as_docker_does(name, whole):
    assert str(ImageName.parse(name)) == whole


@pytest.fixture
def logged_in(tmp_path, monkeypatch):
    """Writes config.json, and programs that keep credentials."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    def write(**config):
        (tmp_path / "config.json").write_text(json.dumps(config))

    program = tmp_path / "docker-credential-keeper"
    program.write_text(
        "#!/bin/sh\nread -r server\ncase $server in\n"
        'private) echo \'{"Username": "me", "Secret": "secret"}\' ;;\n'
        'token) echo \'{"Username": "<token>", "Secret": "abc"}\' ;;\n'
        "broken) echo the keeper is locked; exit 1 ;;\n"
        "*) echo credentials not found in native keychain; exit 1 ;;\nesac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return write


async def header(registry):
    found = await credentials(registry)
    return None if found is None else json.loads(base64.urlsafe_b64decode(found))


async def test_credentials_of_config_json(logged_in):
    assert await header("ghcr.io") is None
    auth = base64.b64encode(b"me:pass:word").decode()
    logged_in(
        auths={"ghcr.io": {"auth": auth}, "https://index.docker.io/v1/": {"identitytoken": "t"}, "quay.io": {}, "x": 0}
    )
    assert await header("ghcr.io") == {"username": "me", "password": "pass:word", "serveraddress": "ghcr.io"}
    assert await header("docker.io") == {"identitytoken": "t", "serveraddress": "https://index.docker.io/v1/"}
    assert await header("quay.io") is None
    logged_in(auths={"ghcr.io": {"auth": "no base64!"}})
    with pytest.raises(ConfigError, match=r"auth of ghcr\.io is not base64"):
        await header("ghcr.io")


async def test_credentials_of_a_helper(logged_in):
    logged_in(credHelpers={"private": "keeper", "broken": "keeper"}, auths={"private": {}})
    assert await header("private") == {"username": "me", "password": "secret", "serveraddress": "private"}
    assert await header("other") is None
    with pytest.raises(ConfigError, match=r"docker-credential-keeper has .* for broken: the keeper is locked"):
        await header("broken")
    logged_in(credsStore="keeper")
    assert await header("token") == {"identitytoken": "abc", "serveraddress": "token"}
    assert await header("other") is None
    logged_in(credsStore="nowhere")
    with pytest.raises(ConfigError, match="docker-credential-nowhere, which Docker"):
        await header("other")
