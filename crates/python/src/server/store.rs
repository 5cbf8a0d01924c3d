//! The store as the control plane uses it: look-ups, retention, figures.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use metaq_store::{DamagedMessage, SystemDisk};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::enter::{enter, enter_infallible};
use crate::server::clock::Clock;
use crate::server::figures::StoreFigures;
use crate::server::settings::StoreSettings;

#[pyclass(frozen, get_all, module = "metaq._core")]
pub struct StoreOpened {
    log_end: i64,
    flushed_mark: i64,
    stopped_cleanly: bool,
    boot_id: String,
}

#[pyclass(frozen, module = "metaq._core")]
pub struct Store {
    pub inner: Arc<metaq_store::Store>,
    pub settings: metaq_store::StoreSettings,
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (settings, clock))]
    fn new(py: Python<'_>, settings: StoreSettings, clock: &Clock) -> PyResult<Self> {
        let settings = metaq_store::StoreSettings::from(settings);
        let (opened, clock) = (settings.clone(), clock.inner.clone());
        let inner = enter(py, || metaq_store::Store::open(opened, clock, Arc::new(SystemDisk)))?;
        Ok(Store { inner, settings })
    }

    fn set_retention(&self, py: Python<'_>, settings: StoreSettings) -> PyResult<()> {
        let settings = metaq_store::StoreSettings::from(settings);
        enter(py, || self.inner.set_retention(settings.retention))
    }

    fn set_starts(&self, topic: &str, starts: HashMap<i32, i64>) {
        self.inner.set_starts(topic, starts);
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.inner.close())
    }

    fn min_offset(&self, topic: &str, queue_id: i32) -> i64 {
        self.inner.min_offset(topic, queue_id)
    }

    fn max_offset(&self, topic: &str, queue_id: i32) -> i64 {
        self.inner.max_offset(topic, queue_id)
    }

    fn topics(&self, py: Python<'_>) -> PyResult<BTreeSet<String>> {
        enter(py, || self.inner.topics())
    }

    fn queue_ends(&self, py: Python<'_>) -> BTreeMap<String, BTreeMap<i32, i64>> {
        enter_infallible(py, || self.inner.queue_ends())
    }

    fn queue_entries(
        &self,
        py: Python<'_>,
        topic: &str,
        queue_id: i32,
        queue_offset: i64,
        count_max: usize,
    ) -> Vec<(i64, i32, i64)> {
        let entries =
            enter_infallible(py, || self.inner.queue_entries(topic, queue_id, queue_offset, count_max));
        entries.iter().map(|entry| (entry.physical_offset, entry.size, entry.tag_code)).collect()
    }

    fn measure(
        &self,
        py: Python<'_>,
        topic: &str,
        queue_id: i32,
        from_offset: i64,
        to_offset: i64,
        bytes_max: i64,
    ) -> (i64, i64, Option<i64>, Option<i64>) {
        let measured =
            enter_infallible(py, || self.inner.measure(topic, queue_id, from_offset, to_offset, bytes_max));
        let (before, last) = (measured.before_physical_offset, measured.last_physical_offset);
        (measured.end_offset, measured.bytes, before, last)
    }

    fn queue_ids(&self, topic: &str) -> Vec<i32> {
        self.inner.queue_ids(topic)
    }

    #[pyo3(signature = (topic, queue_id, timestamp_ms, *, upper=false))]
    fn search_offset(
        &self,
        py: Python<'_>,
        topic: &str,
        queue_id: i32,
        timestamp_ms: i64,
        upper: bool,
    ) -> i64 {
        enter_infallible(py, || self.inner.search_offset(topic, queue_id, timestamp_ms, upper))
    }

    fn store_time_ms(&self, py: Python<'_>, topic: &str, queue_id: i32, queue_offset: i64) -> i64 {
        enter_infallible(py, || self.inner.store_time(topic, queue_id, queue_offset)).unwrap_or(-1)
    }

    fn record_at<'py>(&self, py: Python<'py>, physical_offset: i64) -> Option<Bound<'py, PyBytes>> {
        let record = enter_infallible(py, || self.inner.queued_record_at(physical_offset))?;
        Some(PyBytes::new(py, &record))
    }

    #[pyo3(signature = (topic, key, *, count_max, begin_ms, end_ms))]
    fn query<'py>(
        &self,
        py: Python<'py>,
        topic: &str,
        key: &str,
        count_max: usize,
        begin_ms: i64,
        end_ms: i64,
    ) -> PyResult<(Vec<Bound<'py, PyBytes>>, i64, i64, bool)> {
        let found = enter(py, || self.inner.query_all(topic, key, count_max, begin_ms, end_ms))?;
        let records = found.records.iter().map(|record| PyBytes::new(py, record)).collect();
        Ok((records, found.last_store_time, found.last_physical_offset, found.is_cut_short))
    }

    fn delete_topic(&self, py: Python<'_>, topic: &str) -> PyResult<()> {
        enter(py, || self.inner.delete_topic(topic))
    }

    fn protect(&self, consumed: HashMap<(String, i32), i64>) {
        self.inner.protect(consumed);
    }

    #[pyo3(signature = (*, force=false))]
    fn clean(&self, py: Python<'_>, force: bool) -> PyResult<usize> {
        enter(py, || self.inner.clean(force))
    }

    fn start_offset(&self) -> i64 {
        self.inner.start_offset()
    }

    fn log_file_bytes(&self) -> i64 {
        self.inner.log_file_bytes()
    }

    fn end_offset(&self) -> i64 {
        self.inner.end_offset()
    }

    fn held_offset(&self) -> i64 {
        self.inner.held_offset()
    }

    fn confirmed_offset(&self) -> i64 {
        self.inner.confirmed_offset()
    }

    fn raw_checksum(&self, py: Python<'_>, from_offset: i64, to_offset: i64) -> Option<u32> {
        enter_infallible(py, || self.inner.raw_checksum(from_offset, to_offset))
    }

    fn damaged_ranges(&self, py: Python<'_>, from_offset: i64, to_offset: i64) -> Option<Vec<(i64, i64)>> {
        enter_infallible(py, || self.inner.damaged_ranges(from_offset, to_offset))
    }

    fn uncovered_records(&self, py: Python<'_>, from_offset: i64, to_offset: i64) -> Option<u64> {
        enter_infallible(py, || self.inner.uncovered_records(from_offset, to_offset))
    }

    #[allow(clippy::type_complexity, reason = "the stub names the parts")]
    fn scrub(
        &self,
        py: Python<'_>,
        from_offset: i64,
        bytes_max: usize,
    ) -> PyResult<Option<(i64, Option<u32>, Vec<(i64, i64)>)>> {
        let found = enter(py, || self.inner.scrub(from_offset, bytes_max))?;
        Ok(found.map(|found| (found.next_offset, found.checksum, found.damaged)))
    }

    fn name_damaged(&self, py: Python<'_>, from_offset: i64, to_offset: i64) -> PyResult<()> {
        enter(py, || self.inner.name_damaged(from_offset, to_offset))
    }

    fn damaged_messages(&self, py: Python<'_>) -> Vec<(String, i32, i64, bool)> {
        let messages = enter_infallible(py, || self.inner.damaged_messages());
        let shown = |message: DamagedMessage| {
            (message.topic, message.queue_id, message.queue_offset, message.is_skipped)
        };
        messages.into_iter().map(shown).collect()
    }

    fn known_damage(&self) -> Vec<(i64, i64)> {
        self.inner.known_damage()
    }

    fn log_bytes<'py>(
        &self,
        py: Python<'py>,
        physical_offset: i64,
        bytes_max: usize,
    ) -> Option<Bound<'py, PyBytes>> {
        self.inner.log_bytes(physical_offset, bytes_max).map(|bytes| PyBytes::new(py, &bytes))
    }

    fn set_aside(&self, py: Python<'_>, from_offset: i64, to_offset: i64) -> PyResult<()> {
        enter(py, || self.inner.set_aside(from_offset, to_offset))
    }

    fn lacks_entries(&self, py: Python<'_>, records: &[u8]) -> bool {
        enter_infallible(py, || self.inner.lacks_entries(records))
    }

    fn close_gate(&self) {
        self.inner.close_gate();
    }

    fn acknowledge_until(&self, py: Python<'_>, deadline_ms: Option<i64>) {
        enter_infallible(py, || {
            self.inner.acknowledge_until(deadline_ms.filter(|deadline_ms| *deadline_ms >= 0))
        });
    }

    fn opened(&self) -> StoreOpened {
        let opened = self.inner.opened();
        StoreOpened {
            log_end: opened.log_end,
            flushed_mark: opened.flushed_mark,
            stopped_cleanly: opened.stopped_cleanly,
            boot_id: opened.boot_id,
        }
    }

    fn accept_flushed_mark(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.inner.accept_flushed_mark())
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.inner.sync())
    }

    fn sync_age_ms(&self) -> i64 {
        self.inner.sync_age_ms()
    }

    fn sync_failed(&self) -> bool {
        self.inner.sync_failed()
    }

    fn is_log_cut(&self) -> bool {
        self.inner.is_log_cut()
    }

    fn is_full(&self) -> bool {
        self.inner.is_full()
    }

    fn gate_confirmation(&self, end_offset: i64) {
        self.inner.gate_confirmation(end_offset);
    }

    fn ungate_confirmation(&self, py: Python<'_>) {
        enter_infallible(py, || self.inner.ungate_confirmation());
    }

    fn wait_flushed(&self, py: Python<'_>, end_offset: i64, timeout_ms: u64) -> bool {
        enter_infallible(py, || self.inner.wait_flushed(end_offset, Duration::from_millis(timeout_ms)))
    }

    fn wait_confirmed(&self, py: Python<'_>, end_offset: i64, timeout_ms: u64) -> bool {
        enter_infallible(py, || self.inner.wait_confirmed(end_offset, Duration::from_millis(timeout_ms)))
    }

    fn fence(&self, reason: &str) {
        self.inner.fence(reason);
    }

    fn lift_fence(&self) {
        self.inner.lift_fence();
    }

    /// Why an append would be refused now; None if it would not.
    fn write_fault(&self) -> Option<String> {
        self.inner.writable().err().map(|error| error.to_string())
    }

    fn use_own_retention(&self) {
        self.inner.use_own_retention();
    }

    fn figures(&self) -> StoreFigures {
        self.inner.figures().into()
    }

    fn take_reports(&self) -> Vec<String> {
        self.inner.take_reports()
    }
}
