"""CodingEnv over local sandboxes: what the model sees, what is graded, and how an episode ends."""

import pickle

import pytest

from agentrl import ConfigError, EnvFactory, StopReason, Task
from agentrl.errors import SandboxError
from agentrl.sandbox import SandboxKilledError
from agentrl.testing import call, rollout
from agentrl.types import Limits
from agentrl_envs.coding import CodingEnv, Grade, Problem, Solution, Step, gold, noop
from agentrl_sandbox.local.sandbox import LocalSandbox
from tests.envs.coding.attacks import ON_THE_WORK, attack

LOCAL = {"backend": "local", "size": 2}


class Contains:
    """Scores the share of `lines` that the file `answer` holds."""

    def __init__(self, *lines):
        self.lines = lines

    async def grade(self, box):
        text = (await box.exec("cat answer 2>/dev/null; ls | grep -v answer")).stdout
        share = sum(line in text.splitlines() for line in self.lines) / len(self.lines)
        return Grade(float(share == 1), {"tests": share}, text)


def two_lines(task):
    solution = Solution({"answer": "yes\n"}, "echo no >> answer")
    return Problem((Step("Write yes and no to `answer`.", Contains("yes", "no"), solution, files={"hint": "yes\n"}),))


class InHistory(Contains):
    async def grade(self, box):
        await box.exec("cp .git/answer answer || rm answer")
        return await super().grade(box)


def in_history(task):
    return Problem((Step("Write history.", InHistory("yes", "no")),))


def in_two_steps(task):
    first = Step("First.", Contains("one"), Solution({"answer": "one\n"}), min_score=0.5)
    second = Step("Second.", Contains("one", "two"), Solution({}, "echo two >> answer"), files={"more": "x"})
    return Problem((first, second), total=task.metadata.get("total", "mean"))


def task(loader, **metadata):
    return Task(id=loader.__name__, metadata={"format": f"{__file__}:{loader.__name__}", **metadata})


async def play(task, turns, config=None, limits=None):
    async with EnvFactory(CodingEnv, {**LOCAL, **(config or {})}) as envs:
        return await rollout(envs.make(), task, turns, limits=limits)


def answers(trajectory):
    return [message["content"] for message in trajectory.messages if message["role"] in ("tool", "user")]


@pytest.mark.thorough
async def test_gold_scores_one_and_noop_zero():
    for loader in (two_lines, in_two_steps):
        for player, reward in ((gold, 1.0), (noop, 0.0)):
            t = await play(task(loader), player(task(loader)))
            assert (t.reward, t.stop, t.failure) == (reward, StopReason.DONE, None), (loader, t.failure)


@pytest.mark.thorough
async def test_all_tools_work_in_one_folder():
    turns = [
        call("bash", command="mkdir d; cd d; export X=yes; cat ../hint"),
        call("bash", command="echo $X > ../answer"),
        call("read", path="../answer"),
        call("edit", path="../answer", old="yes\n", new="yes\nno\n"),
        call("search", pattern="^no$", path=".."),
        call("read", path="missing"),
        call("submit"),
    ]
    t = await play(task(two_lines), turns)
    assert t.reward == 1.0
    assert answers(t) == [
        *("Write yes and no to `answer`.", "yes", "[no output]", "     1\tyes", "     1\tyes\n     2\tno"),
        *("../answer:2:no", "Error: missing: No such file or directory", "Submitted."),
    ]
    assert t.info["grading"].splitlines()[:2] == ["yes", "no"]


@pytest.mark.thorough
async def test_partial_credit_is_the_share_of_tests():
    turns = [call("bash", command="echo yes > answer"), "I am done."]
    assert (await play(task(two_lines), turns)).reward == 0.0
    t = await play(task(two_lines), turns, {"partial": True})
    assert (t.reward, t.reward_parts) == (0.5, {"tests": 0.5})


async def test_a_clean_sandbox_holds_the_work_alone_and_the_agents_own_all_it_did():
    turns = [call("bash", command="mkdir .git; printf 'yes\nno\n' | tee .git/answer > answer"), call("submit")]
    for grading, found in (("clean", 0.0), ("same", 1.0)):
        t = await play(task(in_history), turns, {"grading": grading})
        assert (t.reward, t.failure) == (found, None)


@pytest.mark.thorough
async def test_the_steps_of_a_problem_come_one_after_the_other():
    one, two = call("bash", command="echo one > answer"), call("bash", command="cat more; echo two >> answer")
    t = await play(task(in_two_steps), [one, call("submit"), two, call("submit")])
    assert (t.reward, answers(t)) == (1.0, ["First.", "[no output]", "Second.", "x", "Submitted."])
    t = await play(task(in_two_steps), [one, call("submit"), call("submit")])
    assert t.reward == 0.5
    t = await play(task(in_two_steps, total="final"), [one, call("submit"), call("submit")])
    assert t.reward == 0.0
    t = await play(task(in_two_steps), [call("submit")])  # below min_score: no second step
    assert (t.reward, t.stop) == (0.0, StopReason.DONE)


