"""Topics and their queues, by topic and by broker name, so that every question costs what it answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

import msgspec

from metaq.protocol.bodies import WRITE, QueueData, TopicConfig
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.settings import NameServerSettings

STEP_TOPICS = 1_000
"""Topics that are added or dropped before others get their turn, in about a millisecond."""

_T = TypeVar("_T")

_NOTHING: Mapping[str, QueueData] = {}


class TopicTable:
    """The queues of every topic on every broker name."""

    def __init__(self, limits: NameServerSettings) -> None:
        self._limits = limits
        self._by_topic: dict[str, dict[str, QueueData]] = {}
        self._by_name: dict[str, dict[str, QueueData]] = {}
        self._flagged: dict[str, None] = {}
        """Topics that have a flag on some broker: few, because only units use flags."""
        self._leftovers: list[tuple[str, dict[str, QueueData]]] = []
        """Brokers that are gone, and their topics that have not been dropped yet."""
        self._to_lower: dict[str, dict[str, QueueData]] = {}
        """Broker names whose topics lose the write permission, and those of them that still have it."""
        self.entries = 0
        """The topics of all brokers, hidden ones included."""
        self.shown = 0
        """The same without those that `sweep` will drop."""
        self._list_bytes = 0

    def of(self, topic: str) -> Mapping[str, QueueData]:
        """The queues of a topic by broker name; do not change them."""
        if self._leftovers or self._to_lower:
            return self._settled(topic)
        return self._by_topic.get(topic, _NOTHING)

    def _settled(self, topic: str) -> Mapping[str, QueueData]:
        """The same while `sweep` has work left: this topic does not wait for it."""
        # Also called on a thread, while topics come and go.
        queues = list(self._by_topic.get(topic, _NOTHING).items())
        for name, _ in queues:
            rest = self._to_lower.get(name)
            if rest is not None and (data := rest.pop(topic, None)) is not None:
                data.perm &= ~WRITE
        return {name: data for name, data in queues if self.on(name).get(topic) is data}

    def spread(self, topic: str) -> int:
        """How many broker names have the topic at most, whatever `sweep` has left to do."""
        return len(self._by_topic.get(topic, _NOTHING))

    def on(self, name: str) -> Mapping[str, QueueData]:
        """The topics of a broker name; do not change them."""
        return self._by_name.get(name, _NOTHING)

    def added(self, name: str, topics: Collection[str]) -> int:
        """How many of these topics the broker name does not have yet. Raises Refused if it would have too
        many."""
        known = self.on(name)
        limit = self._limits.nameserver_broker_topics_max
        added = sum(topic not in known for topic in topics) if known else len(topics)
        if added and len(known) + added > limit:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"{added} more topics of {name} would be more than {limit} "
                "(nameserver_broker_topics_max of the name server)",
            )
        return added

    def put(self, topic: str, data: QueueData) -> None:
        queues = self._by_topic.get(topic)
        if queues is None:
            queues = self._by_topic[topic] = {}
            self._list_bytes += listed_bytes(topic)
        if data.broker_name not in queues:
            self.entries += 1
        queues[data.broker_name] = data
        topics = self._by_name.setdefault(data.broker_name, {})
        if topic not in topics:
            self.shown += 1
        topics[topic] = data
        if data.topic_sys_flag:
            self._flagged[topic] = None

    def drop(self, topic: str, name: str) -> None:
        self._drop_queues(topic, name)
        topics = self._by_name[name]
        del topics[topic]
        self.shown -= 1
        if not topics:
            del self._by_name[name]

    def _drop_queues(self, topic: str, name: str) -> None:
        queues = self._by_topic[topic]
        del queues[name]
        self.entries -= 1
        if not queues:
            del self._by_topic[topic]
            self._flagged.pop(topic, None)
            self._list_bytes -= listed_bytes(topic)

    def drop_all_on(self, name: str) -> None:
        """Drops the topics of a broker. If they are many, they are only hidden: `sweep` drops them."""
        self._to_lower.pop(name, None)
        if len(self.on(name)) > STEP_TOPICS:
            hidden = self._by_name.pop(name)
            self.shown -= len(hidden)
            self._leftovers.append((name, hidden))
            return
        for topic in list(self.on(name)):
            self.drop(topic, name)

    def sweep(self) -> bool:
        """Goes on with what `lower` and `drop_all_on` have left to do; False if that is nothing."""
        return all(self._lower_one() or self._drop_one() for _ in range(STEP_TOPICS))

    def _lower_one(self) -> bool:
        while self._to_lower:
            name, topics = next(iter(self._to_lower.items()))
            if topics:
                # If the topic was put again meanwhile, this is not the data that is shown.
                topics.popitem()[1].perm &= ~WRITE
                return True
            del self._to_lower[name]
        return False

    def _drop_one(self) -> bool:
        while self._leftovers and not self._leftovers[-1][1]:
            self._leftovers.pop()
        if not self._leftovers:
            return False
        name, topics = self._leftovers[-1]
        topic, data = topics.popitem()
        # A broker of this name may have come back with the topic.
        if self._by_topic.get(topic, _NOTHING).get(name) is data:
            self._drop_queues(topic, name)
        return True

    def lower(self, name: str) -> int:
        """Takes the write permission from every topic of a broker name; returns how many there are. If they
        are many, each loses it when somebody asks for it, and the others when `sweep` comes to them."""
        topics = self.on(name)
        if len(topics) > STEP_TOPICS:
            self._to_lower[name] = dict(topics)
        else:
            for data in topics.values():
                data.perm &= ~WRITE
        return len(topics)

    def change_permissions(self, name: str, change: Callable[[int], int]) -> int:
        """Changes the permission of every topic of a broker name at once; returns how many there are."""
        self._to_lower.pop(name, None)
        for data in self.on(name).values():
            data.perm = change(data.perm)
        return len(self.on(name))

    def listed(self) -> list[str]:
        """All topics. Raises Refused if the list does not fit into an answer."""
        self._check_answer(
            f"all {len(self._by_topic)} topics", self._list_bytes, "ask for the topics of one cluster"
        )
        return list(self._by_topic)

    def listed_on(self, names: Iterable[str]) -> list[str]:
        """The topics on at least one of the broker names. Raises Refused as `listed` does."""
        found: dict[str, None] = {}
        for name in names:
            found.update(dict.fromkeys(self.on(name)))
        if self._list_bytes > self._limits.answer_bytes_max:
            self._check_answer(
                f"{len(found)} topics of this cluster",
                sum(map(listed_bytes, found)),
                "ask its brokers for their topics",
            )
        return list(found)

    def _check_answer(self, what: str, size_bytes: int, hint: str) -> None:
        """Raises Refused before a list is built that no peer would read."""
        limit_bytes = self._limits.answer_bytes_max
        if size_bytes > limit_bytes:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the list of {what} has {size_bytes} bytes, but an answer may have {limit_bytes} "
                f"(frame_bytes_max): {hint}",
            )

    def listed_by_flag(self, having: int, lacking: int) -> list[str]:
        """Topics by the bits of their system flag, as the first of their brokers says. Also called on a
        thread, while topics come and go."""
        return [
            topic
            for topic in list(self._flagged)
            if (queues := dict(self._by_topic.get(topic, _NOTHING)))
            and (flag := queues[min(queues)].topic_sys_flag) & having == having
            and not flag & lacking
        ]


def listed_bytes(topic: str) -> int:
    """The size of a topic in a list of topics."""
    return len(msgspec.json.encode(topic)) + 1


def in_steps(items: Collection[_T]) -> Iterator[list[_T]]:
    """Parts of a long list, each of them for one step."""
    rest = iter(items)
    while some := list(islice(rest, STEP_TOPICS)):
        yield some


def queue_data(name: str, config: TopicConfig, *, writable: bool) -> QueueData:
    """The queues of a topic on one broker name, as a route shows them."""
    return QueueData(
        broker_name=name,
        perm=config.perm if writable else config.perm & ~WRITE,
        read_queue_nums=config.read_queue_nums,
        topic_sys_flag=config.topic_sys_flag,
        write_queue_nums=config.write_queue_nums,
    )
