"""Modules that moved are found at their old paths, with a warning that names the new one."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from agentrl import types
from agentrl._util.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_the_old_path_is_the_new_module(old):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is {MOVED[old]} now"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(MOVED[old])
    assert module.__spec__.name == MOVED[old]


@pytest.mark.parametrize(
    ("package", "name"), [("env", "load_env"), ("trajectory", "total_ledger"), ("episode", "run_episode")]
)
def test_a_module_that_is_a_package_now_gives_its_old_names(package, name):
    code = f"from agentrl.{package} import {name}; print({name}.__module__)"
    ran = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.startswith(f"agentrl.{package}."), ran.stderr
    assert f"agentrl.{package}.{name} is agentrl.{package}." in ran.stderr


@pytest.mark.parametrize(
    ("old", "names"),
    [
        ("agentrl.engine.base", ["ChatReply", "Generation", "SamplingParams"]),
        ("agentrl.render.base", ["Rendered", "RenderedSpan", "SpanKind"]),
    ],
)
def test_classes_that_moved_to_types_keep_their_old_paths(old, names):
    module = importlib.import_module(old)
    assert all(getattr(module, name) is getattr(types, name) for name in names)
    assert set(names) <= set(module.__all__)


def test_a_name_that_never_was_is_none():
    with pytest.raises(ImportError, match="no_such_name"):
        from agentrl.env import no_such_name  # noqa: F401
