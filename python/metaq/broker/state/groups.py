"""The consumer groups of one broker and their rights."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass

import msgspec

from metaq._core import BrokerPlane, Clock
from metaq.broker.options import BrokerOptions
from metaq.broker.requests.paging import attributes_bytes, page_of
from metaq.broker.requests.spaced_work import in_turns
from metaq.broker.state.attributes import GROUP_KEYS, altered
from metaq.broker.state.broker_own import check_group
from metaq.broker.state.offset_removal import remove_offsets_of_group
from metaq.broker.state.versions import VERSIONS, stored_version
from metaq.journal.journal import Journal, Unwritten
from metaq.protocol import names
from metaq.protocol.bodies import (
    DataVersion,
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.groups import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroupConfig,
    GetSubscriptionGroupConfig,
    GroupPage,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateSubscriptionGroupList,
    UpdateAndGetGroupForbidden,
)
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.body_reading import read_body
from metaq.protocol.handling.bounded_answer import BoundedAnswer
from metaq.protocol.handling.peer_log import peer_log
from metaq.protocol.names import SYSTEM_GROUPS as SYSTEM_GROUPS
from metaq.protocol.ranges import FewEntries, Int32
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

TABLE = "groups"
"""In the journal: name → SubscriptionGroupConfig."""
FORBIDDEN = "forbidden"
"""In the journal: group → topic → bits that forbid something."""
LIST_MAX = 10_000
RETRY_QUEUES_MAX = 1_000
CONFIG_BYTES = 320
"""About the size of a group in a table, without its name and attributes."""
FORBIDDEN_MAX = 1_000
"""The most topics that one group can be kept from. Each change writes all of them."""
FORBIDDEN_BY_ALL_MAX = 50_000
"""The same for all groups together: the topics need not exist."""
RETRY_POLICIES = ("CUSTOMIZED", "EXPONENTIAL")
NO_READING = 1 << 2
"""Apache's encoding: the bit whose number is the read permission."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """A change of a group that a request asks for, and the group before and after it."""

    wanted: SubscriptionGroupConfig
    before: SubscriptionGroupConfig | None
    after: SubscriptionGroupConfig

    @property
    def name(self) -> str:
        return self.wanted.group_name


