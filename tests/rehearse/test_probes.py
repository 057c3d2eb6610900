"""Hooks for the verdict."""

from __future__ import annotations

import logging

import pytest

from agentrl.rehearse.random_model import FILTER_VARIABLE, pass_in_turn
from agentrl.rehearse.standins import events, probes


@pytest.fixture
def logged(tmp_path, monkeypatch):
    monkeypatch.setenv(events.FOLDER_VARIABLE, str(tmp_path))
    return lambda: [event["data"] for event in events.read(tmp_path)]


@pytest.mark.parametrize(
    ("rewards", "random", "replaced"),
    [
        ([0.0, 0], "1", True),
        ([0.0, 1.0], "1", False),
        ([0.0, 0.0], "", False),
        ([None, None], "1", False),
        ([], "1", False),
    ],
)
def test_only_a_random_model_gets_other_rewards(logged, monkeypatch, rewards, random, replaced):
    monkeypatch.setenv(probes.RANDOM_VARIABLE, random)
    raw, processed = probes.with_spread(lambda samples: (samples, samples))(rewards)
    assert raw == rewards
    assert (len({*processed}) > 1 and processed != rewards) == replaced
    assert logged() == ([{"random_rewards": 2}] if replaced else [])


def test_agentrls_warnings_are_events(logged):
    probes.watch_warnings()
    probes.watch_warnings()
    logging.getLogger("agentrl").warning("%s is odd", "it")
    logging.getLogger("agentrl").info("fine")
    assert logged() == [{"level": "WARNING", "message": "it is odd"}]
    log = logging.getLogger("agentrl")
    log.handlers = [handler for handler in log.handlers if not isinstance(handler, probes._Warnings)]


class Output:
    def __init__(self, keep):
        self.keep = keep


def drops(args, samples):
    return Output(False)


def keeps(args, samples):
    return True


def fails(args, samples):
    raise KeyError("no such field")


def test_a_filter_that_drops_everything_lets_some_groups_pass(monkeypatch):
    monkeypatch.setenv(FILTER_VARIABLE, f"{__file__}:drops")
    assert {pass_in_turn(None, []).keep for _ in range(4)} == {True, False}


def test_a_filter_that_keeps_or_fails_is_as_it_is(monkeypatch):
    monkeypatch.setenv(FILTER_VARIABLE, f"{__file__}:keeps")
    assert pass_in_turn(None, []) is True
    monkeypatch.setenv(FILTER_VARIABLE, f"{__file__}:fails")
    with pytest.raises(KeyError):
        pass_in_turn(None, [])
