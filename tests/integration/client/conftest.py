"""One cluster with a movable clock for all tests here, and both faces of the client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import metaq
from tests.support import apache
from tests.support.clients import FACES, Face
from tests.support.metaq import Metaq
from tests.support.moved import MovedClock
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Served:
    """A running cluster."""

    nameserver: str
    broker: str
    clock: MovedClock


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("served")
    clock = MovedClock(home / "clock")
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    metaq = Metaq("serve", *ports, "--data", str(home / "data"), home=home, clock=clock)
    try:
        yield Served(metaq.nameserver, metaq.broker, clock)
    finally:
        metaq.stop()


APACHE_SETTINGS = {
    "timerWheelEnable": True,
    "recallMessageEnable": True,
    "enablePropertyFilter": True,
    # By default it refuses requests that waited 200 ms for a thread, which happens on a busy machine.
    "waitTimeMillsInSendQueue": 10_000,
    "waitTimeMillsInPullQueue": 10_000,
}


class RealClock(MovedClock):
    """Apache's clock, which cannot be moved: a jump waits long enough that timestamps differ."""

    def __init__(self) -> None:
        pass

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def jump(self, by_ms: int) -> None:
        time.sleep(2)


@pytest.fixture(scope="module")
def apache_served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Apache's servers, for tests that also hold there. They stop with the module, because after the end of a
    transaction one of the broker's threads runs without a pause."""
    home = tmp_path_factory.mktemp("apache")
    names = apache.start_nameserver(home / "names", jvm_flags=apache.SHORT_LIVED)
    try:
        broker = apache.start_broker(
            home / "broker", [names.address], jvm_flags=apache.SHORT_LIVED, settings=APACHE_SETTINGS
        )
        try:
            # The broker registers a little after it is up.
            wait_until(lambda: _registered(names.address))
            yield Served(names.address, broker.address, RealClock())
        finally:
            broker.stop()
    finally:
        names.stop()


def _registered(nameserver: str) -> bool:
    with metaq.Client(nameserver) as client, client.producer("probe", timeout=1) as producer:
        try:
            producer.send("probe", b"x")
        except metaq.MetaqError:
            return False
    return True


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


@pytest.fixture(autouse=True)
def client_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keeps files of consumers out of the home directory."""
    directory = tmp_path / "client"
    monkeypatch.setenv("METAQ_CLIENT_DIRECTORY", str(directory))
    return directory
