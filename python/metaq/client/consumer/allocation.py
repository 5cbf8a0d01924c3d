"""Strategies that divide the queues of a topic among the members of a group.

Every member decides alone, from the same sorted lists of queues and members. So a strategy is a pure function
of them and gives every queue to exactly one member. All members of a group must use the same strategy.
`average` is also the default of Java clients, so Java and Python members can share a group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from metaq.client.session.routes import Queue

Strategy = Callable[[str, "Sequence[Queue]", Sequence[str]], "list[Queue]"]
"""Called with our own client id, all queues and all client ids; both lists are sorted."""


def average(client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]) -> list[Queue]:
    """Gives each member neighbouring queues, equally many; the first members get one more if needed."""
    index = _index(client_id, client_ids)
    if index is None:
        return []
    size, rest = divmod(len(queues), len(client_ids))
    start = index * size + min(index, rest)
    return list(queues[start : start + size + (index < rest)])


def circular(client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]) -> list[Queue]:
    """Deals the queues out one by one, so each member gets some of every broker."""
    index = _index(client_id, client_ids)
    return [] if index is None else list(queues[index :: len(client_ids)])


def sticky(client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]) -> list[Queue]:
    """Moves few queues when a member comes or goes, and gives no member more than its share, rounded up.

    Each queue goes to the member with the highest hash of queue and member (rendezvous hashing) among the
    members that still have room. Members need not remember anything or agree on anything.
    """
    if client_id not in client_ids:
        return []
    room = {member: -(-len(queues) // len(client_ids)) for member in client_ids}
    mine: list[Queue] = []
    for queue in queues:
        chosen = max(
            (member for member in client_ids if room[member]), key=lambda member: _weight(queue, member)
        )
        room[chosen] -= 1
        if chosen == client_id:
            mine.append(queue)
    return mine


def by_machine_room(
    room_of_broker: Callable[[str], str],
    room_of_client: Callable[[str], str],
    within: Strategy = average,
) -> Strategy:
    """Gives queues to members in the machine room of their broker; a room without members shares with all.

    The functions return the room of a broker name and of a client id. `within` divides the queues of a room.
    """

    def allocate(client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]) -> list[Queue]:
        if client_id not in client_ids:
            return []
        members: dict[str, list[str]] = {}
        for member in client_ids:
            members.setdefault(room_of_client(member), []).append(member)
        local: dict[str, list[Queue]] = {}
        homeless: list[Queue] = []
        for queue in queues:
            room = room_of_broker(queue.broker)
            (local.setdefault(room, []) if room in members else homeless).append(queue)
        room = room_of_client(client_id)
        return [
            *within(client_id, local.get(room, []), members[room]),
            *within(client_id, homeless, client_ids),
        ]

    return allocate


STRATEGIES: Final[dict[str, Strategy]] = {"average": average, "circular": circular, "sticky": sticky}


def strategy_named(strategy: str | Strategy) -> Strategy:
    """Returns the strategy of that name, or the function itself. Raises ValueError with the known names."""
    if not isinstance(strategy, str):
        if not callable(strategy):
            raise ValueError(f"strategy is {strategy!r}: it must be a name or a function")
        return strategy
    try:
        return STRATEGIES[strategy]
    except KeyError:
        names = ", ".join(STRATEGIES)
        raise ValueError(f"there is no strategy {strategy!r}: use {names} or a function") from None


def _index(client_id: str, client_ids: Sequence[str]) -> int | None:
    return client_ids.index(client_id) if client_id in client_ids else None


def _weight(queue: Queue, client_id: str) -> bytes:
    text = f"{queue.topic}\n{queue.broker}\n{queue.id}\n{client_id}"
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
