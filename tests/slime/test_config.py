from __future__ import annotations

from types import SimpleNamespace

import pytest

from agentrl import Limits
from agentrl.errors import ConfigError
from agentrl.slime import SlimeConfig


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
    [(None, "No such file.*name a readable"), ("a: [", "not YAML"), ("- env", "must be a mapping such as")],
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
        ({"environment": "m:E"}, r"environment: Extra inputs.*known keys: env, env_config"),
        ({"limits": {"turn": 3}}, r"limits: unknown key turn; the keys are turns, tokens"),
        ({"limits": {"turns": "many"}}, r"limits: turns: Input should be a valid integer"),
        ({"limits": {"turns": 0}}, r"limits: limits.turns must be positive"),
        ({"max_new_tokens": "run"}, r"max_new_tokens: Input should be 'episode' or 'turn'"),
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
    limits = read().episode_limits(args, params, evaluation=False)
    assert limits == Limits(tokens=512, context=4096)
    assert read().episode_limits(args, params, evaluation=True).context == 8192
    turn = read(max_new_tokens="turn").episode_limits(args, params, evaluation=False)
    assert (turn.tokens, turn.turn_tokens) == (None, 512)


def test_an_explicit_limit_wins():
    args = SimpleNamespace(rollout_max_context_len=4096)
    config = read(limits={"tokens": 2048, "context": None, "turns": 3, "step_s": 9})
    limits = config.episode_limits(args, {"max_new_tokens": 512}, evaluation=False)
    assert limits == Limits(tokens=2048, context=None, turns=3, step_s=9.0)


def test_nothing_bounded_by_slime():
    assert read().episode_limits(SimpleNamespace(), {}, evaluation=False) == Limits()
