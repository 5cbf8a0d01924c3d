"""Previews name the brokers that they know nothing of."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.admin.results import (
    BrokerFailure,
    Limits,
    Members,
    Progress,
    QueueProgress,
    QueueState,
    Topic,
    TopicSettings,
)
from metaq.client.session.routes import Queue
from metaq.console.actions.action import Action, Preview
from metaq.console.actions.cluster import ChangeSetting
from metaq.console.actions.groups import DeleteGroup
from metaq.console.actions.topic_settings import LimitTopic, UpdateTopic
from metaq.console.actions.topics import DeleteTopic
from tests.support.console_calls import call_of

FAILURE = BrokerFailure("broker-b", "broker-b does not answer")


class Admin:
    """A topic and a group on two brokers, of which one may be silent."""

    def __init__(self, *failures: BrokerFailure) -> None:
        self.failures = failures
        self.topics = self.groups = SimpleNamespace(
            show=self.show,
            groups=self.groups_of,
            settings=self.settings,
            progress=self.progress,
            members=self.members,
        )

    async def show(self, topic: str) -> Topic:
        limits = Limits("broker-a", None, None)
        settings = TopicSettings("broker-a", 4, 4, 6, False, {}, limits)
        queue = QueueState(Queue(topic, "broker-a", 0), 0, 1_200, None)
        return Topic(topic, (settings,), (queue,), self.failures)

    async def groups_of(self, topic: str) -> tuple[str, ...]:
        return ()

    async def settings(self, group: str) -> tuple[Any, ...]:
        return (SimpleNamespace(broker="broker-a"),)

    async def progress(self, group: str, **options: object) -> Progress:
        queue = QueueProgress(Queue("orders", "broker-a", 0), 200, 1_200, None)
        return Progress(group, (queue,), self.failures)

    async def members(self, group: str) -> Members:
        return Members(group, (), (), False, self.failures)


def preview(action: Action, admin: Admin, **missing: tuple[str, ...]) -> Preview:
    form = {"topic": "orders", "group": "billing", "queues": "8", "messages_per_second": "5"}
    return asyncio.run(action.preview(call_of(admin, form, missing=missing)))


@pytest.mark.parametrize("action", [DeleteTopic(), DeleteGroup(), UpdateTopic(), LimitTopic()])
def test_a_silent_broker_is_a_warning_and_changes_the_fingerprint(action: Action) -> None:
    whole = preview(action, Admin(), orders=(), billing=())
    just_now = preview(action, Admin(FAILURE), orders=(), billing=())
    lately = preview(action, Admin(), orders=("broker-b",), billing=("broker-b",))
    assert not any("broker-b" in warning for warning in whole.warnings)
    for shown in (just_now, lately):
        assert any("broker-b" in warning for warning in shown.warnings)
        assert shown.fingerprint == just_now.fingerprint != whole.fingerprint


def test_counts_without_a_broker_are_lower_bounds() -> None:
    topic = preview(DeleteTopic(), Admin(FAILURE))
    assert "≥ 1,200 messages" in topic.sentence
    assert topic.rows == (("broker-a", "1", "1,200"), ("broker-b", "unknown", "unknown"))
    assert preview(DeleteGroup(), Admin(FAILURE)).rows == (("orders", "≥ 1", "≥ 1,000"),)
    assert preview(DeleteGroup(), Admin()).rows == (("orders", "1", "1,000"),)


def test_a_setting_that_is_empty_is_not_unknown() -> None:
    async def changeable(address: str) -> frozenset[str]:
        return frozenset(["name"])

    async def configuration(address: str) -> object:
        return SimpleNamespace(values={"name": ""})

    brokers = SimpleNamespace(changeable_settings=changeable, configuration=configuration)
    call = call_of(SimpleNamespace(brokers=brokers), {"broker": "broker-a", "setting": "name", "value": "x"})
    call.console.live.brokers = SimpleNamespace(  # type: ignore[assignment]
        value={"broker-a": SimpleNamespace(health=SimpleNamespace(address="127.0.0.1:10911"))}
    )
    assert asyncio.run(ChangeSetting().preview(call)).rows == (("name", "(empty)", "x"),)
