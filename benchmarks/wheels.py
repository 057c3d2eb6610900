"""List, download and install the wheels that `make gpu` needs on a machine without a network.

    python -m benchmarks.wheels FOLDER                  # the packages that this Python lacks, and those in FOLDER
    python -m benchmarks.wheels FOLDER --download       # download them, on a machine with a network
    python -m benchmarks.wheels FOLDER --download --python-version 3.12     # for another Python
    python -m benchmarks.wheels FOLDER --install VENV   # a virtual environment from FOLDER alone

wheels.txt lists the packages. torch is not in the list: with CUDA's libraries it takes 3 GB, and a machine with a GPU
has it already. The virtual environment uses the packages of the Python that creates it, and installs missing packages
from FOLDER. This module needs only Python and pip.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIST = Path(__file__).with_name("wheels.txt")
_LINE = re.compile(r"(?P<name>[\w.-]+)==(?P<version>\S+)  # (?P<size>[\d.]+) MB(, (?P<use>\w+))?")
_PLATFORMS = [f"manylinux_2_{number}_x86_64" for number in (28, 27, 24, 17, 12, 5)] + [
    "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64",
]  # fmt: skip
"""The platforms whose wheels fit. pip compares platforms by name, and a wheel for an older system runs on a newer
system."""


@dataclass(frozen=True, slots=True)
class Wheel:
    name: str
    version: str
    mb: float
    use: str | None
    """model: for smollm2-135m alone. Each other part runs without such a package."""

    @property
    def key(self) -> str:
        return _key(self.name)

    def installed(self) -> bool:
        """Whether this Python has the package, in a version that the pyproject.toml files accept."""
        try:
            return _numbers(version(self.name)) >= _minima().get(self.key, ())
        except PackageNotFoundError:
            return False

    def file(self, folder: Path) -> Path | None:
        start = f"{re.sub(r'[-_.]+', '_', self.name)}-{self.version}-".lower()
        return next((file for file in sorted(folder.glob("*.whl")) if file.name.lower().startswith(start)), None)


@cache
def _minima() -> dict[str, tuple[int, ...]]:
    root = LIST.parent.parent
    projects = [(root / folder / "pyproject.toml").read_text(encoding="utf-8") for folder in ("", "envs", "sandbox")]
    return {_key(name): _numbers(least) for name, least in re.findall(r'"([\w.-]+)>=([\d.]+)"', "".join(projects))}


def _numbers(of_version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", of_version.partition("+")[0])[:3])


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(listed: Path = LIST) -> list[Wheel]:
    """The wheels in the list. Raises ValueError (`file:line: ...`) for a line that cannot be parsed."""
    found = []
    for number, line in enumerate(listed.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if (match := _LINE.fullmatch(line)) is None:
            raise ValueError(f"{listed}:{number}: {line!r} is not `name==version  # SIZE MB`")
        found.append(Wheel(match["name"], match["version"], float(match["size"]), match["use"]))
    return found


def said(wheels: Sequence[Wheel], folder: Path) -> tuple[str, list[Wheel]]:
    """Lines for people: each wheel that this Python lacks, the total sizes, and the wheels that FOLDER lacks."""
    lines, missing, rest = [], [], [wheel for wheel in wheels if not wheel.installed()]
    for wheel in rest:
        file = wheel.file(folder)
        if file is None:
            missing.append(wheel)
        state = "missing" if file is None else f"in the folder, {file.stat().st_size / 1e6:.1f} MB"
        use = f" ({wheel.use})" if wheel.use else ""
        lines.append(f"{wheel.name} {wheel.version}{use}: {wheel.mb:.1f} MB, {state}")
    lines.append(
        f"{len(wheels)} packages are wanted; this Python lacks {len(rest)} ({_mb(rest)} MB); "
        f"{folder} lacks {len(missing)} of them ({_mb(missing)} MB)"
    )
    return "\n".join(lines), missing


def _mb(wheels: Sequence[Wheel]) -> str:
    return f"{sum(wheel.mb for wheel in wheels):.0f}"


def download(wheels: Sequence[Wheel], folder: Path, python_version: str | None) -> None:
    """Download the wheels that FOLDER lacks, for this Python or for another version on x86-64 Linux."""
    missing = [wheel for wheel in wheels if wheel.file(folder) is None]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    if python_version:
        command += ["--python-version", python_version, "--implementation", "cp"]
        command += [part for platform in _PLATFORMS for part in ("--platform", platform)]
    subprocess.run([*command, *(f"{wheel.name}=={wheel.version}" for wheel in missing)], check=True)


def install(wheels: Sequence[Wheel], folder: Path, venv: Path) -> None:
    """Create a virtual environment with this Python's packages. Missing packages come from FOLDER alone."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    # Not --system-site-packages: where this Python is a virtual environment's, that would skip its packages.
    places = [place for place in sys.path if place.endswith(("site-packages", "dist-packages"))]
    added = "".join(f"import site; site.addsitedir({place!r})\n" for place in places)
    Path(site, "beside.pth").write_text(added, encoding="utf-8")
    names = [f"{wheel.name}=={wheel.version}" for wheel in wheels if not wheel.installed() and wheel.file(folder)]
    command = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--find-links", str(folder)]
    if names:
        subprocess.run([*command, *names], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--download", action="store_true")
    parser.add_argument("--python-version", help="of the machine with the GPU, 3.12 say (this one's)")
    parser.add_argument("--install", type=Path, metavar="VENV")
    args = parser.parse_args()
    wheels = wanted()
    if args.download:
        download(wheels, args.folder, args.python_version)
        files = [file for wheel in wheels if (file := wheel.file(args.folder))]
        for file in files:
            print(f"{file.stat().st_size / 1e6:8.1f} MB  {file.name}")
        print(f"{sum(file.stat().st_size for file in files) / 1e6:8.1f} MB  in all, of {len(files)} wheels")
        return 0
    text, missing = said(wheels, args.folder)
    print(text)
    needed = [wheel for wheel in missing if wheel.use is None]
    if args.install and needed:
        names = ", ".join(wheel.name for wheel in needed)
        print(
            f"{args.folder} lacks {names}: make gpu-wheels WHEELS=FOLDER, on a machine with a network", file=sys.stderr
        )
    elif args.install:
        install(wheels, args.folder, args.install)
    return 2 if needed else 0


if __name__ == "__main__":
    sys.exit(main())
