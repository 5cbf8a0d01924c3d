"""The next step for a half message, by its age and its properties."""

from __future__ import annotations

import pytest

from metaq.broker.background.transaction_checks import HOUR_MS, Step, first_asked, next_step
from metaq.broker.options import BrokerOptions
from metaq.settings import BrokerSettings, ServerSettings, StoreSettings

OPTIONS = BrokerOptions(
    broker=BrokerSettings(cluster="c", name="b", store_host="127.0.0.1:0"),
    server=ServerSettings(host="127.0.0.1", port=0),
    store=StoreSettings(directory="unused"),
)


@pytest.mark.parametrize(
    ("checks", "age_ms", "is_immune", "step"),
    [
        (0, 6_000, True, Step.RENEW),
        (0, 6_001, False, Step.ASK),
        (14, 6_001, False, Step.ASK),
        (15, 6_001, False, Step.GIVE_UP),
        (15, 6_001, True, Step.GIVE_UP),
        (0, 72 * HOUR_MS, False, Step.ASK),
        (0, 72 * HOUR_MS + 1, False, Step.GIVE_UP),
        (0, 72 * HOUR_MS + 1, True, Step.GIVE_UP),
    ],
)
def test_asked_left_alone_or_given_up(checks: int, age_ms: int, is_immune: bool, step: Step) -> None:
    assert next_step(checks, age_ms, is_immune=is_immune, options=OPTIONS) is step


def test_each_check_asks_another_member_and_nothing_is_kept_for_it() -> None:
    members = 3
    for unique_key in ("", "7F000001AAAA", "7F000001AAAB"):
        asked = [first_asked(unique_key, checks) % members for checks in range(members)]
        assert sorted(asked) == [0, 1, 2], "all of them in turn"
    firsts = {first_asked(f"7F000001{number}", 0) % members for number in range(50)}
    assert firsts == {0, 1, 2}, "different transactions begin with different members"
