from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import import_module

import pytest

from agentrl.rehearse.standins import SITE, imports


@pytest.fixture
def hooks(monkeypatch, tmp_path):
    monkeypatch.setattr(imports, "_before", {})
    monkeypatch.setattr(imports, "_after", {})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "rehearsed_package"
    package.mkdir()
    (package / "__init__.py").write_text("from rehearsed_package.part import value\nseen = value\n")
    (package / "part.py").write_text("import builtins\nvalue = 1\nearly = getattr(builtins, 'rehearsed', None)\n")
    yield package
    for name in [name for name in sys.modules if name.startswith("rehearsed_package")]:
        del sys.modules[name]


def test_an_importer_gets_the_replaced_value(hooks):
    @imports.after("rehearsed_package.part")
    def replace(module):
        module.value = 2

    imports.install()
    assert import_module("rehearsed_package").seen == 2


def test_a_hook_runs_before_the_module(hooks, monkeypatch):
    import builtins

    @imports.before("rehearsed_package.part")
    def prepare():
        monkeypatch.setattr(builtins, "rehearsed", True, raising=False)

    imports.install()
    assert import_module("rehearsed_package.part").early is True


def test_a_hook_for_an_imported_module_runs_at_once(hooks):
    module = import_module("rehearsed_package.part")

    @imports.after("rehearsed_package.part")
    def replace(module):
        module.value = 3

    assert module.value == 3


def test_a_hooked_module_keeps_its_source(hooks):
    imports.after("rehearsed_package.part")(lambda module: None)
    imports.install()
    assert "value = 1" in inspect.getsource(import_module("rehearsed_package.part"))


def test_a_missing_module_is_still_missing(hooks):
    imports.after("rehearsed_package.absent")(lambda module: None)
    imports.install()
    with pytest.raises(ModuleNotFoundError, match="absent"):
        import_module("rehearsed_package.absent")


def test_install_twice_adds_one_finder(hooks):
    before = len(sys.meta_path)
    imports.install()
    imports.install()
    assert len(sys.meta_path) == before + 1


PROBE = """
import sys
assert ("agentrl" in sys.modules) is False
try:
    import slime
except ModuleNotFoundError:
    pass
print("agentrl.rehearse.standins.hooks" in sys.modules)
"""


@pytest.mark.parametrize("active", [True, False])
def test_a_process_installs_the_hooks_at_the_first_import_of_slime(active, tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SITE), *sys.path])}
    env.pop("AGENTRL_REHEARSAL", None)
    if active:
        env["AGENTRL_REHEARSAL"] = str(tmp_path)
    process = subprocess.run([sys.executable, "-c", PROBE], env=env, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == str(active)


def test_a_module_that_nobody_calls_is_there_for_its_importer_only(hooks):
    from agentrl.rehearse.standins.unused import register

    (hooks / "needy.py").write_text("import json\nfrom rehearsed_missing.inner import name\n")
    register("rehearsed_package.needy", ("json", "rehearsed_missing.inner"))
    imports.install()
    assert import_module("rehearsed_package.needy").json.dumps(1) == "1", "an installed module stays itself"
    with pytest.raises(ModuleNotFoundError):
        import_module("rehearsed_missing.inner")
