"""The gymnasium adapter over gymnasium itself: rewards of its own API, actions read from text, observations told."""

from __future__ import annotations

import pytest

from agentrl import ConfigError, EnvFactory, Limits, StopReason, Task
from agentrl.testing import rollout

gymnasium = pytest.importorskip("gymnasium")

from agentrl_envs.adapters.gymnasium import Gymnasium, GymnasiumConfig, read_action  # noqa: E402

ENV = "agentrl_envs.adapters.gymnasium:Gymnasium"
LAKE = {"name": "FrozenLake-v1", "options": {"is_slippery": False}}


async def played(config, said, renderer, seed=1, **limits):
    async with EnvFactory(ENV, config) as envs:
        return await rollout(envs.make(), Task(seed=seed), said, renderer=renderer, limits=Limits(**limits))


async def test_the_lake_is_crossed_by_names_and_numbers(renderer):
    turns = ["move down", "I go DOWN: 1", "not left (0) but 2", "Move down.", "2", "2"]
    t = await played(LAKE, turns, renderer)
    assert (t.reward, t.stop) == (1.0, StopReason.DONE)
    first, *others = [m["content"] for m in t.messages if m["role"] == "user"]
    assert "The game starts with the player at location `[0,0]`" in first
    assert "Answer with one action: 0 (move left), 1 (move down), 2 (move right), 3 (move up)." in first
    assert first.endswith("[S]FFF\nFHFH\nFFFH\nHFFG\nObservation: 0")
    assert others[0].endswith("SFFF\n[F]HFH\nFFFH\nHFFG\nObservation: 4")


async def test_the_default_prompt_is_short_and_speaks_of_the_game(renderer):
    for name, told in [
        ("FrozenLake-v1", "holes by walking over the frozen lake"),
        ("CartPole-v1", "The numbers of the observation: 0 Cart Position, 1 Cart Velocity"),
        ("Pendulum-v1", "The numbers of the action: 0 Torque"),
        ("Acrobot-v1", "0 Cosine of `theta1`, 1 Sine of `theta1`, 2"),
        ("Blackjack-v1", "Answer with one action: 0 (stick), 1 (hit)."),
    ]:
        first = (await played({"name": name}, ["0"], renderer, turns=1)).messages[0]["content"]
        assert told in first
        assert not [word for word in ("http", "ndarray", "Argument", "Pixel", "<a ", "##", "Example") if word in first]
        assert len(first) < 1000


def test_a_game_that_begins_again_forgets_the_turns_without_an_action():
    game = Gymnasium.open(GymnasiumConfig(**LAKE), "FrozenLake-v1")
    for _ in range(2):
        game.begin(1)
        assert [game.answer("no idea").done for _ in range(3)] == [False, False, True]


async def test_some_actions_may_have_names(renderer):
    t = await played({**LAKE, "actions": {"east": 2}}, ["east", "1"], renderer, turns=2)
    assert "Answer with one action: 2 (east)." in t.messages[0]["content"]
    assert [m["content"][-1] for m in t.messages if m["role"] == "user"] == ["0", "1", "5"]


@pytest.mark.parametrize("name", ["Blackjack-v1", "CliffWalking-v1", "Taxi-v4", "CartPole-v1", "Pendulum-v1"])
async def test_rewards_are_those_of_its_own_api(name, renderer):
    env = gymnasium.make(name)
    env.reset(seed=3)
    env.action_space.seed(3)
    texts, total, done = [], 0.0, False
    while not done and len(texts) < 6:
        action = env.action_space.sample()
        texts.append(str(action.tolist()))
        _, reward, terminated, truncated, _ = env.step(action)
        total, done = total + float(reward), terminated or truncated
    t = await played({"name": name}, texts, renderer, seed=3, turns=len(texts))
    assert (t.reward, t.stop is StopReason.DONE) == (total, done)


async def test_turns_without_an_action(renderer):
    t = await played(LAKE, ["hm", "1", "9", "left or right", "the end"], renderer)
    assert t.step_rewards == [0.0, 0.0, 0.0, 0.0, 0.0]
    assert (t.stop, len(t.actions)) == (StopReason.DONE, 5), "three in a row end it"


