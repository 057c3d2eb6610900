"""Build the sdists and wheels of the three distributions, install them into empty environments, and play tests there.

The tests come from the unpacked sdists, beside which the packages themselves are removed: the installed code is tested.
Tests that read the repository are played in the unpacked sdist of agentrl-sdk, in the environment of this script.

    python .ci/packaging.py              sdists and wheels, on the Python of this script
    python .ci/packaging.py --pythons    wheels, on each Python of VERSIONS that this machine has
    python .ci/packaging.py --build DIST sdists and wheels, written to the folder DIST
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"agentrl": ROOT, "agentrl_sandbox": ROOT / "sandbox", "agentrl_envs": ROOT / "envs"}
"""Package -> the folder of its distribution. Each needs those before it."""
PROMISED = {
    "agentrl": (
        "agentrl/__init__.py",
        "agentrl/py.typed",
        "agentrl/view/static/index.html",
        "agentrl/view/static/main.js",
        "agentrl/view/static/style.css",
        "agentrl/init/templates/tool/pyproject.toml",
        "agentrl/init/templates/retrieval/my_env/corpus.jsonl",
        "agentrl/init/templates/search_r1/tests/test_my_env.py",
    ),
    "agentrl_sandbox": ("agentrl_sandbox/py.typed", "agentrl_sandbox/docker/base/Dockerfile"),
    "agentrl_envs": ("agentrl_envs/py.typed", "agentrl_envs/fact_search/__init__.py"),
}
TESTS = {
    "agentrl": "chat env/test_env.py env/test_tools.py monitor testing trajectory",
    "agentrl_sandbox": "sandbox/test_fake.py sandbox/test_local.py sandbox/test_protocol.py sandbox/test_shell.py",
    "agentrl_envs": "envs/coding/test_problem.py envs/coding/test_swebench_task.py "
    "envs/search_r1/test_retrieval_client.py envs/test_entry_points.py",
}
"""Package -> tests that need its core dependencies alone, and neither a model nor an engine of containers."""
READING = "cli/test_installed.py docs test_distributions.py test_package.py test_public_api.py test_rooms.py"
"""Tests that read files of the repository."""
VERSIONS = ("3.11", "3.12", "3.13")
TOOLS = ("hypothesis", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist")
SHOW = """
import sys, agentrl
from importlib.util import find_spec
heavy = {"torch", "ray", "aiodocker", "sglang"} & set(sys.modules)
assert not heavy, f"import agentrl brought {heavy}"
assert not find_spec("agentrl_envs") and not find_spec("agentrl_sandbox")
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
assert load_renderer(load_tokenizer("tiny")).certificate.level == "exact"
print("agentrl", agentrl.__version__, "imports neither torch, ray, aiodocker nor sglang, and renders for `tiny`")
"""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """The output, which is also printed. Raises CalledProcessError for an exit code that is not 0."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "AGENTRL_PASSED")}
    words = [str(part) for part in command]
    done = subprocess.run(words, check=False, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    done.check_returncode()
    return done.stdout


def build(folder: Path) -> dict[str, Mapping[str, Path]]:
    """Kind of file -> package -> the file. An sdist gives the same wheel as the checkout."""
    run(sys.executable, "-m", "venv", folder / "builder")
    builder = folder / "builder" / "bin" / "python"
    run(builder, "-m", "pip", "install", "--quiet", "hatchling")
    sdists, wheels = {}, {}
    for package, source in FOLDERS.items():
        run(builder, "-m", "hatchling", "build", "-d", folder / "dist", cwd=source)
        (wheels[package],) = (folder / "dist").glob(f"{package}[-_]*.whl" if source != ROOT else "agentrl_sdk-*.whl")
        (sdists[package],) = (folder / "dist").glob(wheels[package].name.partition("-py3")[0] + ".tar.gz")
        unpacked = unpack(sdists[package], folder / "from_sdist")
        run(builder, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "again", cwd=unpacked)
        assert contents(folder / "again" / wheels[package].name) == contents(wheels[package]), package
    return {"sdist": sdists, "wheel": wheels}


def contents(wheel: Path) -> dict[str, int]:
    """Name -> CRC-32 of each file."""
    return {
        file.filename: file.CRC for file in zipfile.ZipFile(wheel).infolist() if not file.filename.endswith("RECORD")
    }


def unpack(sdist: Path, folder: Path) -> Path:
    """The folder with the files of an sdist."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


def look_into(package: str, wheel: Path) -> None:
    """Assert that a wheel holds its package, and nothing else."""
    names = contents(wheel)
    missing = [name for name in PROMISED[package] if name not in names]
    assert not missing, f"{wheel.name} lacks {missing}"
    strays = [name for name in names if name.split("/")[0] != package and ".dist-info/" not in name]
    assert not strays, f"{wheel.name} also holds {strays}"


def make_env(programs: Path, folder: Path) -> None:
    """Make an environment by `agentrl init`, install it, and play it by its name from another folder."""
    run(programs / "agentrl", "init", "weather", cwd=folder)
    run(programs / "python", "-m", "pip", "install", "--quiet", folder / "weather")
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    listed = run(programs / "agentrl", "envs", cwd=elsewhere)
    assert any(line.startswith("weather ") and "tools: lookup" in line for line in listed.splitlines()), listed
    play = ("play", "weather", "--player", "weather:gold", "--limit", "3")
    assert "mean reward  1.000" in run(programs / "agentrl", *play, cwd=elsewhere)


def interpreter(version: str) -> str | None:
    """The Python of a version, from PATH or from pyenv. None if neither runs."""
    named = [f"python{version}", *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for name in filter(shutil.which, named):
        if subprocess.run([name, "-c", ""], check=False, stderr=subprocess.DEVNULL).returncode == 0:
            return name  # a shim of pyenv fails for a version that is not chosen
    return None


def install_and_test(files: Mapping[str, Path], sdists: Mapping[str, Path], folder: Path, python: str) -> None:
    """Install the distributions into an empty environment, one after the other, with the tests of each."""
    folder.mkdir()
    run(python, "-m", "venv", folder / "venv")
    programs = folder / "venv" / "bin"
    install = (programs / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt")
    for package, file in files.items():
        run(*install, file)
        if package == "agentrl":
            run(programs / "python", "-c", SHOW)
            run(programs / "agentrl", "--version")
            make_env(programs, folder)
            run(*install, *TOOLS)
        unpacked = unpack(sdists[package], folder / "tests")
        (unpacked / package).rename(folder / package)
        play_tests(programs / "python", TESTS[package], unpacked)
    listed = run(programs / "agentrl", "envs", cwd=folder / "elsewhere")
    assert "fact_search" in listed
    for command in ("retriever", "sandbox"):
        run(programs / "agentrl", command, "--help", cwd=folder / "elsewhere")


def play_tests(python: str | Path, tests: str, folder: Path) -> None:
    """Play a case of each test. `tests`: paths below tests/."""
    options = ("-q", "-n", "2", "--part", "usual", "--cases", "1", "-p", "no:cacheprovider")
    run(python, "-m", "pytest", *options, *(f"tests/{name}" for name in tests.split()), cwd=folder)


def main() -> None:
    start = monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = build(folder)
        sdists, wheels = built["sdist"], built["wheel"]
        for package, wheel in wheels.items():
            look_into(package, wheel)
        if sys.argv[1:2] == ["--build"]:
            shutil.copytree(folder / "dist", sys.argv[2], dirs_exist_ok=True)
            return
        if sys.argv[1:] == ["--pythons"]:
            test_pythons(wheels, sdists, folder)
            return
        for kind, files in built.items():
            install_and_test(files, sdists, folder / kind, sys.executable)
            print(f"each {kind}: ok after {monotonic() - start:.0f} s", flush=True)
        play_tests(sys.executable, READING, unpack(sdists["agentrl"], folder / "repository"))
        print(f"the sdist of agentrl-sdk holds what its tests read: ok after {monotonic() - start:.0f} s")


def test_pythons(wheels: Mapping[str, Path], sdists: Mapping[str, Path], folder: Path) -> None:
    """Test the wheels on each Python that this machine has."""
    for version in VERSIONS:
        if python := interpreter(version):
            install_and_test(wheels, sdists, folder / version, python)
        print(f"Python {version}: {'ok' if python else 'not on this machine, and not tested'}", flush=True)


if __name__ == "__main__":
    main()
