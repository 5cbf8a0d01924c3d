"""The metrics of a broker: RocketMQ's names and labels, and `metaq_…` for what RocketMQ does not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from metaq._core import ListenerFigures, PlaneFigures, Store, StoreFigures
from metaq.admin.versions import version_text
from metaq.broker.requests.heartbeats import language_name
from metaq.broker.requests.runtime_info import earliest_ms
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import Member
from metaq.monitoring.readiness import Check, check_broker
from metaq.monitoring.text import Page
from metaq.protocol import names
from metaq.protocol.commands.health import ScrubReport
from metaq.protocol.commands.replication import GroupStatus

if TYPE_CHECKING:
    from metaq.broker import Broker
    from metaq.broker.master import Master
    from metaq.broker.replica import Replica

Detail = Literal["topics", "broker"]
"""How much is shown: everything, or nothing that grows with topics, groups and clients."""

SCOPE = "broker-meter"
"""The meter to which an Apache broker assigns all of its metrics."""
STORAGE = {"storage_type": "local", "storage_medium": "disk"}
PROTOCOL = {"protocol_type": "remoting"}


@dataclass(frozen=True, slots=True)
class Observed:
    """State that only the broker's own thread may read."""

    checks: Sequence[Check]
    group: GroupStatus | None
    """The state of its group, if it is the master of one: only a master knows how far others are behind."""

    @classmethod
    def of(cls, broker: Broker) -> Observed:
        is_leading = broker.group is not None and broker.is_master
        return cls(check_broker(broker), broker.group.status() if broker.group and is_leading else None)


@dataclass(frozen=True, slots=True)
class BrokerMetrics:
    """Makes the page of a broker. Safe to call from another thread than the broker's."""

    broker: Broker
    series_max: int
    detail: Detail

    def page(self, observed: Observed) -> bytes:
        """All metrics as text. A broker without a role shows only what belongs to its process."""
        broker = self.broker
        settings = broker.options.broker
        labels = {
            "cluster": settings.cluster,
            "node_type": "broker",
            "node_id": settings.name,
            "otel_scope_name": SCOPE,
        }
        page = Page(labels)
        _add_listener(page, broker.listener.figures())
        page.gauge("metaq_broker_is_master", broker.is_master)
        page.family(
            "metaq_broker_check",
            "gauge",
            (({"check": check.name}, check.fault is None) for check in observed.checks),
        )
        if observed.group is not None:
            _add_group(page, observed.group)
        role = broker.role
        if role is None:
            return page.text()
        stored, plane = broker.store.figures(), role.plane.figures()
        _add_role(page, role)
        _add_store(page, stored, broker.clock.now_ms() - earliest_ms(broker.store, stored))
        _add_scrub(page, broker.node.scrubber.report())
        _add_timers(page, plane, broker.store, broker.clock.now_ms())
        if self.detail == "topics":
            _add_clients(page, broker.node.clients)
        text, dropped = role.plane.scrape(
            list(labels.items()), series_max=self.series_max, by_topic=self.detail == "topics"
        )
        page.gauge("metaq_metrics_series_dropped", dropped)
        return page.text() + text


def _add_listener(page: Page, figures: ListenerFigures) -> None:
    page.gauge("metaq_connections", figures.connections)
    page.gauge("metaq_connection_memory_bytes", figures.memory_bytes)
    page.counter("metaq_connections_cut_total", figures.connections_cut)
    page.counter("metaq_requests_total", figures.requests)
    page.counter("metaq_requests_refused_total", figures.refused)
    page.counter("metaq_requests_crossed_total", figures.crossed)
    page.counter("metaq_pulls_held_total", figures.held)
    page.counter("metaq_sends_slowed_total", figures.sends_slowed)
    page.counter("metaq_sends_over_limit_total", figures.sends_over_limit)
    page.counter("metaq_pulls_paced_total", figures.pulls_paced)


def _add_group(page: Page, group: GroupStatus) -> None:
    page.gauge("metaq_replication_epoch", group.epoch)
    # A node that is gone may stay in the set, which never shrinks below the minimum.
    alive = [node for node in group.nodes if node.id in group.in_sync and node.state == "in sync"]
    page.gauge("metaq_replication_in_sync_nodes", len(alive))
    page.gauge("metaq_replication_in_sync_nodes_min", group.min_in_sync)
    replicas = [node for node in group.nodes if node.role == "replica"]
    for name, lags in {
        "metaq_replication_lag_bytes": [(node.id, node.lag_bytes) for node in replicas],
        "metaq_replication_lag_milliseconds": [(node.id, node.lag_ms) for node in replicas],
    }.items():
        page.family(
            name, "gauge", (({"replica_id": str(node)}, lag) for node, lag in lags if lag is not None)
        )


