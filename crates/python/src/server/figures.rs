//! Figures as typed, frozen objects: a name that does not exist is an error and not a zero.

use pyo3::prelude::*;

#[pyclass(frozen, get_all, module = "metaq._core")]
pub struct ListenerFigures {
    connections: u64,
    memory_bytes: u64,
    memory_bytes_peak: u64,
    group_memory_bytes: u64,
    group_memory_bytes_peak: u64,
    requests: u64,
    messages_in: u64,
    bytes_in: u64,
    messages_out: u64,
    bytes_out: u64,
    refused: u64,
    crossed: u64,
    held: u64,
    sends_slowed: u64,
    sends_over_limit: u64,
    pulls_paced: u64,
    connections_cut: u64,
}

impl From<metaq_server::ListenerFigures> for ListenerFigures {
    fn from(from: metaq_server::ListenerFigures) -> Self {
        ListenerFigures {
            connections: from.connections,
            memory_bytes: from.memory_bytes,
            memory_bytes_peak: from.memory_bytes_peak,
            group_memory_bytes: from.group_memory_bytes,
            group_memory_bytes_peak: from.group_memory_bytes_peak,
            requests: from.requests,
            messages_in: from.messages_in,
            bytes_in: from.bytes_in,
            messages_out: from.messages_out,
            bytes_out: from.bytes_out,
            refused: from.refused,
            crossed: from.crossed,
            held: from.held,
            sends_slowed: from.sends_slowed,
            sends_over_limit: from.sends_over_limit,
            pulls_paced: from.pulls_paced,
            connections_cut: from.connections_cut,
        }
    }
}

#[pyclass(frozen, get_all, module = "metaq._core")]
pub struct SlowRequest {
    remote: String,
    code: Option<i32>,
    requests: u64,
    topic: Option<String>,
    parts: Vec<(&'static str, u64)>,
}

impl From<metaq_server::SlowRequest> for SlowRequest {
    fn from(from: metaq_server::SlowRequest) -> Self {
        SlowRequest {
            remote: from.remote.to_string(),
            code: from.request_code,
            requests: from.requests,
            topic: from.topic,
            parts: from.parts,
        }
    }
}

#[pyclass(frozen, get_all, module = "metaq._core")]
pub struct PlaneFigures {
    transactions_open: u64,
    limits_waiting: u64,
    timers_pending: u64,
    timers_read: u64,
    timers_delivered: u64,
    timers_recalled: u64,
    timers_queue_offset: i64,
    timers_behind_ms: i64,
}

impl From<metaq_server::PlaneFigures> for PlaneFigures {
    fn from(from: metaq_server::PlaneFigures) -> Self {
        PlaneFigures {
            transactions_open: from.transactions_open,
            limits_waiting: from.limits_waiting,
            timers_pending: from.timers.pending,
            timers_read: from.timers.read,
            timers_delivered: from.timers.delivered,
            timers_recalled: from.timers.recalled,
            timers_queue_offset: from.timers.queue_offset,
            timers_behind_ms: from.timers.behind_ms,
        }
    }
}

#[pyclass(frozen, get_all, module = "metaq._core")]
pub struct StoreFigures {
    commit_log_min_offset: i64,
    commit_log_max_offset: i64,
    commit_log_files: i64,
    flushed_offset: i64,
    dispatched_offset: i64,
    indexed_offset: i64,
    disk_used_percent: i64,
    recovered_from_offset: i64,
    recovered_bytes: i64,
    damaged_records: i64,
    uncovered_records: i64,
    rebuilt_index_files: i64,
    repaired_entries: i64,
    syncs: i64,
    queues_loaded: i64,
}

impl From<metaq_store::StoreFigures> for StoreFigures {
    fn from(from: metaq_store::StoreFigures) -> Self {
        StoreFigures {
            commit_log_min_offset: from.commit_log_min_offset,
            commit_log_max_offset: from.commit_log_max_offset,
            commit_log_files: from.commit_log_files,
            flushed_offset: from.flushed_offset,
            dispatched_offset: from.dispatched_offset,
            indexed_offset: from.indexed_offset,
            disk_used_percent: from.disk_used_percent,
            recovered_from_offset: from.recovered_from_offset,
            recovered_bytes: from.recovered_bytes,
            damaged_records: from.damaged_records,
            uncovered_records: from.uncovered_records,
            rebuilt_index_files: from.rebuilt_index_files,
            repaired_entries: from.repaired_entries,
            syncs: from.syncs,
            queues_loaded: from.queues_loaded,
        }
    }
}
