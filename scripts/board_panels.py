"""The panels of the Grafana boards, which `scripts/boards.py` draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SENDS = 'request_code=~"10|310|320"'
BROKER = 'cluster=~"$cluster",instance=~"$instance"'
CLUSTER = 'cluster=~"$cluster"'
PIPELINE = 'pipeline=~"$pipeline",config=~"$config"'


@dataclass(frozen=True)
class Panel:
    """One panel. `queries` are pairs of a PromQL expression and a legend."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    description: str = ""
    warn_at: float | None = None
    """From this value on, the panel is red; below 1 for states, where 0 is bad."""

    @property
    def size(self) -> tuple[int, int]:
        return (4, 4) if self.kind == "stat" else (8, 8)


def rate(metric: str, labels: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def quantile(level: float, labels: str, by: str) -> str:
    inner = rate("rocketmq_rpc_latency_milliseconds_bucket", labels, f"le, {by}")
    return f"histogram_quantile({level}, {inner})"


def state(
    title: str, query: str, description: str, unit: str = "short", warn_at: float | None = None
) -> Panel:
    return Panel(title, [(query, "{{instance}}")], unit, "stat", description, warn_at)


BROKER_ROWS: dict[str, list[Panel]] = {
    "State": [
        Panel(
            "Checks",
            [(f"min by (check) (metaq_broker_check{{{BROKER}}})", "{{check}}")],
            "bool_yes_no",
            "stat",
            "The checks behind /readyz: no means that /readyz names a fault.",
            0,
        ),
        state(
            "Masters", f"sum(metaq_broker_is_master{{{BROKER}}})", "How many of these brokers are masters."
        ),
        state(
            "Topics", f"max by (instance) (rocketmq_topic_number{{{BROKER}}})", "Topics, system topics too."
        ),
        state(
            "Groups", f"max by (instance) (rocketmq_consumer_group_number{{{BROKER}}})", "Consumer groups."
        ),
        state("Connections", f"metaq_connections{{{BROKER}}}", "Connections of clients."),
        state(
            "Disk used",
            f"metaq_storage_disk_used_ratio{{{BROKER}}}",
            "Of the whole file system. At 0.9 the broker refuses messages.",
            "percentunit",
            0.75,
        ),
    ],
    "Traffic": [
        Panel(
            "Messages in, ten largest topics",
            [(f"topk(10, {rate('rocketmq_messages_in_total', BROKER, 'topic')})", "{{topic}}")],
            "cps",
        ),
        Panel(
            "Messages out, ten largest groups",
            [
                (
                    f"topk(10, {rate('rocketmq_messages_out_total', BROKER, 'consumer_group, topic')})",
                    "{{consumer_group}} {{topic}}",
                )
            ],
            "cps",
        ),
        Panel(
            "Bytes",
            [
                (rate("rocketmq_throughput_in_total", BROKER, "instance"), "{{instance}} in"),
                (rate("rocketmq_throughput_out_total", BROKER, "instance"), "{{instance}} out"),
            ],
            "Bps",
        ),
        Panel(
            "Requests",
            [
                (rate("metaq_requests_total", BROKER, "instance"), "{{instance}}"),
                (rate("metaq_requests_refused_total", BROKER, "instance"), "{{instance}} refused"),
                (rate("metaq_requests_crossed_total", BROKER, "instance"), "{{instance}} answered by Python"),
            ],
            "reqps",
        ),
        Panel(
            "Time of a send",
            [
                (quantile(0.5, f"{BROKER},{SENDS}", "instance"), "{{instance}} p50"),
                (quantile(0.99, f"{BROKER},{SENDS}", "instance"), "{{instance}} p99"),
            ],
            "ms",
            description="From the request to its answer, with the sync of the disk and the replicas.",
        ),
        Panel(
            "Time of requests by code, p99",
            [(quantile(0.99, f'{BROKER},is_long_polling="false"', "request_code"), "code {{request_code}}")],
            "ms",
        ),
        Panel(
            "Message size, mean",
            [
                (
                    f"{rate('rocketmq_message_size_sum', BROKER, 'instance')}"
                    f" / {rate('rocketmq_message_size_count', BROKER, 'instance')}",
                    "{{instance}}",
                )
            ],
            "bytes",
        ),
        Panel(
            "Clients",
            [
                (f"sum by (language) (rocketmq_producer_connections{{{BROKER}}})", "producers, {{language}}"),
                (f"sum by (language) (rocketmq_consumer_connections{{{BROKER}}})", "consumers, {{language}}"),
            ],
        ),
        Panel(
            "Memory of connections", [(f"metaq_connection_memory_bytes{{{BROKER}}}", "{{instance}}")], "bytes"
        ),
    ],
    "Consumers": [
        Panel(
            "Lag, ten worst groups",
            [
                (
                    f"topk(10, sum by (consumer_group, topic) (rocketmq_consumer_lag_messages{{{BROKER}}}))",
                    "{{consumer_group}} {{topic}}",
                )
            ],
        ),
        Panel(
            "Age of the oldest message, ten worst groups",
            [
                (
                    "topk(10, max by (consumer_group, topic)"
                    f" (rocketmq_consumer_lag_latency_milliseconds{{{BROKER}}}))",
                    "{{consumer_group}} {{topic}}",
                )
            ],
            "ms",
        ),
        Panel(
            "Handed out and not committed",
            [
                (
                    "topk(10, sum by (consumer_group, topic)"
                    f" (rocketmq_consumer_inflight_messages{{{BROKER}}}))",
                    "{{consumer_group}} {{topic}}",
                )
            ],
        ),
        Panel(
            "Dead letters",
            [(rate("rocketmq_send_to_dlq_messages_total", BROKER, "consumer_group"), "{{consumer_group}}")],
            "cps",
        ),
        Panel(
            "Pulls that wait for messages, and paced ones",
            [
                (rate("metaq_pulls_held_total", BROKER, "instance"), "{{instance}} waiting"),
                (rate("metaq_pulls_paced_total", BROKER, "instance"), "{{instance}} paced by a limit"),
            ],
            "reqps",
        ),
        Panel(
            "Rate limits of producers",
            [
                (rate("metaq_sends_slowed_total", BROKER, "instance"), "{{instance}} slowed"),
                (rate("metaq_sends_over_limit_total", BROKER, "instance"), "{{instance}} refused"),
                (f"metaq_limits_waiting{{{BROKER}}}", "{{instance}} waiting now"),
            ],
        ),
    ],
    "Store": [
        Panel("Disk used", [(f"metaq_storage_disk_used_ratio{{{BROKER}}}", "{{instance}}")], "percentunit"),
        Panel("Commit log", [(f"rocketmq_storage_size_bytes{{{BROKER}}}", "{{instance}}")], "bytes"),
        Panel(
            "Age of the oldest message",
            [(f"rocketmq_storage_message_reserve_time_milliseconds{{{BROKER}}}", "{{instance}}")],
            "ms",
        ),
        Panel(
            "Bytes that wait for the disk and the queues",
            [
                (f"rocketmq_storage_flush_behind_bytes{{{BROKER}}}", "{{instance}} not synced"),
                (f"rocketmq_storage_dispatch_behind_bytes{{{BROKER}}}", "{{instance}} not in queues"),
            ],
            "bytes",
        ),
        Panel(
            "Group commit: messages per sync",
            [
                (
                    f"{rate('rocketmq_messages_in_total', BROKER, 'instance')}"
                    f" / {rate('metaq_storage_syncs_total', BROKER, 'instance')}",
                    "{{instance}}",
                )
            ],
        ),
        Panel("Damaged records", [(f"metaq_storage_damaged_records{{{BROKER}}}", "{{instance}}")]),
    ],
    "Delayed messages and transactions": [
        Panel(
            "Delayed messages by due time",
            [
                (
                    f"sum by (timer_bound_s) (rocketmq_timer_message_snapshot{{{BROKER}}})",
                    "up to {{timer_bound_s}} s",
                )
            ],
        ),
        Panel(
            "Delivered and recalled",
            [
                (rate("metaq_timer_delivered_total", BROKER, "instance"), "{{instance}} delivered"),
                (rate("metaq_timer_recalled_total", BROKER, "instance"), "{{instance}} recalled"),
                (f"metaq_timer_messages{{{BROKER}}}", "{{instance}} waiting now"),
            ],
        ),
        Panel(
            "How late they are",
            [
                (f"rocketmq_timer_dequeue_latency_milliseconds{{{BROKER}}}", "{{instance}} delivery"),
                (f"rocketmq_timer_enqueue_latency_milliseconds{{{BROKER}}}", "{{instance}} reading"),
            ],
            "ms",
        ),
        Panel(
            "Transactions",
            [
                (rate("rocketmq_commit_messages_total", BROKER, "instance"), "{{instance}} committed"),
                (rate("rocketmq_rollback_messages_total", BROKER, "instance"), "{{instance}} rolled back"),
            ],
            "cps",
        ),
        Panel("Open transactions", [(f"metaq_transactions_open{{{BROKER}}}", "{{instance}}")]),
        Panel(
            "Metrics left out, and connections cut",
            [
                (f"metaq_metrics_series_dropped{{{BROKER}}}", "{{instance}} series"),
                (rate("metaq_connections_cut_total", BROKER, "instance"), "{{instance}} connections"),
            ],
            description="Series find no room beyond metrics_series_max. Peers that do not read are cut.",
        ),
    ],
}

CLUSTER_ROWS: dict[str, list[Panel]] = {
    "State": [
        Panel("Brokers", [(f"count(metaq_broker_is_master{{{CLUSTER}}})", "")], kind="stat"),
        Panel("Masters", [(f"sum(metaq_broker_is_master{{{CLUSTER}}})", "")], kind="stat"),
        Panel(
            "Failing checks",
            [(f"count(metaq_broker_check{{{CLUSTER}}} == 0) or vector(0)", "")],
            kind="stat",
            description="Checks of /readyz that fail, over all brokers.",
            warn_at=1,
        ),
        Panel(
            "Fullest disk",
            [(f"max(metaq_storage_disk_used_ratio{{{CLUSTER}}})", "")],
            "percentunit",
            "stat",
            warn_at=0.75,
        ),
        Panel(
            "Oldest message that waits",
            [(f"max(rocketmq_consumer_lag_latency_milliseconds{{{CLUSTER}}})", "")],
            "ms",
            "stat",
            warn_at=300_000,
        ),
        Panel(
            "Dead letters, last hour",
            [(f"sum(increase(rocketmq_send_to_dlq_messages_total{{{CLUSTER}}}[1h]))", "")],
            kind="stat",
            warn_at=1,
        ),
    ],
    "Traffic": [
        Panel(
            "Messages in", [(rate("rocketmq_messages_in_total", CLUSTER, "node_id"), "{{node_id}}")], "cps"
        ),
        Panel(
            "Messages out", [(rate("rocketmq_messages_out_total", CLUSTER, "node_id"), "{{node_id}}")], "cps"
        ),
        Panel(
            "Time of a send, p99",
            [(quantile(0.99, f"{CLUSTER},{SENDS}", "node_id"), "{{node_id}}")],
            "ms",
        ),
        Panel(
            "Largest topics",
            [(f"topk(10, {rate('rocketmq_messages_in_total', CLUSTER, 'topic')})", "{{topic}}")],
            "cps",
        ),
        Panel(
            "Groups with the most lag",
            [
                (
                    f"topk(10, sum by (consumer_group) (rocketmq_consumer_lag_messages{{{CLUSTER}}}))",
                    "{{consumer_group}}",
                )
            ],
        ),
        Panel(
            "Groups that are furthest behind",
            [
                (
                    "topk(10, max by (consumer_group)"
                    f" (rocketmq_consumer_lag_latency_milliseconds{{{CLUSTER}}}))",
                    "{{consumer_group}}",
                )
            ],
            "ms",
        ),
    ],
    "Replication": [
        Panel(
            "Nodes in sync",
            [
                (f"max by (node_id) (metaq_replication_in_sync_nodes{{{CLUSTER}}})", "{{node_id}}"),
                (
                    f"max by (node_id) (metaq_replication_in_sync_nodes_min{{{CLUSTER}}})",
                    "{{node_id}} minimum",
                ),
            ],
            description="With fewer nodes than the minimum the master refuses messages.",
        ),
        Panel(
            "Replicas behind their master, in bytes",
            [(f"metaq_replication_lag_bytes{{{CLUSTER}}}", "{{node_id}} replica {{replica_id}}")],
            "bytes",
        ),
        Panel(
            "Replicas behind their master, in time",
            [(f"metaq_replication_lag_milliseconds{{{CLUSTER}}}", "{{node_id}} replica {{replica_id}}")],
            "ms",
        ),
        Panel(
            "Epochs",
            [(f"max by (node_id) (metaq_replication_epoch{{{CLUSTER}}})", "{{node_id}}")],
            description="Every new master begins an epoch.",
        ),
        Panel("Masters by broker", [(f"metaq_broker_is_master{{{CLUSTER}}}", "{{node_id}} {{instance}}")]),
        Panel("Disk used", [(f"metaq_storage_disk_used_ratio{{{CLUSTER}}}", "{{instance}}")], "percentunit"),
    ],
}

PIPELINE_ROWS: dict[str, list[Panel]] = {
    "State": [
        Panel("Running", [(f"count(metaq_pipeline_phase{{{PIPELINE}}})", "")], kind="stat"),
        Panel(
            "Furthest behind",
            [(f"max(metaq_pipeline_lag_seconds{{{PIPELINE}}})", "")],
            "s",
            "stat",
            warn_at=300,
        ),
        Panel(
            "Since the last report",
            [(f"max(time() - metaq_pipeline_reported_timestamp_seconds{{{PIPELINE}}})", "")],
            "s",
            "stat",
            "A running pipeline reports about once a second.",
            60,
        ),
        Panel(
            "Errors in the log, last hour",
            [(f'sum(increase(metaq_pipeline_log_lines_total{{{PIPELINE},level="error"}}[1h]))', "")],
            kind="stat",
            warn_at=1,
        ),
        Panel(
            "Starts, last day",
            [(f"sum(changes(metaq_pipeline_started_timestamp_seconds{{{PIPELINE}}}[1d]))", "")],
            kind="stat",
            description="How often a supervisor started a pipeline again.",
        ),
        Panel(
            "Last error or warning",
            [(f"max(metaq_pipeline_last_error_timestamp_seconds{{{PIPELINE}}} > 0) * 1000 or vector(0)", "")],
            "dateTimeFromNow",
            "stat",
            "/readyz of the pipeline has its text.",
        ),
    ],
    "Progress": [
        Panel(
            "Rows",
            [(rate("metaq_pipeline_rows_total", PIPELINE, "pipeline, config"), "{{pipeline}} {{config}}")],
            "rps",
        ),
        Panel(
            "Bytes",
            [(rate("metaq_pipeline_bytes_total", PIPELINE, "pipeline, config"), "{{pipeline}} {{config}}")],
            "Bps",
        ),
        Panel(
            "Behind, in time", [(f"metaq_pipeline_lag_seconds{{{PIPELINE}}}", "{{pipeline}} {{config}}")], "s"
        ),
        Panel(
            "Behind, in messages or bytes",
            [
                (f"metaq_pipeline_lag_messages{{{PIPELINE}}}", "{{pipeline}} {{config}} messages"),
                (f"metaq_pipeline_lag_bytes{{{PIPELINE}}}", "{{pipeline}} {{config}} bytes"),
            ],
        ),
        Panel(
            "Duration of the last batch",
            [(f"metaq_pipeline_batch_duration_seconds{{{PIPELINE}}}", "{{pipeline}} {{config}}")],
            "s",
        ),
        Panel(
            "Batches",
            [(rate("metaq_pipeline_batches_total", PIPELINE, "pipeline, config"), "{{pipeline}} {{config}}")],
            "cps",
        ),
    ],
    "Trouble": [
        Panel(
            "Rows in quarantine",
            [
                (
                    rate("metaq_pipeline_quarantined_total", PIPELINE, "pipeline, config"),
                    "{{pipeline}} {{config}}",
                )
            ],
            "rps",
        ),
        Panel(
            "Restarts of queries, and repeated sends",
            [
                (f"metaq_pipeline_restarts_total{{{PIPELINE}}}", "{{pipeline}} {{config}} restarts"),
                (f"metaq_pipeline_retries_total{{{PIPELINE}}}", "{{pipeline}} {{config}} repeated sends"),
            ],
        ),
        Panel(
            "Warnings and errors in the log",
            [
                (
                    rate("metaq_pipeline_log_lines_total", PIPELINE, "pipeline, config, level"),
                    "{{pipeline}} {{config}} {{level}}",
                )
            ],
            "cps",
        ),
    ],
}
