"""Limits as attributes of topics and groups."""

from __future__ import annotations

import pytest

from metaq.admin.limits import GROUP, TOPIC, changed, limit_changes, limits_of, signed_changes
from metaq.errors import UsageError


def test_what_is_not_given_is_left() -> None:
    assert limit_changes(TOPIC, None, None) == {}
    assert limit_changes(TOPIC, 5, "none") == {"send.rate.messages": "5", "send.rate.bytes": None}
    assert limit_changes(GROUP, None, 7) == {"consume.rate.bytes": "7"}


@pytest.mark.parametrize("rate", [0, -1, 10**10, 1.5, True, "many"])
def test_a_rate_out_of_its_range(rate: object) -> None:
    with pytest.raises(UsageError, match="messages_per_second"):
        limit_changes(TOPIC, rate, None)  # type: ignore[arg-type]


def test_only_what_differs_is_sent() -> None:
    current = {"a": "1", "b": "2"}
    assert signed_changes(current, {"a": "1", "b": "3", "c": None}) == {"+b": "3"}
    assert signed_changes(current, {"a": None}) == {"-a": ""}
    assert changed(current, {"a": None, "c": "4"}) == {"b": "2", "c": "4"}


def test_a_value_that_is_not_a_number_is_no_limit() -> None:
    assert limits_of("b", TOPIC, {"send.rate.messages": "x"}).messages_per_second is None
