"""The topic of the changes: created if it is missing, and with the same queues in every run."""

from __future__ import annotations

from metaq.admin import Admin
from metaq.client.session.routes import Queue
from metaq.errors import CommandError, MetaqError, NoRoute
from metaq.pipelines.binlog_sync.writing.state import QueueName


def find_queues(nameservers: str, topic: str) -> list[QueueName] | None:
    """Returns the writable queues in a fixed order; None if the topic does not exist. Raises MetaqError."""
    with Admin(nameservers) as admin:
        try:
            return sorted((queue.broker, queue.id) for queue in admin.topics.route(topic).writable)
        except NoRoute as error:
            if error.retriable:
                raise
            return None


def queues_without_head(nameservers: str, topic: str) -> list[QueueName]:
    """Returns the queues whose first messages have been deleted; raises MetaqError."""
    with Admin(nameservers) as admin:
        queues = admin.topics.show(topic).queues
    return sorted((state.queue.broker, state.queue.id) for state in queues if state.first_offset > 0)


def make_topic(nameservers: str, topic: str, queues: int) -> list[QueueName]:
    """Creates the topic on every broker, with ordered messages; raises MetaqError."""
    with Admin(nameservers) as admin:
        admin.topics.create(topic, queues=queues, ordered=True, change_existing=True)
    return find_queues(nameservers, topic) or []


def queues_for(nameservers: str, topic: str, queues: int, before: list[QueueName] | None) -> list[QueueName]:
    """Returns the queues to use.

    The queues of the previous run stay, even while some of their brokers are away, because a row must not
    change its queue. If the topic has more queues now, these are used too.
    """
    try:
        found = find_queues(nameservers, topic)
        if found is None and before is None:
            found = make_topic(nameservers, topic, queues)
    except MetaqError:
        if before is None:
            raise
        return before
    if before is not None and (found is None or set(found) <= set(before)):
        return before
    if not found:
        raise CommandError(f"no queue of {topic} can be written to", hint="is its broker running?")
    return sorted({*found, *(before or ())})


def as_queues(topic: str, names: list[QueueName]) -> list[Queue]:
    return [Queue(topic, broker, number) for broker, number in names]
