"""The newest messages of a topic and single sends, on MetaQ's broker and on Apache's."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from metaq.admin import Admin, NewestMessages
from metaq.admin.calls import Calls
from metaq.admin.messages import newest_messages
from metaq.errors import InvalidMessage, NoRoute, UsageError
from tests.support.waiting import wait_until


def topic_with(admin: Admin, messages: int, queues: int = 2) -> str:
    """Returns a topic of messages with the bodies m0, m1, …; every third has the tag `third`."""
    topic = f"Newest_{uuid4().hex[:8]}"
    admin.topics.create(topic, queues=queues)
    for number in range(messages):
        tag = "third" if number % 3 == 0 else "other"
        admin.messages.send(
            topic, f"m{number}".encode(), tag=tag, keys=[f"k{number}"], properties={"number": str(number)}
        )
    wait_until(lambda: admin.topics.show(topic).messages == messages, timeout_s=30)
    return topic


def bodies(found: NewestMessages) -> list[str]:
    return [message.body.decode() for message in found.messages]


def test_pages_go_from_the_newest_message_to_the_oldest(admin: Admin) -> None:
    topic = topic_with(admin, 11)
    pages = [admin.messages.newest(topic, limit=4)]
    while (before := pages[-1].before) is not None:
        pages.append(admin.messages.newest(topic, limit=4, before=before))
        assert len(pages) < 10
    assert [body for page in pages for body in bodies(page)] == [f"m{number}" for number in range(10, -1, -1)]
    assert [len(page.messages) for page in pages] == [4, 4, 3]
    assert not any(page.is_truncated or page.failures for page in pages)
    assert (pages[0].scanned, pages[0].unseen, sum(pages[0].ends.values())) == (4, 7, 11)


def test_messages_are_selected(admin: Admin) -> None:
    topic = topic_with(admin, 9)
    assert bodies(admin.messages.newest(topic, tags="third")) == ["m6", "m3", "m0"]
    assert bodies(admin.messages.newest(topic, sql="number >= 7")) == ["m8", "m7"]
    assert bodies(admin.messages.newest(topic, key="k4")) == ["m4"]
    assert bodies(admin.messages.newest(topic, matches=lambda message: b"5" in message.body)) == ["m5"]
    whole = admin.messages.newest(topic)
    assert (len(whole.messages), whole.before, whole.unseen) == (9, None, 0)
    middle = whole.messages[4]
    end = middle.stored_time + timedelta(milliseconds=1)
    # Messages may be stored in the same millisecond.
    assert bodies(admin.messages.newest(topic, end=end)) == [
        message.body.decode() for message in whole.messages if message.stored_time < end
    ]
    since = bodies(admin.messages.newest(topic, begin=middle.stored_time))
    assert since == bodies(whole)[: len(since)] and middle.body.decode() in since
    [queue, _] = sorted(whole.ends)
    of_queue = admin.messages.newest(topic, queues=[queue])
    assert {message.queue for message in of_queue.messages} == {queue}
    assert admin.messages.newest(topic, after=whole.ends).messages == ()


def test_a_search_that_ends_at_its_bound_says_so_and_goes_on(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_with(admin, 40, queues=1)
    monkeypatch.setattr(newest_messages, "SCANNED_MAX", 4)
    pages = [admin.messages.newest(topic, limit=50, tags="third")]
    while (before := pages[-1].before) is not None:
        assert pages[-1].is_truncated and pages[-1].unseen > 0
        pages.append(admin.messages.newest(topic, limit=50, tags="third", before=before))
        assert len(pages) < 30
    assert len(pages) >= 2 and not pages[-1].is_truncated
    assert [body for page in pages for body in bodies(page)] == [f"m{n}" for n in range(39, -1, -3)]


def test_a_page_costs_a_bounded_number_of_requests(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = 8
    topic = topic_with(admin, 60, queues=queues)
    asked = 0
    ask = Calls.ask

    async def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        return await ask(*arguments, **options)

    monkeypatch.setattr(Calls, "ask", counted)
    assert len(admin.messages.newest(topic, limit=50).messages) == 50
    # The state of the broker, and for each queue a small block, a large one and its end.
    assert asked <= 1 + 3 * queues
    asked = 0
    assert admin.messages.newest(topic, tags="nothing").messages == ()
    assert asked <= 1 + 3 * queues


def test_faults_are_refused(admin: Admin) -> None:
    topic = topic_with(admin, 1)
    for wrong in ("", "x", "1-2", "1-x-broker"):
        with pytest.raises(UsageError, match="is not the end of a search"):
            admin.messages.newest(topic, before=wrong)
    with pytest.raises(UsageError, match="limit is 0"):
        admin.messages.newest(topic, limit=0)
    with pytest.raises(NoRoute, match="does not exist"):
        admin.messages.newest("Missing")
    with pytest.raises(InvalidMessage, match="is empty"):
        admin.messages.send(topic, b"")
    with pytest.raises(InvalidMessage, match="reserved"):
        admin.messages.send(topic, b"x", properties={"KEYS": "a"})


def test_a_sent_message_is_found_by_its_id(admin: Admin) -> None:
    topic = topic_with(admin, 0)
    sent = admin.messages.send(topic, b"body", tag="a", keys=["k1", "k2"], properties={"p": "v"})
    found = admin.messages.by_offset_id(sent.offset_id)
    assert (found.id, found.body, found.tag, found.keys) == (sent.id, b"body", "a", ("k1", "k2"))
    assert (found.properties["p"], found.queue, found.queue_offset) == ("v", sent.queue, sent.queue_offset)
    admin.messages.send(topic, b"later", delay=timedelta(hours=1))
    assert admin.topics.show(topic).messages == 1, "a delayed message waits elsewhere"
