"""The topics of one broker: the table, their rights, and how new topics are created."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from metaq._core import Clock
from metaq.broker.options import BrokerOptions
from metaq.broker.requests.spaced_work import in_turns
from metaq.broker.state.attributes import altered
from metaq.broker.state.versions import VERSIONS, stored_version
from metaq.journal.journal import Journal, Unwritten
from metaq.protocol import names
from metaq.protocol.bodies import INHERIT, READ, WRITE, DataVersion, TopicConfig, TopicConfigTable
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.protocol.ranges import Count

TABLE = "topics"
"""In the journal: name → TopicConfig."""
STARTS = "starts"
"""In the journal: name → the queue offset at which each queue starts for readers, see `QueueStarts`."""
QUEUES_MAX = 10_000
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


@dataclass(frozen=True, slots=True)
class _Checked:
    """A change of a topic that an administrator asks for, and the topic before and after it."""

    wanted: TopicConfig
    before: TopicConfig | None
    after: TopicConfig


class Topics:
    """The table of topics.

    A change is made in two steps: `put` or `remove` changes the table, and `publish` returns once the change
    is on disk and the data plane and the name servers know it. So no message is ever acknowledged for a topic
    that a crash would make the broker forget.
    """

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        journal: Journal,
        changed: Callable[[Collection[str]], Awaitable[None]],
        convert: Callable[[TopicConfig], object] = lambda config: None,
    ) -> None:
        """`convert` makes what the data plane gets of a topic. It raises Refused before anything is kept."""
        self._convert = convert
        self._options = options
        self._clock = clock
        self._changed = changed
        self._table: dict[str, TopicConfig] = {}
        self._unserved: set[str] = set()
        """New topics that are not on disk yet. The data plane does not know them."""
        self.starts: dict[str, dict[int, int]] = {}
        self._system: frozenset[str] = frozenset()
        self._journal = journal
        self._unwritten = Unwritten(journal, self._value_of)
        self.auto_create = options.auto_create_topic
        self.data_version = DataVersion(timestamp=clock.now_ms())

    def load(self) -> None:
        """Reads the journal and adds missing system topics. Raises MetadataDamaged."""
        self.data_version = stored_version(self._journal, TABLE) or self.data_version
        self._table = self._journal.decoded(TABLE, self._decode)
        self.starts = self._journal.decoded(STARTS, decode_starts)
        system = {config.topic_name: config for config in system_topics(self._options)}
        self._system = frozenset(system) | names.RESERVED
        for name, config in system.items():
            # The template follows the configuration at every start; the others keep their settings.
            if name == names.TEMPLATE_TOPIC or name not in self._table:
                self._table[name] = config
                self._unwritten.touch(TABLE, name)
        if names.TEMPLATE_TOPIC not in system and names.TEMPLATE_TOPIC in self._table:
            del self._table[names.TEMPLATE_TOPIC]
            self._unwritten.touch(TABLE, names.TEMPLATE_TOPIC)
        self._advance()

    def follow(self, name: str, value: bytes | None) -> None:
        """Takes over a change that this replica's master has made. Raises ProtocolError."""
        if value is None:
            self._table.pop(name, None)
        else:
            self._table[name] = self._decode(value)

    def follow_starts(self, name: str, value: bytes | None) -> None:
        """The same for the starts of a topic. Raises ValidationError."""
        if value is None:
            self.starts.pop(name, None)
        else:
            self.starts[name] = decode_starts(value)

    def put_starts(self, name: str, starts: dict[int, int]) -> None:
        """Replaces the starts of a topic. Publish it afterwards."""
        self.starts[name] = starts
        self._unwritten.touch(STARTS, name)

    def _forget_starts(self, name: str) -> None:
        """A topic that is deleted, or made anew under an old name, begins at queue offset 0."""
        if self.starts.pop(name, None) is not None:
            self._unwritten.touch(STARTS, name)

    def _decode(self, value: bytes) -> TopicConfig:
        config = TopicConfig.decode(value)
        self._convert(config)
        return config

    def follow_version(self) -> None:
        """Takes over the version of the master's table, which is in the journal."""
        self.data_version = stored_version(self._journal, TABLE) or self.data_version

    def _value_of(self, table: str, key: str) -> bytes | None:
        if table == VERSIONS:
            return self.data_version.encode()
        if table == STARTS:
            starts = self.starts.get(key)
            return None if starts is None else msgspec.json.encode(starts)
        config = self._table.get(key)
        return None if config is None else config.encode()

    def table(self, of: Collection[str] | None = None) -> TopicConfigTable:
        """All topics, or only the named ones."""
        chosen = (
            self._table if of is None else {name: self._table[name] for name in of if name in self._table}
        )
        return TopicConfigTable(data_version=self.data_version, topic_config_table=chosen)

    def served(self) -> TopicConfigTable:
        """The topics that may be in a route. A client that finds a topic there may use it at once."""
        return self.table([name for name in self._table if name not in self._unserved])

    def served_topic(self, name: str) -> TopicConfig | None:
        """The topic if it may be in a route."""
        return None if name in self._unserved else self._table.get(name)

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(list(self._table.values()))

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def get(self, name: str) -> TopicConfig | None:
        return self._table.get(name)

    def system_names(self) -> list[str]:
        return sorted(self._system)

    def is_system(self, name: str) -> bool:
        return name in self._system or name.startswith(names.SYSTEM_PREFIX)

    def put(self, config: TopicConfig, *, of_group: bool = False) -> TopicConfig:
        """Adds or replaces one topic. The caller has checked its values. A topic `of_group` may use the room
        that is kept for retry topics and dead letters."""
        self._check_room(0 if config.topic_name in self._table else 1, of_group=of_group)
        self._convert(config)
        return self._keep(config)

    def _keep(self, config: TopicConfig) -> TopicConfig:
        if config.topic_name not in self._table:
            self._unserved.add(config.topic_name)
            self._forget_starts(config.topic_name)
        self._table[config.topic_name] = config
        self._advance(config.topic_name)
        return config

    def _check_room(self, new: int, *, of_group: bool = False) -> None:
        """Raises Refused if there is no room for new topics. Anybody can name new topics, so what groups need
        has room of its own: without its retry topic, a group cannot give messages back."""
        limit, name = self._options.topics_max, "topics_max"
        if not of_group:
            limit -= limit * self._options.topics_reserved_percent // 100
            name = "topics_max, less topics_reserved_percent for retry topics and dead letters"
        if new > 0 and len(self._table) + new > limit:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"this broker has {len(self._table)} topics, the limit is {limit} ({name}): "
                "delete unused ones",
            )

    def remove(self, name: str) -> bool:
        if self._table.pop(name, None) is None:
            return False
        self._unserved.discard(name)
        self._forget_starts(name)
        self._advance(name)
        return True

    async def keep(self) -> None:
        """Writes changes that neither the data plane nor name servers need to know. Raises NotWritten."""
        await self._unwritten.keep()

    async def publish(self, touched: Collection[str]) -> None:
        """Writes the change and passes it on. Raises NotWritten if it cannot be written; the next call tries
        again."""
        fresh = frozenset(self._unserved)
        await self._unwritten.keep()
        if fresh & self._unserved:
            # A new version, because name servers may have got the last one without them.
            self._unserved -= fresh
            self._advance()
        await self._changed(touched)

    def set_auto_create(self, enabled: bool) -> None:
        """Also adds or removes the template topic, whose route tells producers that they may send
        anywhere. It is the broker's own, so no limit refuses it, as at the start. Publish it afterwards."""
        self.auto_create = enabled
        if enabled and names.TEMPLATE_TOPIC not in self._table:
            self._keep(template_topic(self._options))
        elif not enabled:
            self.remove(names.TEMPLATE_TOPIC)

    def version_changed(self) -> None:
        """Gives the table a new version for the name servers, although no topic has changed."""
        self._advance()

    def create_from_template(self, name: str, template_name: str, queues_wanted: int) -> TopicConfig:
        """Creates a topic that a producer sends to before anybody else created it. Raises Refused."""
        template = self._table.get(template_name or names.TEMPLATE_TOPIC)
        forbidden = template_name in ("", names.TEMPLATE_TOPIC) and not self.auto_create
        if template is None or forbidden or not template.perm & INHERIT:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, missing_topic(name))
        queues = template.write_queue_nums
        if queues_wanted > 0:
            queues = min(queues, queues_wanted)
        return self.put(
            TopicConfig(
                topic_name=name,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=template.perm & ~INHERIT,
                topic_filter_type=template.topic_filter_type,
            )
        )

    def ensure_retry_topic(self, group: str, queues: int, *, order: bool | None = None) -> TopicConfig | None:
        """The group's retry topic if it had to be created or changed; None if it was there.

        It becomes ordered with the first member that reads in order, and stays so. Members that differ must
        not change it with every heartbeat."""
        name = names.retry_topic(group)
        existing = self._table.get(name)
        if existing is None:
            return self.put(
                TopicConfig(
                    topic_name=name,
                    read_queue_nums=queues,
                    write_queue_nums=queues,
                    perm=READ | WRITE,
                    order=bool(order),
                ),
                of_group=True,
            )
        if order and not existing.order:
            return self.put(msgspec.structs.replace(existing, order=True))
        return None

    def ensure_dead_letter_topic(self, group: str) -> None:
        """Creates the topic for messages that the group has failed at too often, if it is missing."""
        name = names.dead_letter_topic(group)
        if name not in self._table:
            made = TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1, perm=READ | WRITE)
            self.put(made, of_group=True)

    def update(self, wanted: TopicConfig, attributes: dict[str, str]) -> bool:
        """Creates or changes a topic as an administrator asks. `attributes` are changes with `+` or `-`
        before each name. False if nothing changed. Raises Refused, which names the limit."""
        change = self._checked(wanted, attributes)
        if change.after == change.before:
            return False
        self.put(change.after)
        return True

    async def update_all(self, wanted: Iterable[TopicConfig]) -> None:
        """The same for the topics of a list, whose attributes are changes: all of them, or none."""
        changes: list[_Checked] = []
        async for part in in_turns(wanted):
            changes += (self._checked(config, config.attributes) for config in part)
        # Another request may have changed a topic while the list was checked.
        changes = [
            change
            if self._table.get(change.wanted.topic_name) is change.before
            else self._checked(change.wanted, change.wanted.attributes)
            for change in changes
        ]
        self._check_room(sum(change.before is None for change in changes))
        for change in changes:
            if change.after != change.before:
                self._keep(change.after)

    def _checked(self, wanted: TopicConfig, attributes: dict[str, str]) -> _Checked:
        self._check(wanted)
        existing = self._table.get(wanted.topic_name)
        current = {} if existing is None else existing.attributes
        after = msgspec.structs.replace(
            wanted, attributes=altered(current, attributes, creating=existing is None)
        )
        self._convert(after)
        return _Checked(wanted, existing, after)

    def check_changeable(self, name: str) -> None:
        """Raises Refused for a malformed name and for system topics."""
        fault = names.topic_fault(name)
        if fault is None and self.is_system(name):
            fault = f"the topic {name} is the system's own and cannot be changed: choose another name"
        if fault is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, fault)

    def _check(self, wanted: TopicConfig) -> None:
        self.check_changeable(wanted.topic_name)
        fault: str | None = None
        for what, queues in (("read", wanted.read_queue_nums), ("write", wanted.write_queue_nums)):
            if not 0 <= queues <= QUEUES_MAX:
                fault = f"{queues} {what} queues asked for, the limit is 0 to {QUEUES_MAX}"
        if not 0 <= wanted.perm <= READ | WRITE | INHERIT:
            fault = f"permission {wanted.perm} is not a sum of 4 (read), 2 (write) and 1 (inherit)"
        if wanted.topic_filter_type not in FILTER_TYPES:
            known = " or ".join(FILTER_TYPES)
            fault = f"filter type {wanted.topic_filter_type[:32]!a} is unknown; use {known}"
        if fault is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"topic {wanted.topic_name}: {fault}")

    def _advance(self, changed: str | None = None) -> None:
        self.data_version = self.data_version.next(self._clock.now_ms())
        self._unwritten.touch(VERSIONS, TABLE)
        if changed is not None:
            self._unwritten.touch(TABLE, changed)


