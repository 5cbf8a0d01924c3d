"""Servers and clients for the interop tests.

Most tests share one server process and one client program for each of the four kinds of Java client (two
releases, two header encodings), because a JVM takes longer to start than a scenario to run. A failing test
shows the output of the servers and clients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.interop.clients import Client, Clients
from tests.interop.driver import Driver
from tests.interop.kinds import JAVA_CLIENTS, java_id
from tests.interop.programs import build_go, build_java, start_go, start_java
from tests.support.servers import Cluster, start_cluster, start_one_process, uses_apache

Tail = Callable[[], str]
_TAILS = pytest.StashKey[list[Tail]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TAILS] = []


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds the client programs before the first test, because Maven may take longer than a test may.

    The tests that need a program try again and report a failure.
    """
    fixtures = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if fixtures & {"java_driver", "go_driver", "mqadmin"} and not session.config.option.collectonly:
        with contextlib.suppress(Exception):
            build_java(version for version, encoding in JAVA_CLIENTS if encoding == "json")
            build_go()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        for tail in item.config.stash[_TAILS]:
            report.sections.append(("process output", tail()))
    return report


@pytest.fixture(scope="session")
def tails(request: pytest.FixtureRequest) -> list[Tail]:
    """Returns a list of functions that show the output of each running process."""
    return request.config.stash[_TAILS]


Running = TypeVar("Running", Cluster, Driver)


@contextmanager
def shown(tails: list[Tail], running: Running) -> Iterator[Running]:
    """Closes servers or a client program at the end; until then failing tests show their output."""
    tails.append(running.tail)
    yield running
    running.close()
    tails.remove(running.tail)


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory, tails: list[Tail]) -> Iterator[Cluster]:
    """The servers that most scenarios use; no test may stop them."""
    with shown(tails, start_one_process(tmp_path_factory.mktemp("shared"))) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def moved_cluster(tmp_path_factory: pytest.TempPathFactory, tails: list[Tail]) -> Iterator[Cluster]:
    """One broker whose clock tests move, unless it is Apache's. They may kill it, and leave it running."""
    cluster = start_cluster(
        tmp_path_factory.mktemp("moved"),
        settings={"recall_messages": True},
        flush="sync",
        moved=not uses_apache(),
    )
    with shown(tails, cluster):
        yield cluster


@pytest.fixture
def timed_java(java_driver: Driver, moved_cluster: Cluster) -> Iterator[Clients]:
    """Java clients for that broker; with Apache's, `let_pass` waits in real time."""
    clients = Clients(java_driver, moved_cluster)
    yield clients
    clients.close()
    java_driver.forget_events()


@pytest.fixture
def moved_java(timed_java: Clients) -> Clients:
    """The same for tests that only a moved clock makes short enough."""
    if uses_apache():
        pytest.skip("the clock of Apache's broker cannot be moved")
    return timed_java


@pytest.fixture
def cluster(tmp_path: Path, tails: list[Tail]) -> Iterator[Callable[..., Cluster]]:
    """Starts servers for one test, each role in a process that it may kill."""
    numbers = count()
    with ExitStack() as stack:

        def start(**options: Any) -> Cluster:
            new = start_cluster(tmp_path / f"cluster-{next(numbers)}", **options)
            return stack.enter_context(shown(tails, new))

        yield start


@pytest.fixture(scope="session", params=JAVA_CLIENTS, ids=java_id)
def java_kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    kind: tuple[str, str] = request.param
    return kind


@pytest.fixture(scope="session")
def java_driver(
    java_kind: tuple[str, str], tmp_path_factory: pytest.TempPathFactory, tails: list[Tail]
) -> Iterator[Driver]:
    with shown(tails, start_java(*java_kind, tmp_path_factory.mktemp("java"))) as driver:
        yield driver


@pytest.fixture(scope="session")
def java_admin(java_driver: Driver, shared_cluster: Cluster) -> Client:
    return Clients(java_driver, shared_cluster).admin


@pytest.fixture
def java(java_driver: Driver, shared_cluster: Cluster, java_admin: Client) -> Iterator[Clients]:
    """Java clients for the shared servers, stopped when the test ends."""
    clients = Clients(java_driver, shared_cluster, java_admin)
    yield clients
    clients.close()
    java_driver.forget_events()


@pytest.fixture
def java_against(
    java_driver: Driver, cluster: Callable[..., Cluster]
) -> Iterator[Callable[[Cluster], Clients]]:
    """Java clients for the test's own servers, stopped before them."""
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
    """Starts more client processes of the same kind, for tests that kill one."""
    numbers = count()
    with ExitStack() as stack:

        def start(cluster: Cluster, **options: Any) -> Clients:
            driver = start_java(*java_kind, tmp_path / f"java-{next(numbers)}", **options)
            return Clients(stack.enter_context(shown(tails, driver)), cluster)

        yield start


@pytest.fixture(scope="session")
def go_driver(tmp_path_factory: pytest.TempPathFactory, tails: list[Tail]) -> Iterator[Driver]:
    with shown(tails, start_go(tmp_path_factory.mktemp("go"))) as driver:
        yield driver


@pytest.fixture
def go(go_driver: Driver, shared_cluster: Cluster) -> Iterator[Clients]:
    clients = Clients(go_driver, shared_cluster)
    yield clients
    clients.close()
    go_driver.forget_events()
