"""The console's live figures on MetaQ's broker and on Apache's, which has no lists of figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.admin import Admin, aio
from metaq.client.session.routes import Queue
from metaq.console.live.live import Live
from metaq.console.settings import ConsoleSettings
from tests.integration.admin.conftest import Served
from tests.integration.admin.test_contract import BROKER, filled, fresh
from tests.support.counted_requests import count_requests
from tests.support.waiting import run


def test_rows_that_somebody_looks_at_have_figures(
    cluster: Served, admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = filled(cluster, admin, queues=2, messages=5), fresh("G")
    admin.groups.create(group)
    admin.offsets.commit(group, {Queue(topic, BROKER, 0): 0, Queue(topic, BROKER, 1): 0})

    async def scenario() -> None:
        async with aio.Admin(cluster.nameserver, partial=True) as client:
            live = Live(client, ConsoleSettings(cluster.nameserver, tmp_path, poll_interval_s=60.0))
            asked = count_requests(monkeypatch)
            await live.poll()
            assert live.topics.value is not None and live.groups.value is not None
            listed, behind = live.topics.value.rows[topic], live.groups.value.rows[group]
            assert (listed.figures.read_queues, listed.figures.brokers) == (2, (BROKER,))
            assert behind.figures.lag == 5
            assert live.topics.value.has_all_figures == cluster.is_metaq
            if not cluster.is_metaq:
                assert asked["GetTopicStatsInfo"] == 0, "a poll asks for no single topic"
                assert (listed.figures.messages, behind.figures.members) == (None, None)
                assert (listed.figures.last_stored_ms, listed.figures.size_bytes) == (None, None)
            asked.clear()
            for _ in range(2):
                topics = await live.look_at_topics([topic, "missing"])
                groups = await live.look_at_groups([group])
                assert list(topics) == [topic] and list(groups) == [group]
                assert topics[topic].figures.messages == 5
                assert (groups[group].figures.members, groups[group].figures.lag) == (0, 5)
                assert groups[group].figures.lag_ms is not None
            expected = 0 if cluster.is_metaq else 1
            assert asked["GetTopicStatsInfo"] == expected, "the second look is answered from the first"
            assert asked["GetConsumerConnectionList"] == expected
            assert asked["GetBrokerConsumeStats"] == asked["GetAllTopicConfig"] == 0, asked
            assert asked["GetAllSubscriptionGroupConfig"] == 0, "the other groups of the broker cost nothing"
            assert asked.total() <= 12, asked

    run(scenario)
