"""Tasks that an Env makes by itself: `Env.tasks`, and the loader that all commands share."""

from itertools import count
from random import Random

import pytest
from typer.testing import CliRunner

from agentrl import Env, EnvFactory, Raw, Task, tool
from agentrl.cli import app
from agentrl.errors import ConfigError
from agentrl.rollout import load_tasks, tasks_of
from agentrl.rollout.data import own_tasks
from agentrl.rollout.data.own_tasks import row_of
from agentrl.rollout.data.tasks import held_out_tasks


class Sums(Env):
    """Makes sums without end."""

    drawn = 0

    @tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @classmethod
    def tasks(cls, config, split):
        rng = Random(split)
        for cls.drawn in count(1):
            a, b = rng.randrange(1000), rng.randrange(1000)
            yield Task(prompt=f"{a} + {b}?", label=a + b)


def test_takes_the_first_of_an_endless_generator_and_fills_in_id_seed_and_split():
    tasks = tasks_of(EnvFactory(Sums), None, "train", episodes=5)

    assert [task.id for task in tasks] == ["train-1", "train-2", "train-3", "train-4", "train-5"]
    assert Sums.drawn == 5, "no more is drawn than is asked for"
    assert len({task.seed for task in tasks}) == 5
    assert {task.split for task in tasks} == {"train"}
    assert tasks_of(EnvFactory(Sums), None, "train", episodes=3) == tasks[:3]


def test_without_a_number_a_list_is_whole_and_a_generator_has_a_stated_end():
    class Listed(Sums):
        @classmethod
        def tasks(cls, config, split):
            return [Task(prompt=f"{split} {i}", id=f"own{i}", seed=7) for i in range(1500)]

    assert len(tasks_of(EnvFactory(Sums), None, "train")) == 1000
    assert len(tasks_of(EnvFactory(Sums), None, "eval")) == 200
    listed = tasks_of(EnvFactory(Listed), None, "eval")
    assert (len(listed), listed[0].id, listed[0].seed, listed[0].split) == (1500, "own0", 7, "eval")


def test_a_file_wins_and_both_or_neither_is_refused(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "1 + 1?"}\n')

    class Taskless(Env):
        @tool
        async def look(self) -> str:
            """Look."""
            return ""

    assert [task.prompt for task in tasks_of(EnvFactory(Sums), file, "train")] == ["1 + 1?"]
    with pytest.raises(ConfigError, match="--episodes is for tasks that Sums makes, and --data names a file"):
        tasks_of(EnvFactory(Sums), file, "train", episodes=1)
    with pytest.raises(ConfigError, match="Taskless makes no tasks; name a file of tasks with --data"):
        tasks_of(EnvFactory(Taskless), None, "train")


def test_held_out_tasks_are_the_file_s_or_else_the_env_s_own(tmp_path):
    file = tmp_path / "held_out.jsonl"
    file.write_text('{"prompt": "1 + 1?"}\n' * 3)
    envs = EnvFactory(Sums)

    assert [task.prompt for task in held_out_tasks(envs, file, 2, from_env=True)] == ["1 + 1?"] * 2
    assert [task.id for task in held_out_tasks(envs, None, 2, from_env=True)] == ["eval-1", "eval-2"]
    assert held_out_tasks(envs, None, 2, from_env=False) == []
    assert held_out_tasks(EnvFactory(_giving(lambda split: [])), None, 2, from_env=True) == []


def _giving(function):
    return type("Given", (Sums,), {"tasks": classmethod(lambda cls, config, split: function(split))})


def _fails(split):
    yield Task(prompt="one")
    raise KeyError("oops")


