"""docs/python.md, typed in; and what a type checker says to it and to the page of the consumers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.metaq import Metaq
from tests.support.reading import eventually, stored

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "python.md").read_text(encoding="utf-8")
CONSUMERS = (DOCS / "python-consumers.md").read_text(encoding="utf-8")


def blocks_of(page: str, count: int) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == page.count("```python") == count
    return blocks


def test_the_blocks_run_one_after_the_other(served: Metaq, tmp_path: Path) -> None:
    blocks = blocks_of(PAGE, 9)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks).replace("127.0.0.1:9876", served.nameserver), encoding="utf-8")
    outcome = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stderr == ""
    assert "the topic's name is blank" in outcome.stdout
    assert "['send parcels']" in outcome.stdout
    assert len(outcome.stdout.splitlines()) == 5

    def everything() -> bool:
        found = [message.body for message in stored(served.nameserver, "orders")]
        return len(found) == 1104 and {b"two apples", b"a pear", b"from asyncio", b"paid"} <= set(found)

    eventually(everything)


def test_a_users_type_checker_is_content(tmp_path: Path) -> None:
    programs = {"page.py": "\n".join(blocks_of(PAGE, 9))}
    programs |= {f"consumer_{number}.py": block for number, block in enumerate(blocks_of(CONSUMERS, 4))}
    # It does see the types, or it would be content with anything.
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
