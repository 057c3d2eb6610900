"""The three distributions: one version, names and extras that exist, and a release whose tag is the version."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import agentrl

ROOT = Path(__file__).parent.parent
PLACES = {"agentrl-sdk": ROOT, "agentrl-envs": ROOT / "envs", "agentrl-sandbox": ROOT / "sandbox"}
FOLDERS = {name: folder for name, folder in PLACES.items() if (folder / "pyproject.toml").is_file()}
"""An sdist has a single one."""
FOLDERS_OF_TEXTS = ("agentrl", "docs", "envs", "sandbox", "examples", ".ci", ".github")
TEXTS = (*FOLDERS_OF_TEXTS, "README.md", "CONTRIBUTING.md", "Makefile")
OLD = re.compile(r"pip install[^\n`#]*?(?<![-\w/.])agentrl(?![-\w/.:])")
"""A command that would install another project from PyPI."""
USUAL = {("agentrl-sdk", "train"), ("agentrl-envs", "search"), ("agentrl-sandbox", "e2b")}
EXTRA = re.compile(r"(agentrl-(?:sdk|envs|sandbox))\[([\w,-]+)\]")


def project(name):
    return tomllib.loads((FOLDERS[name] / "pyproject.toml").read_text(encoding="utf-8"))


def texts():
    for name in TEXTS:
        path = ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in (".py", ".md", ".toml", ".sh", ".yml", ".yaml", "") and file.is_file():
                yield file, file.read_text(encoding="utf-8", errors="replace")


def test_no_text_installs_the_other_agentrl():
    assert OLD.search("pip install 'agentrl[train]'"), "the pattern of the old name"
    assert OLD.search("pip install -U agentrl")
    assert not [f"{file}: {hit[0]}" for file, text in texts() if (hit := OLD.search(text))]


def test_each_extra_that_a_text_names_exists():
    seen = set()
    for file, text in texts():
        for name, extras in EXTRA.findall(text):
            if name not in FOLDERS:
                continue
            for extra in extras.split(","):
                assert extra in project(name)["project"]["optional-dependencies"], f"{file}: {name}[{extra}]"
                seen.add((name, extra))
    assert {(name, extra) for name, extra in USUAL if name in FOLDERS} <= seen


def test_the_version_is_in_one_place():
    places = {(FOLDERS[name] / project(name)["tool"]["hatch"]["version"]["path"]).resolve() for name in FOLDERS}
    assert places == {ROOT / "agentrl" / "__init__.py"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", agentrl.__version__)
    assert f"\n## {agentrl.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FOLDERS)
def test_each_distribution_has_what_an_index_shows(name):
    about = project(name)["project"]
    assert (about["name"], about["license"], about["requires-python"]) == (name, "Apache-2.0", ">=3.11")
    assert about["authors"]
    assert about["readme"]
    assert "Operating System :: POSIX" in about["classifiers"]
    assert (FOLDERS[name] / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_classifiers_are_the_pythons_that_ci_plays():
    quick = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["quick"]
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["quickstart"]
    versions = quick["strategy"]["matrix"]["python"]
    assert versions == release["strategy"]["matrix"]["python"] == list(_packaging()["VERSIONS"])
    for name in FOLDERS:
        mark = "Programming Language :: Python :: 3."
        marks = [one for one in project(name)["project"]["classifiers"] if one.startswith(mark)]
        assert marks == [f"Programming Language :: Python :: {version}" for version in versions]


@pytest.mark.parametrize(("tag", "is_right"), [(f"v{agentrl.__version__}", True), ("v9.9.9", False), ("main", False)])
def test_a_release_is_refused_unless_its_tag_is_the_version(tag, is_right):
    steps = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["build"]["steps"]
    (command,) = [step["run"] for step in steps if step.get("name") == "the tag is the version"]
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env={**os.environ, "GITHUB_REF_NAME": tag}, check=False)
    assert (done.returncode == 0) == is_right


def test_the_release_plays_readmes_commands():
    commands = runpy.run_path(str(ROOT / ".ci/bare.py"))["quickstart"]()
    assert [words[:2] for words in commands] == [
        ["agentrl", "init"],
        ["cd", "weather"],
        ["agentrl", "play"],
        ["agentrl", "train"],
        ["agentrl", "show"],
    ]


def _packaging():
    return runpy.run_path(str(ROOT / ".ci/packaging.py"))
