"""--rollout-function-path of agentrl, in slime's own manager: sync, partial, fully-async, filters, evaluation."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from agentrl.errors import ConfigError
from agentrl.slime import DataSource, rollout_functions
from tests.slime.contract import aborts
from tests.slime.contract.aborts import PARTIAL, PHASES, Held, first_is_held

SYNC = "agentrl.slime.generate_rollout"
AHEAD = "agentrl.slime.generate_rollout_fully_async"
RIGHT = {"France": 1.0, "Spain": 1.0, "Peru": 0.0}


@pytest.fixture
def start(start, host):
    """With the loop that plays ahead ended, and only where the host has no queues that do the same."""
    host.need(not host.batch_builder and host.name == "slime", "need of it")
    yield start

    async def stop():
        for loop, _ in list(rollout_functions.loops.values()):
            await loop.stop()
        rollout_functions.loops.clear()

    host.run(stop())


def right(samples):
    return [next(RIGHT[country] for country in RIGHT if country in sample.prompt) for sample in samples]


@pytest.mark.path("agentrl's rollout functions: sync and fully-async")
@pytest.mark.parametrize("path", [SYNC, AHEAD])
def test_rollouts(host, start, rows, path):
    run = start(rows(), rollout_function_path=path)
    seen = []
    for rollout_id in range(3):
        samples, data, _ = run.train(rollout_id)
        assert len(samples) == 8
        assert data["raw_reward"] == right(samples)
        assert [s.index for s in samples] == sorted(s.index for s in samples)
        assert all(s.metadata["agentrl"]["ledger"]["trained"] == sum(s.loss_mask) > 0 for s in samples)
        seen += [s.index for s in samples]
    assert len(set(seen)) == 24, "no sample is trained twice"
    if path == SYNC:
        assert sorted(seen) == list(range(24)), "no prompt is lost"


@pytest.mark.path("agentrl's rollout functions: agentrl's data source")
@pytest.mark.parametrize("path", [SYNC, AHEAD])
def test_a_checkpoint_knows_what_was_trained(start, rows, tmp_path, path):
    """Without the log hook. What was in flight, or waited, is handed out again."""
    run = start(rows(), rollout_function_path=path)
    run.args.save = run.args.load = str(tmp_path)
    source = run.data_source = run.manager.data_source = DataSource(run.args)
    output = run.manager.generate_rollout(run.args, 0, source)
    trained = {group[0].group_index for group in getattr(output, "samples", output)}
    source.save(0)
    again = DataSource(SimpleNamespace(**{**vars(run.args), "save": None}))
    again.load(0)
    left = again.get_buffer_length()
    assert (left > 0) == (path == AHEAD)
    handed_out = [group[0].group_index for group in again.get_samples(left + 1)]
    assert sorted([*trained, *handed_out]) == list(range(len(trained) + left + 1))


@pytest.mark.path("agentrl's rollout functions: beside evaluation")
def test_evaluation_beside_it(host, start, rows):
    run = start(rows(), rollout_function_path=AHEAD)
    run.train()
    assert sum(run.evaluate()["rewards"]) == 6.0
    samples, data, _ = run.train(1)
    assert data["raw_reward"] == right(samples)


def not_peru(args, samples, **kwargs):
    keep = "Peru" not in samples[0].prompt
    return SimpleNamespace(keep=keep, reason=None if keep else "peru")


@pytest.mark.path("agentrl's rollout functions: dynamic filters")
@pytest.mark.parametrize("path", [SYNC, AHEAD])
def test_dynamic_filters(start, rows, path):
    run = start(
        rows(), rollout_function_path=path, dynamic_sampling_filter_path=f"{__name__}.not_peru"
    )  # fmt: skip
    dropped = 0  # groups that are played ahead count in the rollout during which they end
    for rollout_id in range(2):
        output = run.manager.generate_rollout(run.args, rollout_id, run.data_source)
        assert len(output.samples) == 4
        assert all("Peru" not in group[0].prompt for group in output.samples)
        dropped += output.metrics.get("rollout/dynamic_filter/drop_peru", 0)
    assert dropped > 0


@pytest.mark.parametrize("phase", [pytest.param(p, marks=pytest.mark.path(f"agentrl's sync: in {p}")) for p in PHASES])
def test_aborted_episodes_come_back_and_go_on(host, start, rows, renderer, events, held, phase):
    start = partial(start, rollout_function_path=SYNC)
    aborts.come_back_and_go_on(host, start, rows, renderer, events, held, phase)


@pytest.mark.path("agentrl's sync: prompts of aborted groups")
def test_without_partial_rollout_prompts_come_back(start, rows, renderer, held):
    """slime's own loses them."""
    given = {**PARTIAL, "partial_rollout": False}
    run = start(first_is_held(rows(), "tool"), engine=Held(renderer), rollout_function_path=SYNC, **given)
    held(run)
    samples, _, _ = run.train()
    assert [s.group_index for s in samples] == [1, 1, 2, 2]
    (waiting,) = run.data_source.buffer
    assert [(s.group_index, s.response, s.tokens) for s in waiting] == [(0, "", [])] * 2
    run.args.over_sampling_batch_size = 2
    samples, data, _ = run.train(1)
    assert [s.group_index for s in samples] == [0, 0, 3, 3]
    assert data["raw_reward"] == [1.0] * 4


@pytest.mark.path("agentrl's rollout functions: exceptions")
@pytest.mark.parametrize("path", [SYNC, AHEAD])
def test_a_wrong_configuration_ends_the_rollout(start, rows, path):
    run = start(rows(), rollout_function_path=path)
    run.args.agentrl = {"env": "nowhere.py:Nothing"}
    with pytest.raises(ConfigError, match="nowhere"):
        run.manager.generate_rollout(run.args, 0, run.data_source)


def test_a_slime_with_queues_is_refused(host, start, rows, monkeypatch):
    run = start(rows(), rollout_function_path=SYNC)
    monkeypatch.setattr(host.rollout.GenerateState(run.args), "cancellable_tasks", {}, raising=False)
    with pytest.raises(ConfigError, match="leave out --rollout-function-path"):
        run.manager.generate_rollout(run.args, 0, run.data_source)
