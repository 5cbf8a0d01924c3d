"""Asks an Apache master for what its slaves need besides the log.

Its settings, the range of its log, topics, groups, committed offsets and delay progress are read with
ordinary requests, as Apache's slaves read them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from metaq.broker.state.offsets import quoted_keys
from metaq.errors import CommandError
from metaq.protocol.bodies import (
    DataVersion,
    DelayOffsets,
    KVTable,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from metaq.protocol.command import Command
from metaq.protocol.commands.admin import GetBrokerConfig, GetBrokerRuntimeInfo
from metaq.protocol.commands.groups import GetAllSubscriptionGroupConfig, GroupPage
from metaq.protocol.commands.offsets import GetAllConsumerOffset, GetAllDelayOffset
from metaq.protocol.commands.topics import GetAllTopicConfig, TopicPage
from metaq.protocol.reply import Reply
from metaq.remoting import Connection, split_address

PAGE_ENTRIES: Final = 1_000
PAGES_MAX: Final = 10_000
MASTER_ROLES: Final = ("ASYNC_MASTER", "SYNC_MASTER")

Table = TypeVar("Table")


@dataclass(frozen=True, slots=True)
class MasterFacts:
    """The settings of an Apache master that a replica depends on."""

    broker_name: str
    cluster_name: str
    ha_address: str
    """The `host:port` from which it sends its log."""
    log_file_bytes: int
    message_size_bytes_max: int
    delay_levels: str


@dataclass(frozen=True, slots=True)
class LogRange:
    """The physical offsets at which a log begins and ends."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class _Page(Generic[Table]):
    version: DataVersion
    entries: Mapping[str, Table]
    total: int | None


class ApacheSource:
    """One connection to an Apache master, which is opened again when it has ended."""

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._connection: Connection | None = None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def facts(self) -> MasterFacts:
        """Raises CommandError for a broker that cannot be followed, Refused or Unreachable."""
        reply = await self._ask(GetBrokerConfig())
        values = _properties(reply.body)
        role = values.get("brokerRole", "")
        if role not in MASTER_ROLES:
            raise CommandError(
                f"{self.address} has brokerRole={role[:32]!a} and is not an Apache master",
                hint="give the address of the master of the broker group",
            )
        for setting in ("enableControllerMode", "enableDLegerCommitLog", "duplicationEnable"):
            if values.get(setting) == "true":
                raise CommandError(
                    f"{self.address} runs with {setting}=true; only a master of a fixed role can be followed",
                    hint="move the store of the stopped broker instead",
                )
        host, _ = split_address(self.address)
        return MasterFacts(
            broker_name=values.get("brokerName", ""),
            cluster_name=values.get("brokerClusterName", ""),
            ha_address=f"{f'[{host}]' if ':' in host else host}:{_number(values, 'haListenPort', 65_535)}",
            log_file_bytes=_number(values, "mappedFileSizeCommitLog", 2**31),
            message_size_bytes_max=_number(values, "maxMessageSize", 2**31),
            delay_levels=values.get("messageDelayLevel", ""),
        )

    async def log_range(self) -> LogRange:
        """Raises CommandError, Refused or Unreachable."""
        values = KVTable.decode((await self._ask(GetBrokerRuntimeInfo())).body).table
        # The start of an empty log is -1.
        start_offset = max(_number(values, "commitLogMinOffset", 2**62), 0)
        return LogRange(start_offset, max(_number(values, "commitLogMaxOffset", 2**62), start_offset))

    async def topics(self, known: DataVersion | None) -> TopicConfigTable | None:
        """Returns all topics; None if they still have the known version."""

        async def page(first: int, version: DataVersion | None, count: int) -> _Page[object]:
            seen = None if version is None else version.encode().decode()
            command = GetAllTopicConfig(topic_seq=first, data_version=seen, max_topic_num=count)
            reply = await self._ask(command)
            table = TopicConfigTable.decode(reply.body)
            total = reply.header(TopicPage).total_topic_num
            return _Page(table.data_version, table.topic_config_table, total)

        found = await _all_pages(page, known)
        if found is None:
            return None
        version, entries = found
        return TopicConfigTable(data_version=version, topic_config_table=entries)  # type: ignore[arg-type]

    async def groups(self, known: DataVersion | None) -> SubscriptionGroupTable | None:
        """Returns all groups; None if they still have the known version."""
        forbidden: dict[str, dict[str, int]] = {}

        async def page(first: int, version: DataVersion | None, count: int) -> _Page[object]:
            seen = None if version is None else version.encode().decode()
            command = GetAllSubscriptionGroupConfig(group_seq=first, data_version=seen, max_group_num=count)
            reply = await self._ask(command)
            table = SubscriptionGroupTable.decode(reply.body)
            forbidden.update(table.forbidden_table)
            total = reply.header(GroupPage).total_group_num
            return _Page(table.data_version, table.subscription_group_table, total)

        found = await _all_pages(page, known)
        if found is None:
            return None
        version, entries = found
        return SubscriptionGroupTable(
            data_version=version,
            forbidden_table=forbidden,
            subscription_group_table=entries,  # type: ignore[arg-type]
        )

    async def offsets(self) -> bytes:
        """Returns the committed offsets as `offsets.decode_offsets` reads them."""
        return (await self._ask(GetAllConsumerOffset())).body

    async def delays(self) -> DelayOffsets:
        return DelayOffsets.decode(quoted_keys((await self._ask(GetAllDelayOffset())).body))

    async def _ask(self, command: Command) -> Reply:
        if self._connection is None or self._connection.closed:
            self._connection = await Connection.open(self.address, self._timeout_s)
        return (await self._connection.call(command, timeout=self._timeout_s)).check()


async def _all_pages(
    ask: Callable[[int, DataVersion | None, int], Awaitable[_Page[Table]]], known: DataVersion | None
) -> tuple[DataVersion, dict[str, Table]] | None:
    """Asks for page after page. The first one is as small as can be if the table may be known already."""
    page = await ask(0, None, PAGE_ENTRIES if known is None else 1)
    if known is not None and page.version == known:
        return None
    entries = dict(page.entries)
    for _ in range(PAGES_MAX):
        if page.total is None or len(entries) >= page.total:
            return page.version, entries
        before = page.version
        page = await ask(len(entries), before, PAGE_ENTRIES)
        if page.version != before:
            # The table has changed, so the broker has begun again.
            entries = {}
        elif page.entries.keys() <= entries.keys():
            return page.version, entries
        entries.update(page.entries)
    raise CommandError(f"the master sent more than {PAGES_MAX} pages of one table")


def _properties(body: bytes) -> dict[str, str]:
    values = {}
    for line in body.decode("utf-8", "replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            values[name.strip()] = value.strip()
    return values


def _number(values: Mapping[str, str], name: str, maximum: int) -> int:
    try:
        value = int(values.get(name, ""))
    except ValueError:
        value = maximum + 1
    if not -1 <= value <= maximum:
        raise CommandError(
            f"the master names {name}={values.get(name, '')[:32]!a}, which is not a number up to {maximum}",
            hint="only Apache RocketMQ 5.x masters can be followed",
        )
    return value
