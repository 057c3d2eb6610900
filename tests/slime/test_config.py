from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from agentrl import Limits
from agentrl.errors import ConfigError
from agentrl.models import save_model, tiny_model, tiny_tokenizer
from agentrl.slime import SlimeConfig
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import StopReason
from tests.slime.contract import hosts
from tests.slime.contract.conftest import starting


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("AGENTRL_CONFIG", raising=False)


def read(**agentrl) -> SlimeConfig:
    return SlimeConfig.from_args(SimpleNamespace(agentrl=agentrl))


def one_line(excinfo) -> str:
    text = str(excinfo.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("text", ["agentrl: {env: 'm:E', limits: {turns: 3}}", "{env: 'm:E', limits: {turns: 3}}"])
def test_a_file_named_by_the_variable(tmp_path, monkeypatch, text):
    file = tmp_path / "agentrl.yaml"
    file.write_text(text)
    monkeypatch.setenv("AGENTRL_CONFIG", str(file))
    config = SlimeConfig.from_args(SimpleNamespace())
    assert (config.env, config.limits) == ("m:E", {"turns": 3})
    assert SlimeConfig.from_args(SimpleNamespace(agentrl={"env": "n:F"})).env == "n:F", "args win"


def test_a_file_is_read_once(tmp_path, monkeypatch):
    file = tmp_path / "agentrl.yaml"
    file.write_text("env: m:E")
    monkeypatch.setenv("AGENTRL_CONFIG", str(file))
    SlimeConfig.from_args(SimpleNamespace())
    file.write_text("env: other:F")
    assert SlimeConfig.from_args(SimpleNamespace()).env == "m:E"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "AGENTRL_CONFIG .*: no such file; give its path"),
        ("a: [", "not YAML"),
        ("- env", "not a mapping of keys to values; write"),
    ],
)
def test_a_bad_file(tmp_path, monkeypatch, content, message):
    file = tmp_path / "agentrl.yaml"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("AGENTRL_CONFIG", str(file))
    with pytest.raises(ConfigError, match=message) as excinfo:
        SlimeConfig.from_args(SimpleNamespace())
    assert str(file) in one_line(excinfo)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"environment": "m:E"}, r"unknown key environment; did you mean env\?"),
        ({"limits": {"turn": 3}}, r"unknown key limits.turn; did you mean turns?"),
        ({"limits": {"turns": "many"}}, r"limits.turns must be a whole number, not 'many'"),
        ({"limits": {"turns": None}}, r"limits.turns must be a whole number, not None"),
        ({"limits": {"max_tokens_per_turn": "1e1"}}, r"limits.max_tokens_per_turn must be a whole number, not '1e1'"),
        ({"limits": {"turns": 0}}, r"limits.turns must be positive"),
        ({"max_new_tokens": "run"}, r"max_new_tokens must be 'episode' or 'turn'"),
        ({"thinking": "drop"}, r"thinking must be 'keep' or 'strip'"),
        (
            {"thinking": "strip", "limits": {"observation_tokens": 9}},
            r": thinking \"strip\" renders whole observations",
        ),
        ({"parking": {"keep_s": -1}}, r"parking.keep_s must be greater than or equal to 0"),
        ({"parking": {"keep_s": float("inf")}}, r"parking.keep_s must be a finite number"),
        ({"parking": {"folder": ""}}, r"parking.folder must have at least 1 character"),
    ],
)
def test_a_bad_key(given, message):
    with pytest.raises(ConfigError, match=message) as excinfo:
        read(**given)
    assert "--custom-config-path" in one_line(excinfo)


def test_a_path_instead_of_a_mapping():
    with pytest.raises(ConfigError, match=r"'agentrl' of --custom-config-path must be a mapping"):
        SlimeConfig.from_args(SimpleNamespace(agentrl="m:E"))


def test_nobody_names_an_env():
    with pytest.raises(ConfigError, match=r"no environment: .*--custom-config-path.*AGENTRL_CONFIG") as excinfo:
        SlimeConfig.from_args(SimpleNamespace()).env_path({})
    one_line(excinfo)


def test_the_rows_env_wins():
    assert read(env="m:E").env_path({"env": "n:F"}) == "n:F"
    assert read(env="m:E").env_path({}) == "m:E"
    assert SlimeConfig.from_args(SimpleNamespace()).env_path({"env": "n:F"}) == "n:F"
    with pytest.raises(ConfigError, match=r"metadata\['env'\] must be a path"):
        read(env="m:E").env_path({"env": {"A": "1"}})


