"""Errors of the database: which ones can pass."""

from __future__ import annotations

import pymysql
import pytest

from metaq.pipelines.binlog_sync.config import BinlogConfig
from metaq.pipelines.binlog_sync.reading.database import SourceDatabase


@pytest.mark.parametrize(
    ("code", "text", "hint"),
    [
        (1045, "Access denied for user", "check source.user and the password"),
        (1698, "Access denied for user", "check source.user and the password"),
        (1130, "Host is not allowed", "accepts no user from this host"),
        (1227, "Access denied; you need BINLOG MONITOR", "GRANT SELECT, REPLICATION SLAVE"),
        (1142, "SELECT command denied", "GRANT SELECT, REPLICATION SLAVE"),
        (1049, "Unknown database", "names of databases in source.tables"),
        (2003, "Can't connect ([Errno 111])", "check source.host and source.port"),
        (2003, "Can't connect ([SSL: CERTIFICATE_VERIFY_FAILED])", "check source.tls_ca"),
        (1064, "a syntax error", ""),
    ],
)
def test_the_hint_names_the_cause(config: BinlogConfig, code: int, text: str, hint: str) -> None:
    found = SourceDatabase(config).command_error(pymysql.OperationalError(code, text)).hint
    assert hint in found and bool(hint) == bool(found)
    assert ("GRANT" in found) is (code in (1227, 1142))


@pytest.mark.parametrize(
    ("code", "is_retriable"),
    [(1040, True), (1053, True), (1927, True), (3032, True), (2013, True), (1045, False), (1064, False)],
)
def test_which_errors_are_retriable(config: BinlogConfig, code: int, is_retriable: bool) -> None:
    failure = SourceDatabase(config).command_error(pymysql.OperationalError(code, "a text"))
    assert failure.retriable is is_retriable
    assert f"({code})" in str(failure)
