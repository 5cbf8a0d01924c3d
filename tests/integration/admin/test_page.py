"""docs/admin-client.md, typed in."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from metaq import errors
from metaq.protocol import errors as protocol_errors
from tests.support.metaq import Metaq

PAGE = (Path(__file__).parents[3] / "docs" / "admin-client.md").read_text(encoding="utf-8")


def test_the_blocks_run_one_after_the_other(served: Metaq, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == PAGE.count("```") // 2 == 14
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks).replace("127.0.0.1:9876", served.nameserver), encoding="utf-8")
    outcome = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")
    printed = outcome.stdout.splitlines()
    assert printed[0] == "broker-a 8"
    for line in (
        "['orders']",
        "5",
        "0 messages behind",
        "b'two apples'",
        "0 dead letters sent again",
        "0 runs reported",
    ):
        assert line in printed, outcome.stdout
    # The page sends the message again before.
    assert "['born', 'stored', 'stored']" in printed, outcome.stdout
    assert "billing has the state waiting" in printed
    # The broker may not have counted the message yet.
    assert re.search(r"^[01] messages wait$", outcome.stdout, flags=re.MULTILINE)
    assert "0 transactions are open" in printed
    assert f"broker-a {served.broker} metaq 5.5.0" in printed
    assert any(line.startswith("Healthy: 1 broker answers") for line in printed)
    assert any(line.startswith("group nobody does not exist; ") for line in printed)


def test_the_errors_of_the_table_exist() -> None:
    named = re.findall(r"`([A-Z]\w+)`", PAGE.partition("| error | when |")[2].partition("\n\n")[0])
    assert len(named) == 8
    for name in named:
        assert hasattr(errors, name) or hasattr(protocol_errors, name), name
