"""Errors of the database: which ones can pass."""

from __future__ import annotations

import pymysql
import pytest

from metaq.pipelines.binlog_sync.config import BinlogConfig
from metaq.pipelines.binlog_sync.reading.database import SourceDatabase


@pytest.mark.parametrize(
    ("code", "is_retriable"),
    [(1040, True), (1053, True), (1927, True), (3032, True), (2013, True), (1045, False), (1064, False)],
)
def test_which_errors_are_retriable(config: BinlogConfig, code: int, is_retriable: bool) -> None:
    failure = SourceDatabase(config).command_error(pymysql.OperationalError(code, "a text"))
    assert failure.retriable is is_retriable
    assert f"({code})" in str(failure)
