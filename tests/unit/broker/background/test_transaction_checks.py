"""The next step for a half message, by its age and its properties."""

from __future__ import annotations

import pytest

from metaq.broker.background.transaction_checks import (
    GROUPS_REMEMBERED_MAX,
    HOUR_MS,
    MemberTurns,
    Step,
    next_step,
)
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


def test_members_take_turns_and_only_the_last_groups_are_remembered() -> None:
    turns = MemberTurns()
    assert [turns.next_of("p") for _ in range(3)] == [0, 1, 2]
    for number in range(2 * GROUPS_REMEMBERED_MAX):
        turns.next_of(f"p{number}")
        turns.next_of("p")
    assert len(turns) == GROUPS_REMEMBERED_MAX
    assert turns.next_of("p") == 3 + 2 * GROUPS_REMEMBERED_MAX, "a group that is in use is not forgotten"
    assert turns.next_of("p0") == 0
