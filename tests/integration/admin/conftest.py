"""Both kinds of clusters for the contract of the administration client: MetaQ's and Apache's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from metaq.admin import Admin
from metaq.errors import NoRoute
from tests.integration.client.conftest import APACHE_SETTINGS
from tests.support import apache
from tests.support.metaq import Metaq
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Served:
    """A running cluster of one broker."""

    kind: str
    nameserver: str
    broker: str

    @property
    def is_metaq(self) -> bool:
        return self.kind == "metaq"


@pytest.fixture(scope="package", params=["metaq", "rocketmq"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp(request.param)
    if request.param == "metaq":
        metaq = Metaq.serve(home)
        try:
            yield Served("metaq", metaq.nameserver, metaq.broker)
        finally:
            metaq.stop()
        return
    names = apache.start_nameserver(home / "names", jvm_flags=apache.SHORT_LIVED)
    try:
        broker = apache.start_broker(
            home / "broker", [names.address], jvm_flags=apache.SHORT_LIVED, settings=APACHE_SETTINGS
        )
        try:
            wait_until(lambda: _is_registered(names.address))
            yield Served("rocketmq", names.address, broker.address)
        finally:
            broker.stop()
    finally:
        names.stop()


def _is_registered(nameserver: str) -> bool:
    with Admin(nameserver) as admin:
        try:
            return bool(admin.topics.route("TBW102").writable)
        except NoRoute:
            return False


@pytest.fixture
def admin(cluster: Served) -> Iterator[Admin]:
    with Admin(cluster.nameserver, timeout=30) as admin:
        yield admin