class Groups:
    """The table of groups."""

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        journal: Journal,
        changed: Callable[[Collection[str]], None],
        convert: Callable[[SubscriptionGroupConfig], object] = lambda config: None,
        pools: WorkPools | None = None,
        replicated: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`convert` makes what the data plane gets of a group. It raises Refused before anything is kept.
        `replicated` returns when the replicas that may become master have the journal."""
        self._convert = convert
        self._replicated = replicated
        self._pools = pools or WorkPools()
        self._clock = clock
        self._changed = changed
        self._table: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self._data_version = DataVersion(timestamp=clock.now_ms())
        self._journal = journal
        self._unwritten = Unwritten(journal, self._value_of)
        self._groups_max = options.groups_max
        self.auto_create = options.auto_create_group

    def load(self) -> None:
        """Reads the journal and adds missing system groups. Raises MetadataDamaged."""
        self._data_version = stored_version(self._journal, TABLE) or self._data_version
        self._forbidden = self._journal.decoded(FORBIDDEN, decode_forbidden)
        self._table = self._journal.decoded(TABLE, self._decode)
        for name in SYSTEM_GROUPS:
            if name not in self._table:
                self._table[name] = SubscriptionGroupConfig(group_name=name)
                self._unwritten.touch(TABLE, name)
        self._advance()

    def follow(self, table: str, name: str, value: bytes | None) -> None:
        """Takes over a change that this replica's master has made. Raises ProtocolError or ValueError."""
        if table == FORBIDDEN:
            if value is None:
                self._forbidden.pop(name, None)
            else:
                self._forbidden[name] = decode_forbidden(value)
        elif value is None:
            self._table.pop(name, None)
        else:
            self._table[name] = self._decode(value)

    def _decode(self, value: bytes) -> SubscriptionGroupConfig:
        config = SubscriptionGroupConfig.decode(value)
        self._convert(config)
        return config

    def _value_of(self, table: str, key: str) -> bytes | None:
        if table == VERSIONS:
            return self._data_version.encode()
        if table == FORBIDDEN:
            topics = self._forbidden.get(key)
            return None if topics is None else msgspec.json.encode(topics)
        config = self._table.get(key)
        return None if config is None else config.encode()

    def table(self, of: Collection[str] | None = None) -> SubscriptionGroupTable:
        """All groups, or only the named ones."""
        wanted = self._table if of is None else dict.fromkeys(of)
        return SubscriptionGroupTable(
            data_version=self._data_version,
            subscription_group_table={name: self._table[name] for name in wanted if name in self._table},
            forbidden_table={name: topics for name, topics in self._forbidden.items() if name in wanted},
        )

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(list(self._table.values()))

    def __len__(self) -> int:
        return len(self._table)

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        return self._table.get(name)

    def find_or_create(self, name: str) -> SubscriptionGroupConfig | None:
        """The group, created on the spot if that is allowed; None if it is not. Raises Refused if there are
        too many groups."""
        existing = self._table.get(name)
        if existing is not None:
            return existing
        if names.group_fault(name) is not None:
            return None
        if not self.auto_create and not names.is_system_group(name):
            return None
        self._check_room(1)
        peer_log.write(_log, logging.INFO, "", "group %s created on first use", name)
        return self.put(SubscriptionGroupConfig(group_name=name))

    def _check_room(self, new: int) -> None:
        if new > 0 and len(self._table) + new > self._groups_max:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"this broker has {len(self._table)} groups, the limit is {self._groups_max} (groups_max): "
                "delete unused ones",
            )

    def put(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Adds or replaces a group. Raises Refused if the data plane cannot hold it."""
        self._convert(config)
        self._table[config.group_name] = config
        self._advance(config.group_name)
        return config

    async def publish(self, touched: Collection[str]) -> None:
        """Sends the changes to the data plane, and returns when they are on disk as well, here and on the
        replicas that may become master. Raises Refused if these do not confirm them."""
        async for part in in_turns(touched):
            self._changed(part)
        await self._unwritten.keep()
        if touched and self._replicated is not None:
            await self._replicated()

    @handles(UpdateAndCreateSubscriptionGroup)
    async def update_and_create_group(
        self, command: UpdateAndCreateSubscriptionGroup, request: Request
    ) -> None:
        await self._update([SubscriptionGroupConfig.decode(request.body)], request)

    @handles(UpdateAndCreateSubscriptionGroupList)
    async def update_and_create_group_list(
        self, command: UpdateAndCreateSubscriptionGroupList, request: Request
    ) -> None:
        body = await read_body(self._pools.reading, request, request.body, SubscriptionGroupList)
        wanted = body.group_config_list
        if len(wanted) > LIST_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"{len(wanted)} groups in one list, the limit is {LIST_MAX}"
            )
        # A group that is repeated counts once, as the list says last.
        await self._update(list({config.group_name: config for config in wanted}.values()), request)

    @handles(GetAllSubscriptionGroupConfig)
    async def get_all_groups(self, command: GetAllSubscriptionGroupConfig, request: Request) -> Response:
        # Copies, because the tables change on the event loop.
        configs, forbidden, version = dict(self._table), dict(self._forbidden), self._data_version

        def collect() -> bytes:
            answer = BoundedAnswer(GetAllSubscriptionGroupConfig)
            wanted: Collection[str] = configs
            if command.group_seq is not None or command.max_group_num is not None:
                wanted = page_of(
                    configs,
                    first=command.group_seq,
                    count=command.max_group_num,
                    version=version,
                    version_seen=command.data_version,
                )
            table = SubscriptionGroupTable(data_version=version)
            for name in wanted:
                config, topics = configs[name], forbidden.get(name)
                answer.add(CONFIG_BYTES + 2 * len(name) + attributes_bytes(config.attributes))
                table.subscription_group_table[name] = config
                if topics is not None:
                    answer.add(sum(map(len, topics)), lines=len(topics))
                    table.forbidden_table[name] = topics
            return answer.encoded(table)

        body = await self._pools.look_ups.run(request, collect)
        return Response(fields=GroupPage(total_group_num=len(configs)), body=body)

    @handles(GetSubscriptionGroupConfig)
    async def get_group(self, command: GetSubscriptionGroupConfig, request: Request) -> Response:
        config = self.find_or_create(command.group)
        if config is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, missing_group(command.group))
        await self.publish([command.group])
        return Response(body=config.encode())

    def forbidden_topics(self, group: str) -> list[str]:
        """The topics that the group may not read for now."""
        topics = self._forbidden.get(group, {})
        return sorted(topic for topic, bits in topics.items() if bits & NO_READING)

    @handles(UpdateAndGetGroupForbidden)
    async def update_and_get_group_forbidden(
        self, command: UpdateAndGetGroupForbidden, request: Request
    ) -> Response:
        if command.group not in self._table:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, missing_group(command.group))
        if command.readable is not None:
            check_group(command.group)
            fault = names.topic_fault(command.topic)
            if fault is not None:
                raise Refused(ResponseCode.INVALID_PARAMETER, fault)
            self._forbid(command.group, command.topic, not command.readable)
            peer_log.write(
                _log,
                logging.WARNING,
                request.remote,
                "group %s may %sread topic %s, says %s",
                command.group,
                "" if command.readable else "not ",
                command.topic,
                request.remote,
            )
            await self.publish([command.group])
        readable = command.topic not in self.forbidden_topics(command.group)
        answer = GroupForbidden(group=command.group, topic=command.topic, readable=readable)
        return Response(body=answer.encode())

    def _forbid(self, group: str, topic: str, forbidden: bool) -> None:
        topics = dict(self._forbidden.get(group, {}))
        bits = topics.pop(topic, 0) & ~NO_READING | (NO_READING if forbidden else 0)
        if bits:
            topics[topic] = bits
        more = len(topics) - len(self._forbidden.get(group, {}))
        if more > 0 and len(topics) > FORBIDDEN_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"group {group} is kept from {len(topics) - 1} topics already, the limit is {FORBIDDEN_MAX}: "
                "allow some again",
            )
        kept = sum(map(len, self._forbidden.values())) if more > 0 else 0
        if kept + more > FORBIDDEN_BY_ALL_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"groups are kept from topics {kept} times already, the limit is {FORBIDDEN_BY_ALL_MAX}: "
                "allow some again, or delete unused groups",
            )
        self._forbidden[group] = topics
        if not topics:
            del self._forbidden[group]
        self._advance(group)

    async def _update(self, wanted: list[SubscriptionGroupConfig], request: Request) -> None:
        checked: list[_Checked] = []
        async for part in in_turns(wanted):
            checked += map(self._check, part)
        self._put_all(checked)
        peer_log.write(
            _log,
            logging.INFO,
            request.remote,
            "groups created or changed by %s: %d",
            request.remote,
            len(wanted),
        )
        await self.publish([config.group_name for config in wanted])

    def _check(self, wanted: SubscriptionGroupConfig) -> _Checked:
        """Returns the group as it would be after this change. Raises Refused."""
        check_group(wanted.group_name)
        fault = names.group_fault(wanted.group_name) or _fault(wanted)
        if fault is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, fault)
        after = self._with_attributes(wanted)
        self._convert(after)
        return _Checked(wanted, self._table.get(wanted.group_name), after)

    def _put_all(self, changes: list[_Checked]) -> None:
        """Makes all changes of a list in one turn, or none. Raises Refused."""
        # Another request may have changed a group while the list was checked.
        changes = [
            change if self._table.get(change.name) is change.before else self._check(change.wanted)
            for change in changes
        ]
        self._check_room(sum(change.before is None for change in changes))
        for change in changes:
            self._table[change.name] = change.after
        self._advance(*(change.name for change in changes))

    def _with_attributes(self, wanted: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Applies the changes that a request carries, with `+` or `-` before each name. A name without a sign
        repeats the current value and changes nothing, so an attribute stays until it is removed. Raises
        Refused."""
        existing = self._table.get(wanted.group_name)
        current = {} if existing is None else existing.attributes
        changes = {key: value for key, value in wanted.attributes.items() if current.get(key) != value}
        attributes = altered(current, changes, creating=existing is None, keys=GROUP_KEYS)
        return msgspec.structs.replace(wanted, attributes=attributes)

    def remove(self, name: str) -> bool:
        self._forbidden.pop(name, None)
        if self._table.pop(name, None) is None:
            return False
        self._advance(name)
        return True

    def _advance(self, *changed: str) -> None:
        self._data_version = self._data_version.next(self._clock.now_ms())
        self._unwritten.touch(VERSIONS, TABLE)
        for name in changed:
            self._unwritten.touch(TABLE, name)
            self._unwritten.touch(FORBIDDEN, name)


class GroupDeletion:
    """Deletes groups. It is not part of the table because the offsets of a group live in the data plane."""

    def __init__(self, groups: Groups, plane: BrokerPlane, pools: WorkPools) -> None:
        self._groups = groups
        self._plane = plane
        self._pools = pools

    @handles(DeleteSubscriptionGroup)
    async def delete_group(self, command: DeleteSubscriptionGroup, request: Request) -> None:
        if command.group_name in SYSTEM_GROUPS:
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"group {command.group_name} is the system's own and stays"
            )
        with_offsets = command.clean_offset or command.remove_offset
        if with_offsets:
            await self._pools.administration.run(
                request, lambda: remove_offsets_of_group(self._plane, command.group_name)
            )
        if self._groups.remove(command.group_name):
            peer_log.write(
                _log,
                logging.INFO,
                request.remote,
                "group %s deleted by %s",
                command.group_name,
                request.remote,
            )
        if with_offsets:
            # Only those that were committed meanwhile.
            self._plane.remove_offsets(group=command.group_name)
        await self._groups.publish([command.group_name])


