//! The settings objects of `metaq.settings`, read by attribute.

use std::sync::Arc;

use metaq_server::{Limit, Rates, Refusal, response_code};
use pyo3::prelude::*;

use crate::server::expression::{Pair, build};

#[derive(FromPyObject)]
pub struct ReplicationSettings {
    beat_interval_ms: u64,
    silence_ms_max: u64,
    chunk_bytes: usize,
    followed_ms: Option<u64>,
    catch_up_bytes_per_second: u64,
    state_bytes_max: usize,
}

impl From<ReplicationSettings> for metaq_server::ReplicationSettings {
    fn from(from: ReplicationSettings) -> Self {
        metaq_server::ReplicationSettings {
            beat_interval: std::time::Duration::from_millis(from.beat_interval_ms),
            silence_max: std::time::Duration::from_millis(from.silence_ms_max.max(1)),
            chunk_bytes: from.chunk_bytes,
            followed_for: from.followed_ms.map(std::time::Duration::from_millis),
            catch_up_bytes_per_second: from.catch_up_bytes_per_second,
            state_bytes_max: from.state_bytes_max,
        }
    }
}

#[derive(FromPyObject)]
pub struct StoreSettings {
    directory: std::path::PathBuf,
    flush: String,
    replicated: bool,
    commit_log_file_bytes: u64,
    consume_queue_file_entries: u64,
    index_slots: u32,
    index_entries: u32,
    allocation_step_bytes: u64,
    flush_interval_ms: u64,
    queue_flush_interval_ms: u64,
    message_size_bytes_max: usize,
    record_checksums: bool,
    file_reserved_hours: u64,
    delete_when: String,
    disk_clean_percent: u8,
    disk_force_clean_percent: u8,
    disk_refuse_percent: u8,
    delete_unconsumed: bool,
    damaged_messages: String,
    query_entries_max: u64,
    query_bytes_max: usize,
    append_wait_ms_max: u64,
    delay_levels_ms: Vec<i64>,
}

impl From<StoreSettings> for metaq_store::StoreSettings {
    fn from(from: StoreSettings) -> Self {
        metaq_store::StoreSettings {
            directory: from.directory,
            // Only the exact word chooses the weaker mode.
            sync_flush: from.flush != "async",
            replicated: from.replicated,
            commit_log_file_bytes: from.commit_log_file_bytes,
            consume_queue_file_entries: from.consume_queue_file_entries,
            index_slots: from.index_slots,
            index_entries: from.index_entries,
            allocation_step_bytes: from.allocation_step_bytes,
            flush_interval_ms: from.flush_interval_ms,
            queue_flush_interval_ms: from.queue_flush_interval_ms,
            message_size_bytes_max: from.message_size_bytes_max,
            record_checksums: from.record_checksums,
            retention: metaq_store::RetentionSettings {
                file_reserved_hours: from.file_reserved_hours,
                delete_when: from.delete_when,
                disk_clean_percent: from.disk_clean_percent,
                disk_force_clean_percent: from.disk_force_clean_percent,
                disk_refuse_percent: from.disk_refuse_percent,
                delete_unconsumed: from.delete_unconsumed,
            },
            stop_at_damage: from.damaged_messages == "stop",
            query_entries_max: from.query_entries_max,
            query_bytes_max: from.query_bytes_max,
            append_wait_ms_max: from.append_wait_ms_max,
            delay_levels_ms: from.delay_levels_ms,
            ..metaq_store::StoreSettings::new("")
        }
    }
}

#[derive(FromPyObject)]
pub struct ServerSettings {
    host: String,
    port: u16,
    also_old_port: bool,
    connections_max: usize,
    connections_per_address_max: usize,
    connections_silent_max: usize,
    frame_bytes_max: usize,
    frame_deadline_ms: u64,
    first_frame_deadline_ms: u64,
    idle_timeout_ms: u64,
    crossing_requests_max: usize,
    crossing_bytes_max: usize,
    crossing_requests_per_connection_max: usize,
    crossing_bytes_per_connection_max: usize,
    crossing_age_ms_max: u64,
    connection_output_bytes_max: usize,
    connection_memory_bytes_max: usize,
    memory_bytes_max: usize,
    group_memory_bytes_max: usize,
    worker_threads: usize,
    relay_timeout_ms: u64,
    relay_requests_max: usize,
    relay_bytes_max: usize,
    held_requests_max: usize,
    held_bytes_max: usize,
}