def test_model_and_engine():
    args = SimpleNamespace(hf_checkpoint="/m", sglang_router_ip="10.0.0.1", sglang_router_port=3000)
    assert (read().model_path(args), read().engine_url(args)) == ("/m", "http://10.0.0.1:3000")
    own = read(model="tiny", engine="http://e:1")
    assert (own.model_path(args), own.engine_url(args)) == ("tiny", "http://e:1")
    with pytest.raises(ConfigError, match="--hf-checkpoint, or set `model`"):
        read().model_path(SimpleNamespace())
    with pytest.raises(ConfigError, match="set `engine` under `agentrl`"):
        read().engine_url(SimpleNamespace(sglang_router_ip=None, sglang_router_port=None))


def test_template(tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    assert read(chat_template=str(file)).template_text() == "{{ messages }}"
    assert read().template_text() is None
    with pytest.raises(ConfigError, match=r"chat_template .*missing.*name a readable Jinja file"):
        read(chat_template=str(tmp_path / "missing")).template_text()
    args = SimpleNamespace(apply_chat_template_kwargs={"enable_thinking": False})
    assert read().template_kwargs(args) == {"enable_thinking": False}
    assert read(chat_template_kwargs={}).template_kwargs(args) == {}
    assert read().template_kwargs(SimpleNamespace()) == {}


def test_slimes_flags_become_limits():
    args = SimpleNamespace(rollout_max_context_len=4096, eval_max_context_len=8192)
    params = {"max_new_tokens": 512}
    limits = read().slime_options(args, params, evaluation=False).limits
    assert limits == Limits(tokens=512, context=4096)
    assert read().slime_options(args, params, evaluation=True).limits.context == 8192
    turn = read(max_new_tokens="turn").slime_options(args, params, evaluation=False).limits
    assert (turn.tokens, turn.max_tokens_per_turn) == (None, 512)


def test_an_explicit_limit_wins():
    args = SimpleNamespace(rollout_max_context_len=4096)
    config = read(limits={"tokens": 2048, "context": None, "turns": 3, "step_s": 9})
    limits = config.slime_options(args, {"max_new_tokens": 512}, evaluation=False).limits
    assert limits == Limits(tokens=2048, context=None, turns=3, step_s=9.0)


def test_aborted_episodes_are_parked_and_thoughts_kept():
    config = read()
    assert (config.thinking, config.parking.keep_s, config.parking.folder) == ("keep", 1800.0, None)
    own = read(thinking="strip", parking={"keep_s": 0, "folder": "/shared/parked"})
    assert (own.thinking, own.parking.keep_s, own.parking.folder) == ("strip", 0.0, "/shared/parked")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"partial_rollout": True}, "remove --partial-rollout"),
        ({"group_rm": True}, "remove --group-rm"),
        (
            {"rollout_function_path": "slime.rollout.fully_async_rollout.generate_rollout_fully_async"},
            "remove --rollout-function-path",
        ),
        (
            {"dynamic_sampling_filter_path": "slime.rollout.filter_hub.some_filter"},
            "a filter of agentrl.slime",
        ),
        (
            {"advantage_estimator": "grpo", "rewards_normalization": True},
            "add --custom-reward-post-process-path agentrl.slime.post_process_rewards",
        ),
    ],
)
def test_what_slime_cannot_do_to_several_samples_of_one_episode(flags, message):
    takes_lists = "rollout_function_path" not in flags
    read().check_fan_out(SimpleNamespace(**flags), takes_lists=takes_lists)
    strip = read(thinking="strip")
    with pytest.raises(ConfigError, match=f"thinking: strip gives several samples.*{message}") as excinfo:
        strip.check_fan_out(SimpleNamespace(**flags), takes_lists=takes_lists)
    one_line(excinfo)
    with pytest.raises(ConfigError, match=f"limits.compact_at gives several samples.*{message}"):
        read(limits={"compact_at": 500}).check_fan_out(SimpleNamespace(**flags), takes_lists=takes_lists)
    strip.check_fan_out(
        SimpleNamespace(
            partial_rollout=False,
            group_rm=False,
            rollout_function_path="slime.rollout.sglang_rollout.generate_rollout",
            dynamic_sampling_filter_path="my.filter",
            advantage_estimator="grpo",
            rewards_normalization=True,
            custom_reward_post_process_path="agentrl.slime.post_process_rewards",
        ),
        takes_lists=True,
    )


@pytest.mark.parametrize("partial_rollout", [False, True], ids=["alone", "with --partial-rollout"])
def test_fully_async_rollout_of_slime_0_4_takes_lists(partial_rollout):
    flags = SimpleNamespace(
        rollout_function_path="slime.rollout.fully_async_rollout.generate_rollout_fully_async",
        partial_rollout=partial_rollout,
    )
    read(thinking="strip").check_fan_out(flags, takes_lists=True)


