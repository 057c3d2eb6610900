"""Finds the problems of a slime run before it takes a GPU. Needs neither slime nor a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from agentrl._util.findings import Finding, Report, error, unchecked
from agentrl.env.env import Env
from agentrl.errors import ConfigError
from agentrl.slime.check import arguments
from agentrl.slime.check.command import TrainCommand, read_argument, read_command
from agentrl.slime.check.configuration import paths, template
from agentrl.slime.check.data import data
from agentrl.slime.check.flags import Words
from agentrl.slime.check.memory import memory
from agentrl.slime.check.needs import needs
from agentrl.slime.check.rules import RULES, engine_url, turns
from agentrl.slime.check.setup import Setup, open_env, read_config, read_keys
from agentrl.slime.check.supervised import is_supervised, supervised
from agentrl.slime.config import SlimeConfig

__all__ = ["TrainCommand", "check", "read_argument", "read_command"]

_FLAG = "--custom-config-path"


def check(command: TrainCommand) -> list[Finding]:
    """All findings, the worst first. Imports the Env, validates its configuration, and calls no hook except `needs`."""
    if is_supervised(words := Words(command.words)):
        return _sorted(supervised(words))
    findings: list[Finding] = []
    config, keys = _configuration(command, findings)
    reading = arguments.read(command, keys)
    findings += reading.findings
    env = _env(config, command, findings)
    setup = Setup(reading.args, command, config, env, reading.exact)
    rules = (
        (engine_url, turns, paths, template) if command.yaml_only else (*RULES, paths, data, template, memory, needs)
    )
    for rule in rules:
        findings += _guarded(rule, setup)
    if command.yaml_only:
        findings.append(unchecked("slime's flags", "only the YAML file was given; check the command that starts slime"))
    return _sorted(findings)


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    report = Report([*dict.fromkeys(findings)])
    report.sort()
    return report.findings


def _configuration(command: TrainCommand, findings: list[Finding]) -> tuple[SlimeConfig | None, Mapping[str, Any]]:
    """agentrl's configuration and the file's other keys. Problems are appended to `findings`."""
    keys: dict[str, Any] = {}
    try:
        keys = read_keys(next(iter(Words(command.words).values.get(_FLAG, ())), None))
        return read_config(keys), keys
    except ConfigError as exc:
        findings.append(error(str(exc)))
        return None, keys


def _env(config: SlimeConfig | None, command: TrainCommand, findings: list[Finding]) -> type[Env] | None:
    if config is None:
        return None
    try:
        if config.env is not None:
            return open_env(config, config.env)
        if command.yaml_only or "--prompt-data" not in command.words:
            config.env_path({})  # its error names the remedy; with --prompt-data, rows may name an Env
    except ConfigError as exc:
        findings.append(error(str(exc)))
    return None


def _guarded(rule: Callable[[Setup], Iterable[Finding]], setup: Setup) -> Iterator[Finding]:
    """The findings of a rule. An unreadable value becomes a finding."""
    try:
        yield from rule(setup)
    except ConfigError as exc:
        yield error(str(exc))
