"""docs/python.md, typed in."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.metaq import Metaq
from tests.support.reading import eventually, stored

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_blocks_run_one_after_the_other(served: Metaq, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == PAGE.count("```python") == 9
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks).replace("127.0.0.1:9876", served.nameserver), encoding="utf-8")
    outcome = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stderr == ""
    assert "the name of the topic is empty" in outcome.stdout
    assert "['send parcels']" in outcome.stdout
    assert len(outcome.stdout.splitlines()) == 5

    def everything() -> bool:
        found = [message.body for message in stored(served.nameserver, "orders")]
        return len(found) == 1104 and {b"two apples", b"a pear", b"from asyncio", b"paid"} <= set(found)

    eventually(everything)
