"""Servers and clients for the interop tests.

One server process serves most tests, and one client program of each of the four kinds of Java client (two
releases, two header encodings) runs all its scenarios: a JVM takes longer to start than a scenario to run.
What the servers and clients wrote is shown with a failing test.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.clients import Client, Clients
from tests.interop.driver import Driver
from tests.interop.kinds import JAVA_CLIENTS, java_id
from tests.interop.programs import build_all, start_go, start_java
from tests.interop.servers import Cluster, start_cluster, start_one_process

Tail = Callable[[], str]
_TAILS = pytest.StashKey[list[Tail]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TAILS] = []


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds the client programs before the first test, whose time limit knows nothing of Maven.

    A failure is left for the tests that need the program to report: they try again and fail with it.
    """
    fixtures = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if fixtures & {"java_driver", "go_driver", "mqadmin"} and not session.config.option.collectonly:
        with contextlib.suppress(Exception):
            build_all(version for version, encoding in JAVA_CLIENTS if encoding == "json")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        for tail in item.config.stash[_TAILS]:
            report.sections.append(("process output", tail()))
    return report


@pytest.fixture(scope="session")
def tails(request: pytest.FixtureRequest) -> list[Tail]:
    """Functions that show the output of each process that runs now."""
    return request.config.stash[_TAILS]


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory, tails: list[Tail]) -> Iterator[Cluster]:
    """The servers that most scenarios use; nobody may stop them."""
    cluster = start_one_process(tmp_path_factory.mktemp("shared"))
    tails.append(cluster.tail)
    yield cluster
    cluster.close()
    tails.remove(cluster.tail)


@pytest.fixture
def cluster(tmp_path: Path, tails: list[Tail]) -> Iterator[Callable[..., Cluster]]:
    """Starts servers of the test's own, each role in a process that it may kill."""
    started: list[Cluster] = []

    def start(**options: Any) -> Cluster:
        new = start_cluster(tmp_path / f"cluster-{len(started)}", **options)
        tails.append(new.tail)
        started.append(new)
        return new

    yield start
    for old in started:
        old.close()
        tails.remove(old.tail)


@pytest.fixture(scope="session", params=JAVA_CLIENTS, ids=java_id)
def java_kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    kind: tuple[str, str] = request.param
    return kind


@pytest.fixture(scope="session")
def java_driver(
    java_kind: tuple[str, str], tmp_path_factory: pytest.TempPathFactory, tails: list[Tail]
) -> Iterator[Driver]:
    driver = start_java(*java_kind, tmp_path_factory.mktemp("java"))
    tails.append(driver.tail)
    yield driver
    driver.close()
    tails.remove(driver.tail)


@pytest.fixture(scope="session")
def java_admin(java_driver: Driver, shared_cluster: Cluster) -> Client:
    return Clients(java_driver, shared_cluster).admin


@pytest.fixture
def java(java_driver: Driver, shared_cluster: Cluster, java_admin: Client) -> Iterator[Clients]:
    """Java clients against the shared servers, stopped when the test ends."""
    clients = Clients(java_driver, shared_cluster, java_admin)
    yield clients
    clients.close()
    java_driver.forget_events()


@pytest.fixture
def java_against(
    java_driver: Driver, cluster: Callable[..., Cluster]
) -> Iterator[Callable[[Cluster], Clients]]:
    """Java clients against servers of the test's own; stopped before those are."""
    started: list[Clients] = []

    def against(cluster: Cluster) -> Clients:
        started.append(Clients(java_driver, cluster))
        return started[-1]

    yield against
    for clients in started:
        clients.close()
    java_driver.forget_events()


@pytest.fixture
def more_java(
    java_kind: tuple[str, str], tmp_path: Path, tails: list[Tail], cluster: Callable[..., Cluster]
) -> Iterator[Callable[..., Clients]]:
    """Further client processes of the same kind, for tests that kill one."""
    drivers: list[Driver] = []

    def start(cluster: Cluster, **options: Any) -> Clients:
        driver = start_java(*java_kind, tmp_path / f"java-{len(drivers)}", **options)
        tails.append(driver.tail)
        drivers.append(driver)
        return Clients(driver, cluster)

    yield start
    for driver in drivers:
        driver.close()
        tails.remove(driver.tail)


@pytest.fixture(scope="session")
def go_driver(tmp_path_factory: pytest.TempPathFactory, tails: list[Tail]) -> Iterator[Driver]:
    driver = start_go(tmp_path_factory.mktemp("go"))
    tails.append(driver.tail)
    yield driver
    driver.close()
    tails.remove(driver.tail)


@pytest.fixture
def go(go_driver: Driver, shared_cluster: Cluster) -> Iterator[Clients]:
    clients = Clients(go_driver, shared_cluster)
    yield clients
    clients.close()
    go_driver.forget_events()
