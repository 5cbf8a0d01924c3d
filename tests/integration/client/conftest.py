"""One cluster with a movable clock for all contract tests, and both faces of the client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.clients import FACES, Face
from tests.support.metaq import Metaq
from tests.support.moved import MovedClock


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


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


@pytest.fixture(autouse=True)
def client_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is kept in the home of whoever runs the tests."""
    directory = tmp_path / "client"
    monkeypatch.setenv("METAQ_CLIENT_DIRECTORY", str(directory))
    return directory
