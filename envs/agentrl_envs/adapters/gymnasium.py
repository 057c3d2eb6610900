"""Gymnasium's environments as text.

    pip install gymnasium
    agentrl train agentrl_envs.adapters.gymnasium:Gymnasium --set env_config.name=FrozenLake-v1

The model reads `prompt`, or a few sentences of the environment's own documentation, then each observation. The
model responds with an action: the name or number of an action in a discrete space, JSON in any other space.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias, cast

from pydantic import Field

from agentrl import ConfigError
from agentrl._util.loading import load_object
from agentrl_envs.adapters.games import Game, GameConfig, GameTurn, TextGame
from agentrl_envs.adapters.suites import refuse_unknown, suite

IN_A_ROW = 3
"""After so many turns in a row without an action, the episode ends."""
_MOST_NUMBERS = 256
"""The most numbers of an observation that is written as text. An image has more."""
_SECTIONS = re.compile(r"^[ \t]*## (.+?)\n(.*?)(?=^[ \t]*## |\Z)", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"(?:^|[-;|])\s*(\d+)\s*(?::|\|)\s*([^|;\n]+)", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z])")
_OF_PROGRAMS = re.compile(r"https?:|\]\(|<a |\b(?:ndarray|shape|version|Argument|Pixel art|Gif)\b|^[#|`*-]")
_ROW = re.compile(r"^\s*\|\s*(\d+)\s*\|\s*([^|\n]+)", re.MULTILINE)
_HIGHLIGHT = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)

Names: TypeAlias = Sequence[tuple[int, str]]
"""Pairs of action and name, for the actions of a discrete space."""


class GymnasiumConfig(GameConfig):
    prompt: str | None = None
    """The first message. None: some sentences of the environment's documentation, which rarely suffice."""
    actions: list[str] | dict[str, int] = Field(default=[])
    """Names of a discrete space's actions: a list of all names in order, or a mapping of some names, such as
    `{left: 0}`. Default: the documented names."""
    read_action: str | None = None
    """A function at `file.py:name` or `package.module:name`: `(text, env)` gives the action, or None."""
    show: str | None = None
    """A function at a path like that of `read_action`: `(observation, env)` gives the text for the model."""


class Gymnasium(TextGame):
    """An environment of gymnasium, as text. The reward is the sum of the steps' rewards.

    After a turn without an action, the model reads a hint, and loses no reward. Three such turns in a row end the
    episode.
    """

    config: GymnasiumConfig

    @classmethod
    def open(cls, config: GymnasiumConfig, name: str) -> Game:
        gym = suite("gymnasium", "gymnasium")
        if ":" not in name:  # `package.module:Name-v0` is imported first, and registers itself
            refuse_unknown("environment of gymnasium", name, gym.registry)
        return _GymnasiumGame(name, _made(gym, config, name), config)


def _made(gym: ModuleType, config: GymnasiumConfig, name: str) -> Any:
    """Open the environment, with text as its rendering if possible."""
    try:
        env = gym.make(name, **config.options)
        if "ansi" in env.metadata.get("render_modes", ()) and "render_mode" not in config.options:
            env.close()
            env = gym.make(name, render_mode="ansi", **config.options)
    except (gym.error.Error, ImportError, AttributeError, TypeError) as exc:
        raise ConfigError(f"gymnasium cannot make {name}: {' '.join(str(exc).split())[:300]}") from exc
    return env


class _GymnasiumGame:
    def __init__(self, name: str, env: Any, config: GymnasiumConfig) -> None:
        self._name, self._env, self._config = name, env, config
        self._names = _named(config.actions, env.action_space, name) or _documented_names(env)
        self._show = _function(config.show)
        self._read = _function(config.read_action)

    def begin(self, seed: int) -> str:
        self._failed = 0
        observed, _ = self._env.reset(seed=seed)
        prompt = _documentation(self._env) if self._config.prompt is None else self._config.prompt
        return "\n\n".join(filter(None, (prompt, self._asks(), self._shown(observed))))

    def answer(self, text: str) -> GameTurn:
        action = self._read(text, self._env) if self._read else read_action(self._env.action_space, text, self._names)
        if action is None:
            self._failed += 1
            return GameTurn(f"That is no action. {self._asks()}", done=self._failed >= IN_A_ROW, info={"no_action": 1})
        self._failed = 0
        observed, reward, terminated, truncated, _ = self._env.step(action)
        extra = {"truncated": True} if truncated and not terminated else {}
        return GameTurn(self._shown(observed), float(reward), bool(terminated or truncated), extra)

    def close(self) -> None:
        self._env.close()

    def _asks(self) -> str:
        return "" if self._read else f"Answer with {_described(self._env.action_space, self._names)}."

    def _shown(self, observed: Any) -> str:
        if self._show:
            return str(self._show(observed, self._env))
        drawn = self._env.render() if self._env.render_mode == "ansi" else None
        board = _HIGHLIGHT.sub(r"[\1]", str(drawn)).strip("\n") + "\n" if drawn else ""
        return f"{board}Observation: {_told(self._env.observation_space, observed, self._name)}"


def read_action(space: Any, text: str, names: Names) -> Any:
    """The last action of a space in a text, or None."""
    kind = type(space).__name__
    if kind == "Text":
        return text if space.contains(text) else None
    if kind == "Discrete":
        return _discrete(space, text, names)
    try:
        action = _from_json(space, _last_json(text))
    except (TypeError, ValueError, KeyError, IndexError, AttributeError):
        return None
    return action if space.contains(action) else None


