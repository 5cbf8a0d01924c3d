"""Which queues of a topic each member of a group reads.

Every member decides alone, from the same sorted lists of queues and of members, so a strategy is a pure
function of them: it gives every queue to exactly one member, whoever asks. All members of a group must
use the same one. `average` is what Java clients do unless told otherwise, so both may share a group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from metaq.client.session.routes import Queue

Strategy = Callable[[str, "Sequence[Queue]", Sequence[str]], "list[Queue]"]
"""Called with our own client id, all queues and all client ids, both sorted."""


def average(client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]) -> list[Queue]:
    """Neighbouring queues in shares of equal size; the first members get one more if it does not divide."""
    place = _place(client_id, client_ids)
    if place is None:
        return []
    size, rest = divmod(len(queues), len(client_ids))
    start = place * size + min(place, rest)
    return list(queues[start : start + size + (place < rest)])


def circular(client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]) -> list[Queue]:
    """Queues dealt out one by one, so that each member gets some of every broker."""
    place = _place(client_id, client_ids)
    return [] if place is None else list(queues[place :: len(client_ids)])


def sticky(client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]) -> list[Queue]:
    """Few queues move when a member comes or goes, and no member has more than its share, rounded up.

    Each queue goes to the member with the highest hash of the two together (rendezvous hashing) among those
    that still have room; nothing has to be remembered or agreed on.
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
    """Queues go to members in the machine room of their broker; those of a room without members go to all.

    Both functions take a name (of a broker, a client id) and give the room; `within` shares a room's queues.
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
    """The strategy itself or the one of that name; raises ValueError, listing the names."""
    if not isinstance(strategy, str):
        return strategy
    try:
        return STRATEGIES[strategy]
    except KeyError:
        names = ", ".join(STRATEGIES)
        raise ValueError(f"no strategy is called {strategy!r}: {names}, or a function") from None


def _place(client_id: str, client_ids: Sequence[str]) -> int | None:
    return client_ids.index(client_id) if client_id in client_ids else None


def _weight(queue: Queue, client_id: str) -> bytes:
    text = f"{queue.topic}\n{queue.broker}\n{queue.id}\n{client_id}"
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
