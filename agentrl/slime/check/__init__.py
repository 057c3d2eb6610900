"""What would go wrong with a slime run, found before any GPU is taken. Neither slime nor a GPU is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from agentrl.env import Env
from agentrl.errors import ConfigError
from agentrl.slime.check.configuration import paths, template
from agentrl.slime.check.data import data
from agentrl.slime.check.finding import Finding, Level, error, note
from agentrl.slime.check.launch_file import LaunchFile, read_file, read_words
from agentrl.slime.check.memory import memory
from agentrl.slime.check.rules import RULES
from agentrl.slime.check.setup import Setup, open_env, read_config
from agentrl.slime.config import SlimeConfig

__all__ = ["Finding", "LaunchFile", "Level", "check", "read_file", "read_words", "verdict"]


def check(launch: LaunchFile) -> list[Finding]:
    """All findings, errors first. The Env is imported and its configuration validated; no hook of it is called."""
    found = list(launch.findings)
    config, env = _open(launch, found)
    setup = Setup(launch.flags, launch.program, launch.yaml_only, config, env)
    rules = (paths, template) if launch.yaml_only else (*RULES, paths, data, template, memory)
    for rule in rules:
        found += _guarded(rule, setup)
    if launch.yaml_only:
        found.append(
            note("only the YAML file was checked; give the launch script to have slime's flags checked as well")
        )
    return sorted(dict.fromkeys(found), key=lambda finding: list(Level).index(finding.level))


def _open(launch: LaunchFile, found: list[Finding]) -> tuple[SlimeConfig | None, type[Env] | None]:
    """agentrl's configuration and the Env that it names; what is wrong with them goes into `found`."""
    try:
        if "--custom-config-path" in launch.flags and launch.flags.text("--custom-config-path") is None:
            return None, None  # a path that only the script's run could tell, which has been said
        config = read_config(launch.flags)
    except ConfigError as exc:
        found.append(error(str(exc)))
        return None, None
    try:
        if config.env is not None:
            return config, open_env(config, config.env)
        if launch.yaml_only or "--prompt-data" not in launch.flags:
            config.env_path({})  # which says what to write where; else the rows may name one each
    except ConfigError as exc:
        found.append(error(str(exc)))
    return config, None


def _guarded(rule: Callable[[Setup], Iterable[Finding]], setup: Setup) -> Iterator[Finding]:
    """One rule's findings; a value that it cannot read is one of them."""
    try:
        yield from rule(setup)
    except ConfigError as exc:
        yield error(str(exc))


def verdict(findings: Sequence[Finding]) -> str:
    """One line: whether the run may start."""
    errors, warnings = (sum(f.level is level for f in findings) for level in (Level.ERROR, Level.WARNING))
    counts = f"{_count(errors, 'error')}, {_count(warnings, 'warning')}"
    return f"{'not ready' if errors else 'ready'}: {counts}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
