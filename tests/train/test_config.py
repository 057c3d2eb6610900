import subprocess
import sys

import pytest

from agentrl.errors import ConfigError
from agentrl.rollout import CanaryConfig
from agentrl.train import TrainConfig, WarmStartConfig


def test_survives_yaml(tmp_path, make_config):
    config = make_config(
        warm_start={"demonstrations": "d.jsonl", "steps": 3}, kl_coef=0.1, canaries={"no_tool_calls": 3}
    )
    (tmp_path / "c.yaml").write_text(config.to_yaml())

    assert TrainConfig.from_yaml(tmp_path / "c.yaml") == config
    assert TrainConfig.from_yaml(tmp_path / "c.yaml", steps=9) == config.model_copy(update={"steps": 9})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"learning_rte": 1}, "unknown key 'learning_rte'; the keys are env, env_config"),
        ({"warm_start": {"demonstrations": "d", "lr": 1}}, "unknown key 'warm_start.lr'; the keys are demonstrations,"),
        ({"canaries": {"tool_calls": 3}}, "unknown key 'canaries.tool_calls'; the keys are no_trainable_tokens, no_to"),
        ({"canaries": {"parse_error_jump": 5}}, "canaries.parse_error_jump: Input should be less than or equal to 1"),
        ({"warm_start": {}}, "'warm_start.demonstrations' is missing"),
        ({"limits": {"turn": 3}}, "limits: unknown key 'turn'; the keys are turns, tokens"),
        ({"limits": {"turns": 0}}, "limits.turns must be positive, not 0"),
        ({"limits": {"turns": "x"}}, "limits are numbers"),
        ({"thinking": "drop"}, "thinking: Input should be 'keep' or 'strip'"),
        ({"thinking": "strip", "limits": {"observation_tokens": 9}}, "leave out limits.observation_tokens"),
        ({"group_size": 1}, "group_size: Input should be greater than 1"),
        ({"minibatches": 13}, "minibatches (13) exceeds the 12 episodes of a step"),
        ({"advantage": "ppo"}, "advantage: Input should be 'grpo' or 'dr_grpo'"),
        ({"steps": "many", "seed": "x"}, "; "),
    ],
)
def test_names_the_key_in_one_line(make_config, values, says):
    with pytest.raises(ConfigError) as error:
        make_config(**values)

    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"), [("a: [", "not valid YAML"), ("- 1", "not a mapping"), ("env: x", "'data' is missing")]
)
def test_names_the_file(tmp_path, text, says):
    (tmp_path / "c.yaml").write_text(text)

    with pytest.raises(ConfigError, match=r"c\.yaml: ") as error:
        TrainConfig.from_yaml(tmp_path / "c.yaml")

    assert says in str(error.value)
    with pytest.raises(ConfigError, match="no such configuration"):
        TrainConfig.from_yaml(tmp_path / "d.yaml")


def test_every_key_is_documented():
    for cls in (TrainConfig, WarmStartConfig, CanaryConfig):
        assert not [name for name, key in cls.model_fields.items() if not key.description]


def test_reading_a_configuration_does_not_import_torch():
    program = "import sys, agentrl.train, agentrl.rollout; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
