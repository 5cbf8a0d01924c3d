//! The broker plane as the control plane uses it: policy down, figures and progress up.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use metaq_server::{
    Decided, DelayedMessage, DelayedSearch, End, Look, OpenTransaction, Recall, RecallOutcome, Resend,
};
use metaq_store::{TimerPosition, TimerProgress, TimerSpans};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::enter::{enter, enter_infallible};
use crate::server::expression::{Pair, build};
use crate::server::figures::PlaneFigures;
use crate::server::function::FilterBatch;
use crate::server::listener::Listener;
use crate::server::settings::{BrokerSettings, GroupPolicy, TopicPolicy, call_filter};
use crate::server::standing_subscription::StandingSubscription;
use crate::server::store::Store;

/// `topic@group` → committed offsets and open resets, both by queue.
type ChangedOffsets = BTreeMap<String, (BTreeMap<i32, i64>, BTreeMap<i32, i64>)>;

/// A delayed message: its record without the body, its size, its due time, its level, and whether it was recalled.
type DelayedLine<'py> = (Bound<'py, PyBytes>, usize, i64, Option<usize>, bool);
/// Messages with a time of their own, recalls, the first and the last due time, the counts of spans, and the levels.
type DelayedFigures = (u64, u64, Option<i64>, Option<i64>, Vec<u64>, Vec<(usize, i64, u64)>);
/// An open transaction: its record without the body, its size, when it began, and from when on it is checked.
type TransactionLine<'py> = (Bound<'py, PyBytes>, usize, i64, i64);

#[pyclass(frozen, module = "metaq._core")]
pub struct BrokerPlane {
    inner: metaq_server::BrokerPlane,
}