def decode_starts(value: bytes) -> dict[int, int]:
    """Raises ValidationError or DecodeError."""
    return msgspec.json.decode(value, type=dict[Count, Count], strict=False)


def missing_topic(name: str) -> str:
    return (
        f"topic {name} does not exist and is not created by sending to it: "
        f"create it first (metaq topic create {name}) or switch autoCreateTopicEnable on"
    )


def system_topics(options: BrokerOptions) -> list[TopicConfig]:
    """The topics that tools, clients and the broker itself expect on every broker. Tools find brokers by the
    routes of the topics that are named after the cluster and the broker."""
    cluster, broker = options.broker.cluster, options.broker.name

    def topic(name: str, queues: int, perm: int = READ | WRITE) -> TopicConfig:
        return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

    topics = [
        topic(names.SELF_TEST_TOPIC, 1),
        topic(names.BENCHMARK_TOPIC, 1024),
        topic(cluster, 16, READ | WRITE | INHERIT),
        topic(broker, 1, READ | WRITE | INHERIT),
        topic(names.OFFSET_MOVED_TOPIC, 1),
        topic(names.SCHEDULE_TOPIC, 18),
        topic(names.TRACE_TOPIC, 1),
        topic(names.reply_topic(cluster), 1),
        topic(f"{names.SYSTEM_PREFIX}REVIVE_LOG_{cluster}", 8),
        topic(f"{names.MEMBERS_TOPIC_PREFIX}{broker}", 1, INHERIT),
        topic(names.HALF_TOPIC, 1),
        topic(names.HALF_DONE_TOPIC, 1),
        topic(names.CHECKS_EXHAUSTED_TOPIC, 1),
        topic(names.TIMER_TOPIC, 1),
    ]
    if options.auto_create_topic:
        topics.append(template_topic(options))
    return topics


def template_topic(options: BrokerOptions) -> TopicConfig:
    queues = options.default_topic_queues
    return TopicConfig(
        topic_name=names.TEMPLATE_TOPIC,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=READ | WRITE | INHERIT,
    )