impl From<ServerSettings> for metaq_server::ServerSettings {
    fn from(from: ServerSettings) -> Self {
        metaq_server::ServerSettings {
            host: from.host,
            port: from.port,
            also_old_port: from.also_old_port,
            connections_max: from.connections_max,
            connections_per_address_max: from.connections_per_address_max,
            connections_silent_max: from.connections_silent_max,
            frame_bytes_max: from.frame_bytes_max,
            frame_deadline_ms: from.frame_deadline_ms,
            first_frame_deadline_ms: from.first_frame_deadline_ms,
            idle_timeout_ms: from.idle_timeout_ms,
            crossing_requests_max: from.crossing_requests_max,
            crossing_bytes_max: from.crossing_bytes_max,
            crossing_requests_per_connection_max: from.crossing_requests_per_connection_max,
            crossing_bytes_per_connection_max: from.crossing_bytes_per_connection_max,
            crossing_age_ms_max: from.crossing_age_ms_max,
            connection_output_bytes_max: from.connection_output_bytes_max,
            connection_memory_bytes_max: from.connection_memory_bytes_max,
            memory_bytes_max: from.memory_bytes_max,
            group_memory_bytes_max: from.group_memory_bytes_max,
            worker_threads: from.worker_threads,
            relay_timeout_ms: from.relay_timeout_ms,
            relay_requests_max: from.relay_requests_max,
            relay_bytes_max: from.relay_bytes_max,
            held_requests_max: from.held_requests_max,
            held_bytes_max: from.held_bytes_max,
        }
    }
}

#[derive(FromPyObject)]
pub struct BrokerSettings {
    cluster: String,
    name: String,
    store_host: String,
    region: String,
    message_keys_max: usize,
    message_keys_per_second: u64,
    flush_timeout_ms: u64,
    metrics_series_max: usize,
    metrics_queues_max: usize,
    committed_offsets_max: usize,
    committed_pairs_max: usize,
    pull_bytes_max: usize,
    pull_messages_max: usize,
    hold_max: usize,
    connection_hold_max: usize,
    pull_filter_bytes_max: usize,
    send_hold_ms_max: u64,
    send_refusal_hold_ms: u64,
    send_hold_max: usize,
    long_polling: bool,
    short_polling_ms: u64,
    pull_hold_ms_max: u64,
    pull_bytes_default: usize,
    pull_limit_hold_ms: u64,
    filter_hold_ms_max: u64,
    pull_examined_bytes_max: u64,
    subscription_tags_max: usize,
    slave_read: bool,
    stands_in: bool,
    in_memory_percent: u64,
    id: i64,
    transaction_timeout_ms: i64,
    transaction_immunity_s_max: i64,
    transactions_open_max: usize,
    transactions_open_per_group_max: usize,
    transactions_open_per_address_max: usize,
    transaction_renew_bytes_max: u64,
    transactions_ended_kept: usize,
    timer_max_delay_s: i64,
    timer_roll_s: i64,
    recall_messages: bool,
    recall_by_property: bool,
}

impl BrokerSettings {
    /// Settings that the store has too are taken from there. Without replicas, consumers read from nowhere else.
    pub fn with_store(
        self,
        store: &metaq_store::StoreSettings,
        has_replicas: bool,
    ) -> metaq_server::BrokerSettings {
        metaq_server::BrokerSettings {
            cluster: self.cluster,
            name: self.name,
            store_host: self.store_host,
            region: self.region,
            message_size_bytes_max: store.message_size_bytes_max,
            message_keys_max: self.message_keys_max,
            message_keys_per_second: self.message_keys_per_second,
            flush_timeout_ms: self.flush_timeout_ms,
            metrics_pairs_max: self.metrics_series_max,
            metrics_queues_max: self.metrics_queues_max,
            stands_in: self.stands_in,
            offsets: metaq_server::OffsetLimits {
                pairs_max: self.committed_pairs_max,
                places_max: self.committed_offsets_max,
            },
            limits: metaq_server::LimitSettings {
                send_hold_ms_max: self.send_hold_ms_max,
                send_refusal_hold_ms: self.send_refusal_hold_ms,
                send_hold_max: self.send_hold_max,
            },
            pull: metaq_server::PullSettings {
                bytes_max: self.pull_bytes_max,
                messages_max: self.pull_messages_max,
                hold_max: self.hold_max,
                connection_hold_max: self.connection_hold_max,
                filter_bytes_max: self.pull_filter_bytes_max,
                hold_ms_max: self.pull_hold_ms_max,
                long_polling: self.long_polling,
                short_polling_ms: self.short_polling_ms,
                bytes_default: self.pull_bytes_default,
                limit_hold_ms: self.pull_limit_hold_ms,
                filter_hold_ms_max: self.filter_hold_ms_max,
                examined_bytes_max: self.pull_examined_bytes_max,
                tags_max: self.subscription_tags_max,
                slave_read: self.slave_read && has_replicas,
                in_memory_percent: self.in_memory_percent,
                own_broker_id: Some(self.id).filter(|id| *id != 0),
            },
            transaction: metaq_server::TransactionSettings {
                timeout_ms: self.transaction_timeout_ms,
                immunity_ms_max: self.transaction_immunity_s_max.saturating_mul(1_000),
                open_max: self.transactions_open_max,
                open_per_group_max: self.transactions_open_per_group_max,
                open_per_address_max: self.transactions_open_per_address_max,
                ended_kept: self.transactions_ended_kept,
                renew_bytes_max: self.transaction_renew_bytes_max,
                message_keys_max: self.message_keys_max,
            },
            timer: metaq_server::TimerSettings {
                delay_levels_ms: store.delay_levels_ms.clone(),
                delay_ms_max: self.timer_max_delay_s.saturating_mul(1_000),
                // Half of the retention time, so that a broker that was off for a while is still in time.
                roll_ms: self
                    .timer_roll_s
                    .min(store.retention.file_reserved_hours as i64 * 1_800)
                    .saturating_mul(1_000),
                recall_messages: self.recall_messages,
                recall_by_property: self.recall_by_property,
            },
        }
    }
}

