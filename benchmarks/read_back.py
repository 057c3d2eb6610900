"""Find out which chat templates can play an episode with tools, and whether their turns are parsed right.

    python -m benchmarks.read_back PATH...        (folders, .jinja files, wheels or source archives)

Each template gets a small tokenizer with its special tokens. A model that writes exactly as the template renders plays
ten episodes, and the parsed turns are compared with the original messages (tests/render/oracle.py). Templates that
differ only in white space count once. To repeat the figure of docs/templates.md on packages from PyPI:

    pip download --no-deps trl==1.16.0 axolotl==0.19.0
    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36
    python -m benchmarks.read_back --without tests/render/templates *.whl *.tar.gz
"""

from __future__ import annotations

import argparse
import json
import logging
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.render.markers import small_tokenizer
from tests.render.oracle import Report, examine, summary

RESULTS = Path(__file__).parent / "results" / "read_back.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--without", type=Path, action="append", default=[], help="leave out templates that are here")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    seen = {_essence(source) for path in args.without for _, source in templates(path)}
    reports: dict[str, Report] = {}
    for path in args.paths:
        for name, source in templates(path):
            if _essence(source) in seen:
                continue
            seen.add(_essence(source))
            where = f"{_package(path)}/{name}"
            reports[where] = examine(name, small_tokenizer(source))
            print(f"{'right  ' if reports[where].right else '-      '} {where}: {reports[where].verdict}", flush=True)
    print(summary(list(reports.values())))
    if args.save:
        RESULTS.write_text(_as_json(reports), encoding="utf-8")


def _as_json(reports: Mapping[str, Report]) -> str:
    """The reports as JSON, with a template on each line."""
    rows = [f"  {json.dumps(name)}: {json.dumps(report.as_row())}" for name, report in sorted(reports.items())]
    lines = ",\n".join(rows)
    return f'{{\n "summary": {json.dumps(summary(list(reports.values())))},\n "templates": {{\n{lines}\n }}\n}}\n'


def templates(path: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each chat template in a folder, a file or a package, without templates that mark trained
    text."""
    if path.is_dir():
        found = ((file.stem, file.read_text(encoding="utf-8")) for file in sorted(path.rglob("*.jinja")))
    elif path.suffix == ".jinja":
        found = iter([(path.stem, path.read_text(encoding="utf-8"))])
    elif path.suffix == ".whl":
        found = _of_wheel(path)
    else:
        found = _of_archive(path)
    return ((name, source) for name, source in found if not name.endswith("_training"))


def _of_wheel(path: Path) -> Iterator[tuple[str, str]]:
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".jinja") and "chat_templates" in name:
                yield Path(name).stem, archive.read(name).decode()


def _of_archive(path: Path) -> Iterator[tuple[str, str]]:
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            if member.name.endswith(".jinja") and "templates" in member.name and (file := archive.extractfile(member)):
                yield Path(member.name).stem, file.read().decode()


def _package(path: Path) -> str:
    return path.name.split("-")[0] if path.is_file() and path.suffix != ".jinja" else path.name


def _essence(source: str) -> str:
    return "".join(source.split())


if __name__ == "__main__":
    main()
