"""Finds the problems of a slime run before the run takes a GPU. The check needs neither slime nor a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from agentrl._util.findings import Finding, Report, error, note, unchecked, warning
from agentrl.env.env import Env
from agentrl.errors import ConfigError
from agentrl.slime.check import arguments
from agentrl.slime.check.command import TrainCommand, read_argument, read_command
from agentrl.slime.check.configuration import needs, paths, template
from agentrl.slime.check.data import data
from agentrl.slime.check.flags import Words
from agentrl.slime.check.memory import memory
from agentrl.slime.check.rules import RULES, engine_url, turns
from agentrl.slime.check.setup import Setup, open_env, read_config, read_keys
from agentrl.slime.config import SlimeConfig

__all__ = ["TrainCommand", "check", "read_argument", "read_command"]

_FLAG = "--custom-config-path"
_SUPERVISED = "agentrl.slime.sft.generate_rollout"
"""The rollout function of supervised training, which learns from chat, and plays no episode."""


def check(command: TrainCommand, reading: arguments.ParsedArguments | None = None) -> list[Finding]:
    """The findings about a command, the worst first. The check imports the Env, validates the Env's configuration, and
    calls no hook except `needs`. `reading` are the command's arguments, if they were read before."""
    if _is_supervised(words := Words(command.words)):
        return _sorted(_supervised(words))
    findings: list[Finding] = []
    config, keys = _configuration(command, findings)
    reading = reading or arguments.read(command, keys)
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
    """agentrl's configuration, and all keys of the file of --custom-config-path. Problems are appended to
    `findings`."""
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


def _is_supervised(words: Words) -> bool:
    """Whether the command learns from chat, and plays no episode."""
    return words.values.get("--rollout-function-path", [])[:1] == [_SUPERVISED]


def _supervised(words: Words) -> Iterator[Finding]:
    """The findings about a command for supervised training."""
    flags = {flag: values[0] if values else "" for flag, values in words.values.items()}
    if "--apply-chat-template" in flags:
        yield error("remove --apply-chat-template: the messages are needed as they are")
    if flags.get("--n-samples-per-prompt", "1") != "1":
        yield error("remove --n-samples-per-prompt: a row is learned once")
    if flags.get("--loss-type") != "sft_loss":
        yield error("add --loss-type sft_loss: without it slime learns from rewards, and all of them are 0")
    if "--eval-interval" in flags:
        yield error("remove --eval-interval: the rows of chat are not evaluated")
    for flag, why in (
        ("--debug-train-only", "starts engines that nobody asks"),
        ("--disable-compute-advantages-and-returns", "computes advantages of rewards that are all 0"),
        ("--calculate-per-token-loss", "weighs each row equally, however long it is"),
    ):
        if flag not in flags:
            yield warning(f"add {flag}: without it slime {why}")
    if "--input-key" not in flags:
        yield warning("add --input-key messages: without it slime reads the column `input`")
    if "--tool-key" not in flags:
        yield note("add --tool-key tools if the rows have tools")
