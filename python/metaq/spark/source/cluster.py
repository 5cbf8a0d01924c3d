"""The cluster as the driver sees it: the queues of a subscription, and what they hold.

Every call waits. Questions whose errors may pass are asked again until the time is over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from metaq.admin import Admin, TopicRoute
from metaq.client.session.routes import Queue
from metaq.errors import NoRoute
from metaq.spark.errors import OptionError
from metaq.spark.sink.markers import TOPIC_PREFIX as MARKERS_PREFIX
from metaq.spark.source.options import Subscribed


class Cluster:
    """A context manager; `close` may be called twice."""

    def __init__(self, nameservers: str, timeout_s: float) -> None:
        self._admin = Admin(nameservers, retry=timeout_s)
        self._addresses: dict[str, Mapping[int, str]] = {}
        self.bounds = self._admin.offsets.bounds
        self.ends = self._admin.offsets.ends
        self.offsets_at = self._admin.offsets.at_times
        self.ordered_since = self._admin.offsets.ordered_since
        self.committed = self._admin.offsets.committed
        self.commit = self._admin.offsets.commit
        self.resets = self._admin.offsets.resets
        self.replica_ends = self._admin.offsets.replica_ends
        self.measure = self._admin.offsets.measure

    def close(self) -> None:
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def queues(self, subscribed: Subscribed, *, strict: bool = True) -> list[Queue]:
        """Returns the queues that can be read now, in order. Raises OptionError for a topic or queue that
        does not exist; if it is not strict, it leaves them out."""
        option, topics = self._topics(subscribed)
        routes = [route for topic in topics if (route := self._route(option, topic, strict)) is not None]
        self._addresses = {broker.name: broker.addresses for route in routes for broker in route.brokers}
        readable = {queue for route in routes for queue in route.readable}
        if subscribed.assigned is None:
            return sorted(readable)
        wanted = [
            Queue(topic, broker, number)
            for topic, brokers in subscribed.assigned.items()
            for broker, numbers in brokers.items()
            for number in sorted(numbers)
        ]
        missing = [queue for queue in wanted if queue not in readable]
        if missing and strict:
            known = ", ".join(f"{queue.broker}:{queue.id}" for queue in sorted(readable))
            raise OptionError(
                f"option assign names queue {missing[0].id} of {missing[0].topic} on {missing[0].broker},"
                " which cannot be read",
                hint=f"there are {known}",
            )
        return sorted(readable.intersection(wanted))

    def addresses(self, queue: Queue) -> dict[int, str]:
        """Returns the addresses of a queue's broker and its replicas by broker id, as `queues` found them; 0
        is the master."""
        return dict(self._addresses.get(queue.broker, {}))

    def _topics(self, subscribed: Subscribed) -> tuple[str, list[str]]:
        """The name of the option and the topics that it names."""
        if subscribed.assigned is not None:
            return "assign", list(subscribed.assigned)
        if subscribed.pattern is None:
            return "subscribe", list(subscribed.topics)
        pattern = re.compile(subscribed.pattern)
        topics = [topic.name for topic in self._admin.topics.list() if topic.kind == "normal"]
        return "subscribePattern", [topic for topic in topics if is_matched(pattern, topic)]

    def _route(self, option: str, topic: str, strict: bool) -> TopicRoute | None:
        try:
            return self._admin.topics.route(topic)
        except NoRoute as error:
            if not strict:
                return None
            raise OptionError(f"option {option}: there is no topic {topic}", hint=str(error)) from error


def is_matched(pattern: re.Pattern[str], topic: str) -> bool:
    """Returns whether a pattern matches a topic; topics in which the sink keeps its state are left out."""
    return pattern.fullmatch(topic) is not None and not topic.startswith(MARKERS_PREFIX)