@pytest.mark.parametrize(
    ("gives", "split", "says"),
    [
        (_fails, "train", r"Given.tasks for train failed: .*test_own_tasks.py:\d+: KeyError: 'oops'"),
        (lambda split: [{"prompt": "x"}], "train", "number 1 is a dict, not a Task; yield Task"),
        (lambda split: None, "train", "gave None, which is not iterable; `yield` tasks"),
        (lambda split: [Task(prompt="a", id="x"), Task(prompt="b", id="x")], "train", "tasks 1 and 2 have the same id"),
        (lambda split: [Task(prompt="a"), Task(prompt="b")], "eval", "gives the same tasks for train and eval"),
        (lambda split: (Task(prompt=f"{i % 10}") for i in count()), "train", None),
        (lambda split: [], "train", "gives no task for train; name a file"),
        (lambda split: [Task(prompt=split)] * 2, "train", "--episodes 3: Given.tasks gives 2 for train"),
        (lambda split: [Task(prompt=split, tools=[{"name": "t"}])] * 3, "train", "for train: task 1: .*'t'"),
        (lambda split: (Task() for _ in count()), "eval", None),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(gives, split, says):
    envs = EnvFactory(_giving(gives))
    if says is None:  # equal tasks are different worlds, by their seeds
        assert len({task.seed for task in tasks_of(envs, None, split, episodes=3)}) == 3
        return

    with pytest.raises(ConfigError, match=says) as error:
        tasks_of(envs, None, split, episodes=3 if "--episodes" in says else None)

    assert "\n" not in str(error.value)


def test_tasks_written_as_a_coroutine_or_on_the_instance_is_refused():
    async def tasks(cls, config, split):
        return []

    with pytest.raises(ConfigError, match=r"gave a coroutine.* in a plain `def`"):
        tasks_of(EnvFactory(type("Late", (Sums,), {"tasks": classmethod(tasks)})), None, "train")
    with pytest.raises(ConfigError, match="tasks is called on the class: write @classmethod above it"):
        type("Unbound", (Sums,), {"tasks": lambda self, config, split: []})


def test_a_check_may_refuse_a_task():
    def check(task):
        raise ConfigError("no such key")

    with pytest.raises(ConfigError, match=r"Sums\.tasks for train: task 1: no such key"):
        tasks_of(EnvFactory(Sums), None, "train", check=check)


def test_own_tasks_written_as_a_file_are_read_back_as_they_were(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = f"{__file__}:Sums"

    assert CliRunner().invoke(app, ["data", "tasks", env, "--episodes", "4", "--out", "d/tasks.jsonl"]).exit_code == 0
    again = CliRunner().invoke(app, ["data", "tasks", env, "--out", "d/tasks.jsonl"])
    held_out = CliRunner().invoke(app, ["data", "tasks", env, "--split", "eval", "--out", "held_out.jsonl"])

    envs = EnvFactory(env)
    assert load_tasks("d/tasks.jsonl", split="train") == tasks_of(envs, None, "train", episodes=4)
    assert (again.exit_code, again.stderr) == (2, "error: --out d/tasks.jsonl exists; name a new file\n")
    assert held_out.stdout == "held_out.jsonl  200 rows\n"


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (Task(id="a"), "task a: its prompt is empty"),
        (Task(prompt=Raw("x"), id="a"), "task a: its prompt is raw text"),
        (Task(prompt="x", id="a", metadata={"f": print}), "task a: .*make it plain JSON"),
    ],
)
def test_a_task_that_no_file_holds_is_named(task, says):
    with pytest.raises(ConfigError, match=says):
        row_of(task)
    assert row_of(Task(prompt="x", id="a", label=0)) == {"id": "a", "prompt": "x", "label": 0, "seed": 0}


def test_tasks_that_do_not_end_are_named(monkeypatch, caplog):
    monkeypatch.setattr(own_tasks, "PATIENCE_S", 0.01)

    def waits(split):
        while not caplog.records:  # as a loop that waits for a combination that does not exist
            pass
        yield Task(prompt="at last")

    assert len(tasks_of(EnvFactory(_giving(waits)), None, "train")) == 1
    assert caplog.messages[0].startswith("Given.tasks for train has not ended for 0 s: does a loop wait for tasks")
