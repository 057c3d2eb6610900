import pytest

from agentrl import ConfigError, Task
from agentrl_envs.coding.formats.harbor import CannotRunError, tasks_in
from agentrl_envs.coding.problem import load_problem
from agentrl_sandbox.spec import SandboxSpec
from tests.envs.coding.harbor_tasks import harbor_task


def loaded(folder, **settings):
    return load_problem(Task(id="it", metadata={"format": "harbor", "path": str(folder), **settings}))


def test_a_task_becomes_a_problem(tmp_path):
    toml = "[agent]\ntimeout_sec = 90\n[verifier]\ntimeout_sec = 30\nuser = 'judge'\n[environment]\nmemory_mb = 256\n"
    toml += "cpus = 4096\n[environment.env]\nA = '${NOT_SET:-b}'\n[solution.env]\nB = 'c'\n"
    problem = loaded(harbor_task(tmp_path, toml=toml))
    (step,) = problem.steps
    assert problem.image == str(tmp_path / "environment")
    assert problem.agent_s == 90
    assert step.instruction == f"# Answer\n{tmp_path.name}"
    assert (step.grader.timeout_s, step.grader.user, step.grader.tests) == (30, "judge", (tmp_path / "tests",))
    assert step.grade_s > 30
    assert step.gold.files == {"/solution": tmp_path / "solution"}
    assert step.gold.env["B"] == "c"
    assert not step.clean
    spec = SandboxSpec(**problem.spec)
    assert (spec.workdir, spec.user, spec.memory_mb, spec.env) == ("/app", "root", 256, {"A": "b"})
    assert (spec.network, spec.read_only) == ("none", False)
    assert (spec.cpus, spec.disk_mb) == (4096, 10240)


def test_a_network_is_opened_only_if_both_ask_for_it(tmp_path):
    open_task = harbor_task(tmp_path / "a")
    closed_task = harbor_task(tmp_path / "b", toml='[environment]\nnetwork_mode = "no-network"')
    assert loaded(open_task).spec["network"] == "none"
    assert loaded(open_task, network="task").spec["network"] == "open"
    assert loaded(closed_task, network="task").spec["network"] == "none"


@pytest.mark.parametrize(
    ("toml", "network"),
    [
        ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["pypi.org", "*.a.org"]', ["pypi.org", "*.a.org"]),
        ('[environment]\nnetwork_mode = "allowlist"', "none"),
        ('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["pypi.org"]', ["pypi.org"]),
        ('[agent]\nnetwork_mode = "no-network"', "none"),
        ('[verifier]\nnetwork_mode = "no-network"', "open"),  # it shares the agent's box
    ],
)
def test_allowed_hosts(tmp_path, toml, network):
    folder = harbor_task(tmp_path, toml=toml)
    assert loaded(folder, network="task").spec["network"] == network
    assert loaded(folder).spec["network"] == "none"


def test_a_verifier_of_its_own_has_its_own_network(tmp_path):
    toml = '[verifier]\nenvironment_mode = "separate"\nnetwork_mode = "allowlist"\nallowed_hosts = ["pypi.org"]\n'
    problem = loaded(harbor_task(tmp_path, toml=f'{toml}[agent]\nnetwork_mode = "no-network"'), network="task")
    assert problem.spec["network"] == "none"
    assert problem.steps[0].own.spec["network"] == ["pypi.org"]


def test_hosts_that_no_list_can_hold_are_named(tmp_path):
    toml = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["10.0.0.0/8"]'
    with pytest.raises(CannotRunError, match=r"allowed_hosts: .*10\.0\.0\.0/8"):
        loaded(harbor_task(tmp_path, toml=toml), network="task")


def test_a_named_image_is_mapped(tmp_path):
    toml = '[environment]\ndocker_image = "python:3.13-slim"\nworkdir = "/w"'
    problem = loaded(harbor_task(tmp_path, toml=toml), base={"python:3.13-slim": "local"})
    assert (problem.image, problem.spec["workdir"]) == ("local", "/w")
    assert not problem.steps[0].grader.fresh


def test_steps_share_a_box_and_hide_their_tests(tmp_path):
    toml = (
        'multi_step_reward_strategy = "final"\n[[steps]]\nname = "one"\nmin_reward = 0.5\n[steps.agent]\n'
        'timeout_sec = 5\n[[steps]]\nname = "two"\n[steps.agent]\ntimeout_sec = 6\n'
        '[steps.healthcheck]\ncommand = "up"\n'
    )
    folder = harbor_task(tmp_path, toml=toml, steps=("one", "two"))
    (folder / "tests").mkdir()
    (folder / "steps" / "two" / "workdir").mkdir()
    (folder / "steps" / "two" / "workdir" / "setup.sh").write_text("true\n")
    problem = loaded(folder)
    one, two = problem.steps
    assert (problem.total, problem.agent_s, one.min_score, one.name) == ("final", 11, 0.5, "one")
    assert one.grader.tests == (folder / "tests", folder / "steps" / "one" / "tests")
    assert one.grader.more
    assert not two.grader.more
    assert two.files["/app"] == folder / "steps" / "two" / "workdir"
    assert "bash ./setup.sh" in two.setup
    assert "bash -c up" in two.setup
    assert "setup.sh" not in one.setup


