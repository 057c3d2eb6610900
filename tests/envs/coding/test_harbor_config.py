import pytest

from agentrl import ConfigError
from agentrl_envs.coding.formats.harbor.config import read_task_toml, resolved


def written(tmp_path, text):
    path = tmp_path / "task.toml"
    path.write_text(text)
    return path


NEWEST = """
schema_version = "1.4"
multi_step_reward_strategy = "final"
artifacts = ["/app/out", { source = "/app/log", exclude = ["*.tmp"] }]
[task]
name = "org/two"
[agent]
timeout_sec = 30.0
user = 1000
[verifier]
environment_mode = "separate"
env = { KEY = "${SOME_KEY:-none}" }
[[verifier.collect]]
command = "dump > /app/dump"
[environment]
docker_image = "python:3.13-slim"
network_mode = "allowlist"
allowed_hosts = ["pypi.org"]
memory_mb = 512
[environment.healthcheck]
command = "true"
retries = 5
[[steps]]
name = "first"
min_reward = 0.5
[[steps]]
name = "second"
min_reward = { reward = 1.0 }
[steps.verifier]
timeout_sec = 5
"""


def test_the_newest_schema_is_read(tmp_path):
    found = read_task_toml(written(tmp_path, NEWEST))
    assert found.agent.user == "1000"
    assert found.multi_step_reward_strategy == "final"
    assert [one.source for one in found.artifacts] == ["/app/out", "/app/log"]
    assert found.verifier.mode == "separate"
    assert found.verifier.collect[0].command == "dump > /app/dump"
    assert found.environment.healthcheck is not None
    assert found.environment.healthcheck.retries == 5
    assert [step.min_reward for step in found.steps] == [0.5, {"reward": 1.0}]
    assert found.steps[1].verifier.timeout_sec == 5


def test_the_older_spellings_are_read(tmp_path):
    text = 'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false\nsurprise = 1\n'
    found = read_task_toml(written(tmp_path, text))
    assert (found.schema_version, found.environment.memory_mb, found.environment.storage_mb) == ("1.0", 2048, 512)
    assert found.environment.network_mode == "no-network"


def test_a_network_is_public_unless_it_is_said(tmp_path):
    assert read_task_toml(written(tmp_path, "")).environment.network_mode == "public"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[environment]\nmemory = "lots"', "lots"),
        ('[environment]\nmemory = "2G"\nmemory_mb = 512', "keep memory_mb"),
        ('[environment]\nallowed_hosts = ["a.org"]', "allowlist"),
        ('[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1', "drop one"),
        ('[verifier]\ntimeout_sec = "soon"', "verifier.timeout_sec"),
        ('[[steps]]\nname = "../out"', "../out"),
        ('[[steps]]\nname = "a"\n[[steps]]\nname = "A"', "two steps"),
        ("[environment", "task.toml"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        read_task_toml(written(tmp_path, text))


def test_a_folder_without_task_toml_is_no_task(tmp_path):
    with pytest.raises(ConfigError, match="not a Harbor task"):
        read_task_toml(tmp_path / "task.toml")


def test_variables_come_from_this_machine_or_their_default(monkeypatch):
    monkeypatch.setenv("HERE", "yes")
    monkeypatch.delenv("GONE", raising=False)
    env = {"A": "${HERE}", "B": "${GONE:-no: at all}", "C": "literal ${HERE}", "D": "${GONE:-}"}
    assert resolved(env, "task") == {"A": "yes", "B": "no: at all", "C": "literal ${HERE}", "D": ""}


def test_a_variable_that_is_not_set_is_left_out_with_one_warning(monkeypatch, caplog):
    monkeypatch.setattr("agentrl_envs.coding.formats.harbor.config._warned", set())
    monkeypatch.delenv("GONE", raising=False)
    for task in ("one", "two"):
        assert resolved({"A": "${GONE}", "B": "b"}, f"{task}: [verifier] env") == {"B": "b"}
    (said,) = caplog.messages
    assert said.startswith("one: [verifier] env: A is left out, as GONE is not set here;")
    assert "${GONE:-default}" in said
