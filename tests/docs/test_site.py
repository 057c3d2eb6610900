"""What `make docs` checks without zensical: every page is in the navigation, and links lead to files that exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """.ci/docs.py, with the pages collected in another folder."""
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / ".ci" / "docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PAGES", tmp_path / "pages")
    module.collect()
    return module


def outside(site: ModuleType) -> list[str]:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    return [line for line in site.outside_the_navigation(nav) if "docs/reference/" not in line]


def test_each_page_is_in_the_navigation(site: ModuleType) -> None:
    assert outside(site) == []
    (site.PAGES / "docs" / "new.md").write_text("# New\n")
    (site.PAGES / "docs" / "faq.md").unlink()
    assert outside(site) == [
        "docs/new.md is not in the nav of mkdocs.yml; add it",
        "the nav of mkdocs.yml names docs/faq.md, which does not exist",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path, site: ModuleType) -> None:
    text = site.CODE.sub("", page.read_text(encoding="utf-8"))
    found = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    assert [link for link in found if not (page.parent / link).is_file()] == []
