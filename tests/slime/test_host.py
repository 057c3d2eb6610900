"""One place knows slime's flags and modules: agentrl/slime/host.py."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

import agentrl.slime
from agentrl.slime import SlimeConfig
from agentrl.slime.host import HostArgs, host_attribute

ROOM = Path(agentrl.slime.__file__).parent


def are_args(node: ast.AST) -> bool:
    """`args`, and `self.args` or another's."""
    return (isinstance(node, ast.Name) and node.id == "args") or (
        isinstance(node, ast.Attribute) and node.attr == "args"
    )


def reads_args(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return are_args(node.value)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and are_args(node.args[0])
    )


@pytest.mark.parametrize("file", sorted(ROOM.glob("*.py")), ids=lambda file: file.name)
def test_nobody_else_reads_slimes_args(file):
    if file.name in ("host.py", "launch.py", "layouts.py", "sizes.py"):  # the others write and size launch scripts
        return
    found = [node.lineno for node in ast.walk(ast.parse(file.read_text())) if reads_args(node)]
    assert not found, f"{file.name} reads slime's args in line {found}; HostArgs is there for it"


def test_a_flag_that_is_absent_or_none_has_its_default():
    flags = HostArgs.of(SimpleNamespace(rollout_top_p=None, partial_rollout=True))
    assert (flags.rollout_top_p, flags.partial_rollout, flags.group_rm) == (1.0, True, False)
    assert HostArgs.of(flags) is flags


def test_zero_is_a_value():
    assert HostArgs.of(SimpleNamespace(rollout_top_p=0.0)).rollout_top_p == 0.0


@pytest.mark.parametrize(
    ("estimator", "centred", "scaled"),
    [("grpo", True, True), ("reinforce_plus_plus_baseline", True, False), ("ppo", False, False)],
)
def test_estimators(estimator, centred, scaled):
    args = SimpleNamespace(advantage_estimator=estimator, rewards_normalization=True, grpo_std_normalization=True)
    flags = HostArgs.of(args)
    assert (flags.centred, flags.scaled) == (centred, scaled)


def test_modules_are_looked_up_beside_the_sample(host):
    assert host_attribute(host.Sample(), "GenerateState", "utils.nothing", "rollout.sglang_rollout") is not None
    assert host_attribute(object(), "GenerateState", "rollout.sglang_rollout") is None


def test_a_configuration_is_parsed_once(monkeypatch):
    parsed = []
    parse = SlimeConfig.parse.__func__
    monkeypatch.setattr(SlimeConfig, "parse", classmethod(lambda cls, *a: parsed.append(a) or parse(cls, *a)))
    args = SimpleNamespace(agentrl={"env": "once:Parsed", "limits": {"turns": 3}})
    found = [SlimeConfig.from_args(args) for _ in range(100)]
    assert len(parsed) == 1
    assert all(config is found[0] for config in found)
    args.agentrl["limits"]["turns"] = 4
    assert SlimeConfig.from_args(args).limits == {"turns": 4}, "what changed is read again"
