import subprocess
import sys
from typing import get_args

import pytest
from pydantic import BaseModel

from agentrl.errors import ConfigError
from agentrl.monitor.numerics import NumericsConfig
from agentrl.rollout import CanaryConfig
from agentrl.train import TrainConfig, WarmStartConfig
from agentrl.train.config import TeacherConfig


def test_survives_yaml(tmp_path, make_config):
    config = make_config(
        warm_start={"demonstrations": "d.jsonl", "steps": 3},
        kl_coef=0.1,
        canaries={"no_tool_calls": 3},
        numerics={"stop": 1},
    )
    (tmp_path / "c.yaml").write_text(config.to_yaml())

    assert TrainConfig.from_yaml(tmp_path / "c.yaml") == config
    assert TrainConfig.from_yaml(tmp_path / "c.yaml", steps=9) == config.model_copy(update={"steps": 9})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"discount": 0.9}, "discount is of credit return"),
        ({"opponents": []}, "opponents"),
        ({"learning_rte": 1}, "unknown key learning_rte; did you mean learning_rate?"),
        ({"warm_start": {"demonstrations": "d", "lr": 1}}, "unknown key warm_start.lr; did you mean learning_rate?"),
        ({"canaries": {"tool_calls": 3}}, "unknown key canaries.tool_calls; did you mean no_tool_calls?"),
        ({"canaries": {"bad_call_jump": 5}}, "canaries.bad_call_jump must be less than or equal to 1"),
        ({"warm_start": {}}, "warm_start.demonstrations is missing"),
        ({"limits": {"turn": 3}}, "unknown key limits.turn; did you mean turns?"),
        ({"limits": {"turns": 0}}, "limits.turns must be positive, not 0"),
        ({"limits": {"turns": "x"}}, "limits.turns must be a whole number, not 'x'"),
        ({"limits": {"turns": None}}, "limits.turns must be a whole number, not None"),
        ({"limits": {"max_tokens_per_turn": 1.5}}, "limits.max_tokens_per_turn must be a whole number, not 1.5"),
        ({"limits": {"max_tokens_per_turn": True}}, "limits.max_tokens_per_turn must be a whole number, not True"),
        ({"limits": {"step_s": float("inf")}}, "limits.step_s must be a number, not inf"),
        ({"thinking": "drop"}, "thinking must be 'keep' or 'strip'"),
        ({"thinking": "strip", "limits": {"observation_tokens": 9}}, "leave out limits.observation_tokens"),
        ({"group_size": 0}, "group_size must be greater than 0"),
        (
            {"group_size": 1},
            "group_size 1 has no baseline with grpo: take 2 or more, or flash_reinforce",
        ),
        ({"refill": -1}, "refill must be greater than or equal to 0"),
        ({"refill": 1, "algorithm": "flash_reinforce"}, "refill is for groups, and algorithm flash_reinforce has none"),
        ({"at_once": {"step": 0}}, "at_once.step must be greater than 0"),
        ({"at_once": {"generate": 1}}, "at_once"),
        ({"teacher": {"weight": 1}}, "teacher.model is missing"),
        ({"teacher": {"model": "a", "weight": 0}}, "teacher.weight must be greater than 0"),
        (
            {"teacher": "a", "algorithm": "gspo"},
            "gspo judges a sequence as a whole, and a teacher each token: take grpo",
        ),
        ({"teacher": "a", "refill": 1}, "refill looks at rewards, and teacher does not: set teacher.beside_reward"),
        ({"teacher": {"model": "a", "beside_reward": True}, "group_size": 1}, "group_size 1 has no baseline"),
        ({"teacher": "http://a:1", "temperature": 0.7}, "a teacher at a URL scores at temperature 1"),
        ({"curriculum": 0.7}, "unknown key curriculum"),
        ({"minibatches": 13}, "minibatches (13) exceeds the 12 episodes of a step"),
        ({"algorithm": "ppo"}, "algorithm must be 'grpo', 'dr_grpo', 'gspo' or 'flash_reinforce'"),
        ({"reduction": "mean"}, "reduction must be 'token', 'sample' or 'constant'"),
        ({"credit": "token"}, "credit must be 'episode', 'turn' or 'return'"),
        ({"algorithm": "gspo", "dtype": "bfloat16"}, "clips at less than bfloat16 rounds: set tis_clip (2), or"),
        ({"algorithm": "gspo", "credit": "turn"}, "gspo judges a sequence as a whole: leave out credit, or take grpo"),
        ({"clip_low": 1.1}, "clip_low must be less than or equal to 1"),
        ({"dual_clip": 1}, "dual_clip must be greater than 1"),
        ({"tis_clip": 0.9}, "tis_clip must be greater than or equal to 1"),
        ({"kl_type": "k4"}, "kl_type must be 'k1', 'k2', 'k3' or 'low_var_kl'"),
        ({"mask_overlong": "perhaps"}, "mask_overlong must be a valid boolean"),
        ({"numerics": {"warn": 0}}, "numerics.warn must be greater than 0"),
        ({"numerics": {"stop": -1}}, "numerics.stop must be greater than 0"),
        ({"numerics": {"max": 1}}, "unknown key numerics.max; the keys are warn, stop"),
        ({"engine": {"kind": 3}}, "engine: kind must be the name of an engine, such as sglang, not 3"),
        ({"steps": "many", "seed": "x"}, "; "),
    ],
)
def test_names_the_key_in_one_line(make_config, values, says):
    with pytest.raises(ConfigError) as error:
        make_config(**values)

    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"), [("a: [", "c.yaml:1: not YAML"), ("- 1", "not a mapping"), ("env: x", ": out is missing")]
)
def test_names_the_file(tmp_path, text, says):
    (tmp_path / "c.yaml").write_text(text)

    with pytest.raises(ConfigError, match=r"c\.yaml:") as error:
        TrainConfig.from_yaml(tmp_path / "c.yaml")

    assert says in str(error.value)
    with pytest.raises(ConfigError, match=r"d\.yaml: no such file; give its path"):
        TrainConfig.from_yaml(tmp_path / "d.yaml")


