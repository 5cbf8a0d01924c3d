"""Limits of what clients may make the broker remember about them, in numbers and in bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from metaq.protocol import names
from metaq.protocol.bodies import TAG, ConsumerData, SubscriptionData
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.protocol.handling.local_peers import source_of
from metaq.settings import MIB

SUBSCRIPTIONS_PER_GROUP_MAX = 1_000
EXPRESSION_CHARACTERS_MAX = 64 * 1024
MEMBER_BYTES = 600
"""About the memory of one client in one group."""
SUBSCRIPTION_BYTES = 350
"""About the memory of one subscription without its texts."""
NUMBER_BYTES = 40
"""About the memory of one number in a list."""
COMPILED_BYTES_PER_CHARACTER = 12
"""About the memory of a compiled expression in the data plane, which keeps the filter of every member."""
TAGS_BYTES_PER_CHARACTER = 2
"""The same for a filter by tags."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """How many clients a group may have, and how much may be remembered about them."""

    clients_per_group_max: int = 5_000
    subscriptions_per_client_max: int = 2_000
    bytes_per_client_max: int = MIB
    bytes_per_group_max: int = 32 * MIB
    bytes_max: int = 128 * MIB
    bytes_per_address_max: int = 64 * MIB

    @property
    def share_of_address(self) -> int:
        """The bytes of all clients at one address: it leaves room for others, whatever the settings say."""
        return min(self.bytes_per_address_max, self.bytes_max // 2)


@dataclass(frozen=True, slots=True)
class LockLimits:
    """How many queues may be locked at the same time. A lock takes up to a kilobyte of memory."""

    total_max: int = 50_000
    per_connection_max: int = 10_000
    per_stranger_max: int = 1_000
    """For one connection in groups that it is not a member of. A consumer sends a heartbeat before it locks,
    but it may have just reconnected, or a replica relays its request."""

    @property
    def per_host_max(self) -> int:
        """One machine leaves room for others."""
        return max(self.total_max // 2, 1)


@dataclass(frozen=True, slots=True)
class Size:
    """The memory of one client in one group."""

    bytes: int = 0
    subscriptions: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.bytes + other.bytes, self.subscriptions + other.subscriptions)

    def __sub__(self, other: Size) -> Size:
        return Size(self.bytes - other.bytes, self.subscriptions - other.subscriptions)


NOTHING = Size()


def member_size(subscriptions: Iterable[SubscriptionData] = ()) -> Size:
    """The memory of a client in a group, with its subscriptions."""
    sizes = [_subscription_bytes(subscription) for subscription in subscriptions]
    return Size(MEMBER_BYTES + sum(sizes), len(sizes))


def _subscription_bytes(subscription: SubscriptionData) -> int:
    texts = (subscription.topic, subscription.sub_string, subscription.expression_type)
    by_tags = subscription.expression_type in ("", TAG)
    compiled = TAGS_BYTES_PER_CHARACTER if by_tags else COMPILED_BYTES_PER_CHARACTER
    return (
        SUBSCRIPTION_BYTES
        + compiled * len(subscription.sub_string)
        + sum(sys.getsizeof(text) for text in (*texts, *subscription.tags_set))
        + NUMBER_BYTES * (len(subscription.code_set) + len(subscription.tags_set))
    )


def check_subscriptions(data: ConsumerData) -> None:
    """Raises Refused for subscriptions that no honest client has."""
    count = len(data.subscription_data_set)
    fault: str | None = None
    if count > SUBSCRIPTIONS_PER_GROUP_MAX:
        limit = SUBSCRIPTIONS_PER_GROUP_MAX
        fault = f"group {data.group_name} subscribes to {count} topics, the limit is {limit}"
    for entry in data.subscription_data_set if fault is None else ():
        if len(entry.sub_string) > EXPRESSION_CHARACTERS_MAX:
            fault = f"the filter on {entry.topic[:128]} is longer than {EXPRESSION_CHARACTERS_MAX} characters"
        fault = fault or names.topic_fault(entry.topic)
    if fault is not None:
        raise Refused(ResponseCode.INVALID_PARAMETER, fault)


GroupKey = tuple[str, str]
"""The kind of a group, consumer or producer, and its name."""


class ClientBudget:
    """The memory of all clients: in all, by address, by connection and by group."""

    def __init__(
        self, limits: ClientLimits, count_group: Callable[[str, int], None] = lambda group, more_bytes: None
    ) -> None:
        """`count_group` is called with a group and the bytes by which it has grown; negative if it has
        shrunk."""
        self.limits = limits
        self._count_group = count_group
        self.total = NOTHING
        self._of_connection: dict[int, tuple[Size, str]] = {}
        """With the address of its machine."""
        self._of_address: dict[str, Size] = {}
        self._of_group: dict[GroupKey, tuple[Size, int]] = {}
        """With the number of its members."""

    def change(
        self, connection: int, remote: str, group: GroupKey, before: Size | None, after: Size | None
    ) -> None:
        """Replaces the size of a client in a group; None means that it is not in it. `remote` is the other
        end of its connection. Raises Refused if something grows past a limit."""
        self.check(connection, remote, group, before, after)
        more = (after or NOTHING) - (before or NOTHING)
        of_connection, address = self._connection(connection, remote)
        of_connection += more
        of_address = self._of_address.get(address, NOTHING) + more
        of_group, members = self._of_group.get(group, (NOTHING, 0))
        of_group, members = of_group + more, members + (before is None) - (after is None)
        self.total += more
        if more.bytes:
            self._count_group(group[1], more.bytes)
        self._of_connection[connection] = (of_connection, address)
        self._of_address[address] = of_address
        self._of_group[group] = (of_group, members)
        if of_connection == NOTHING:
            del self._of_connection[connection]
        if of_address == NOTHING:
            del self._of_address[address]
        if members == 0:
            del self._of_group[group]

    def _connection(self, connection: int, remote: str) -> tuple[Size, str]:
        return self._of_connection.get(connection) or (NOTHING, source_of(remote))

    def check(
        self, connection: int, remote: str, group: GroupKey, before: Size | None, after: Size | None
    ) -> None:
        """Raises Refused if `change` would."""
        limits, (kind, name) = self.limits, group
        more = (after or NOTHING) - (before or NOTHING)
        if more.bytes <= 0 and more.subscriptions <= 0:
            return
        of_connection, address = self._connection(connection, remote)
        of_connection += more
        of_group, members = self._of_group.get(group, (NOTHING, 0))
        of_group += more
        if before is None and members >= limits.clients_per_group_max:
            raise _refused(
                f"{kind} group {name} would have {members + 1} clients",
                "clients_per_group_max",
                "use other groups",
            )
        if of_connection.subscriptions > limits.subscriptions_per_client_max:
            raise _refused(
                f"one client would have {of_connection.subscriptions} subscriptions",
                "subscriptions_per_client_max",
                "divide them between clients",
            )
        if of_connection.bytes > limits.bytes_per_client_max:
            raise _refused(
                f"the groups and subscriptions of one client would take {of_connection.bytes} bytes",
                "client_bytes_max",
                "shorten its filters",
            )
        if of_group.bytes > limits.bytes_per_group_max:
            raise _refused(
                f"the subscriptions of {kind} group {name} would take {of_group.bytes} bytes",
                "group_clients_bytes_max",
                "shorten their filters",
            )
        self._check_all(address, more)

    def _check_all(self, address: str, more: Size) -> None:
        """Raises Refused if all clients, or all at one address, would take too much."""
        limits = self.limits
        of_address, total = self._of_address.get(address, NOTHING) + more, self.total + more
        if of_address.bytes > limits.share_of_address:
            raise _refused(
                f"the groups and subscriptions of clients at {address} would take {of_address.bytes} bytes",
                "clients_bytes_per_address_max or half of clients_bytes_max",
                "close clients that you do not need",
            )
        if total.bytes > limits.bytes_max:
            raise _refused(
                f"the groups and subscriptions of all clients would take {total.bytes} bytes",
                "clients_bytes_max",
                "try again later",
            )


def _refused(what: str, setting: str, hint: str) -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, f"{what}, which is more than {setting} allows: {hint}")
