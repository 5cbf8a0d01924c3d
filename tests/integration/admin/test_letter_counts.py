"""Dead letters are counted in one way: those that were not sent again, since the oldest of them."""

from __future__ import annotations

from uuid import uuid4

import metaq
from metaq.admin import Admin
from metaq.client.session.routes import Queue
from metaq.console.live.tables import TopicRow, dead_letter_row
from tests.support.metaq import Metaq
from tests.support.waiting import wait_until


def give_up(served: Metaq, admin: Admin, topic: str, group: str, *bodies: bytes) -> None:
    """Makes dead letters of these messages."""
    before = admin.dead_letters.counts([group])[0].stored or 0

    def reject(message: metaq.Message) -> None:
        raise metaq.Reject("no stock")

    with metaq.Client(served.nameserver) as client, client.producer() as producer:
        for body in bodies:
            producer.send(topic, body)
        client.consumer(topic, group=group, start="earliest")(reject)
        client.start()
        wait_until(
            lambda: admin.dead_letters.counts([group])[0].stored == before + len(bodies), interval_s=0.1
        )


def test_every_place_has_the_same_number_and_its_own_time(served: Metaq) -> None:
    topic, group = f"T_{uuid4().hex[:8]}", f"G_{uuid4().hex[:8]}"
    letters = f"%DLQ%{group}"
    with Admin(served.nameserver) as admin:
        admin.topics.create(topic, queues=1)
        give_up(served, admin, topic, group, b"0", b"1", b"2")
        stored = [letter.message for letter in admin.dead_letters.list(group)]
        times = sorted(message.stored_at for message in stored)

        def numbers() -> set[int | None]:
            """The number on the overview and in the lists, in the finding, and of the command line."""
            figures = admin.topics.figures_of(letters)
            [listed] = admin.topics.figures(lambda one: one.name == letters).topics
            found = [one for one in admin.health.check().findings if one.kind == "dead-letters"]
            finding = [int(one.fields["messages"]) for one in found if one.subject == group]
            return {
                figures.waiting_letters,
                dead_letter_row(group, TopicRow(listed)).waiting,
                sum(finding),
                admin.dead_letters.counts([group])[0].waiting,
            }

        def since() -> tuple[int | None, int | None]:
            found = [one for one in admin.health.check().findings if one.subject == group]
            [finding] = [one for one in found if one.kind == "dead-letters"]
            return finding.since_ms, admin.topics.figures_of(letters).waiting_since_ms

        assert numbers() == {3}
        assert since() == (times[0], times[0])
        give_up(served, admin, topic, group, b"3")
        assert numbers() == {4}
        assert since() == (times[0], times[0]), "a new letter does not move it"

        first, second, third = (message.offset_id for message in stored)
        assert admin.dead_letters.resend_one(group, first).message.offset_id == first
        assert numbers() == {3}
        assert since() == (times[1], times[1])
        assert [one.error for one in admin.dead_letters.resend_each(group, [third])] == [None]
        assert numbers() == {3}, "the second one is in front of it"
        assert [one.error for one in admin.dead_letters.resend_each(group, [second])] == [None]
        assert numbers() == {1}
        assert len(list(admin.dead_letters.resend(group))) == 1
        assert numbers() == {0}
        assert admin.dead_letters.counts([group])[0].stored == 4
        assert admin.topics.figures_of(letters).waiting_since_ms is None
        assert admin.topics.figures_of(topic).waiting_letters is None


def test_dead_letters_are_no_lag_of_a_group_without_members(served: Metaq) -> None:
    topic, group = f"T_{uuid4().hex[:8]}", f"G_{uuid4().hex[:8]}"
    with Admin(served.nameserver) as admin:
        admin.topics.create(topic, queues=1)
        give_up(served, admin, topic, group, b"0", b"1")
        admin.offsets.commit(group, {Queue(f"%DLQ%{group}", "broker-a", 0): 0})
        wait_until(
            lambda: admin.groups.figures(lambda one: one.name == group).groups[0].lag == 0, interval_s=0.1
        )
