"""A configuration that cannot work ends the run, in each of the host's rollouts."""

from __future__ import annotations

import pytest

from agentrl import ConfigError
from tests.slime.contract.aborts import rollout_function

BROKEN_IMPORT = "import os\nos.environ['missing_here']\n"
BUG_IN_SHARE = """
from agentrl import Env
class Broken(Env):
    @classmethod
    def share(cls, config):
        return config["missing_here"]
    def step(self, action): ...
"""
WRONG = {"limits": {"limits": {"turn": 1}}, "no module": {"env": "missing_here:Env"}}
SOURCES = {"import": BROKEN_IMPORT, "share": BUG_IN_SHARE}


@pytest.fixture(params=[*WRONG, *SOURCES])
def wrong(request, tmp_path):
    """A configuration that cannot work."""
    if source := SOURCES.get(request.param):
        file = tmp_path / f"broken_{request.param}.py"
        file.write_text(source)
        return {"env": f"{file}:Broken"}
    return WRONG[request.param]


@pytest.mark.parametrize(
    ("mode", "hooks"),
    [
        pytest.param("sync", False, marks=pytest.mark.path("a wrong configuration ends the run: sync")),
        pytest.param("sync", True, marks=pytest.mark.path("a wrong configuration ends the run: sync")),
        pytest.param("fully-async", False, marks=pytest.mark.path("a wrong configuration ends the run: fully-async")),
        pytest.param("fully-async", True, marks=pytest.mark.path("a wrong configuration ends the run: fully-async")),
    ],
)
def test_a_wrong_configuration_ends_the_run(host, start, rows, wrong, mode, hooks):
    given = {
        "custom_reward_post_process_path": "agentrl.slime.post_process_rewards",
        "dynamic_sampling_filter_path": "agentrl.slime.has_spread",  # which drops what fails, for ever
    }
    run = start(rows(), agentrl=wrong, rollout_function_path=rollout_function(host, mode), **(given if hooks else {}))
    with pytest.raises(ConfigError, match=r"missing_here|unknown key (limits.)?turn"):
        run.train()


@pytest.mark.path("a wrong configuration ends the run: evaluation")
def test_a_wrong_configuration_ends_an_evaluation(start, rows, wrong):
    with pytest.raises(ConfigError, match=r"missing_here|unknown key (limits.)?turn"):
        start(rows(), agentrl=wrong).evaluate()


@pytest.mark.path("a wrong configuration ends the run: a user's function that swallows errors")
@pytest.mark.parametrize("dropping", [False, True])
def test_a_wrong_configuration_ends_a_rollout_that_swallows_errors(host, start, rows, monkeypatch, dropping):
    """And that may drop what has failed, unread."""
    monkeypatch.setattr("agentrl.slime.fatal._PAUSE_S", 0.01)
    run = start(rows(), agentrl={"env": "missing_here:Env"})
    drawn = 0

    async def roll():
        nonlocal drawn
        taken, errors = [], []
        params = host.rollout.GenerateState(run.args).sampling_params
        while len(taken) < 4 and len(errors) < 3:
            drawn += 1
            (group,) = run.data_source.get_samples(1)
            try:
                played = await host.rollout.generate_and_rm_group(run.args, group, params.copy())
            except ConfigError as exc:
                errors.append(exc)
                continue
            if not dropping or all(sample.status != host.Status.FAILED for sample in played):
                taken += [played]
        return taken, errors

    taken, errors = host.run(roll())
    assert len(errors) == (3 if dropping else 1), "an error that nobody sees is raised again"
    assert drawn < 30
    if not dropping:
        with pytest.raises(ConfigError, match="missing_here"):
            run.convert([sample for group in taken for sample in group])
