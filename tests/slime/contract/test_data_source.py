"""slime's rollouts on agentrl.slime.DataSource: partial groups outlive the process, and no prompt is lost."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.slime import DataSource
from agentrl.slime.data_source import note_shipped
from tests.slime.contract.test_aborts import PARTIAL, Held, first_is_held


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
