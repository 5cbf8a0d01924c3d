"""docs/tracing.md, typed in and compared with the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

from metaq.admin.traces.otlp import CONVENTIONS_VERSION
from metaq.admin.traces.timelines import EventKind, GroupState
from tests.support.metaq import Metaq

PAGE = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text(encoding="utf-8")


def test_the_python_blocks_run_one_after_the_other(served: Metaq, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 3
    script = "\n".join([*blocks, "admin.close()"]).replace("127.0.0.1:9876", served.nameserver)
    outcome = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert [line.split()[1] for line in lines[:2]] == ["born", "stored"], outcome.stdout
    assert json.loads((tmp_path / "spans.json").read_text())["resourceSpans"]


def test_the_tables_name_every_event_and_state() -> None:
    events, states = PAGE.partition("| event |")[2], PAGE.partition("| state of a group |")[2]
    assert named(events) == set(get_args(EventKind))
    assert named(states) == set(get_args(GroupState))
    assert CONVENTIONS_VERSION.startswith("1.44") and "version\n1.44" in PAGE


def named(table: str) -> set[str]:
    rows = table.partition("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])}
