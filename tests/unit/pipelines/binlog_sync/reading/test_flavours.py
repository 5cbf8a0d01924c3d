"""The checks that differ between MariaDB and MySQL."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from metaq.errors import CommandError
from metaq.pipelines.binlog_sync.reading import flavours
from metaq.pipelines.binlog_sync.reading.flavours import flavour_of


@pytest.mark.parametrize(
    ("variables", "running", "is_refused"),
    [
        ({"log_slave_updates": "OFF"}, "1", True),
        ({"log_slave_updates": "OFF"}, "0", False),
        ({"log_slave_updates": "ON"}, "1", False),
    ],
)
def test_a_replica_must_log_replicated_changes(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], running: str, is_refused: bool
) -> None:
    status = [{"Variable_name": "Slaves_running", "Value": running}]
    monkeypatch.setattr(flavours, "rows_of", lambda *asked: status)
    refused = pytest.raises(CommandError, match="log_slave_updates") if is_refused else nullcontext()
    with refused:
        flavour_of("11.4-MariaDB").require_complete(None, "db", variables)
