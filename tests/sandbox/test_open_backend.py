"""Back ends by name."""

import sys

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl_sandbox import SandboxSpec, open_backend
from agentrl_sandbox.fake.backend import FakeBackend


class Absent(FakeBackend):
    async def __aenter__(self):
        raise SandboxError("it is not here")


def test_a_name_or_a_path():
    assert open_backend("fake").name == "fake"
    assert isinstance(open_backend("agentrl_sandbox.fake.backend:FakeBackend"), FakeBackend)
    with pytest.raises(ConfigError, match="no sandbox back end 'dokcer'; did you mean docker"):
        open_backend("dokcer")


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("agentrl_sandbox.e2b")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "e2b", None)
    with pytest.raises(ConfigError, match=r'^e2b needs the package e2b: pip install "agentrl-sandbox\[e2b\]"'):
        open_backend("e2b")


@pytest.mark.parametrize(("docker", "chosen"), [(FakeBackend, FakeBackend), (Absent, FakeBackend), (Absent, Absent)])
async def test_auto_takes_the_first_that_works(monkeypatch, docker, chosen):
    monkeypatch.setattr("agentrl_sandbox.docker.backend.DockerBackend", docker)
    monkeypatch.setattr("agentrl_sandbox.bubblewrap.backend.BubblewrapBackend", chosen)
    auto = open_backend("auto")
    with pytest.raises(SandboxError, match="not entered"):
        auto.sandbox(SandboxSpec())
    if chosen is Absent:
        with pytest.raises(SandboxError, match=r"docker: it is not here; bubblewrap: it is not here"):
            await auto.__aenter__()
        return
    async with auto as backend:
        assert backend.name == "fake"
        async with backend.sandbox(SandboxSpec()) as box:
            assert [found.sandbox_id for found in await backend.list()] == [box.sandbox_id]
            await backend.remove([box.sandbox_id])
        assert await backend.list() == []


async def test_auto_without_an_engine_warns_once_with_the_reason(monkeypatch, caplog):
    monkeypatch.setattr("agentrl_sandbox.backend._warned", set())
    monkeypatch.setattr("agentrl_sandbox.docker.backend.DockerBackend", Absent)
    monkeypatch.setattr("agentrl_sandbox.bubblewrap.backend.BubblewrapBackend", FakeBackend)
    caplog.set_level("INFO", "agentrl")
    for _ in range(2):
        async with open_backend("auto"):
            pass
    (said,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "sandboxes run in bubblewrap" in said.message
    assert "docker: it is not here" in said.message


async def test_auto_with_an_engine_warns_of_nothing(monkeypatch, caplog):
    monkeypatch.setattr("agentrl_sandbox.docker.backend.DockerBackend", FakeBackend)
    caplog.set_level("INFO", "agentrl")
    async with open_backend("auto"):
        pass
    assert [record.levelname for record in caplog.records] == ["INFO"]
