"""Limits as attributes: accepted values, refused values, and the values that reach the data plane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from metaq.broker.state.attributes import altered, parsed
from metaq.broker.state.groups import Groups
from metaq.broker.state.limits import Rates, send_rates
from metaq.broker.state.policy import compile_group, compile_topic
from metaq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from metaq.protocol.commands.groups import UpdateAndCreateSubscriptionGroup
from metaq.protocol.errors import Refused

DEFAULT = Rates(1_000, 0)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "", "1000000001", "9" * 5_000, "١٢"])
def test_a_rate_that_cannot_be_says_what_can(value: str) -> None:
    with pytest.raises(Refused) as raised:
        altered({}, {"+send.rate.messages": value}, creating=False)
    assert raised.value.code == 29
    assert "write 1 to 1000000000 messages per second, or -send.rate.messages" in raised.value.remark
    assert len(raised.value.remark) < 300


def test_a_typo_names_the_attributes_there_are() -> None:
    with pytest.raises(Refused) as raised:
        altered({}, parsed("+send.rate.message=5"), creating=False)
    assert "send.rate.bytes, send.rate.messages" in raised.value.remark


def test_a_topic_takes_no_limit_of_a_group() -> None:
    with pytest.raises(Refused, match="unknown"):
        altered({}, parsed("+consume.rate.messages=5"), creating=False)


def test_the_default_holds_for_what_has_no_limit_of_its_own() -> None:
    assert send_rates("orders", {}, DEFAULT) == DEFAULT
    assert send_rates("orders", {"send.rate.messages": "7"}, DEFAULT) == Rates(7, 0)
    assert send_rates("orders", {"send.rate.bytes": "9"}, DEFAULT) == Rates(1_000, 9)
    for exempt in ("%RETRY%g", "%DLQ%g", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"):
        assert send_rates(exempt, {}, DEFAULT) == Rates()
    assert send_rates("%RETRY%g", {"send.rate.messages": "7"}, DEFAULT) == Rates(7, 0)
    for group, wanted in (("g", 1_000), ("TOOLS_CONSUMER", 0)):
        policy = compile_group(SubscriptionGroupConfig(group_name=group), None, (), DEFAULT)
        assert policy.consume_messages_per_second == wanted


def test_a_file_changed_by_hand_cannot_stop_the_broker() -> None:
    policy = compile_topic(TopicConfig(topic_name="t", attributes={"send.rate.messages": "-5"}))
    assert policy.send_messages_per_second == 0


def test_a_group_keeps_its_attributes_until_they_are_taken_away(
    tables: Any, request_with: Callable[..., Any]
) -> None:
    groups = cast(Groups, tables.groups)

    def update(attributes: dict[str, str]) -> dict[str, str]:
        body = SubscriptionGroupConfig(group_name="g", attributes=attributes).encode()
        asyncio.run(groups.update_and_create_group(UpdateAndCreateSubscriptionGroup(), request_with(body)))
        found = groups.get("g")
        assert found is not None
        return found.attributes

    limited = {"consume.rate.messages": "80"}
    assert update({"+consume.rate.messages": "80"}) == limited
    assert update({}) == limited, "an update of anything else leaves them"
    assert update(limited) == limited, "it is reported as it was read"
    with pytest.raises(Refused, match="begin with"):
        update({"?consume.rate.messages": "81"})
    with pytest.raises(Refused, match="unknown"):
        update({"+nonsense": "1"})
    assert update({"-consume.rate.messages": ""}) == {}
