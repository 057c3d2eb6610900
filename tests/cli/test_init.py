"""`agentrl init`: each template becomes a package that passes its own test and plays its README's first commands."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl._util.yaml_files import read_yaml
from agentrl.cli.init import ProjectTemplate
from agentrl.env.factory import load_env
from agentrl.errors import ConfigError
from agentrl.init import _FOLDER, TEMPLATES, template_files, write_project
from agentrl.train import TrainConfig

NAMES = {template: f"made_{template.replace('-', '_')}" for template in TEMPLATES}


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder: a project of the template that the test is parametrized with, importable as in a shell."""
    write_project(NAMES[request.param], request.param, tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / NAMES[request.param])])
    monkeypatch.chdir(tmp_path / NAMES[request.param])
    yield Path.cwd()
    for module in [name for name in sys.modules if name.partition(".")[0] == NAMES[request.param]]:
        del sys.modules[module]


every_template = pytest.mark.parametrize("project", TEMPLATES, indirect=True)


def commands(project: Path) -> list[list[str]]:
    """The commands of the README, without their comments."""
    block = re.search(r"```bash\n(.*?)```", (project / "README.md").read_text(), re.DOTALL)
    return [shlex.split(line, comments=True) for line in block[1].splitlines()]


@pytest.mark.thorough
@every_template
def test_its_own_test_passes(project):
    tests = runpy.run_path(f"{project}/tests/test_{project.name}.py")
    run = [test() for name, test in tests.items() if name.startswith("test_")]

    assert len(run) == 2
    assert load_env(f"{project.name}:{read_yaml(project / 'train.yaml')['env'].partition(':')[2]}").__doc__


@every_template
def test_its_readme_plays_and_its_configuration_trains(project, agentrl):
    gold, *_, train, show = commands(project)
    assert [command[:2] for command in (gold, train, show)] == [["agentrl", kind] for kind in ("play", "train", "show")]

    assert agentrl(*gold[1:], "--limit", "2") == 0, agentrl.stderr
    assert re.search(r"mean reward +1.000", agentrl.stdout)
    config = TrainConfig.make(**read_yaml(project / "train.yaml"))
    assert (config.data, str(config.out)) == (None, show[2])
    player = next(command for command in commands(project) if "demos.jsonl" in command)
    assert str(config.warm_start.demonstrations) == player[player.index("--out") + 1]


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_name_stands_wherever_the_template_s_stood(template, tmp_path):
    written = write_project("star_gate", template, tmp_path)

    text = "\n".join(f"{path}\n{path.read_text()}" for path in written)
    assert not re.search(r"my_env|my-env|MyEnv", text)
    pyproject = tomllib.loads((tmp_path / "star_gate" / "pyproject.toml").read_text())
    assert pyproject["project"]["name"] == "star-gate"
    assert pyproject["project"]["entry-points"]["agentrl.envs"] == {"star_gate": "star_gate:StarGate"}
    assert {path.relative_to(tmp_path / "star_gate").as_posix() for path in written} == {
        path.replace("my_env", "star_gate") for path in template_files(template)
    }


def test_the_templates_are_those_that_the_command_names():
    assert [template.value for template in ProjectTemplate] == list(TEMPLATES)
    assert {path.name for path in _FOLDER.iterdir() if path.is_dir()} == {name.replace("-", "_") for name in TEMPLATES}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("my-shop", "'my-shop' cannot be the name of a Python package; my_shop can"),
        ("3d", "env_3d can"),
        ("class", "env_class can"),
        ("café/bar", "caf_bar can"),
        ("random", "random is the name of an existing Python module; choose another name"),
    ],
)
def test_a_name_that_no_package_can_have_is_refused_with_one_that_can(name, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        write_project(name, "tool", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_project_beside_it_is_no_module_of_its_name(tmp_path, monkeypatch):
    write_project("cosy_shop", folder=tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert write_project("cosy_shop", folder=tmp_path / "elsewhere")
    (tmp_path / "cosy_inn").mkdir()
    with pytest.raises(ConfigError, match="existing Python module"):
        write_project("cosy_inn", folder=tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("name", "template", "cls"), [("corpus", "retrieval", "CorpusEnv"), ("weather", "tool", "Weather")]
)
def test_a_class_name_that_the_template_s_code_uses_gets_an_ending(name, template, cls, tmp_path):
    write_project(name, template, tmp_path)
    assert f"class {cls}(Env)" in (tmp_path / name / name / "env.py").read_text()


def test_nothing_is_overwritten(folder, agentrl):
    assert agentrl("init", "parlour", "--template", "game") == 0
    assert agentrl.stdout.splitlines()[-1] == "next: cd parlour, and read README.md"
    before = {path: path.read_bytes() for path in (folder / "parlour").rglob("*.*")}

    assert agentrl("init", "parlour") == 2
    assert agentrl.stderr == "error: parlour exists; choose another name, or remove it\n"
    assert {path: path.read_bytes() for path in (folder / "parlour").rglob("*.*")} == before
    with pytest.raises(
        ConfigError, match="--template chess: there is no such template; the templates are tool, agent,"
    ):
        write_project("hall", "chess", folder)