async def test_the_episode_that_runs_out_of_turns_is_graded_as_it_stands():
    turns = [call("bash", command="printf 'yes\\nno\\n' > answer")]
    t = await play(task(two_lines), turns, limits=Limits(turns=1))
    assert (t.reward, t.stop) == (1.0, StopReason.MAX_TURNS)


async def test_bash_alone_as_mini_swe_agent_has_it():
    async with EnvFactory(CodingEnv, {**LOCAL, "tools": "bash"}) as envs:
        turns = [
            call("bash", command="printf 'yes\\nno\\n' > answer"),
            call("read", path="answer"),
            call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
        ]
        env = envs.make()
        t = await rollout(env, task(two_lines), turns)
        assert [spec["function"]["name"] for spec in env.tools()] == ["bash"]
    assert t.reward == 1.0
    assert "there is no tool 'read'; the tools are: bash" in answers(t)[2]


async def test_commands_that_end_the_sandbox_score_zero_and_the_cause_is_recorded(monkeypatch):
    plain = LocalSandbox.exec

    async def exec_(self, cmd, **how):
        if "hog" in cmd:
            raise SandboxKilledError("its commands used up its memory")
        return await plain(self, cmd, **how)

    monkeypatch.setattr(LocalSandbox, "exec", exec_)
    t = await play(task(two_lines), [call("bash", command="hog")])
    assert (t.reward, t.stop, t.failure) == (0.0, StopReason.DONE, None)
    assert t.info["sandbox_killed"] == "its commands used up its memory"


async def test_a_sandbox_that_breaks_is_a_failure_of_the_environment(monkeypatch):
    async def exec_(self, cmd, **how):
        raise SandboxError("the engine went away")

    monkeypatch.setattr(LocalSandbox, "exec", exec_)
    t = await play(task(two_lines), [call("bash", command="true")])
    assert (t.failure.kind, t.reward) == ("environment", None)


async def test_files_folder_and_environment_survive_a_snapshot():
    async with EnvFactory(CodingEnv, LOCAL) as envs:
        env, other = envs.make(), envs.make()
        for one in (env, other):
            one.task = task(two_lines)
        await env.reset(env.task)
        await env.bash("mkdir d; cd d; export X=no; echo yes > ../answer")
        state = pickle.loads(pickle.dumps(await env.snapshot()))
        await other.restore(state)
        assert await other.bash('echo $X >> ../answer; cat ../answer; basename "$PWD"') == "yes\nno\nd"
        assert (await other.score(type("T", (), {"info": {}})())).value == 1.0
        from agentrl.env.env import close_env

        assert await close_env(env) is None
        assert await close_env(other) is None


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(set(ON_THE_WORK) - {"a_device", "a_huge_file"}))
async def test_whatever_lies_where_the_work_should_be_scores_zero(name):
    row = {"prompt": "def f():\n", "test": "def check(f):\n    assert f() == 1\n", "entry_point": "f"}
    t = await play(Task(metadata={"format": "function", **row}), attack(name))
    assert (t.reward, t.failure) == (0.0, None)


def test_a_wrong_configuration_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match="command_s"):
        EnvFactory(CodingEnv, {"command_s": 1000})


def in_conda(task):
    """The tests' environment is entered by a script, as conda's is."""
    path = task.metadata["path"]
    return Problem(
        (Step("Write yes.", Contains("yes")),), activate=f"echo loud; [ -f {path} ] && source {path} testbed; false"
    )


@pytest.mark.thorough
async def test_the_agents_shell_is_in_the_environment_of_the_tests(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "of-the-tests").write_text("#!/bin/sh\necho yes\n")
    (tmp_path / "bin" / "of-the-tests").chmod(0o755)
    script = tmp_path / "activate"
    script.write_text(f'export PATH="{tmp_path}/bin:$PATH" CONDA_DEFAULT_ENV=$1\n')
    turns = [
        call("bash", command="echo $CONDA_DEFAULT_ENV; of-the-tests"),
        call("bash", command="of-the-tests > answer"),
    ]
    played = await play(task(in_conda, path=str(script)), [*turns, "Done."])
    said = [message["content"] for message in played.messages if message["role"] == "tool"]
    assert said[0].split() == ["testbed", "yes"]
    assert played.reward == 1.0