def test_an_algorithm_brings_what_its_paper_has(make_config):
    def found(**values):
        config = make_config(**values)
        return config.reduction, config.clip_low, config.clip_high

    assert found() == found(algorithm="grpo") == ("token", 0.2, 0.28)
    assert found(algorithm="dr_grpo") == ("constant", 0.2, 0.28)
    assert found(algorithm="gspo") == ("sample", 3e-4, 4e-4)
    assert found(algorithm="gspo", reduction="token", clip_high=0.1) == ("token", 3e-4, 0.1), "what is given stands"


def test_another_algorithm_over_a_saved_configuration_brings_its_own(make_config, tmp_path):
    saved = tmp_path / "config.yaml"
    saved.write_text(make_config(clip_high=0.5).to_yaml())
    found = TrainConfig.from_yaml(saved, algorithm="gspo")
    assert (found.reduction, found.clip_low, found.clip_high) == ("sample", 3e-4, 0.5)
    gspo = make_config(algorithm="gspo", reduction="token")
    saved.write_text(gspo.to_yaml())
    assert TrainConfig.from_yaml(saved) == gspo


def test_one_episode_a_prompt_needs_more_prompts():
    def found(**values):
        config = TrainConfig.make(env="a.py:B", out="runs/x", **values)
        return config.prompts_per_step, config.group_size, config.minibatches, config.reduction

    assert found() == (16, 8, 2, "token")
    assert found(algorithm="flash_reinforce") == (128, 1, 1, "sample"), "as many episodes"
    assert found(algorithm="flash_reinforce", prompts_per_step=6, group_size=4) == (6, 4, 1, "sample")


def test_nothing_but_the_plain_algorithm_is_on_by_default(make_config):
    config = make_config()

    assert (config.algorithm, config.credit, config.kl_coef, config.kl_type) == ("grpo", "episode", 0.0, "k3")
    assert (config.dual_clip, config.tis_clip, config.mask_overlong) == (None, None, False)
    assert config.numerics is not None
    assert (config.numerics.warn, config.numerics.stop) == (0.02, 0.5)


MOST_KEYS = 85
"""Keys of a training run, those of nested mappings included. A new key replaces another, or raises the limit with a
reason."""


def leaves(config):
    """The names of all keys of a configuration."""
    for name, field in config.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        nested = [kind for kind in kinds if issubclass(kind, BaseModel)]
        yield from (f"{name}.{key}" for kind in nested for key in leaves(kind)) if nested else [name]


def test_a_run_has_few_keys():
    keys = list(leaves(TrainConfig))
    assert {"env", "limits", "warm_start.steps", "teacher.model", "gateway.host"} <= set(keys)
    assert len(keys) <= MOST_KEYS, sorted(keys)


def test_every_key_is_documented():
    for cls in (TrainConfig, TeacherConfig, WarmStartConfig, CanaryConfig, NumericsConfig):
        assert not [name for name, key in cls.model_fields.items() if not key.description]


@pytest.mark.thorough
def test_reading_a_configuration_does_not_import_torch():
    program = "import sys, agentrl.train, agentrl.rollout; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_engine_and_its_settings_may_be_one_mapping(make_config, tmp_path):
    config = make_config(engine={"kind": "sglang", "url": "http://x"}, engine_config={"url": "http://y", "sleep": True})
    assert (config.engine, config.engine_config) == ("sglang", {"url": "http://x", "sleep": True})
    (tmp_path / "c.yaml").write_text(config.to_yaml())
    assert TrainConfig.from_yaml(tmp_path / "c.yaml") == config
    assert make_config(engine={"kind": "auto"}) == make_config()
    assert make_config(engine={"python": "p"}).engine_config == {"python": "p"}


def test_an_engine_in_another_program_is_corrected_for_unless_that_is_declined(make_config, tmp_path):
    assert make_config(engine="sglang").tis_clip == make_config(engine={"kind": "sglang"}).tis_clip == 2
    assert make_config(engine="local").tis_clip is make_config().tis_clip is None
    assert make_config().with_engine("sglang").tis_clip == 2
    assert make_config().with_engine("local").tis_clip is make_config(tis_clip=None).with_engine("sglang").tis_clip
    (tmp_path / "auto.yaml").write_text(make_config().to_yaml())
    assert TrainConfig.from_yaml(tmp_path / "auto.yaml").with_engine("sglang").tis_clip == 2
    assert make_config(engine="sglang", tis_clip=3).tis_clip == 3
    declined = make_config(engine="sglang", tis_clip=None)
    (tmp_path / "c.yaml").write_text(declined.to_yaml())
    assert TrainConfig.from_yaml(tmp_path / "c.yaml").tis_clip is declined.tis_clip is None
