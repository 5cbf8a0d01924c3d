"""Figures of topics and groups, and the reports of members, on MetaQ's broker and on Apache's."""

from __future__ import annotations

import time

import pytest

import metaq
from metaq.admin import Admin
from metaq.client.session.routes import Queue
from metaq.errors import NoRoute, NoSuchGroup
from tests.integration.admin.conftest import Served
from tests.integration.admin.test_contract import BROKER, filled, fresh
from tests.support.waiting import wait_until


def test_the_figures_of_all_topics(cluster: Served, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq.admin.topic_figures.PAGE_MAX", 5)
    topic = filled(cluster, admin, queues=2, messages=3)
    seen: list[int] = []
    found = admin.topics.figures(lambda name: name.name == topic, advance=seen.append)
    [figures] = found.topics
    assert (figures.name, figures.kind, figures.brokers) == (topic, "normal", (BROKER,))
    assert (figures.read_queues, figures.write_queues, figures.messages) == (2, 2, 3)
    assert figures.last_stored_ms is not None
    assert abs(time.time() * 1000 - figures.last_stored_ms) < 300_000
    assert found.failures == () and sum(seen) >= 1
    if cluster.is_metaq:
        assert found.missing == ()
        assert figures.first_stored_ms is not None and figures.first_stored_ms <= figures.last_stored_ms
    else:
        [sentence] = found.missing
        assert sentence.startswith(f"{BROKER} does not report the age of messages")
        assert (figures.first_stored_ms, figures.messages_out_per_second) == (None, None)
    everything = {figures.name: figures.kind for figures in admin.topics.figures().topics}
    assert everything == {listed.name: listed.kind for listed in admin.topics.list()}


def test_the_figures_of_one_topic(cluster: Served, admin: Admin) -> None:
    topic = filled(cluster, admin, queues=2, messages=3)
    figures = admin.topics.figures_of(topic)
    assert (figures.messages, figures.brokers) == (3, (BROKER,))
    assert figures.first_stored_ms is not None and figures.last_stored_ms is not None
    assert 0 <= figures.last_stored_ms - figures.first_stored_ms < 300_000
    empty = fresh("Empty")
    admin.topics.create(empty)
    figures = admin.topics.figures_of(empty)
    assert (figures.messages, figures.first_stored_ms, figures.last_stored_ms) == (0, None, None)
    with pytest.raises(NoRoute):
        admin.topics.figures_of(fresh("Missing"))


def test_the_figures_of_all_groups(cluster: Served, admin: Admin) -> None:
    topic, group, idle = filled(cluster, admin, messages=5), fresh("G"), fresh("G")
    for name in (group, idle):
        admin.groups.create(name)
    admin.offsets.commit(group, {Queue(topic, BROKER, 0): 2, Queue(topic, BROKER, 1): 0})
    found = {figures.name: figures for figures in admin.groups.figures().groups}
    behind, nothing = found[group], found[idle]
    assert (behind.kind, behind.brokers, behind.members, behind.lag) == ("normal", (BROKER,), 0, 3)
    assert behind.lag_ms is not None and 0 <= behind.lag_ms < 300_000
    untimed = admin.groups.progress(group, times_of=())
    assert (untimed.lag, untimed.lag_ms) == (3, None)
    assert admin.groups.progress(group, times_of=[topic]).lag_ms is not None
    assert (nothing.lag, nothing.lag_ms, nothing.members) == (None, None, 0), "an unknown lag is not 0"
    assert set(found) == {listed.name for listed in admin.groups.list().groups}
    assert found["TOOLS_CONSUMER"].kind == "system"
    with metaq.Client(cluster.nameserver) as client, client.subscribe(topic, group=idle):
        wait_until(lambda: _of(admin, idle).members == 1)


def _of(admin: Admin, group: str) -> metaq.admin.GroupFigures:
    [figures] = admin.groups.figures(lambda listed: listed.name == group).groups
    return figures


def test_members_report_their_queues_and_conflicts(cluster: Served, admin: Admin) -> None:
    topic, group = filled(cluster, admin, queues=2), fresh("G")
    with (
        metaq.Client(cluster.nameserver) as one,
        metaq.Client(cluster.nameserver) as other,
        one.subscribe(topic, group=group, tags="a"),
    ):
        wait_until(lambda: len(_queues(admin, group, topic)) == 2)
        alone = admin.groups.running(group, stacks=True)
        [member] = alone.members
        assert (member.client_id, member.error, alone.conflicts) == (one.client_id, None, ())
        assert member.stack and "test_figures" in member.stack
        assert {entry.topic: entry.expression for entry in member.subscriptions}[topic] == "a"
        with other.subscribe(topic, group=group, tags="b"):
            wait_until(lambda: len(set(_queues(admin, group, topic).values())) == 2)
            together = admin.groups.running(group)
            assert [member.stack for member in together.members] == [None, None]
            [asked] = admin.groups.running(group, stacks=True, client_ids=[other.client_id]).members
            assert asked.client_id == other.client_id and asked.stack
            [conflict] = together.conflicts
            assert conflict.topic == topic
            assert conflict.expressions == {one.client_id: "TAG a", other.client_id: "TAG b"}
    assert admin.groups.running("nobody_here").members == ()


def _queues(admin: Admin, group: str, topic: str) -> dict[Queue, str]:
    """Queues of the topic, and the member that owns each."""
    return {
        queue: member.client_id
        for member in admin.groups.running(group).members
        for queue in member.queues
        if queue.topic == topic
    }


def test_a_group_is_moved_to_where_another_one_is(cluster: Served, admin: Admin) -> None:
    topic, source, target = filled(cluster, admin, messages=5), fresh("From"), fresh("To")
    first, second = Queue(topic, BROKER, 0), Queue(topic, BROKER, 1)
    with pytest.raises(NoSuchGroup):
        admin.groups.clone(source, target, topic)
    admin.groups.create(source, retries_max=7)
    admin.offsets.commit(source, {first: 3})
    plan = admin.groups.clone(source, target, topic, dry_run=True)
    assert [(change.queue, change.committed_offset, change.queue_offset) for change in plan.queues] == [
        (first, None, 3)
    ]
    assert target not in {group.name for group in admin.groups.list().groups}, "a dry run creates nothing"
    done = admin.groups.clone(source, target, topic)
    assert not done.is_dry_run
    assert admin.offsets.committed(target, [first, second]) == {first: 3, second: None}
    assert admin.groups.show(target).settings[0].retries_max == 7
    admin.offsets.commit(source, {first: 4})
    [change] = admin.groups.clone(source, target, topic).queues
    assert (change.committed_offset, change.queue_offset) == (3, 4)


def test_producers_can_use_fewer_queues_than_consumers_read(cluster: Served, admin: Admin) -> None:
    topic = fresh("Shrinking")
    admin.topics.create(topic, queues=4)
    [changed] = admin.topics.change(topic, write_queues=1)
    assert (changed.read_queues, changed.write_queues) == (4, 1)
    wait_until(lambda: len(admin.topics.route(topic).writable) == 1)
    assert len(admin.topics.route(topic).readable) == 4
