"""A few seconds of `make soak`; and a client that leaks, which it must find."""

from __future__ import annotations

from pathlib import Path

from bench.soak.client import FORMS
from bench.soak.run import soak

SECONDS = 6.0
LEAK_SECONDS = 3.0


def test_memory_and_descriptors_stay_flat_at_full_rate(tmp_path: Path) -> None:
    outcome = soak(tmp_path, SECONDS)
    assert outcome.failures == []
    assert [verdict.name for verdict in outcome.verdicts] == ["broker", *FORMS]


def test_a_client_that_leaks_is_found(tmp_path: Path) -> None:
    outcome = soak(tmp_path, LEAK_SECONDS, forms=["poll"], leaking=True)
    verdicts = {verdict.name: verdict for verdict in outcome.verdicts}
    assert verdicts["broker"].is_flat
    assert verdicts["poll"].own_growth_bytes > verdicts["poll"].bounds.own_bytes
    assert verdicts["poll"].descriptors_growth > verdicts["poll"].bounds.descriptors
    assert outcome.failures == [verdicts["poll"].line()]
