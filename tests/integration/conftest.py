"""Brokers inside the test's own process have all the time that a busy machine takes."""

from __future__ import annotations

import pytest

from metaq.broker import master
from metaq.broker.background import registration


@pytest.fixture(autouse=True)
def patient_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start and a new topic wait for name servers that are well, however slow they are."""
    monkeypatch.setattr(master, "FIRST_REGISTRATION_WAIT_S", 60.0)
    monkeypatch.setattr(registration, "ANNOUNCE_TIMEOUT_S", 60.0)
