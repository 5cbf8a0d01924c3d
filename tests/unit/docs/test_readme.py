"""The README stays short, links every page, and says the same in English and in Chinese."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
ENGLISH, CHINESE = "README.md", "README.zh-CN.md"
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in (ENGLISH, CHINESE)}
LINES_MAX = 150
BLOCK = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)


def headings(text: str) -> list[int]:
    """Returns the level of each heading, outside code."""
    return [len(marks) for marks in re.findall(r"^(#+) ", BLOCK.sub("", text), flags=re.MULTILINE)]


def links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)]+)\)", text) if link not in TEXTS]


def commands(text: str) -> list[str]:
    """Returns the commands, options and paths inside sentences."""
    return re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))


def figures(text: str) -> list[str]:
    rows = [line for line in text.splitlines() if re.search(r"\d\d\d \|", line)]
    return re.findall(r"[\d,.]+(?= \|)", "\n".join(rows))


def test_both_are_short() -> None:
    for name, text in TEXTS.items():
        assert len(text.splitlines()) <= LINES_MAX, name


def test_each_links_to_the_other() -> None:
    assert f"]({CHINESE})" in TEXTS[ENGLISH]
    assert f"]({ENGLISH})" in TEXTS[CHINESE]


def test_headings_code_and_links_are_equal() -> None:
    english, chinese = TEXTS[ENGLISH], TEXTS[CHINESE]
    assert headings(english) == headings(chinese)
    assert BLOCK.findall(english) == BLOCK.findall(chinese)
    assert links(english) == links(chinese)
    assert commands(english) == commands(chinese)
    assert figures(english) == figures(chinese) != []


def test_the_figures_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert [figure for figure in figures(TEXTS[ENGLISH]) if f"| {figure} |" not in page] == []


def test_every_page_is_linked() -> None:
    pages = {path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")}
    linked = {Path(link) for link in links(TEXTS[ENGLISH])}
    assert pages - linked == set()


def test_the_index_links_every_page() -> None:
    folder = ROOT / "docs"
    pages = {path.relative_to(folder) for path in folder.rglob("*.md")} - {Path("README.md")}
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert pages - {Path(link) for link in re.findall(r"\]\(([^)]+)\)", text)} == set()
