"""Fixtures for every test that needs running MetaQ processes."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from metaq.config.options import OPTIONS
from tests.support.database import PASSWORD, Database
from tests.support.mariadb import MariaDb
from tests.support.metaq import Metaq
from tests.support.mysql import MySql
from tests.support.processes import ToolMissing
from tests.support.rounds import LONG, LONG_TIMEOUT_S

# Settings in the environment would change the processes under test.
for variable in ("METAQ_CONFIG", *(option.variable for option in OPTIONS.values())):
    os.environ.pop(variable, None)

# A shell ignores SIGINT in background jobs, and child processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The speed of the machine must not fail a property test.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives kill loops the time that a long run takes; leaves trials that always take long to `make soak`."""
    for item in items:
        if LONG and item.get_closest_marker("kill_loop"):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S), append=False)
    left_out = [item for item in items if not LONG and item.get_closest_marker("soak")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def start_metaq(tmp_path: Path) -> Iterator[Callable[..., Metaq]]:
    """Starts a role with the given arguments; whatever is still running is stopped at the end."""
    running: list[Metaq] = []

    def start(*arguments: str) -> Metaq:
        started = Metaq(*arguments, home=tmp_path)
        running.append(started)
        return started

    yield start
    for started in reversed(running):
        if started.child.alive:
            started.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metaq]:
    """`metaq serve` on free ports, shared by the tests of a module."""
    started = Metaq.serve(tmp_path_factory.mktemp("served"))
    yield started
    assert started.stop() == 0


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    """One MariaDB for all tests of pipelines; each test has its own database."""
    server = MariaDb(tmp_path_factory.mktemp("mariadb"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySql]:
    """One MySQL for all tests of pipelines. Debian unstable, its source, may lack it for a while."""
    try:
        server = MySql(tmp_path_factory.mktemp("mysql"))
    except ToolMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.stop()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Database:
    """The database server of a test: MariaDB unless it is marked with `tests.support.database.BOTH`."""
    found: Database = request.getfixturevalue(getattr(request, "param", "mariadb"))
    return found


@pytest.fixture
def database(server: Database, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a database that exists for one test."""
    name = f"{re.sub(r'[^a-zA-Z0-9]', '_', request.node.name)[:45]}_{server.name}"
    server.execute(f"CREATE DATABASE `{name}`")
    yield name
    server.execute(f"DROP DATABASE IF EXISTS `{name}`")


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TEST_DATABASE_PASSWORD", PASSWORD)
    return PASSWORD
