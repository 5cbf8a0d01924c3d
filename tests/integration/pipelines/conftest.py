"""One MariaDB for all tests of pipelines, each of which has a database of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.mariadb import PASSWORD, MariaDb


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    server = MariaDb(tmp_path_factory.mktemp("mariadb"))
    yield server
    server.stop()


@pytest.fixture
def database(mariadb: MariaDb, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a database that is there for one test."""
    name = re.sub(r"\W", "_", request.node.name)[:50]
    mariadb.execute(f"CREATE DATABASE `{name}`")
    yield name
    mariadb.execute(f"DROP DATABASE IF EXISTS `{name}`")


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TEST_DATABASE_PASSWORD", PASSWORD)
    return PASSWORD
