"""A line of a shell, as docs show it: its commands, options, settings and paths exist. Nothing is run."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import typer

from agentrl._util.loading import load_object
from agentrl.cli import app
from agentrl.cli.episodes import PlayConfig
from agentrl.cli.settings import merge, parse_settings
from agentrl.env.factory import EnvFactory
from agentrl.train.config import TrainConfig

ROOT = Path(__file__).parents[2]
OTHERS = ("cd", "curl", "git", "hf", "kill", "npm", "ray", "source", "ssh", "vllm", "docker")
"""Other people's programs: nothing is known about them here."""
FIRST = ("agentrl", "bash", "make", "pip", "python", "python3", *OTHERS)
OBJECT = re.compile(r"agentrl(?:_\w+)?(?:\.\w+)+(?::\w+)?")
OURS = re.compile(r"agentrl_envs[\w.]*:\w+")


def is_command(line: str) -> bool:
    """Whether a line calls a program, or begins with flags for one."""
    words = _words(line)
    return bool(words) and (words[0].startswith("--") or words[0].rpartition("/")[2] in FIRST)


def _words(line: str) -> list[str]:
    """The words of a line without its comment, the prompt, and what is set for it alone."""
    try:
        words = shlex.split(line.removeprefix("$ ").replace("<this repository>", "URL"), comments=True)
    except ValueError:  # a sentence with an apostrophe
        return []
    while words and re.match(r"[A-Z_]+=|\$\{CHECK", words[0]):
        words = words[1:]
    return words


def check_line(line: str) -> None:
    """Raises an error that names what does not exist."""
    words, part = _redirected(_words(line)), []
    for word in [*words, ";"]:
        if word in (";", "&&", "&", "|") or word.endswith(";"):
            _check([*part, *([word[:-1]] if word.endswith(";") and len(word) > 1 else [])])
            part = []
        else:
            part.append(word)


def _redirected(words: list[str]) -> list[str]:
    """The words without `> FILE`."""
    return [word for before, word in zip(["", *words], words, strict=False) if word != ">" and before != ">"]


def _check(words: list[str]) -> None:
    if not words:
        return
    for word in words:
        for path in OBJECT.findall(word):
            _object(path)
    program, rest = words[0].rpartition("/")[2], words[1:]
    if program == "agentrl":
        check_agentrl(rest)
    elif program == "make":
        _targets([word for word in rest if "=" not in word])
    elif program == "pip":
        _extras(" ".join(rest))
    elif program in ("python", "python3"):
        _python(words[0], rest)


def check_agentrl(words: list[str]) -> None:
    """Raises typer's usage error for an unknown command or option, ConfigError for a setting."""
    command: Any = typer.main.get_command(app)
    path = "agentrl"
    while hasattr(command, "commands"):
        if not words or words[0].startswith("-"):
            break
        if words[0] not in command.commands:
            raise ValueError(f"{path} has no command {words[0]}")
        path, command, words = f"{path} {words[0]}", command.commands[words[0]], words[1:]
    if {"-h", "--help", "--version"} & set(words):
        return
    given = command.make_context(path, list(words)).params
    _settings(path, given)


def _settings(path: str, given: dict[str, Any]) -> None:
    """What is given by --set, validated by the class that the command hands it to."""
    pairs = given.get("settings") or ()
    if path in ("agentrl train", "agentrl sft"):
        own = {"model": given["model"]} if given["model"] else {}
        fixed = {"env": "my_env.py:MyEnv", "out": "runs/first", **own}
        if given.get("warm_start") or path == "agentrl sft":
            fixed["warm_start"] = {"demonstrations": "demos.jsonl"}
        config = TrainConfig.parse("--set", merge(fixed, parse_settings(pairs))).env_config
    elif pairs:
        config = PlayConfig.parse(pairs, with_engine=True, with_reward=True).env_config
    else:
        config = {}
    if config and OURS.fullmatch(str(given.get("env"))):
        EnvFactory(given["env"], config)


def _object(path: str) -> None:
    """An object of ours at a dotted path, with or without a colon before its last name. `agentrl.yaml` is a file."""
    if path.endswith((".yaml", ".jsonl", ".json", ".py")):
        return
    module, _, name = path.replace(":", ".").rpartition(".")
    if importlib.util.find_spec(module) is None:
        raise ImportError(f"{path}: there is no module {module}")
    if importlib.util.find_spec(path) is None if ":" not in path and not hasattr(_module(module), name) else False:
        raise ImportError(f"{path}: {module} has no {name}")
    if ":" in path:
        load_object(path)


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _targets(targets: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        if f"\n{target}:" not in makefile:
            raise ValueError(f"the Makefile has no target {target}")


def _extras(words: str) -> None:
    for place, extras in re.findall(r"(\.|sdk|envs|sandbox)\[([\w,-]+)\]", words):
        folder = "." if place == "sdk" else place
        pyproject = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
        if unknown := set(extras.split(",")) - pyproject["project"]["optional-dependencies"].keys():
            raise ValueError(f"{folder}/pyproject.toml has no extra {', '.join(sorted(unknown))}")


def _python(program: str, words: list[str]) -> None:
    """`python -m MODULE` of ours, or a file of this repository."""
    if words[:1] == ["-m"] and words[1].partition(".")[0] in ("agentrl", "agentrl_envs", "benchmarks", "tests"):
        if importlib.util.find_spec(words[1]) is None:
            raise ImportError(f"{program} -m {words[1]}: there is no such module")
    elif words and words[0].startswith((".ci/", "examples/", "benchmarks/")) and not (ROOT / words[0]).is_file():
        raise ValueError(f"{program}: there is no file {words[0]}")
