"""Checks for a plan that name servers and brokers of a topic answer."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.admin import Admin
from metaq.counts import counted
from metaq.errors import NoRoute


@dataclass(frozen=True, slots=True)
class TopicCheck:
    """A topic that was looked up, and whose brokers were asked."""

    topic: str
    nameservers: str
    queues: int | None
    """None if the topic does not exist."""
    brokers: int = 0

    def __str__(self) -> str:
        if self.queues is None:
            return f"topic {self.topic}: {self.nameservers} answers, and does not know it yet"
        brokers = f"{counted(self.brokers, 'broker')} with {counted(self.queues, 'queue')}"
        answers = "answers" if self.brokers == 1 else "answer"
        return f"topic {self.topic}: {self.nameservers} answers, and {brokers} {answers}"


def check_topic(nameservers: str, topic: str) -> TopicCheck:
    """Asks the name servers for the topic and each of its brokers for the ends of its queues. Raises
    MetaqError if one of them does not answer."""
    with Admin(nameservers) as admin:
        try:
            queues = admin.topics.route(topic).writable
        except NoRoute as error:
            if error.retriable:
                raise
            return TopicCheck(topic, nameservers, None)
        admin.offsets.ends(queues)
    return TopicCheck(topic, nameservers, len(queues), len({queue.broker for queue in queues}))


def missing_topic(check: TopicCheck) -> list[str]:
    """Returns a warning if the topic does not exist."""
    if check.queues is not None:
        return []
    return [f"there is no topic {check.topic} yet; a broker creates it only if its auto_create_topic is on"]
