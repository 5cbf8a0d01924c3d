"""The files, headings and make targets that the documentation names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    ROOT / "bench" / "README.md",
    ROOT / "deploy" / "README.md",
    ROOT / "tests" / "interop" / "README.md",
]
CRATES = {path.name for path in (ROOT / "crates").iterdir()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^):]+)\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not is_there(page, target)] == []


def is_there(page: Path, target: str) -> bool:
    """Whether the file exists and, for a link to a section, has a heading of that name."""
    path, _, section = target.partition("#")
    file = page.parent / path if path else page
    if not section or not file.exists():
        return file.exists()
    headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return section in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_file_the_architecture_names_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    missing = []
    for folder, file in re.findall(r"`(\w+)/(\w+\.(?:rs|py))`", text):
        places = [
            ROOT / "crates" / folder / "src" / file,
            ROOT / "python" / "metaq" / folder / file,
            ROOT / folder / file,
        ]
        if not any(place.exists() for place in places):
            missing.append(f"{folder}/{file}")
    assert missing == []


def test_the_architecture_has_short_lines() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 300] == []


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
