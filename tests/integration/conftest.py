"""Real etcd clusters for the tests of the register and of groups that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.etcd import Certificates, Etcd


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One member for all tests that neither kill nor configure it."""
    started = Etcd(tmp_path_factory.mktemp("etcd"))
    yield started
    started.stop()


@pytest.fixture
def start_etcd(tmp_path: Path) -> Iterator[Callable[..., Etcd]]:
    """Starts a cluster; all of them are stopped at the end."""
    running: list[Etcd] = []

    def start(members: int = 1, *, tls: Certificates | None = None) -> Etcd:
        running.append(Etcd(tmp_path / f"etcd-{len(running)}", members, tls=tls))
        return running[-1]

    yield start
    for started in running:
        started.stop()
