"""A member whose handler hangs is found after a minute, with its name, on a real broker with real clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import metaq
from metaq.admin import Admin, Finding
from metaq.client.session.routes import Queue
from metaq.testing import LocalMetaq
from tests.support.invoking import CommandLine
from tests.support.waiting import wait_until

TOPIC = "stuck-orders"


def stuck(admin: Admin) -> list[Finding]:
    return [found for found in admin.health.check().findings if found.kind.startswith("member-stuck")]


@contextmanager
def hanging(server: LocalMetaq, group: str) -> Iterator[tuple[metaq.Client, threading.Event]]:
    """A client whose handler hangs with its second message until the event is set."""
    hangs, goes_on = threading.Event(), threading.Event()
    handled: list[bytes] = []

    def ask_the_bank(message: metaq.Message) -> None:
        handled.append(message.body)
        if len(handled) == 2:
            hangs.set()
            goes_on.wait(120)

    with metaq.Client(server.nameserver) as client:
        client.consumer(TOPIC, group=group, start="earliest", concurrency=1)(ask_the_bank)
        client.start()
        try:
            assert hangs.wait(60)
            yield client, goes_on
        finally:
            goes_on.set()


def test_a_member_that_commits_nothing_for_a_minute_is_named(metaq_server: LocalMetaq) -> None:
    with Admin(metaq_server.nameserver) as admin, metaq.Client(metaq_server.nameserver) as sender:
        admin.topics.create(TOPIC, queues=1)
        with sender.producer() as producer:
            for number in range(5):
                producer.send(TOPIC, str(number).encode())
        with hanging(metaq_server, "billing") as (client, goes_on):
            queue = Queue(TOPIC, "broker-a", 0)
            wait_until(lambda: admin.offsets.committed("billing", [queue])[queue] == 1, interval_s=0.1)
            metaq_server.clock.advance(1)
            metaq_server.clock.advance(40)
            assert stuck(admin) == [], "it may only be slow"
            metaq_server.clock.advance(30)
            [finding] = stuck(admin)
            assert finding.text == (
                f"{client.client_id} holds 4 messages of {TOPIC} for billing and has committed nothing for "
                "1 minute."
            )
            assert finding.command == "metaq group show billing --stacks"
            assert (finding.severity, finding.subject) == ("warning", "billing")
            assert finding.fields["member"] == client.client_id
            shown = CommandLine(metaq_server.nameserver).printed(*finding.command.split()[1:])
            assert "ask_the_bank" in shown[shown.index("busy handler") :]
            goes_on.set()
            wait_until(lambda: admin.offsets.committed("billing", [queue])[queue] == 5, interval_s=0.1)
            metaq_server.clock.advance(1)
            assert stuck(admin) == []


def test_the_first_message_of_a_new_group_counts_too(metaq_server: LocalMetaq) -> None:
    with Admin(metaq_server.nameserver) as admin, metaq.Client(metaq_server.nameserver) as client:
        admin.topics.create(TOPIC, queues=1)
        with client.producer() as producer:
            producer.send(TOPIC, b"first")
        hangs, goes_on = threading.Event(), threading.Event()

        def hang(message: metaq.Message) -> None:
            hangs.set()
            goes_on.wait(120)

        client.consumer(TOPIC, group="fresh", start="earliest")(hang)
        client.start()
        try:
            assert hangs.wait(60)
            metaq_server.clock.advance(1)
            metaq_server.clock.advance(61)
            [finding] = stuck(admin)
            assert finding.fields["member"] == client.client_id
        finally:
            goes_on.set()


def test_members_that_wait_for_messages_are_not_stuck(metaq_server: LocalMetaq) -> None:
    with Admin(metaq_server.nameserver) as admin, metaq.Client(metaq_server.nameserver) as client:
        admin.topics.create(TOPIC, queues=1)
        handled: list[bytes] = []
        with client.producer() as producer:
            producer.send(TOPIC, b"one")
            client.consumer(TOPIC, group="idle", start="earliest")(lambda one: handled.append(one.body))
            client.start()
            wait_until(lambda: handled == [b"one"])
            queue = Queue(TOPIC, "broker-a", 0)
            wait_until(lambda: admin.offsets.committed("idle", [queue])[queue] == 1, interval_s=0.1)
        metaq_server.clock.advance(1)
        metaq_server.clock.advance(600)
        assert stuck(admin) == []
