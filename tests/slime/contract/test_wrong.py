"""A configuration that cannot work ends the run, in each of the host's rollouts."""

from __future__ import annotations

import pytest

from agentrl import ConfigError
from tests.slime.contract.test_aborts import rollout_function


@pytest.mark.parametrize("config", [{"env": "nowhere:Env"}, {"limits": {"turn": 1}}], ids=["env", "limits"])
@pytest.mark.parametrize(
    ("mode", "hooks"),
    [
        pytest.param("sync", False, marks=pytest.mark.path("a wrong configuration ends the run: sync")),
        pytest.param("fully-async", False, marks=pytest.mark.path("a wrong configuration ends the run: fully-async")),
        pytest.param("fully-async", True, marks=pytest.mark.path("a wrong configuration ends the run: fully-async")),
    ],
)
def test_a_wrong_configuration_ends_the_run(host, start, rows, config, mode, hooks):
    path = "agentrl.slime.post_process_rewards" if hooks else None
    run = start(
        rows(),
        agentrl=config,
        rollout_function_path=rollout_function(host, mode),
        custom_reward_post_process_path=path,
    )
    with pytest.raises(ConfigError, match="nowhere" if "env" in config else "unknown key turn"):
        run.train()


@pytest.mark.path("a wrong configuration ends the run: evaluation")
def test_a_wrong_configuration_ends_an_evaluation(start, rows):
    with pytest.raises(ConfigError, match="nowhere"):
        start(rows(), agentrl={"env": "nowhere:Env"}).evaluate()