def test_a_separate_verifier_gets_the_artifacts_alone(tmp_path):
    toml = 'artifacts = ["out", "/var/log/x"]\n[verifier]\nenvironment_mode = "separate"'
    (step,) = loaded(harbor_task(tmp_path, toml=toml)).steps
    assert step.own.paths == ("/app/out", "/var/log/x", "/logs/artifacts")
    assert step.own.image == str(tmp_path / "environment")
    assert step.own.spec["workdir"] == "/app"


def test_a_verifier_may_have_an_environment_of_its_own(tmp_path):
    toml = '[verifier.environment]\ncpus = 1\nmemory_mb = 99\n[[verifier.collect]]\ncommand = "dump"'
    folder = harbor_task(tmp_path, toml=toml)
    (step,) = loaded(folder).steps
    assert (step.own.image, step.own.spec["memory_mb"]) == (str(folder / "environment"), 99)
    assert [hook.command for hook in step.own.collect.hooks] == ["dump"]
    assert step.grader.collect == ()
    (folder / "tests" / "Dockerfile").write_text("FROM base\nWORKDIR /judge\nUSER judge\n")
    (step,) = loaded(folder).steps
    assert step.own.image == str(folder / "tests")
    assert (step.own.spec["workdir"], step.own.spec["user"]) == ("/judge", "judge")
    (folder / "task.toml").write_text('[verifier.environment]\ndocker_image = "judge:1"')
    assert loaded(folder, base={"judge:1": "local"}).steps[0].own.image == "local"


def test_clean_grading_can_be_asked_for(tmp_path):
    (step,) = loaded(harbor_task(tmp_path), clean=True).steps
    assert step.clean
    assert step.carry is None


def test_a_task_without_a_solution_has_no_oracle(tmp_path):
    assert loaded(harbor_task(tmp_path, solve="")).steps[0].gold is None


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[environment]\ngpus = 4", "4 GPUs"),
        ('[environment]\nos = "Windows"', "Windows"),
        ('[[environment.mcp_servers]]\nname = "x"', "MCP"),
        ("[verifier.environment]\ngpus = 1", "1 GPUs"),
        ('artifacts = ["/logs"]\n[verifier]\nenvironment_mode = "separate"', "would replace"),
        (
            '[verifier]\nenvironment_mode = "separate"\n[[artifacts]]\nsource = "x"\nservice = "db"',
            "service db",
        ),
        ('[[steps]]\nname = "one"\nmin_reward = { style = 1 }', "several names"),
    ],
)
def test_what_a_box_cannot_do_is_said(tmp_path, toml, said):
    with pytest.raises(CannotRunError, match=said):
        loaded(harbor_task(tmp_path, toml=toml, steps=("one",) if "steps" in toml else ()))


@pytest.mark.parametrize("where", ["environment", "verifier", "solution"])
def test_a_key_that_is_not_set_here_refuses_no_task(tmp_path, monkeypatch, where):
    """Most tasks of a set name the key of a judge that few of its tests ask."""
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    problem = loaded(harbor_task(tmp_path, toml=f'[{where}.env]\nKEY = "${{JUDGE_KEY}}"\nOTHER = "${{NO:-yes}}"'))
    (step,) = problem.steps
    env = {"environment": problem.spec["env"], "verifier": step.grader.env, "solution": step.gold.env}[where]
    assert "KEY" not in env
    assert env["OTHER"] == "yes"


def test_broken_tasks_are_named(tmp_path):
    folder = harbor_task(tmp_path)
    (folder / "tests" / "test.sh").unlink()
    with pytest.raises(ConfigError, match=r"tests/test\.sh"):
        loaded(folder)
    (folder / "instruction.md").unlink()
    with pytest.raises(ConfigError, match=r"instruction\.md"):
        loaded(folder)
    with pytest.raises(ConfigError, match="path"):
        load_problem(Task(id="it", metadata={"format": "harbor"}))


def test_the_tasks_of_a_set(tmp_path):
    harbor_task(tmp_path / "b")
    harbor_task(tmp_path / "a" / "deep")
    found = list(tasks_in(tmp_path, installed=True))
    assert [task.id for task in found] == ["a/deep", "b"]
    assert found[0].metadata == {"format": "harbor", "path": str(tmp_path / "a" / "deep"), "installed": True}
    assert [task.id for task in tasks_in(tmp_path / "b")] == ["b"]