def _from_json(space: Any, value: Any) -> Any:
    """The action that a JSON value stands for in a space. Raises exceptions of many types for other values."""
    kind = type(space).__name__
    if kind == "Tuple":
        return tuple(_from_json(subspace, item) for subspace, item in zip(space.spaces, value, strict=True))
    if kind == "Dict":
        return {key: _from_json(subspace, value[key]) for key, subspace in space.spaces.items()}
    if kind == "Box" and space.shape == (1,) and not isinstance(value, list):
        value = [value]
    return space.from_jsonable([value])[0]


def _discrete(space: Any, text: str, names: Names) -> int | None:
    start = int(space.start)
    numbers = {str(start + i): start + i for i in range(int(space.n))}
    numbers_by_word = {**{name.lower(): number for number, name in names}, **numbers}
    answer = text.strip().lower()
    if answer in numbers_by_word:
        return numbers_by_word[answer]
    longest_first = sorted(numbers_by_word, key=len, reverse=True)
    pattern = rf"(?<![\w.-])({'|'.join(map(re.escape, longest_first))})(?![\w-]|\.\d)"
    matches = re.findall(pattern, answer)
    return numbers_by_word[matches[-1]] if matches else None


def _last_json(text: str) -> Any:
    """The last JSON value in a text: the whole text, or a list, an object or a number at the end."""
    decoder, value = json.JSONDecoder(), None
    end = 0
    for match in re.finditer(r"[\[{]|-?\d", text):
        if match.start() >= end:
            try:
                value, end = decoder.raw_decode(text, match.start())
            except ValueError:
                continue
    return value


def _told(space: Any, observed: Any, name: str) -> str:
    if isinstance(observed, str):
        return observed
    value = _plain(observed)
    if _count(value) > _MOST_NUMBERS:
        raise ConfigError(
            f"{name} shows {_count(value):,} numbers at a time, an image perhaps; "
            "write a function that describes them, and set env_config.show to its path"
        )
    return value if isinstance(value, str) else json.dumps(value)


def _plain(value: Any) -> Any:
    """An observation as JSON: arrays as lists, numbers with four decimals."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


def _count(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_count, value.values()))
    return sum(map(_count, value)) if isinstance(value, list) else 1


def _described(space: Any, names: Names) -> str:
    kind = type(space).__name__
    if kind == "Discrete":
        first, last = int(space.start), int(space.start) + int(space.n) - 1
        named = [f"{number} ({name})" for number, name in names]
        return f"one action: {', '.join(named)}" if named else f"one action, a number from {first} to {last}"
    return "text" if kind == "Text" else f"one action as JSON: an element of {space}"


def _documentation(env: Any) -> str:
    """The sentences for a player from the paragraphs on the task, the observations and the actions."""
    doc = _doc(env)
    sections = _sections(doc)
    parts = [_plain_sentences(doc.partition("## ")[0]), _plain_sentences(sections.get("description", ""))]
    for kind in ("action", "observation"):
        if kind == "observation" or type(env.action_space).__name__ != "Discrete":  # `_asks` lists discrete ones
            text = next((text for title, text in sections.items() if title.startswith(kind)), "")
            listed = ", ".join(f"{number} {name.strip()}" for number, name in _ROW.findall(text))
            parts += [_plain_sentences(text), f"The numbers of the {kind}: {listed}." if listed else ""]
    return "\n\n".join(filter(None, parts))


def _plain_sentences(text: str) -> str:
    """The sentences of the first paragraph, without sentences about programs, web pages or other sections."""
    first = " ".join(re.split(r"\n\s*\n", text.strip())[0].split())
    return " ".join(sentence for sentence in _SENTENCE.split(first) if not _OF_PROGRAMS.search(sentence))


def _sections(doc: str) -> dict[str, str]:
    return {title.strip().lower(): text.strip("\n") for title, text in _SECTIONS.findall(doc)}


def _named(actions: Sequence[str] | Mapping[str, int], space: Any, name: str) -> Names:
    """The actions with their configured names. Raises ConfigError if the names do not fit the space."""
    if not actions:
        return []
    if type(space).__name__ != "Discrete":
        raise ConfigError(f"env_config.actions: {name} takes {space}, which has no actions to name; leave it out")
    first, last = int(space.start), int(space.start) + int(space.n) - 1
    if isinstance(actions, Mapping):
        if wrong := [f"{action}: {number}" for action, number in actions.items() if not first <= number <= last]:
            raise ConfigError(f"env_config.actions: {wrong[0]}: the actions of {name} are {first} to {last}")
        return [(number, action) for action, number in actions.items()]
    if len(actions) != int(space.n):
        raise ConfigError(
            f"env_config.actions: {len(actions)} names for the {space.n} actions of {name}; name each, "
            f"or write which environment the names are for: {{{actions[0]}: {first}}}"
        )
    return [*enumerate(actions, first)]


def _documented_names(env: Any) -> Names:
    """The names of a discrete space's actions, if the documentation lists all of them."""
    text = next((text for title, text in _sections(_doc(env)).items() if title.startswith("action")), "")
    named = {int(number): name.strip(" .").lower() for number, name in _NAMED.findall(text)}
    space = env.action_space
    if type(space).__name__ != "Discrete" or sorted(named) != list(range(int(space.start), int(space.start + space.n))):
        return []
    return sorted(named.items())


def _doc(env: Any) -> str:
    return inspect.cleandoc(env.unwrapped.__doc__ or "")


def _function(path: str | None) -> Callable[[Any, Any], Any] | None:
    if path is None:
        return None
    function = load_object(path)
    if not callable(function):
        raise ConfigError(f"{path} is {function!r}, not a function")
    return cast("Callable[[Any, Any], Any]", function)
