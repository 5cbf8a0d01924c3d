"""The broker's report about its own health, and the list of its clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Final

from metaq import __version__
from metaq._core import BrokerPlane
from metaq.broker.background.stuck_queues import StuckGroup, StuckQueues
from metaq.broker.node import Node
from metaq.broker.requests.heartbeats import language_name
from metaq.broker.requests.letter_counts import waiting_letters
from metaq.broker.requests.spaced_work import letting_others_run, sorted_in_steps
from metaq.broker.state.broker_state import BrokerState
from metaq.broker.state.consumer_group import ConsumerGroup, Member
from metaq.broker.state.stats import Rates
from metaq.monitoring.readiness import registration_fault
from metaq.protocol import names
from metaq.protocol.bodies import TopicConfig
from metaq.protocol.commands.health import (
    CLIENTS_PER_PAGE,
    LISTED_MAX,
    Backlog,
    BrokerReport,
    CheckReport,
    ClientKind,
    ClientPage,
    Conflict,
    ConnectedClient,
    DamagedMessage,
    DeadLetterCount,
    GetBrokerReport,
    ListClients,
    StuckReport,
    backlog_weight,
)
from metaq.protocol.dispatch import Request, Response, handles
from metaq.work_pools import let_event_loop_run

PAIRS_MAX: Final = 50_000
"""Pairs of a group and a topic that one report looks at, and topics of dead letters. Either takes about a
second."""
QUEUES_MAX: Final = 500_000
"""Queues with committed offsets that one report looks at, and queues of dead letters, apart from those of the
last pair or topic."""
PAIRS_AT_ONCE: Final = 32
"""Pairs that are looked at before the event loop may run."""
TOPICS_AT_ONCE: Final = 1_000
FILTERS_MAX: Final = 4
_TEXT_MAX: Final = 1_024
_HOUR_MS: Final = 3_600_000
NOT_SUBSCRIBED: Final = "not subscribed"


@dataclass(frozen=True, slots=True)
class HealthParts:
    """The parts that a report looks at."""

    node: Node
    plane: BrokerPlane
    state: BrokerState
    registered: Callable[[], Collection[str]]
    """Returns the name servers that have taken the registration."""
    permission: Callable[[], int]
    is_master: bool
    stuck_queues: StuckQueues | None = None
    """A replica has none."""


class HealthRequests:
    """Answers of one role."""

    def __init__(self, parts: HealthParts) -> None:
        self._parts = parts

    @handles(GetBrokerReport)
    async def get_broker_report(self, command: GetBrokerReport, request: Request) -> Response:
        pools = self._parts.node.pools
        return Response(body=await pools.administration.run(request, lambda: self.report().encode()))

    @handles(ListClients)
    async def list_clients(self, command: ListClients, request: Request) -> Response:
        pools = self._parts.node.pools
        return Response(
            body=await pools.administration.run(
                request, lambda: self._clients(max(command.first, 0)).encode()
            )
        )

    def report(self) -> BrokerReport:
        """Looks at everything. A replica knows no backlogs: offsets are committed at its master."""
        node = self._parts.node
        traffic, waiting = node.listener.figures(), self._parts.plane.figures()
        backlogs, all_seen = self._backlogs() if self._parts.is_master else ([], True)
        letters, all_letters_seen = self._dead_letters() if self._parts.is_master else ([], True)
        watch = self._parts.stuck_queues
        stuck = [] if watch is None else watch.stuck()
        # One more than are listed: then the report says that there are others.
        conflicts = list(islice(self._conflicts(), LISTED_MAX + 1))
        return BrokerReport(
            version=__version__,
            now_ms=node.clock.now_ms(),
            checks=tuple(self._checks()),
            metrics=node.metrics_address,
            retention_ms=int(node.options.store.file_reserved_hours) * _HOUR_MS,
            disk_clean_percent=node.options.store.disk_clean_percent,
            disk_refuse_percent=node.options.store.disk_refuse_percent,
            permission=self._parts.permission(),
            damaged_records=node.store.figures().damaged_records,
            scrub=node.scrubber.report(),
            damaged=tuple(DamagedMessage(*message) for message in node.store.damaged_messages()),
            set_aside=0 if node.journal.set_aside is None else node.journal.set_aside.count(),
            sends_over_limit=traffic.sends_over_limit,
            limits_waiting=waiting.limits_waiting,
            connections_cut=traffic.connections_cut,
            backlogs=tuple(backlogs),
            dead_letters=tuple(letters[:LISTED_MAX]),
            conflicts=tuple(conflicts[:LISTED_MAX]),
            stuck=tuple(_stuck_report(found) for found in stuck[:LISTED_MAX]),
            is_complete=all_seen
            and all_letters_seen
            and (watch is None or watch.is_complete)
            and max(len(letters), len(conflicts), len(stuck)) <= LISTED_MAX,
        )

    def _checks(self) -> Iterator[CheckReport]:
        node = self._parts.node
        fault = registration_fault(node.options.nameservers, self._parts.registered())
        yield CheckReport("registered", fault and fault[:_TEXT_MAX])
        if self._parts.is_master:
            fault = node.store.write_fault()
            yield CheckReport("writable", fault and fault[:_TEXT_MAX])

    # Backlogs

    def _backlogs(self) -> tuple[list[Backlog], bool]:
        """The largest backlogs, and whether all were looked at."""
        found: list[_Found] = []
        queues = 0
        rates = self._parts.state.statistics.rates()
        for looked_at, (group, topic) in enumerate(self._consumed()):
            if looked_at >= PAIRS_MAX or queues >= QUEUES_MAX:
                return self._described(found), False
            if looked_at % PAIRS_AT_ONCE == 0:
                let_event_loop_run()
            messages = 0
            for _, place, end in self._places(group, topic):
                queues += 1
                messages += max(end - place, 0)
            if messages > 0:
                found.append(_Found(group, topic, messages, _growth(rates, group, topic)))
        return self._described(found), len(found) <= LISTED_MAX

    def _consumed(self) -> Iterator[tuple[str, str]]:
        """The groups, and the topics that they consume."""
        clients, topics = self._parts.node.clients, self._parts.state.topics
        for config in list(self._parts.state.groups):
            group = config.group_name
            if names.is_system_group(group):
                continue
            live = clients.consumer_group(group)
            for topic in self._parts.plane.topics_of_group(group):
                if topic.startswith(names.DEAD_LETTER_PREFIX) or topics.get(topic) is None:
                    continue
                # A topic that a live group no longer subscribes to is not backlog.
                if live is None or not live.subscriptions or topic in live.subscriptions:
                    yield group, topic

    def _places(self, group: str, topic: str) -> Iterator[tuple[int, int, int]]:
        """Each queue in which the group has committed: its id, the next offset to consume, and its end."""
        store = self._parts.node.store
        offsets = self._parts.plane.offsets_of(group, topic)
        for queue_id, committed in letting_others_run(offsets.items()):
            first = max(committed, store.min_offset(topic, queue_id))
            yield queue_id, first, store.max_offset(topic, queue_id)

    def _described(self, found: list[_Found]) -> list[Backlog]:
        found.sort(key=lambda one: backlog_weight(one.messages, one.growth), reverse=True)
        clients = self._parts.node.clients
        listed = []
        for one in found[:LISTED_MAX]:
            live = clients.consumer_group(one.group)
            members = 0 if live is None else len(live.client_ids())
            waiting_ms = self._waiting_ms(one.group, one.topic)
            listed.append(Backlog(one.group, one.topic, one.messages, waiting_ms, members, one.growth))
        return listed

    def _waiting_ms(self, group: str, topic: str) -> int | None:
        node = self._parts.node
        stored = [
            node.store.store_time_ms(topic, queue_id, place)
            for queue_id, place, end in self._places(group, topic)
            if place < end
        ]
        oldest = min((time_ms for time_ms in stored if time_ms >= 0), default=None)
        return None if oldest is None else max(node.clock.now_ms() - oldest, 0)

    def _dead_letters(self) -> tuple[list[DeadLetterCount], bool]:
        """The dead letters of all groups, most first, and whether all were looked at."""
        found: list[DeadLetterCount] = []
        topics = queues = 0
        all_seen = True
        for number, config in enumerate(list(self._parts.state.topics)):
            if number % TOPICS_AT_ONCE == 0:
                let_event_loop_run()
            if not config.topic_name.startswith(names.DEAD_LETTER_PREFIX):
                continue
            all_seen = topics < PAIRS_MAX and queues < QUEUES_MAX
            if not all_seen:
                break
            topics += 1
            queues += config.read_queue_nums
            letters = self._dead_letters_in(config)
            if letters is not None:
                found.append(letters)
        found.sort(key=attrgetter("messages"), reverse=True)
        return found, all_seen

    def _dead_letters_in(self, config: TopicConfig) -> DeadLetterCount | None:
        """None if the group has got all of them again, or never had any."""
        topic = config.topic_name
        letters = waiting_letters(self._parts.node.store, self._parts.plane, topic, config.read_queue_nums)
        if not letters.count:
            return None
        group = topic.removeprefix(names.DEAD_LETTER_PREFIX)
        return DeadLetterCount(group, letters.count, letters.newest_ms, letters.oldest_ms)

    def _conflicts(self) -> Iterator[Conflict]:
        for group in self._parts.node.clients.all_consumer_groups():
            yield from conflicts_of(group)

    # Clients

    def _clients(self, first: int) -> ClientPage:
        found = sorted_in_steps(
            self._connected(),
            key=lambda client: (client[1], client[0], client[2].client_id, client[2].connection),
        )
        page = tuple(
            ConnectedClient(
                kind,
                group,
                member.client_id,
                member.remote,
                language_name(member.language),
                member.version,
                max(member.seen_ms, 0),
                member.client_version,
            )
            for kind, group, member in found[first : first + CLIENTS_PER_PAGE]
        )
        return ClientPage(page, len(found))

    def _connected(self) -> Iterator[tuple[ClientKind, str, Member]]:
        clients = self._parts.node.clients
        for group in clients.all_consumer_groups():
            for member in group.present():
                yield "consumer", group.name, member
        for name in clients.producer_groups():
            for member in clients.producers(name):
                yield "producer", name, member


@dataclass(frozen=True, slots=True)
class _Found:
    """The backlog of a group in a topic."""

    group: str
    topic: str
    messages: int
    growth: float | None


def _growth(rates: Rates | None, group: str, topic: str) -> float | None:
    """Messages by which a backlog grows in a second; None while the broker has not measured yet."""
    if rates is None:
        return None
    return rates.topic_in.get(topic, 0.0) - rates.pair_out.get(f"{topic}@{group}", 0.0)


def _stuck_report(found: StuckGroup) -> StuckReport:
    return StuckReport(
        found.group, found.topic, found.queues, found.queue_count, found.messages, found.since_ms
    )


def conflicts_of(group: ConsumerGroup) -> Iterator[Conflict]:
    """Yields each topic that members of the group subscribe to in different ways. All members of a group
    must subscribe to the same topics with the same filters."""
    members = 0
    wanted: dict[str, tuple[set[str], int]] = {}
    """Topic → the different filters, and how many members have one. Each subscription is looked at once."""
    for member in letting_others_run(group.present()):
        # A member whose first full heartbeat is still to come has none.
        members += bool(member.subscriptions)
        for topic, entry in list(member.subscriptions.items()):
            filters, count = wanted.get(topic, (set(), 0))
            if len(filters) <= FILTERS_MAX:
                filters.add(entry.sub_string)
            wanted[topic] = (filters, count + 1)
    retry = names.retry_topic(group.name)
    for topic, (filters, count) in letting_others_run(sorted(wanted.items(), key=itemgetter(0))):
        different = filters | {NOT_SUBSCRIBED} if count < members else filters
        if len(different) > 1 and topic != retry:
            shown = tuple(text[:_TEXT_MAX] for text in sorted(different)[:FILTERS_MAX])
            yield Conflict(group.name, topic, shown)
