"""The next step for a half message, by its age and its properties."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from metaq._core import Record
from metaq.broker.background.transaction_checks import HOUR_MS, Step, next_step
from metaq.broker.options import BrokerOptions
from metaq.settings import BrokerSettings, ServerSettings, StoreSettings

NOW_MS = 1_750_000_000_000
OPTIONS = BrokerOptions(
    broker=BrokerSettings(cluster="c", name="b", store_host="127.0.0.1:0"),
    server=ServerSettings(host="127.0.0.1", port=0),
    store=StoreSettings(directory="unused"),
)


def half(age_ms: int, *, stored_age_ms: int | None = None, born_ms: int | None = None, **more: str) -> Record:
    return cast(
        Record,
        SimpleNamespace(
            born_timestamp_ms=NOW_MS - age_ms if born_ms is None else born_ms,
            store_timestamp_ms=NOW_MS - (age_ms if stored_age_ms is None else stored_age_ms),
            properties=more,
        ),
    )


@pytest.mark.parametrize(
    ("record", "step"),
    [
        (half(6_000), Step.RENEW),
        (half(6_001), Step.ASK),
        (half(6_001, CHECK_IMMUNITY_TIME_IN_SECONDS="7"), Step.RENEW),
        (half(7_001, CHECK_IMMUNITY_TIME_IN_SECONDS="7"), Step.ASK),
        (half(1_001, CHECK_IMMUNITY_TIME_IN_SECONDS="1"), Step.ASK),
        (half(6_001, CHECK_IMMUNITY_TIME_IN_SECONDS="-1"), Step.ASK),
        (half(6_001, CHECK_IMMUNITY_TIME_IN_SECONDS="soon"), Step.ASK),
        (half(6_001, TRANSACTION_CHECK_TIMES="14"), Step.ASK),
        (half(6_001, TRANSACTION_CHECK_TIMES="15"), Step.PARK),
        (half(6_001, TRANSACTION_CHECK_TIMES="often"), Step.ASK),
        (half(72 * HOUR_MS), Step.ASK),
        (half(72 * HOUR_MS + 1, stored_age_ms=10), Step.PARK),
        (half(6_001, born_ms=0), Step.ASK),
        (half(6_001, born_ms=NOW_MS + HOUR_MS), Step.ASK),
        (half(5_000, born_ms=NOW_MS + HOUR_MS), Step.RENEW),
    ],
)
def test_asked_left_alone_or_given_up(record: Record, step: Step) -> None:
    assert next_step(record, NOW_MS, OPTIONS) is step
