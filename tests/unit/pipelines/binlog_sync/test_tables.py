"""The definitions that a run announces."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from metaq.pipelines.binlog_sync.tables import SyncedTables
from metaq.pipelines.binlog_sync.values.columns import Column, Definition

ONE = Definition((Column("id", "int32", False),), ("id",))


@pytest.mark.parametrize("is_database", [False, True])
def test_a_table_that_is_created_again_is_announced_again(is_database: bool) -> None:
    """A reader may have forgotten its definition together with the table."""
    writer: Any = Mock()
    tables = SyncedTables(writer, Mock(), Mock())
    for name in ("t", "other"):
        tables.with_definition("shop", name, ONE)
        tables.with_definition("shop", name, ONE)
    assert writer.send_barrier.call_count == 2
    tables.note_dropped([("elsewhere", "other")], "elsewhere")
    tables.note_dropped((), "shop") if is_database else tables.note_dropped([("shop", "t")])
    for _ in range(2):
        tables.with_definition("shop", "t", ONE)
    assert writer.send_barrier.call_count == 3
    tables.with_definition("shop", "other", ONE)
    assert writer.send_barrier.call_count == (4 if is_database else 3)
