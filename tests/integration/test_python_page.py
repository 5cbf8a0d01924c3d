"""Runs docs/python.md, and type checks it and the page on consumers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.metaq import Metaq
from tests.support.reading import stored
from tests.support.waiting import wait_until

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "python.md").read_text(encoding="utf-8")
CONSUMERS = (DOCS / "python-consumers.md").read_text(encoding="utf-8")


def blocks_of(page: str, count: int) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == page.count("```python") == count
    return blocks


def test_the_blocks_run_one_after_the_other(served: Metaq, tmp_path: Path) -> None:
    blocks = blocks_of(PAGE, 11)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks).replace("127.0.0.1:9876", served.nameserver), encoding="utf-8")
    outcome = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stderr == ""
    assert "the topic's name is blank" in outcome.stdout
    assert "['send parcels']" in outcome.stdout
    assert "1000 parcels" in outcome.stdout
    assert "the price of apples is 2" in outcome.stdout
    assert len(outcome.stdout.splitlines()) == 7

    def everything() -> bool:
        found = [message.body for message in stored(served.nameserver, "orders")]
        return len(found) == 1104 and {b"two apples", b"a pear", b"from asyncio", b"paid"} <= set(found)

    wait_until(everything)


def test_a_users_type_checker_is_content(tmp_path: Path) -> None:
    programs = {"page.py": "\n".join(blocks_of(PAGE, 11))}
    programs |= {f"consumer_{number}.py": block for number, block in enumerate(blocks_of(CONSUMERS, 5))}
    # It sees the types; otherwise it would accept anything.
    programs["wrong.py"] = "import metaq\n\nmetaq.Client().producer().send('orders', 'no bytes')\n"
    for name, text in programs.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), *programs]
    told = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    ).stdout.splitlines()
    assert [line.partition(":")[0] for line in told] == [
        "wrong.py",
        f"Found 1 error in 1 file (checked {len(programs)} source files)",
    ], told
