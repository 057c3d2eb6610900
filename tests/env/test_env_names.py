"""Names that mean something to agentrl are not taken by accident; and env_config has no key that nobody reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from agentrl import ConfigError, Env, EnvFactory, StepResult, StopReason, Task, TurnOptions, tool
from agentrl.testing import call, rollout

if TYPE_CHECKING:
    from nowhere import Pool

TASK = Task(prompt="Go")


class Steps(Env):
    async def step(self, action):
        return StepResult(reward=1.0, done=True)


@pytest.mark.parametrize(
    "name", ["end", "begin", "limits", "tool_errors", "call_errors", "run", "hook", "_tools", "_thread"]
)
async def test_any_other_name_is_the_users(name):
    closed = []

    async def own(self) -> str:
        """Do it."""
        return "did it"

    async def close(self):
        closed.append(1)

    cls = type("Game", (Env,), {name: tool(own), "close": close, "score": lambda self, t: 1.0})
    t = await rollout(cls(), TASK, [call(name), "Done."])
    assert (t.reward, t.stop, closed) == (1.0, StopReason.DONE, [1])
    assert t.messages[2]["content"] == "did it"


@pytest.mark.parametrize(
    "name",
    ["config", "shared", "task", "rng", "enter", "call", "step", "close", "run_tools", "turn_options", "deterministic"],
)
def test_a_tool_of_a_name_that_env_needs_is_refused_with_the_remedy(name):
    async def own(self) -> str:
        return ""

    with pytest.raises(
        ConfigError, match=rf"Game: a tool method named '{name}' hides .*@tool\(name='{name}'\) for the"
    ):
        type("Game", (Env,), {name: tool(own)})
    assert list(type("Game", (Env,), {"_own": tool(name=name)(own)})._agentrl_tools) == [name]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("config", {"a": 1}, r"Game\.config hides Env\.config: .*annotate it, without a value"),
        ("task", "find the cat", r"Game\.task hides Env\.task: the episode's Task"),
        ("call", lambda self: 1, r"Game\.call hides Env\.call: .*choose another name"),
        ("score", 0.0, r"Game\.score is 0\.0, but Env\.score is a hook; choose another name"),
        ("tools", [], r"Game\.tools is \[\], but Env\.tools is a hook"),
        ("turn_options", "stop", r"Game\.turn_options is 'stop'; it must be TurnOptions"),
        ("bad_calls", 3, r"Game\.bad_calls is 3; it must be agentrl\.errors\.BadCallPolicy \| None"),
        ("deterministic", "yes", r"Game\.deterministic is 'yes'; it must be bool"),
        ("share", lambda cls, config: 1, r"Game\.share is called on the class: write @classmethod above it"),
    ],
)
def test_what_env_keeps_is_refused_when_the_class_is_made(name, value, says):
    with pytest.raises(ConfigError, match=says):
        type("Game", (Env,), {name: value})


def test_settings_may_be_properties_and_annotations_have_no_value():
    class Fine(Steps):
        config: dict[str, Any]
        shared: Pool
        bad_calls = None

        @property
        def turn_options(self):
            return TurnOptions(stop=["</s>"])

    assert list(Fine({}).turn_options.stop) == ["</s>"]


async def test_an_attribute_that_would_replace_a_hook_is_refused():
    class Game(Steps):
        async def reset(self, task):
            self.score = 0

    with pytest.raises(ConfigError, match=r"Game sets self\.score to 0, but Env\.score is a hook; choose another name"):
        await rollout(Game(), TASK, ["x"])


def test_a_hook_may_be_replaced_by_another_function(monkeypatch):
    env = Steps()
    monkeypatch.setattr(env, "score", lambda trajectory: 3.0)
    assert env.score(None) == 3.0


async def test_an_init_of_its_own_is_refused_unless_it_calls_envs():
    class Bare(Steps):
        def __init__(self, config, shared):
            self.moves = []

    async with EnvFactory(Bare) as envs:
        with pytest.raises(
            ConfigError, match=r"Bare\.__init__ has to call super\(\)\.__init__\(config, shared=shared\)"
        ):
            envs.make()

    class Other(Steps):
        def __init__(self, size):
            super().__init__()

    with pytest.raises(ConfigError, match=r"Other\.__init__\(self, size\) does not take \(config, shared=...\)"):
        EnvFactory(Other)


def test_only_the_hint_of_config_is_read():
    class Typed(Steps):
        shared: Pool
        config: Model

        @tool
        async def take(self, size: int) -> Pool:
            """Take one."""

    assert EnvFactory(Typed, {"size": 3}).config.size == 3

    class Hidden(Steps):
        config: Pool

    with pytest.raises(ConfigError, match=r"Hidden\.config: name 'Pool' is not defined; import it at module level"):
        EnvFactory(Hidden)


class Model(BaseModel):
    size: int = 1


class Open(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Keys(TypedDict):
    size: int


@dataclass
class Data:
    size: int = 1


def declaring(hint: Any) -> type[Env]:
    return type("Game", (Steps,), {"__annotations__": {"config": hint}})


def test_keys_that_nobody_reads_are_refused():
    with pytest.raises(ConfigError, match=r"env_config of Steps: 'size', 'sise' given, but the class takes no config"):
        EnvFactory(Steps, {"size": 1, "sise": 2})
    with pytest.raises(ConfigError, match=r"unknown key sise; did you mean size\?$"):
        EnvFactory(declaring(Model), {"sise": 2})
    for hint in (Keys, Data):
        with pytest.raises(ConfigError, match=r"unknown key sise; did you mean size\?"):
            EnvFactory(declaring(hint), {"size": 1, "sise": 2})
    with pytest.raises(ConfigError, match=r"env_config of Game: size must be a valid integer"):
        EnvFactory(declaring(Model), {"size": "big"})
    assert EnvFactory(Steps, {}).config == {}


@pytest.mark.parametrize(
    ("hint", "config", "made"),
    [
        (dict, {"a": 1}, {"a": 1}),
        (dict[str, Any], {"a": 1}, {"a": 1}),
        (Any, {"a": 1}, {"a": 1}),
        (Keys, {"size": 2}, {"size": 2}),
        (Data, {"size": 2}, Data(2)),
        (Data, None, Data()),
        (Model, None, Model()),
        (Open, {"else": 1}, Open()),
        (Model | None, {"size": 2}, Model(size=2)),
    ],
)
def test_what_is_declared_is_what_the_env_gets(hint, config, made):
    envs = EnvFactory(declaring(hint), config)
    assert envs.config == envs.make().config == made


def test_a_declaration_that_nothing_can_check_is_refused():
    with pytest.raises(ConfigError, match=r"Game\.config is annotated .*, which pydantic cannot check"):
        EnvFactory(declaring(Env), {"size": 1})
