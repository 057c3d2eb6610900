"""New environments from templates: a package with an Env, players, tasks, a test, a configuration and a README.

A template is a folder of real files that lint, type-check and run, under the name `my_env`. A project is a copy of
these files, with the name that the user chose in place of `my_env`.
"""

from __future__ import annotations

import keyword
import re
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tokenize import NAME, generate_tokens

from agentrl.errors import ConfigError, did_you_mean

TEMPLATES = ("tool", "agent", "game", "retrieval", "sandbox", "user-simulator", "search-r1")
_FOLDER = Path(__file__).parent / "templates"
_KINDS = {".py", ".md", ".toml", ".yaml", ".jsonl"}
"""Suffixes of a template's files. Files with other suffixes are left over from running the template."""


def write_project(name: str, template: str = "tool", folder: Path = Path()) -> list[Path]:
    """Write the project `name` as a new folder in `folder`, and return its files.

    Raises ConfigError for a name that no package can have or that is taken, for an unknown template, and for a folder
    that exists. No file is overwritten.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} cannot be the name of a Python package; {_repaired(name)} can")
    if template not in TEMPLATES:
        meant = did_you_mean(template, TEMPLATES, "; the templates are {}")
        raise ConfigError(f"--template {template}: there is no such template{meant}")
    project = folder / name
    if project.exists():
        raise ConfigError(f"{project} exists; choose another name, or remove it")
    if _is_module(name):
        raise ConfigError(f"{name} is the name of an existing Python module; choose another name")
    texts = template_files(template)
    spelled = {"my_env": name, "my-env": name.replace("_", "-").lower(), "MyEnv": _class_name(name, texts)}
    files = []
    for path, text in texts.items():
        target = project / _replaced(path, spelled)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_replaced(text, spelled), encoding="utf-8")
        files.append(target)
    return files


def _is_module(name: str) -> bool:
    spec = find_spec(name)
    if spec is None or spec.origin is not None:
        return spec is not None
    # Python takes any folder on its path for a namespace package, also the folder of a project that `init` wrote there.
    return not all((Path(folder) / "pyproject.toml").exists() for folder in spec.submodule_search_locations or ())


def template_files(template: str) -> dict[str, str]:
    """Path of a file in the template -> the file's text."""
    folder = _FOLDER / template.replace("-", "_")
    files = sorted(path for path in folder.rglob("*") if path.suffix in _KINDS)
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in files}


def _replaced(text: str, spelled: dict[str, str]) -> str:
    return re.sub("|".join(spelled), lambda match: spelled[match[0]], text)


def _class_name(name: str, texts: dict[str, str]) -> str:
    """The class name for a project: WeatherReport for `weather_report`, or WeatherReportEnv if the template already
    uses the name WeatherReport."""
    class_name = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    sources = [text for path, text in texts.items() if path.endswith(".py")]
    return f"{class_name}Env" if any(class_name in _names(source) for source in sources) else class_name


def _names(source: str) -> set[str]:
    tokens = generate_tokens(StringIO(source).readline)
    return {token.string for token in tokens if token.type == NAME}


def _repaired(name: str) -> str:
    words = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").lower()
    return words if re.match("[a-z]", words) and not keyword.iskeyword(words) else f"env_{words}".rstrip("_")
