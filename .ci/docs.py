"""Build the documentation's site: `make docs`.

Pages are README.md, docs/**/*.md and what these link to in the repository. They keep their places, so that a link works
on the site as it does in the repository. The reference (.ci/reference.py) is written beside them. zensical then builds
the site in strict mode: a broken link or anchor fails, and so does a docstring that cannot be read. What it does not
look at is checked here: a page that the navigation does not name, and a name of the API that has no page.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import reference
import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGES, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
STYLE = """.md-grid { max-width: 76rem; }
.md-typeset td:first-child code { overflow-wrap: normal; word-break: normal; }
"""
"""Room for tables, and no key of a configuration on two lines."""
LINK = re.compile(r"\]\(([^)#\s]+)")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def main() -> None:
    began = time.monotonic()
    shutil.rmtree(PAGES, ignore_errors=True)
    collect()
    (PAGES / "style.css").write_text(STYLE, encoding="utf-8")
    for name, text in reference.pages().items():
        file = PAGES / "docs" / "reference" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    problems = outside_the_navigation(config["nav"]) or build(config) or undescribed()
    if problems:
        sys.exit("make docs: " + "\n".join(problems))
    (SITE / "llms.txt").write_text(list_pages(config["nav"]), encoding="utf-8")
    pages = len(list(PAGES.rglob("*.md")))
    size = sum(file.stat().st_size for file in SITE.rglob("*") if file.is_file())
    print(f"{pages} pages, {size / 1e6:.1f} MB, {time.monotonic() - began:.1f} s: {SITE.relative_to(ROOT)}/index.html")


def collect() -> None:
    """Copy README, docs/ and the files of the repository to which their links lead."""
    left = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    seen = set(left)
    while left:
        file = left.pop()
        copy = PAGES / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        linked = LINK.findall(CODE.sub("", file.read_text(encoding="utf-8"))) if file.suffix == ".md" else []
        found = {(file.parent / link).resolve() for link in linked if "://" not in link} - seen
        left += [target for target in found if target.is_file() and target.is_relative_to(ROOT)]
        seen |= found


def outside_the_navigation(nav: Any) -> list[str]:
    pages = {str(file.relative_to(PAGES)) for file in PAGES.rglob("*.md")}
    named = {page for _, page in _leaves(nav)}
    return [
        *(f"{page} is not in the nav of mkdocs.yml; add it" for page in sorted(pages - named)),
        *(f"the nav of mkdocs.yml names {page}, which does not exist" for page in sorted(named - pages)),
    ]


def _leaves(nav: Any, title: str = "") -> list[tuple[str, str]]:
    """Title and file of each page, in order."""
    if isinstance(nav, str):
        return [(title, nav)]
    parts = nav.items() if isinstance(nav, dict) else [(title, part) for part in nav]
    return [leaf for name, part in parts for leaf in _leaves(part, name)]


def list_pages(nav: Any) -> str:
    """llms.txt: every page by its title, for programs that read documentation."""
    return "# agentrl\n\n" + "".join(
        f"- [{title}](./{re.sub('(README|index)?[.]md$', '', page)})\n" for title, page in _leaves(nav)
    )


def build(config: dict[str, Any]) -> list[str]:
    """Run zensical. Any warning that it prints is a problem.

    It empties the folder `.cache` beside its configuration. In the repository that has other things, so it gets a copy.
    """
    shutil.rmtree(SITE, ignore_errors=True)
    handler = next(one for one in config["plugins"] if "mkdocstrings" in one)["mkdocstrings"]["handlers"]["python"]
    handler["paths"] = [str(ROOT / path) for path in handler["paths"]]
    copy = PAGES.parent / "mkdocs.yml"
    copy.write_text(yaml.safe_dump({**config, "docs_dir": PAGES.name, "site_dir": SITE.name}), encoding="utf-8")
    command = [Path(sys.executable).parent / "zensical", "build", "--strict", "--clean", "--config-file", copy]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told = COLOUR.sub("", done.stdout + done.stderr)
    warned = re.findall(r"Warning: (.*)\n(?:.*\[ (\S+) \])?", told)
    found = [f"{place}: {what}" if place else what for what, place in warned]
    if not found and (done.returncode or re.search("warning|error", told, re.IGNORECASE)):
        return [*re.findall(r"^\w*Error: .*", told, re.MULTILINE), "zensical build --strict shows more"]
    return found


def undescribed() -> list[str]:
    """Public names without an anchor on the pages of the reference: a docstring there could not be rendered."""
    found: set[str] = set()
    for file in (SITE / "docs" / "reference").rglob("*.html"):
        ids = _Ids()
        ids.feed(file.read_text(encoding="utf-8"))
        found |= ids.found
    return [f"{name} is public, and the reference does not describe it" for name in reference.anchors() - found]


class _Ids(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {value for name, value in attrs if name == "id" and value}


if __name__ == "__main__":
    main()
