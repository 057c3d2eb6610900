"""`agentrl check slime` says what the Env needs of a node: the engine, and cores and memory for its episodes."""

from __future__ import annotations

import pytest

from agentrl_sandbox import SandboxSpec, machine
from agentrl_sandbox.needs import needs
from tests.slime.checking import configure, findings
from tests.slime.checking import folder as folder  # a fixture that each test here uses

ENV = '''
from agentrl import Env, tool
from agentrl_sandbox import SandboxSpec
from agentrl_sandbox.needs import needs


class Boxed(Env):
    @tool
    def look(self, what: str) -> str:
        """Look something up."""
        return what

    def score(self, trajectory) -> float:
        return 1.0

    @classmethod
    def needs(cls, config, episodes):
        return needs("docker", SandboxSpec(memory_mb=2048), episodes)


class Broken(Boxed):
    @classmethod
    def needs(cls, config, episodes):
        raise KeyError("backend")
'''
EIGHT = {"actor_num_nodes": 1, "actor_num_gpus_per_node": 8, "rollout_num_gpus_per_engine": 1}


@pytest.fixture(autouse=True)
def _machine(folder, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 2.0)
    monkeypatch.setattr(machine, "memory_mb", lambda: 16 << 10)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    (folder / "my_env.py").write_text(ENV)


def found(env: str) -> list[str]:
    configure(env=f"my_env.py:{env}")
    return [f"{level}: {text}" for level, text in findings(**EIGHT) if env in text]


def test_engine_cores_and_memory_for_the_concurrency_asked():
    assert found("Boxed") == [
        "note: Boxed needs, on the node of slime's RolloutManager: a container engine at unix:///nowhere/docker.sock "
        "(DOCKER_HOST names another); here is none",
        "note: Boxed needs, on the node of slime's RolloutManager: for 32 episodes at a time 32 sandboxes, and 8 more "
        "to grade in, each of up to 1 cores and 2048 MiB: 10 cores and 107 GiB; a machine like this one holds 6, and "
        "the other episodes wait for one",
    ]


def test_a_needs_that_breaks_is_found():
    assert found("Broken") == ["error: Broken.needs failed: KeyError: 'backend'"]


def test_coding_env_tells_its_own():
    configure(env="agentrl_envs.coding.env:CodingEnv", env_config={"backend": "local", "size": 4})
    texts = [text for _, text in findings(**EIGHT) if "CodingEnv needs" in text]
    assert "for trusted code only" in texts[0]
    assert "for 32 episodes at a time 4 sandboxes, and 1 more to grade in" in texts[1]


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("docker", "a container engine at unix:///nowhere/docker.sock"),
        ("bubblewrap", "the system packages bubblewrap and libseccomp2"),
        ("auto", "here is none, or else the system packages bubblewrap"),
        ("my.hosted:Backend", "what the sandbox back end my.hosted:Backend needs"),
    ],
)
def test_each_back_end(backend, said):
    assert said in needs(backend, SandboxSpec(), 1)[0]


def test_what_a_machine_has_is_not_complained_about(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 64.0)
    monkeypatch.setattr(machine, "memory_mb", lambda: 512 << 10)
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.1:2375")
    texts = needs("docker", SandboxSpec(), 64)
    assert not any("here" in text or "machine like this" in text for text in texts)
    assert texts[1].endswith("20 cores and 107 GiB")