#[pymethods]
impl BrokerPlane {
    #[new]
    #[pyo3(signature = (listener, store, settings, *, is_replica=false, has_replicas=false))]
    fn new(
        py: Python<'_>,
        listener: &Listener,
        store: &Store,
        settings: BrokerSettings,
        is_replica: bool,
        has_replicas: bool,
    ) -> PyResult<Self> {
        let settings = settings.with_store(&store.settings, is_replica || has_replicas);
        let (listener, store) = (&listener.inner, Arc::clone(&store.inner));
        let inner = enter(py, || metaq_server::BrokerPlane::new(listener, store, settings, is_replica))?;
        Ok(BrokerPlane { inner })
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.inner.start())
    }

    #[pyo3(signature = (*, wait_confirmed=true))]
    fn stop(&self, py: Python<'_>, wait_confirmed: bool) {
        enter_infallible(py, || self.inner.stop(wait_confirmed));
    }

    fn put_topics(&self, topics: Vec<TopicPolicy>) {
        self.inner.broker.policy.put_topics(topics.into_iter().map(Into::into).collect());
    }

    fn remove_topic(&self, name: &str) {
        self.inner.broker.policy.remove_topic(name);
    }

    fn put_groups(&self, groups: Vec<GroupPolicy>) {
        self.inner.broker.policy.put_groups(groups.into_iter().map(Into::into).collect());
    }

    fn remove_group(&self, name: &str) {
        self.inner.broker.policy.remove_group(name);
    }

    fn put_member(
        &self,
        group: &str,
        connection: u64,
        broadcasting: bool,
        subscriptions: Vec<(i64, PyRef<'_, StandingSubscription>)>,
    ) {
        let subscriptions =
            subscriptions.iter().map(|(version, shared)| shared.at_version(*version)).collect();
        let member = metaq_server::Member::new(broadcasting, subscriptions);
        self.inner.broker.policy.put_member(group, connection, member);
    }

    fn remove_member(&self, group: &str, connection: u64) {
        self.inner.broker.policy.remove_member(group, connection);
    }

    #[pyo3(signature = (group, reconsume_times, times_max=None))]
    fn retries_exhausted(&self, group: &str, reconsume_times: i32, times_max: Option<i32>) -> Option<bool> {
        self.inner.broker.policy.read().retries_exhausted(group, reconsume_times, times_max)
    }

    fn put_expression(&self, text: &str, program: Vec<Pair>) -> PyResult<()> {
        let program = build(program).map_err(PyValueError::new_err)?;
        self.inner.broker.pulls.expressions.put(text, metaq_store::Filter::Expression(Arc::new(program)));
        Ok(())
    }

    fn put_function(&self, text: &str, function: String, call: String) {
        self.inner.broker.pulls.expressions.put(text, call_filter((function, call)));
    }

    fn functions_fileno(&self) -> i32 {
        self.inner.broker.pulls.function_lines.fileno()
    }

    fn functions_wanted(&self) -> Vec<String> {
        self.inner.broker.pulls.function_lines.wanted()
    }

    fn take_batch(
        &self,
        py: Python<'_>,
        function: &str,
        messages_max: usize,
        bytes_max: usize,
    ) -> Option<FilterBatch> {
        let broker = &self.inner.broker;
        let batch = enter_infallible(py, || broker.pulls.take_batch(function, messages_max, bytes_max));
        batch.map(|batch| FilterBatch::new(batch, Arc::clone(broker)))
    }

    fn set_permission(&self, permission: u8) {
        self.inner.broker.policy.set_permission(permission);
    }

    fn load_offsets(&self, offsets: HashMap<String, BTreeMap<i32, i64>>) {
        self.inner.broker.offsets.load(offsets);
    }

    fn offsets(&self) -> BTreeMap<String, BTreeMap<i32, i64>> {
        self.inner.broker.offsets.snapshot().into_iter().collect()
    }

    fn offsets_of(&self, group: &str, topic: &str) -> BTreeMap<i32, i64> {
        self.inner.broker.offsets.of(group, topic)
    }

    fn unsettled(
        &self,
        py: Python<'_>,
        group: &str,
        queues_max: usize,
    ) -> Vec<(String, i32, i64, Option<i64>)> {
        enter_infallible(py, || self.inner.broker.unsettled(group, queues_max))
    }

    fn topics_of_group(&self, group: &str) -> Vec<String> {
        self.inner.broker.offsets.topics_of(group)
    }

    fn groups_of_topic(&self, topic: &str) -> Vec<String> {
        self.inner.broker.offsets.groups_of(topic)
    }

    fn take_changed_offsets(&self) -> (ChangedOffsets, bool) {
        let (changes, is_more) = self.inner.broker.offsets.take_some_changed();
        (changes.into_iter().map(|(key, committed, resets)| (key, (committed, resets))).collect(), is_more)
    }

    fn check_resets(
        &self,
        py: Python<'_>,
        group: &str,
        wanted: BTreeMap<String, Vec<i32>>,
    ) -> Option<String> {
        let offsets = &self.inner.broker.offsets;
        let wanted = wanted.iter().map(|(topic, queues)| (topic.as_str(), queues.as_slice()));
        enter_infallible(py, || offsets.check_resets(group, wanted)).err().map(|full| full.to_string())
    }

    fn assign_offset(&self, group: &str, topic: &str, queue_id: i32, committed_offset: i64) {
        self.inner.broker.offsets.assign(group, topic, queue_id, committed_offset);
    }

    fn advance_offset(&self, group: &str, topic: &str, queue_id: i32, committed_offset: i64) {
        self.inner.broker.offsets.advance(group, topic, queue_id, committed_offset);
    }

    /// Offsets that a replica took without its master: `topic@group`, queue and offset.
    fn take_kept_offsets(&self) -> Vec<(String, BTreeMap<i32, i64>)> {
        self.inner.broker.offsets.take_kept()
    }

    /// As a commit at a replica without a master.
    fn keep_offset(&self, group: &str, topic: &str, queue_id: i32, committed_offset: i64) {
        self.inner.broker.offsets.keep(group, topic, queue_id, committed_offset);
    }

    fn reset_offset(&self, py: Python<'_>, group: &str, topic: &str, queue_id: i32, queue_offset: i64) {
        let broker = &self.inner.broker;
        enter_infallible(py, || broker.pulls.reset_offset(group, topic, queue_id, queue_offset));
    }

    fn watch_signs(&self, queues: Vec<(String, String, i32)>) {
        self.inner.broker.pulls.signs.watch(queues);
    }

    fn take_silent(&self, queues: Vec<(String, String, i32)>) -> Vec<(String, String, i32)> {
        self.inner.broker.pulls.signs.take_silent(queues)
    }

    #[pyo3(signature = (group=None, topic=None))]
    fn remove_offsets(&self, group: Option<&str>, topic: Option<&str>) {
        self.inner.broker.offsets.remove(group, topic);
    }

    fn load_delay_offsets(&self, offsets: HashMap<usize, i64>) {
        self.inner.broker.delay_levels.load(offsets);
    }

    #[pyo3(signature = (timeout_ms=5000))]
    fn delay_offsets(&self, py: Python<'_>, timeout_ms: u64) -> Option<BTreeMap<usize, i64>> {
        let broker = &self.inner.broker;
        let offsets = enter_infallible(py, || broker.delay_levels.offsets(Duration::from_millis(timeout_ms)));
        offsets.map(|offsets| offsets.into_iter().collect())
    }

    fn load_timer_progress(&self, wake_ms: i64, physical_offset: i64, queue_offset: i64) {
        let done = TimerPosition { wake_ms, physical_offset };
        self.inner.broker.timers.load(TimerProgress { done, queue_offset });
    }

    #[pyo3(signature = (timeout_ms=5000))]
    fn timer_progress(&self, py: Python<'_>, timeout_ms: u64) -> Option<(i64, i64, i64)> {
        let broker = &self.inner.broker;
        let progress = enter_infallible(py, || broker.timers.progress(Duration::from_millis(timeout_ms)));
        progress.map(|found| (found.done.wake_ms, found.done.physical_offset, found.queue_offset))
    }

    #[pyo3(signature = (timeout_ms=1000))]
    fn hold_deliveries(&self, py: Python<'_>, timeout_ms: u64) -> bool {
        let broker = &self.inner.broker;
        enter_infallible(py, || broker.hold_deliveries(Duration::from_millis(timeout_ms)))
    }

    fn release_deliveries(&self) {
        self.inner.broker.release_deliveries();
    }

    #[pyo3(signature = (timeout_ms=5000))]
    fn catch_up(&self, py: Python<'_>, timeout_ms: u64) -> bool {
        let broker = &self.inner.broker;
        enter_infallible(py, || broker.catch_up(Duration::from_millis(timeout_ms)))
    }

    #[pyo3(signature = (physical_offset, topic, queue_id, *, reconsume_times, delay_level=0, drop=Vec::new(), properties=None, system_names=Vec::new()))]
    #[allow(clippy::too_many_arguments)]
    fn resend(
        &self,
        py: Python<'_>,
        physical_offset: i64,
        topic: String,
        queue_id: i32,
        reconsume_times: i32,
        delay_level: i64,
        drop: Vec<String>,
        properties: Option<HashMap<String, String>>,
        system_names: Vec<String>,
    ) -> PyResult<i64> {
        let set = properties.unwrap_or_default().into_iter().collect();
        let resend = Resend {
            physical_offset,
            topic,
            queue_id,
            reconsume_times,
            delay_level,
            drop,
            set,
            system_names,
        };
        let broker = &self.inner.broker;
        enter(py, || broker.sends.resend(&resend))
    }

    fn set_recall_key(&self, key: Vec<u8>) {
        self.inner.broker.due_times.set_recall_key(key);
    }

    #[pyo3(signature = (topic, unique_key, due_ms, *, producer_group, born_host))]
    fn recall(
        &self,
        py: Python<'_>,
        topic: String,
        unique_key: String,
        due_ms: i64,
        producer_group: String,
        born_host: &str,
    ) -> PyResult<&'static str> {
        let broker = &self.inner.broker;
        let born_host = born_host.parse().unwrap_or(broker.store_host);
        let recall = Recall { topic, unique_key, due_ms, producer_group, born_host };
        Ok(match enter(py, || broker.timers.recall(&recall))? {
            RecallOutcome::Stored => "stored",
            RecallOutcome::TooLate => "late",
            RecallOutcome::RecalledBefore => "before",
        })
    }

    #[pyo3(signature = (*, from_ms, step_ms, count))]
    fn delayed_figures(
        &self,
        py: Python<'_>,
        from_ms: i64,
        step_ms: i64,
        count: usize,
    ) -> Option<DelayedFigures> {
        let broker = &self.inner.broker;
        let spans = TimerSpans { from_ms, step_ms, count };
        let (timed, levels) =
            enter_infallible(py, || (broker.timers.counts(&spans), broker.delay_levels.counts(&spans)));
        let timed = timed?;
        let mut totals = timed.spans;
        for level in &levels {
            totals.iter_mut().zip(&level.spans).for_each(|(total, count)| *total += count);
        }
        let first_ms = levels.iter().filter_map(|level| level.first_ms).chain(timed.first_ms).min();
        let last_ms = levels.iter().filter_map(|level| level.last_ms).chain(timed.last_ms).max();
        let levels = levels.iter().map(|level| (level.level, level.delay_ms, level.messages)).collect();
        Some((timed.messages, timed.recalls, first_ms, last_ms, totals, levels))
    }

    #[pyo3(signature = (*, from_ms, to_ms, count_max, topic=None))]
    fn list_delayed<'py>(
        &self,
        py: Python<'py>,
        from_ms: i64,
        to_ms: i64,
        count_max: usize,
        topic: Option<String>,
    ) -> Option<(Vec<DelayedLine<'py>>, bool)> {
        let broker = &self.inner.broker;
        let search = DelayedSearch { from_ms, to_ms, count_max, topic };
        let listing = enter_infallible(py, || {
            Some(broker.timers.list(&search)?.joined(broker.delay_levels.list(&search), count_max))
        })?;
        let lines = listing.messages.iter().map(|message| delayed_line(py, message));
        Some((lines.collect(), listing.is_cut))
    }

    fn find_delayed<'py>(&self, py: Python<'py>, physical_offset: i64) -> Option<DelayedLine<'py>> {
        let broker = &self.inner.broker;
        let found = enter_infallible(py, || {
            broker.timers.find(physical_offset).or_else(|| broker.delay_levels.find(physical_offset))
        });
        found.map(|message| delayed_line(py, &message))
    }

    #[pyo3(signature = (*, count_max, timeout_ms, renew_ms, producer_group=None))]
    fn list_transactions<'py>(
        &self,
        py: Python<'py>,
        count_max: usize,
        timeout_ms: i64,
        renew_ms: i64,
        producer_group: Option<&str>,
    ) -> (Vec<TransactionLine<'py>>, usize) {
        let broker = &self.inner.broker;
        let look = Look { now_ms: 0, timeout_ms, renew_ms, stored_before_ms: 0, count_max };
        let open = enter_infallible(py, || broker.transactions.list(producer_group, &look));
        (open.transactions.iter().map(|open| transaction_line(py, open)).collect(), open.total)
    }

    #[pyo3(signature = (physical_offset, *, timeout_ms, renew_ms))]
    fn find_transaction<'py>(
        &self,
        py: Python<'py>,
        physical_offset: i64,
        timeout_ms: i64,
        renew_ms: i64,
    ) -> PyResult<(Option<TransactionLine<'py>>, Option<&'static str>)> {
        let broker = &self.inner.broker;
        let look = Look { now_ms: 0, timeout_ms, renew_ms, stored_before_ms: 0, count_max: 1 };
        let found = enter(py, || broker.transactions.find(physical_offset, &look))?;
        Ok(match found {
            Ok(open) => (Some(transaction_line(py, &open)), None),
            Err(decided) => (None, outcome(decided)),
        })
    }

    /// Returns how the transaction had ended before; None if it ends now.
    fn decide_transaction(
        &self,
        py: Python<'_>,
        physical_offset: i64,
        commit: bool,
    ) -> PyResult<Option<&'static str>> {
        let broker = &self.inner.broker;
        let end = if commit { End::Committed } else { End::RolledBack };
        enter(py, || broker.transactions.decide(physical_offset, end)).map(outcome)
    }

    fn load_transactions(&self, py: Python<'_>) -> usize {
        let broker = &self.inner.broker;
        enter_infallible(py, || broker.transactions.load())
    }

    #[pyo3(signature = (timeout_ms=5000))]
    fn transaction_offsets(&self, py: Python<'_>, timeout_ms: u64) -> Option<(i64, i64)> {
        let broker = &self.inner.broker;
        enter_infallible(py, || broker.transactions.progress(Duration::from_millis(timeout_ms)))
    }

    #[pyo3(signature = (*, timeout_ms, renew_ms, stored_before_ms, count_max))]
    fn due_transactions<'py>(
        &self,
        py: Python<'py>,
        timeout_ms: i64,
        renew_ms: i64,
        stored_before_ms: i64,
        count_max: usize,
    ) -> Vec<(Bound<'py, PyBytes>, i64, bool)> {
        let broker = &self.inner.broker;
        let now_ms = broker.store.clock().now_ms();
        let look = Look { now_ms, timeout_ms, renew_ms, stored_before_ms, count_max };
        let records = enter_infallible(py, || broker.transactions.due(&look));
        records.iter().map(|due| (PyBytes::new(py, &due.record), due.began_ms, due.is_immune)).collect()
    }

    fn renew_transactions<'py>(
        &self,
        py: Python<'py>,
        queue_offsets: Vec<i64>,
        checked: bool,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let broker = &self.inner.broker;
        let copies = enter(py, || broker.transactions.renew(&queue_offsets, checked))?;
        Ok(copies.iter().map(|copy| PyBytes::new(py, copy)).collect())
    }

    fn give_up_transactions(&self, py: Python<'_>, queue_offsets: Vec<i64>, topic: &str) -> PyResult<usize> {
        let broker = &self.inner.broker;
        enter(py, || broker.transactions.give_up(&queue_offsets, topic))
    }

    fn resume_transaction(&self, py: Python<'_>, physical_offset: i64, topic: &str) -> PyResult<bool> {
        let broker = &self.inner.broker;
        enter(py, || broker.transactions.resume(physical_offset, topic))
    }

    /// The metrics of topics, groups and requests, and how many series found no room.
    #[pyo3(signature = (labels, *, series_max, by_topic=true))]
    fn scrape<'py>(
        &self,
        py: Python<'py>,
        labels: Vec<(String, String)>,
        series_max: usize,
        by_topic: bool,
    ) -> (Bound<'py, PyBytes>, u64) {
        let broker = &self.inner.broker;
        let scraped = enter_infallible(py, || {
            broker.scrape(&metaq_server::Scrape { common: labels, series_max, by_topic })
        });
        (PyBytes::new(py, scraped.text.as_bytes()), scraped.dropped)
    }

    fn figures(&self) -> PlaneFigures {
        self.inner.figures().into()
    }
}

fn delayed_line<'py>(py: Python<'py>, message: &DelayedMessage) -> DelayedLine<'py> {
    let head = PyBytes::new(py, &message.head);
    (head, message.size, message.due_ms, message.level, message.is_recalled)
}

fn transaction_line<'py>(py: Python<'py>, open: &OpenTransaction) -> TransactionLine<'py> {
    (PyBytes::new(py, &open.head), open.size, open.began_ms, open.check_from_ms)
}

/// How a transaction had ended before; None if it ended just now.
fn outcome(decided: Decided) -> Option<&'static str> {
    match decided {
        Decided::Done => None,
        Decided::Before(End::Committed) => Some("committed"),
        Decided::Before(End::RolledBack) => Some("rolled back"),
        Decided::Before(End::GivenUp) => Some("given up"),
        Decided::Forgotten => Some("ended long ago"),
    }
}
