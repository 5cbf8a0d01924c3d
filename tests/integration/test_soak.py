"""Runs a few seconds of `make soak`, and checks that it finds a client that leaks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.soak.client import FORMS
from bench.soak.run import soak

SECONDS = 6.0
LEAK_SECONDS = 3.0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Keeps the logs for failures and removes the gigabytes."""
    yield tmp_path
    shutil.rmtree(tmp_path / "data", ignore_errors=True)


def test_memory_and_descriptors_stay_flat_at_full_rate(home: Path) -> None:
    outcome = soak(home, SECONDS)
    assert outcome.failures == []
    assert [verdict.name for verdict in outcome.verdicts] == ["broker", *FORMS]


def test_a_client_that_leaks_is_found(home: Path) -> None:
    outcome = soak(home, LEAK_SECONDS, forms=["poll"], leaking=True)
    verdicts = {verdict.name: verdict for verdict in outcome.verdicts}
    assert verdicts["broker"].is_flat
    assert verdicts["poll"].own_growth_bytes > verdicts["poll"].bounds.own_bytes
    assert verdicts["poll"].descriptors_growth > verdicts["poll"].bounds.descriptors
    assert outcome.failures == [verdicts["poll"].line()]
