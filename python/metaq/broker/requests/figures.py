"""Figures of all topics and groups in pages, for lists that people read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TypeVar

from metaq.broker.requests.consumption import ConsumptionParts
from metaq.broker.requests.letter_counts import waiting_letters
from metaq.broker.requests.spaced_work import letting_others_run
from metaq.broker.state.stats import Rates
from metaq.protocol import names
from metaq.protocol.bodies import TopicConfig
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.figures import (
    PAGE_MAX,
    GetGroupFigures,
    GetTopicFigures,
    GroupLine,
    GroupLines,
    TopicLine,
    TopicLines,
)
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused

QUEUES_MAX = 20_000
"""Queues that one page looks at, apart from those of its last topic or group."""

GROUP_QUEUES_MAX = 100_000
"""Queues of one group that a page looks at. The lag of a group that consumes more is not in its line."""

SAMPLE_MESSAGES = 8
"""Messages at each end of a queue whose sizes stand for all."""

_Asked = TypeVar("_Asked")
_Line = TypeVar("_Line")


class Figures:
    """Answers with the figures of many topics or groups at once."""

    def __init__(self, parts: ConsumptionParts) -> None:
        self._parts = parts

    # Topics

    @handles(GetTopicFigures)
    async def get_topic_figures(self, command: GetTopicFigures, request: Request) -> Response:
        # A copy, because the table changes on the event loop.
        configs = dict(self._parts.topics.table().topic_config_table)
        if command.topic is not None and command.topic not in configs:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {command.topic[:128]} does not exist on this broker"
            )

        def look_up() -> bytes:
            found, is_last = _page(configs, command.topic, command.after, command.count)
            wanted = [configs[name] for name in found]
            rates = self._parts.statistics.rates()
            lines = _bounded(wanted, lambda config: self._topic(config, rates))
            return TopicLines(topics=lines, is_last=is_last and len(lines) == len(wanted)).encode()

        return Response(body=await self._parts.pools.look_ups.run(request, look_up))

    def _topic(self, config: TopicConfig, rates: Rates | None) -> tuple[TopicLine, int]:
        store, name = self._parts.store, config.topic_name
        line = TopicLine(
            name=name,
            read_queues=config.read_queue_nums,
            write_queues=config.write_queue_nums,
            permission=config.perm,
        )
        if rates is not None:
            line.in_per_second = rates.topic_in.get(name, 0.0)
            line.out_per_second = rates.topic_out.get(name, 0.0)
        queues = max(config.read_queue_nums, config.write_queue_nums)
        for queue_id in letting_others_run(range(queues)):
            first, end = store.min_offset(name, queue_id), store.max_offset(name, queue_id)
            if first >= end:
                continue
            line.messages += end - first
            line.size_bytes = (line.size_bytes or 0) + self._size_bytes(name, queue_id, first, end)
            first_ms = store.store_time_ms(name, queue_id, first)
            last_ms = store.store_time_ms(name, queue_id, end - 1)
            if first_ms >= 0:
                line.first_stored_ms = min(first_ms, line.first_stored_ms or first_ms)
            if last_ms >= 0:
                line.last_stored_ms = max(last_ms, line.last_stored_ms or last_ms)
        if name.startswith(names.DEAD_LETTER_PREFIX):
            self._add_waiting(line, config)
        return line, queues

    def _add_waiting(self, line: TopicLine, config: TopicConfig) -> None:
        """Adds the dead letters that were not sent again. The group's offset says how far they were."""
        store, name = self._parts.store, config.topic_name
        letters = waiting_letters(store, self._parts.plane, name, config.read_queue_nums)
        line.waiting, line.waiting_since_ms = letters.count, letters.oldest_ms

    def _size_bytes(self, topic: str, queue_id: int, first: int, end: int) -> int:
        """The size of a queue's messages as stored. A long queue is estimated from its two ends, because to
        read all its entries could take seconds."""
        store, count = self._parts.store, min(end - first, SAMPLE_MESSAGES)
        ends = {first, max(first, end - count)}
        sizes = [size for begin in ends for _, size, _ in store.queue_entries(topic, queue_id, begin, count)]
        return round((end - first) * sum(sizes) / len(sizes)) if sizes else 0

    # Groups

    @handles(GetGroupFigures)
    async def get_group_figures(self, command: GetGroupFigures, request: Request) -> Response:
        look_ups = self._parts.pools.look_ups
        page, is_last = await look_ups.run(request, lambda: self._group_page(command))
        # Clients change on the event loop, so they are read here and not on the thread.
        wanted = [self._live(name, is_enabled=is_enabled) for name, is_enabled in page]

        def look_up() -> bytes:
            rates = self._parts.statistics.rates()
            lines = _bounded(wanted, lambda asked: self._progress(*asked, rates))
            return GroupLines(groups=lines, is_last=is_last and len(lines) == len(wanted)).encode()

        return Response(body=await look_ups.run(request, look_up))

    def _group_page(self, command: GetGroupFigures) -> tuple[list[tuple[str, bool]], bool]:
        """The groups of a page, whether each is enabled, and whether there are none behind it."""
        known = {config.group_name: config.consume_enable for config in self._parts.groups}
        if command.group is not None and command.group not in known:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {command.group[:128]} does not exist on this broker",
            )
        found, is_last = _page(known, command.group, command.after, command.count)
        return [(name, known[name]) for name in found], is_last

    def _live(self, name: str, *, is_enabled: bool) -> tuple[GroupLine, frozenset[str]]:
        """The group with the number of its members, and the topics that they subscribe to."""
        live = self._parts.clients.consumer_group(name)
        if live is None:
            return GroupLine(name=name, enabled=is_enabled), frozenset()
        line = GroupLine(name=name, members=len(live.client_ids()), enabled=is_enabled)
        return line, frozenset(live.subscriptions)

    def _progress(
        self, line: GroupLine, subscribed: frozenset[str], rates: Rates | None
    ) -> tuple[GroupLine, int]:
        # A resend commits an offset among the dead letters, which is not lag.
        letters = names.dead_letter_topic(line.name)
        topics = [topic for topic in self._parts.plane.topics_of_group(line.name) if topic != letters]
        if subscribed:
            # A topic that a live group no longer subscribes to is not backlog.
            topics = [topic for topic in topics if topic in subscribed]
        configs = [config for topic in topics if (config := self._parts.topics.get(topic)) is not None]
        line.topics = len(configs)
        if rates is not None:
            line.out_per_second = sum(
                rates.pair_out.get(f"{config.topic_name}@{line.name}", 0.0) for config in configs
            )
        queues = sum(config.read_queue_nums for config in configs)
        if queues > GROUP_QUEUES_MAX:
            # To look at all of them would hold up everybody who asks for figures.
            return line, 0
        for config in configs:
            self._add_lag(line, config)
        return line, queues

    def _add_lag(self, line: GroupLine, topic: TopicConfig) -> None:
        store, name, now_ms = self._parts.store, topic.topic_name, self._parts.clock.now_ms()
        committed = self._parts.plane.offsets_of(line.name, name)
        for queue_id in letting_others_run(range(topic.read_queue_nums)):
            end, place = store.max_offset(name, queue_id), committed.get(queue_id, 0)
            line.lag = (line.lag or 0) + max(end - place, 0)
            if place < end:
                # Messages before the first one have aged out, and nobody waits for them any more.
                waiting = max(place, store.min_offset(name, queue_id))
                next_ms = store.store_time_ms(name, queue_id, waiting)
                if next_ms >= 0:
                    line.lag_ms = max(now_ms - next_ms, line.lag_ms or 0)


def _page(known: Iterable[str], only: str | None, after: str, count: int) -> tuple[list[str], bool]:
    """The names of a page in order, and whether there are none behind it."""
    if only is not None:
        return [only], True
    ordered = sorted(known)
    begin = bisect_right(ordered, after)
    end = begin + min(max(count, 1), PAGE_MAX)
    return ordered[begin:end], end >= len(ordered)


def _bounded(wanted: Iterable[_Asked], look_at: Callable[[_Asked], tuple[_Line, int]]) -> list[_Line]:
    """The lines of a page, which ends early if they have very many queues."""
    lines: list[_Line] = []
    queues = 0
    for asked in letting_others_run(wanted):
        line, looked_at = look_at(asked)
        lines.append(line)
        queues += looked_at
        if queues >= QUEUES_MAX:
            break
    return lines
