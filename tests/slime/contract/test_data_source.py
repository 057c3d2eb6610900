"""slime's rollouts on agentrl.slime.DataSource: partial groups outlive the process, and no prompt is lost."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from agentrl.env.factory import load_env
from agentrl.errors import ConfigError
from agentrl.slime import DataSource, log_rollout
from agentrl.slime.data_source import note_shipped
from tests.slime.contract.aborts import PARTIAL, Held, first_is_held
from tests.slime.contract.quiz import Plain


@pytest.fixture
def restart(monkeypatch):
    """Give a run our data source; a second one is what a new process has."""
    opened = []

    def begin(host: Any, run: Any, folder: Any) -> DataSource:
        monkeypatch.setattr("agentrl.slime.host.PACKAGES", (host.Sample.__module__.partition(".")[0],))
        for source in opened:
            source.close()
        run.args.save = run.args.load = str(folder)
        run.data_source = run.manager.data_source = DataSource(run.args)
        opened[:] = [run.data_source]
        return run.data_source

    yield begin
    for source in opened:
        source.close()


def test_an_aborted_group_goes_on_in_a_new_process(host, start, rows, renderer, held, restart, tmp_path):
    parking = {"folder": str(tmp_path / "parked")}
    run = start(first_is_held(rows(), "generate"), engine=Held(renderer), agentrl={"parking": parking}, **PARTIAL)
    restart(host, run, tmp_path / "ckpt")
    held(run)
    samples, _, _ = run.train()
    note_shipped(run.args, 0, samples)
    run.data_source.save(0)
    assert [s.group_index for s in samples] == [1, 1, 2, 2]
    (waiting,) = run.data_source.state_dict()["samples"].values()
    before = [list(s.tokens) for s in waiting]

    again = restart(host, run, tmp_path / "ckpt")
    again.load(0)
    assert again.get_buffer_length() == 1
    run.args.over_sampling_batch_size = 2
    samples, data, _ = run.train(1)
    note_shipped(run.args, 1, samples)
    assert [s.group_index for s in samples] == [0, 0, 3, 3]
    assert data["raw_reward"] == [1.0] * 4
    assert [s.tokens[: len(tokens)] for s, tokens in zip(samples, before, strict=False)] == before
    again.save(1)
    assert again.state_dict()["buffer"]["groups"] == []
    assert again.counts()["finished"] == 0


def test_what_slime_would_leave_behind_is_handed_out_again(host, start, rows, renderer, held, restart, tmp_path):
    """Without --partial-rollout slime drops the groups that it aborts, and with them their prompts."""
    run = start(first_is_held(rows(), "generate"), engine=Held(renderer), **{**PARTIAL, "partial_rollout": False})
    source = restart(host, run, tmp_path / "ckpt")
    held(run)
    samples, _, _ = run.train()
    note_shipped(run.args, 0, samples)
    assert [s.group_index for s in samples] == [1, 1, 2, 2]
    assert [group[0].group_index for group in source.get_samples(2)] == [0, 3]


class Ahead:
    """A rollout function of a user's: it has six groups in play at any time, and ships those that are ready first."""

    def __init__(self, run: Any) -> None:
        self.run, self.playing, self.ready = run, set[Any](), list[Any]()

    def __call__(self, args: Any, rollout_id: int, source: Any, evaluation: bool = False) -> Any:
        return self.run.host.run(self.roll(args, source))

    async def roll(self, args: Any, source: Any) -> Any:
        rollout = self.run.host.rollout
        params = rollout.GenerateState(args).sampling_params
        while len(self.ready) < args.rollout_batch_size:
            while len(self.playing) < 6:
                (group,) = source.get_samples(1)
                play = rollout.generate_and_rm_group(args, group, params.copy())
                self.playing.add(asyncio.ensure_future(play))
            done, self.playing = await asyncio.wait(self.playing, return_when=asyncio.FIRST_COMPLETED)
            self.ready += [task.result() for task in done]
        taken, self.ready = self.ready[: args.rollout_batch_size], self.ready[args.rollout_batch_size :]
        return taken


@pytest.mark.path("a user's rollout function that plays ahead")
def test_a_users_function_that_plays_ahead_trains_each_group_once(host, start, rows, restart, tmp_path):
    given = [{**row, "metadata": {"slow": 0.02 * (i % 5)}} for i, row in enumerate(rows() * 10)]
    run = start(given, rollout_batch_size=2)
    run.args.rollout_function_path = "my_team.play"  # a name of no meaning
    source = restart(host, run, tmp_path / "ckpt")
    ahead, trained = Ahead(run), list[int]()
    for rollout_id in range(8):
        samples = [sample for group in ahead(run.args, rollout_id, source) for sample in group]
        log_rollout(rollout_id, run.args, samples, {}, 1.0)
        trained += [sample.index for sample in samples]
        source.save(rollout_id)
    assert len(trained) == len(set(trained)) == 8 * 2 * 2
    with pytest.raises(ConfigError, match=r"ships group .* again"):
        log_rollout(8, run.args, samples, {}, 1.0)


IDS = """
from agentrl import Env
SEEN = []
class Seeing(Env):
    async def reset(self, task):
        SEEN.append((task.split, task.id))
        return task.prompt
    def score(self, trajectory):
        return 1.0
"""


@pytest.mark.path("a task has the id of its row")
@pytest.mark.parametrize("named", [True, False], ids=["by the row", "by its line"])
@pytest.mark.parametrize("own", [False, True], ids=["the host's data source", "agentrl's"])
def test_a_task_has_the_id_of_its_row(host, start, rows, renderer, restart, tmp_path, named, own):
    (tmp_path / "seeing_env.py").write_text(IDS)
    env = f"{tmp_path / 'seeing_env.py'}:Seeing"
    given = [{**row, "metadata": {"n": i}, **({"id": f"row {i}"} if named else {})} for i, row in enumerate(rows())]
    run = start(given, agentrl={"env": env, "workers": 0}, engine=Plain(renderer), rollout_shuffle=True)
    if own:
        restart(host, run, tmp_path / "ckpt")
    seen = sys.modules[load_env(env).__module__].SEEN
    names = [f"row {i}" if named else f"data-{i + 1}" for i in range(4)]  # the first and the last row ask the same
    run.samples()
    assert sorted(seen) == sorted(("train", name) for name in names for _ in range(2))
    seen.clear()
    run.evaluate()
    assert sorted(seen) == sorted(("eval", name) for name in names for _ in range(2))
