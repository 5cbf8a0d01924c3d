"""Gives brokers in the test's own process the time that a busy machine needs."""

from __future__ import annotations

import pytest

from metaq.broker import broker
from metaq.broker.background import registration


@pytest.fixture(autouse=True)
def patient_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start and a new topic wait for healthy name servers, however slow they are."""
    monkeypatch.setattr(broker, "FIRST_REGISTRATION_WAIT_S", 60.0)
    monkeypatch.setattr(registration, "ANNOUNCE_TIMEOUT_S", 60.0)
