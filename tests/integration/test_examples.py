"""Runs the examples as a reader does. tests/spark runs those that need Spark."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 300
"""A busy machine needs minutes for what takes seconds."""


def run(example: str, *arguments: str, home: Path) -> str:
    """Runs an example somewhere else than in the checkout; returns what it printed."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example / "main.py"), *arguments],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_orders_are_billed_once_whatever_happens(tmp_path: Path) -> None:
    printed = run("orders", home=tmp_path)
    assert "billing: all invoices: {'order-1': 1250, 'order-2': 990, 'order-4': 300}" in printed
    assert "order-1: billed before" in printed and "the broker asks about order-4: commit" in printed
    assert "order-3 is refused" in printed and "billing: order-3" not in printed


def test_every_server_forgets_what_was_changed(tmp_path: Path) -> None:
    printed = run("cache", "--servers", "2", home=tmp_path)
    for cents in (50, 60, 75):
        assert f"apple costs {cents}: web-1, web-2 agree" in printed
    assert re.findall(r"web-(\d): 1,000 prices", printed) == ["1", "2"]


def test_a_chat_keeps_its_order_answers_and_reminds(tmp_path: Path) -> None:
    printed = run("chat", home=tmp_path)
    assert "bot: 42" in printed and "[kitchen] ann: the tea is ready" in printed
    assert "every conversation is in order" in printed and "burnt" in printed.splitlines()[-1]


def test_a_burst_is_drained_at_the_rate_of_the_broker(tmp_path: Path) -> None:
    printed = run("peak", "--messages", "1500", "--limit", "1000", "--picture", "peak.svg", home=tmp_path)
    seconds = [float(found) for found in re.findall(r"1,500 in ([\d.]+) s", printed)]
    assert len(seconds) == 2
    # A tenth of a second's worth may come at once. A busy machine makes it slower, never faster.
    assert seconds[1] >= 1.3, printed
    picture = ElementTree.parse(tmp_path / "peak.svg").getroot()
    lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2 and all(len(line.get("points", "").split()) > 4 for line in lines)


@pytest.mark.parametrize("folder", sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir()))
def test_every_example_has_a_page_that_names_its_command(folder: str) -> None:
    page = (EXAMPLES / folder / "README.md").read_text(encoding="utf-8")
    assert f"python examples/{folder}/main.py" in page
    for file in re.findall(r"\]\(([^):#]+)\)", page):
        assert (EXAMPLES / folder / file).exists(), file
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert f"({folder}/README.md)" in index