def _add_scrub(page: Page, scrub: ScrubReport) -> None:
    if scrub.percent is not None:
        page.gauge("metaq_scrub_progress_ratio", scrub.percent / 100)
    if scrub.completed_ms is not None:
        page.gauge("metaq_scrub_completed_timestamp_seconds", scrub.completed_ms / 1000)
    page.counter("metaq_scrub_damaged_total", scrub.damaged)
    page.counter("metaq_log_repaired_total", scrub.repaired)
    page.gauge("metaq_log_damaged_ranges", scrub.unrepaired)
    page.gauge("metaq_log_differs", int(scrub.differs_at is not None))


def _add_role(page: Page, role: Master | Replica) -> None:
    page.gauge("rocketmq_broker_permission", role.admin.permission)
    page.gauge("rocketmq_topic_number", len(role.state.topics))
    page.gauge("rocketmq_consumer_group_number", len(role.state.groups))


def _add_store(page: Page, figures: StoreFigures, reserved_ms: int) -> None:
    end = figures.commit_log_max_offset
    for name, value in {
        "rocketmq_storage_size_bytes": end - figures.commit_log_min_offset,
        "rocketmq_storage_flush_behind_bytes": max(end - figures.flushed_offset, 0),
        "rocketmq_storage_dispatch_behind_bytes": max(end - figures.dispatched_offset, 0),
        "rocketmq_storage_message_reserve_time_milliseconds": max(reserved_ms, 0),
    }.items():
        page.gauge(name, value, STORAGE)
    page.counter("metaq_storage_syncs_total", figures.syncs)
    page.gauge("metaq_storage_damaged_records", figures.damaged_records)
    page.gauge("metaq_storage_uncovered_records", figures.uncovered_records)
    if figures.disk_used_percent >= 0:
        page.gauge("metaq_storage_disk_used_ratio", figures.disk_used_percent / 100)


def _add_timers(page: Page, figures: PlaneFigures, store: Store, now_ms: int) -> None:
    """Messages that wait for a moment: how many are not read yet and how old the next of them is, and how
    late the next delivery is."""
    unread = max(store.max_offset(names.TIMER_TOPIC, 0) - figures.timers_queue_offset, 0)
    read_at_ms = store.store_time_ms(names.TIMER_TOPIC, 0, figures.timers_queue_offset) if unread else -1
    page.gauge("rocketmq_timer_enqueue_lag", unread, STORAGE)
    age_ms = max(now_ms - read_at_ms, 0) if read_at_ms >= 0 else 0
    page.gauge("rocketmq_timer_enqueue_latency_milliseconds", age_ms, STORAGE)
    page.gauge("rocketmq_timer_dequeue_latency_milliseconds", figures.timers_behind_ms, STORAGE)
    page.gauge("metaq_timer_messages", figures.timers_pending)
    page.counter("metaq_timer_delivered_total", figures.timers_delivered)
    page.counter("metaq_timer_recalled_total", figures.timers_recalled)
    page.gauge("metaq_transactions_open", figures.transactions_open)
    page.gauge("metaq_limits_waiting", figures.limits_waiting)


def _add_clients(page: Page, clients: Clients) -> None:
    producers: Counter[tuple[str, str]] = Counter(
        _program(member) for members in list(clients.all_producers()) for member in members
    )
    consumers: Counter[tuple[str, str, str, str]] = Counter(
        (*_program(member), group.name, "broadcasting" if group.broadcasting else "clustering")
        for group in clients.all_consumer_groups()
        for member in list(group.members.values())
    )
    page.family(
        "rocketmq_producer_connections",
        "gauge",
        (
            ({"language": language, "version": version, **PROTOCOL}, count)
            for (language, version), count in producers.items()
        ),
    )
    page.family(
        "rocketmq_consumer_connections",
        "gauge",
        (
            (
                {
                    "consumer_group": group,
                    "language": language,
                    "version": version,
                    "consume_mode": mode,
                    **PROTOCOL,
                    "is_system": str(names.is_system_group(group)).lower(),
                },
                count,
            )
            for (language, version, group, mode), count in consumers.items()
        ),
    )


def _program(member: Member) -> tuple[str, str]:
    """Language and version of a client, as an Apache broker writes them."""
    return language_name(member.language).lower(), f"v{version_text(member.version).replace('.', '_')}"
