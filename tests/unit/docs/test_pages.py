"""Links, paths and make targets that the pages name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
CRATES = {path.name for path in (ROOT / "crates").iterdir()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_file_the_architecture_names_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:crates|python|tests|docs|scripts|bench)/[\w/.-]+)`", text)
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert missing == []


def test_every_part_of_the_product_is_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    folders = [path for path in (ROOT / "python" / "metaq").iterdir() if (path / "__init__.py").exists()]
    parts = [f"crates/{name}" for name in CRATES] + [f"python/metaq/{path.name}" for path in folders]
    assert [part for part in parts if part not in text] == []


def test_every_target_of_the_makefile_that_pages_name_is_there() -> None:
    targets = set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8")))
        assert named <= targets, page.name