def spaces():
    s = gymnasium.spaces
    two = s.Tuple([s.Discrete(3), s.MultiBinary(2)])
    return [
        (s.Discrete(3, start=-1), "-1", -1),
        (s.Discrete(3, start=-1), "5", None),
        (s.Discrete(12), "take 11", 11),
        (s.Discrete(3), "1.5", None),
        (s.Text(5, charset="abc"), "abba", "abba"),
        (s.Text(5, charset="abc"), "xyz", None),
        (s.Box(-1, 1, (2,)), "first [0, 0], then [0.5, -1]", [0.5, -1.0]),
        (s.Box(-1, 1, (2,)), "[0.5, 3]", None),
        (s.Box(-1, 1, (1,)), "0.25", [0.25]),
        (s.MultiDiscrete([2, 3]), "[1, 2]", [1, 2]),
        (two, "[2, [0, 1]]", (2, [0, 1])),
        (s.Dict(a=s.Discrete(2)), 'so: {"a": 1}', {"a": 1}),
        (s.Dict(a=s.Discrete(2)), '{"b": 1}', None),
        (s.Box(-1, 1, (2,)), "no", None),
    ]


@pytest.mark.parametrize(("space", "text", "action"), spaces())
def test_actions_are_read_from_text(space, text, action):
    found = read_action(space, text, [])

    def plain(value):
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        return value.tolist() if hasattr(value, "tolist") else value

    assert plain(found) == action


async def test_functions_of_the_configuration(tmp_path, renderer):
    (tmp_path / "mine.py").write_text(
        "def act(text, env):\n    return {'west': 0, 'south': 1}.get(text)\n"
        "def show(observation, env):\n    return f'You stand on {observation}.'\n"
    )
    config = {**LAKE, "prompt": "Walk.", "read_action": f"{tmp_path}/mine.py:act", "show": f"{tmp_path}/mine.py:show"}
    t = await played(config, ["south", "south"], renderer, turns=2)
    assert [m["content"] for m in t.messages if m["role"] == "user"][:2] == [
        "Walk.\n\nYou stand on 0.",
        "You stand on 4.",
    ]


async def test_what_cannot_be_played_is_told_before_the_first_episode():
    class Image(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (64, 64, 3))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return self.observation_space.sample(), {}

    gymnasium.register("Image-v0", entry_point=lambda **_: Image())
    for config, said in [
        ({"name": "FrozenLake-v9"}, "no environment of gymnasium 'FrozenLake-v9'; did you mean FrozenLake-v1"),
        ({"name": "Image-v0"}, "Image-v0 shows 12,288 numbers at a time"),
        ({"name": "FrozenLake-v1", "options": {"holes": 3}}, "gymnasium cannot make FrozenLake-v1: .*holes"),
        (
            {**LAKE, "actions": ["west", "east"]},
            "2 names for the 4 actions of FrozenLake-v1; name each, or .*{west: 0}",
        ),
        ({**LAKE, "actions": {"west": 4}}, "west: 4: the actions of FrozenLake-v1 are 0 to 3"),
        ({"name": "Pendulum-v1", "actions": ["left"]}, "Pendulum-v1 takes Box.* no actions to name"),
        ({**LAKE, "promt": "x"}, "unknown key promt; did you mean prompt?"),
        ({**LAKE, "show": "json:decoder"}, "json:decoder is .*, not a function"),
    ]:
        with pytest.raises(ConfigError, match=said) as caught:
            async with EnvFactory(ENV, config):
                pass
        assert "\n" not in str(caught.value)
    del gymnasium.registry["Image-v0"]


async def test_another_episode_of_the_same_seed_is_the_same(renderer):
    config = {"name": "FrozenLake-v1"}
    one, two, other = [await played(config, ["1"] * 5, renderer, seed=seed, turns=5) for seed in (4, 4, 9)]
    assert [m["content"] for m in one.messages] == [m["content"] for m in two.messages]
    assert [m["content"] for m in one.messages] != [m["content"] for m in other.messages]