def decode_forbidden(content: bytes) -> dict[str, int]:
    return msgspec.json.decode(content, type=FewEntries[str, Int32])


def missing_group(name: str) -> str:
    return (
        f"group {name[:128]} does not exist and is not created on first use: "
        "create it first or switch autoCreateSubscriptionGroup on"
    )


def check_dead_letters(topic: str, groups: Groups) -> None:
    """Raises Refused for the dead-letter topic of a group that does not exist."""
    group = topic.removeprefix(names.DEAD_LETTER_PREFIX)
    if topic.startswith(names.DEAD_LETTER_PREFIX) and groups.get(group) is None:
        raise Refused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"topic {topic[:160]} is for the dead letters of group {group[:128]}, which does not exist: "
            "create the group first",
        )


def _fault(config: SubscriptionGroupConfig) -> str | None:
    if config.group_retry_policy.type not in RETRY_POLICIES:
        known = " or ".join(RETRY_POLICIES)
        policy = config.group_retry_policy.type[:32]
        return (
            f"group {config.group_name} asks for the retry policy {policy!a}, which is unknown; use {known}"
        )
    # Zero is allowed: messages that such a group fails at do not come again.
    if not 0 <= config.retry_queue_nums <= RETRY_QUEUES_MAX:
        return (
            f"group {config.group_name} asks for {config.retry_queue_nums} retry queues, "
            f"the limit is 0 to {RETRY_QUEUES_MAX}"
        )
    return None
