"""Remembers since when groups hold messages without a commit.

A member whose handler hangs pulls messages, keeps them and commits nothing more. Its heartbeats go on, so
nothing else shows it. Each look compares the queues in which a group was given messages that it has not
committed with those of the look before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from metaq._core import BrokerPlane, Clock
from metaq.broker.state.clients import Clients
from metaq.broker.state.groups import Groups
from metaq.protocol import names
from metaq.protocol.bodies import CONSUME_PASSIVELY

LOOK_INTERVAL_S: Final = 10.0
STUCK_MS_MIN: Final = 60_000
"""A group that holds messages and has committed nothing for this long is reported."""
GROUPS_AT_ONCE: Final = 64
"""Groups that are looked at before other work has its turn."""
QUEUES_PER_GROUP_MAX: Final = 2_000
QUEUES_MAX: Final = 100_000
"""Queues that are remembered. One takes about 300 bytes."""
QUEUES_NAMED_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class StuckGroup:
    """The queues of a topic in which a group holds messages and commits nothing."""

    group: str
    topic: str
    queues: tuple[int, ...]
    """The first of them; `queue_count` counts all."""
    queue_count: int
    messages: int | None
    """None if the group has never committed an offset there."""
    since_ms: int
    """Since then the oldest of these queues has had no commit, as far as the looks tell."""


@dataclass(frozen=True, slots=True)
class _Seen:
    committed: int | None
    next_offset: int
    since_ms: int


class StuckQueues:
    """Looks at the groups that have members."""

    def __init__(self, plane: BrokerPlane, clients: Clients, groups: Groups, clock: Clock) -> None:
        self._plane = plane
        self._clients = clients
        self._groups = groups
        self._clock = clock
        self._seen: dict[tuple[str, str, int], _Seen] = {}
        self.is_complete = True
        """Whether the last look saw every queue."""

    async def look(self) -> None:
        """Looks once at all groups. The cost grows with the groups that have members."""
        found: dict[tuple[str, str, int], _Seen] = {}
        is_complete = True
        groups = iter(list(self._clients.all_consumer_groups()))
        now_ms = self._clock.now_ms()
        while part := list(islice(groups, GROUPS_AT_ONCE)):
            wanted = [
                group.name
                for group in part
                if group.consume_type == CONSUME_PASSIVELY
                and not group.broadcasting
                and group.client_ids()
                and self._is_enabled(group.name)
                and not names.is_system_group(group.name)
            ]
            for group, queues in await asyncio.to_thread(self._ask, wanted):
                is_complete = is_complete and len(queues) < QUEUES_PER_GROUP_MAX
                for topic, queue_id, next_offset, committed in queues:
                    if len(found) >= QUEUES_MAX:
                        is_complete = False
                        break
                    key = (group, topic, queue_id)
                    before = self._seen.get(key)
                    is_same = before is not None and before.committed == committed
                    since_ms = before.since_ms if is_same and before is not None else now_ms
                    # The clock may have been set back.
                    found[key] = _Seen(committed, next_offset, min(since_ms, now_ms))
        self._seen, self.is_complete = found, is_complete

    def stuck(self) -> list[StuckGroup]:
        """Returns the groups that hold messages for a minute or longer, most messages first. May be called
        on any thread."""
        now_ms = self._clock.now_ms()
        by_topic: dict[tuple[str, str], list[tuple[int, _Seen]]] = {}
        for (group, topic, queue_id), seen in list(self._seen.items()):
            if now_ms - seen.since_ms >= STUCK_MS_MIN:
                by_topic.setdefault((group, topic), []).append((queue_id, seen))
        stuck = [_described(group, topic, queues) for (group, topic), queues in by_topic.items()]
        return sorted(stuck, key=lambda found: (-(found.messages or 0), found.since_ms, found.group))

    def _ask(self, groups: list[str]) -> list[tuple[str, list[tuple[str, int, int, int | None]]]]:
        return [(group, self._plane.unsettled(group, QUEUES_PER_GROUP_MAX)) for group in groups]

    def _is_enabled(self, group: str) -> bool:
        config = self._groups.get(group)
        return config is not None and config.consume_enable


def _described(group: str, topic: str, queues: list[tuple[int, _Seen]]) -> StuckGroup:
    held = [seen.next_offset - seen.committed for _, seen in queues if seen.committed is not None]
    numbers = tuple(islice(_numbers(queues), QUEUES_NAMED_MAX))
    messages = sum(held) if len(held) == len(queues) else None
    return StuckGroup(group, topic, numbers, len(queues), messages, min(seen.since_ms for _, seen in queues))


def _numbers(queues: list[tuple[int, _Seen]]) -> Iterator[int]:
    yield from sorted(queue_id for queue_id, _ in queues)