def test_nothing_bounded_by_slime():
    assert read().slime_options(SimpleNamespace(), {}, evaluation=False).limits == Limits()


@pytest.mark.filterwarnings("default")
def test_an_eval_dataset_has_its_own_settings(renderer, tmp_path, monkeypatch):
    """Through slime's evaluation, up to the episode; where a dataset says nothing, slime's flags do."""
    if why := hosts.absent("slime"):
        pytest.skip(why)
    save_model(tiny_model(0), tiny_tokenizer(), tmp_path / "checkpoint")
    row = {"prompt": "Hi", "label": "", "metadata": {}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    asked = []

    async def play(env, task, *, options, session_id, **_):
        trajectory = Trajectory(task, session_id=session_id)
        trajectory.stop, trajectory.reward = StopReason.DONE, 1.0
        asked.append((options.limits, options.sampling_params))
        return trajectory

    monkeypatch.setattr("agentrl.slime.playing.run_episode", play)
    with hosts.imported("slime") as slime, starting(slime, tmp_path / "checkpoint", renderer, tmp_path) as start:
        own = {
            "temperature": 0.25,
            "max_response_len": 64,
            "stop": ["</a>"],
            "stop_token_ids": [7],
            "min_new_tokens": 2,
        }
        if "repetition_penalty" not in slime.eval_dataset.__dataclass_fields__:
            pytest.skip("this slime reads no stop strings and minimum of a dataset's own")
        datasets = [
            slime.eval_dataset(name=name, path=str(tmp_path / "rows.jsonl"), **{**hosts.EVAL, **given})
            for name, given in {"own": {**own, "repetition_penalty": 1.5}, "flags": {}}.items()
        ]
        flags = {"rollout_stop": ["</b>"], "rollout_stop_token_ids": [8], "eval_min_new_tokens": 1}
        args = start([row], eval_datasets=datasets, eval_max_context_len=512, **flags).args
        slime.run(slime.rollout.eval_rollout(args, 0))
        assert len(asked) == 4
        args.agentrl["limits"] = {"tokens": 32}
        slime.run(slime.rollout.eval_rollout(args, 0))
    (limits, params), (others, rest) = (next(a for a in asked if a[1]["temperature"] == t) for t in (0.25, 1.0))
    assert (limits, others) == (Limits(tokens=64, context=512), Limits(tokens=200, context=512))
    assert "max_new_tokens" not in {**params, **rest}, "the limits say it"
    told = ("stop", "stop_token_ids", "min_new_tokens", "repetition_penalty", "top_k")
    assert [params.get(name) for name in told] == [["</a>"], [7], 2, 1.5, -1]
    assert [rest.get(name) for name in told] == [["</b>"], [8], 1, None, -1]
    assert {limits.tokens for limits, _ in asked[4:]} == {32}, "a limit of agentrl's own wins over every dataset"


def test_an_engine_beside_slimes_router_is_warned_of_once(caplog):
    flags = SimpleNamespace(sglang_router_ip="10.0.0.1", sglang_router_port=3000)
    for url in ("http://10.0.0.9:30000", "http://10.0.0.9:30000", "http://10.0.0.1:3000/"):
        assert SlimeConfig(engine=url).engine_url(flags) == url
    said = "sampled at http://10.0.0.9:30000 (`engine` under `agentrl`), not at slime's router http://10.0.0.1:3000"
    assert said in caplog.text
    assert caplog.text.count("slime never sends its weights there") == 1


def test_an_env_gets_a_configuration_of_its_own():
    config = read(env="a.py:A", env_config={"k": 1}, env_configs={"b.py:B": {"z": 2}, "c.py:C": {}})
    given = [config.env_config_of(path) for path in ("a.py:A", "b.py:B", "c.py:C", "d.py:D")]
    assert given == [{"k": 1}, {"z": 2}, {}, {"k": 1}]


def test_a_reward_of_groups_belongs_to_slimes_flags(tmp_path, monkeypatch):
    file = tmp_path / "ranks_here.py"
    file.write_text("from agentrl.rewards import RelativeJudge\njudge = RelativeJudge()\n")
    monkeypatch.chdir(tmp_path)
    config = SlimeConfig.parse("here", {"reward": "ranks_here.py:judge"})
    with pytest.raises(ConfigError, match=r"give slime --group-rm --custom-rm-path ranks_here\.judge"):
        config.reward_function()
