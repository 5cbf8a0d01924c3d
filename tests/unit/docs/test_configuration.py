"""docs/configuration.md is up to date with the table of options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_is_what_the_table_gives() -> None:
    outcome = subprocess.run(
        [sys.executable, ROOT / "scripts" / "configuration.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
