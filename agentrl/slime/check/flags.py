"""slime's flags as they stand on a command line, read without slime's parser."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from agentrl.errors import ConfigError
from agentrl.slime.check.words import Word

DEFAULTS: Mapping[str, str] = {
    "--actor-num-gpus-per-node": "8",
    "--actor-num-nodes": "1",
    "--advantage-estimator": "grpo",
    "--context-parallel-size": "1",
    "--input-key": "input",
    "--metadata-key": "metadata",
    "--n-samples-per-prompt": "1",
    "--rollout-num-gpus-per-engine": "1",
    "--rollout-temperature": "1.0",
    "--rollout-top-p": "1.0",
    "--sglang-server-concurrency": "512",
    "--tensor-model-parallel-size": "1",
    "--tool-key": "tools",
}
"""slime's own defaults (slime/utils/arguments.py at 624b824a8) of the flags that the rules read."""

_ALIKE = 0.88
"""How much two names must be alike for one to be a misspelling: `--partial-rollouts` is, another flag is not."""


@cache
def known_flags() -> frozenset[str]:
    """What slime's own parser takes, at the commits tested. Megatron's and SGLang's flags are not in it."""
    return frozenset((files("agentrl.slime.check") / "flags.txt").read_text(encoding="utf-8").split())


class Flags:
    """Each flag with its values; the last occurrence wins, as in argparse."""

    def __init__(self, words: Sequence[Word]) -> None:
        self._values: dict[str, list[Word]] = {}
        self.stray: list[Word] = []
        """Words before the first flag."""
        values = self.stray
        for word in words:
            if word.text.startswith("--") and len(word.text) > 2:
                name, equals, value = word.text.partition("=")
                values = self._values[name.replace("_", "-")] = []
                if equals:
                    values.append(Word(value, word.unknown, word.doubtful))
            else:
                values.append(word)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def text(self, name: str) -> str | None:
        """The first value, or slime's default. None where there is neither, or it is not known."""
        if name not in self._values:
            return DEFAULTS.get(name)
        values = self._values[name]
        return values[0].text if values and not values[0].unknown else None

    def hidden(self, name: str) -> bool:
        """Whether it is given, with a value that only a run of the script could tell."""
        return any(word.unknown for word in self._values.get(name, ()))

    def values(self, name: str) -> list[str | None]:
        """All values; None for one that is not known."""
        return [None if word.unknown else word.text for word in self._values.get(name, ())]

    def whole(self, name: str) -> int | None:
        """A whole number. Raises ConfigError where the value is none."""
        number: int | None = self._number(name, int, "a whole number")
        return number

    def number(self, name: str) -> float | None:
        number: float | None = self._number(name, float, "a number")
        return number

    def _number(self, name: str, kind: type[int] | type[float], wanted: str) -> Any:
        value = self.text(name)
        try:
            return None if value is None else kind(value)
        except ValueError as exc:
            raise ConfigError(f"{name} {value}: not {wanted}") from exc

    def mapping(self, name: str) -> dict[str, Any] | None:
        """A JSON object. Raises ConfigError where the value is none."""
        text = self.text(name)
        try:
            value = None if text is None else json.loads(text)
        except json.JSONDecodeError as exc:
            raise ConfigError(f"{name} {text}: not JSON ({exc.msg}); quote it, as in '{{\"key\": true}}'") from exc
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f'{name} {text}: not a JSON object such as {{"key": true}}')
        return value

    def override(self, keys: Mapping[str, Any]) -> None:
        """What slime does with the keys of --custom-config-path: they win over flags of the same name."""
        for key, value in keys.items():
            name = f"--{str(key).replace('_', '-')}"
            if name not in known_flags():
                continue
            self._values.pop(name, None)
            if value is not None and value is not False:
                values = value if isinstance(value, list) else [] if value is True else [value]
                self._values[name] = [Word(json.dumps(v) if isinstance(v, dict) else str(v)) for v in values]

    def misspelt(self) -> Iterator[tuple[str, str]]:
        """Flags that are not slime's but look much like one that is."""
        for name in self._values:
            if name not in known_flags() and not name.startswith(("--sglang-", "--router-")):
                for close in get_close_matches(name, known_flags(), n=1, cutoff=_ALIKE):
                    yield name, close

    def unknown(self) -> dict[str, list[str]]:
        """What only a run of the script could tell, and slime's flags whose values depend on it."""
        found: dict[str, list[str]] = {}
        for name in sorted(known_flags() & self._values.keys()):
            for word in self._values[name]:
                for cause in word.unknown:
                    found.setdefault(cause, []).append(name)
        return found

    def doubtful(self) -> list[str]:
        """Variables set under a condition that slime's flags depend on."""
        words = (word for name in known_flags() & self._values.keys() for word in self._values[name])
        return sorted({cause for word in words for cause in word.doubtful})