#[derive(FromPyObject)]
pub struct TopicPolicy {
    name: String,
    read_queues: i32,
    write_queues: i32,
    permission: u8,
    client_writable: bool,
    client_readable: bool,
    is_system: bool,
    send_messages_per_second: u64,
    send_bytes_per_second: u64,
}

impl From<TopicPolicy> for metaq_server::Topic {
    fn from(from: TopicPolicy) -> Self {
        metaq_server::Topic {
            name: from.name,
            read_queues: from.read_queues,
            write_queues: from.write_queues,
            permission: from.permission,
            client_writable: from.client_writable,
            client_readable: from.client_readable,
            send_limit: Limit::new(Rates {
                messages: from.send_messages_per_second,
                bytes: from.send_bytes_per_second,
            }),
            is_system: from.is_system,
            traffic: Arc::default(),
        }
    }
}

#[derive(FromPyObject)]
pub struct SubscriptionPolicy {
    topic: String,
    version: i64,
    expression_type: String,
    tag_codes: Vec<i64>,
    program: Option<Vec<Pair>>,
    function: Option<(String, String)>,
    refusal: Option<(i32, String)>,
}

#[derive(FromPyObject)]
pub struct GroupPolicy {
    name: String,
    client_usable: bool,
    is_system: bool,
    consume_enabled: bool,
    broadcast_enabled: bool,
    broadcasting: bool,
    broker_id: i64,
    slow_broker_id: i64,
    retry_times_max: i32,
    forbidden_topics: Vec<String>,
    subscriptions: Vec<SubscriptionPolicy>,
    consume_messages_per_second: u64,
    consume_bytes_per_second: u64,
}

impl From<SubscriptionPolicy> for metaq_server::Subscription {
    fn from(from: SubscriptionPolicy) -> Self {
        let mut refusal = from.refusal.map(|(code, remark)| Refusal::new(code, remark));
        let filter = match from.program.map(build) {
            Some(Ok(program)) => metaq_store::Filter::Expression(Arc::new(program)),
            Some(Err(remark)) => {
                // One bad subscription must not stop the other subscriptions of the group.
                refusal = Some(Refusal::new(response_code::SUBSCRIPTION_PARSE_FAILED, remark));
                metaq_store::Filter::Tags(Vec::<i64>::new().into())
            }
            None if from.function.is_some() => call_filter(from.function.unwrap_or_default()),
            None if from.tag_codes.is_empty() => metaq_store::Filter::All,
            None => metaq_store::Filter::Tags(from.tag_codes.into()),
        };
        metaq_server::Subscription {
            topic: from.topic,
            version: from.version,
            expression_type: from.expression_type,
            filter,
            refusal,
        }
    }
}

/// The filter for a call of a function.
pub fn call_filter((function, text): (String, String)) -> metaq_store::Filter {
    metaq_store::Filter::Function(Arc::new(metaq_store::Call { function, text }))
}

impl From<GroupPolicy> for metaq_server::Group {
    fn from(from: GroupPolicy) -> Self {
        metaq_server::Group {
            name: from.name,
            client_usable: from.client_usable,
            consume_enabled: from.consume_enabled,
            broadcast_enabled: from.broadcast_enabled,
            broadcasting: from.broadcasting,
            broker_id: from.broker_id,
            slow_broker_id: from.slow_broker_id,
            retry_times_max: from.retry_times_max,
            forbidden_topics: from.forbidden_topics,
            subscriptions: from.subscriptions.into_iter().map(Into::into).collect(),
            members: Arc::default(),
            consume_limit: Limit::new(Rates {
                messages: from.consume_messages_per_second,
                bytes: from.consume_bytes_per_second,
            }),
            is_system: from.is_system,
            traffic: Arc::default(),
        }
    }
}
