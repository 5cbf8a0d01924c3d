//! `Scan`: a range of a queue that comes out as batches of Arrow columns.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use metaq_client::{
    BatchLimits, Column, ColumnBatch, ColumnBuffers, ColumnScan, RowSource, ScanEnd, ScanLimits,
};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::client::network::Network;
use crate::client::pull_stream::Subscription;
use crate::client::send_future::SIGNAL_INTERVAL;
use crate::enter::{enter, enter_infallible};

/// `metaq.settings.ScanSettings`, read by attribute.
#[derive(FromPyObject)]
pub struct ScanSettings {
    group: String,
    columns: Vec<String>,
    hidden_names: HashSet<String>,
    rows_max: usize,
    bytes_max: usize,
    held_bytes_max: usize,
    pulls_in_flight_max: usize,
    pull_count_max: usize,
    pull_bytes_max: usize,
    pull_timeout_ms: u64,
    inflated_bytes_max: usize,
}

/// Why a scan ended.
#[pyclass(frozen, get_all, module = "metaq._core")]
pub struct ScanStop {
    kind: &'static str,
    queue_offset: i64,
    value: i64,
    text: String,
}

impl From<ScanEnd> for ScanStop {
    fn from(end: ScanEnd) -> Self {
        let (kind, queue_offset, value, text) = match end {
            ScanEnd::Done => ("done", -1, 0, String::new()),
            ScanEnd::Moved { queue_offset, next_offset } => {
                ("moved", queue_offset, next_offset, String::new())
            }
            ScanEnd::Stalled { queue_offset } => ("stalled", queue_offset, 0, String::new()),
            ScanEnd::Refused { queue_offset, code, remark } => {
                ("refused", queue_offset, i64::from(code), remark)
            }
            ScanEnd::Failed { queue_offset, reason, is_malformed: true } => {
                ("malformed", queue_offset, 0, reason)
            }
            ScanEnd::Failed { queue_offset, reason, .. } => ("failed", queue_offset, 0, reason),
            ScanEnd::Closed => ("closed", -1, 0, String::new()),
        };
        ScanStop { kind, queue_offset, value, text }
    }
}

/// Rows as columns, and the queue offsets that they were found between.
#[pyclass(frozen, module = "metaq._core")]
pub struct ScanBatch {
    #[pyo3(get)]
    rows: usize,
    #[pyo3(get)]
    from_offset: i64,
    #[pyo3(get)]
    to_offset: i64,
    #[pyo3(get)]
    unreadable: Vec<(i64, String)>,
    columns: Mutex<Vec<ColumnBuffers>>,
}

impl From<ColumnBatch> for ScanBatch {
    fn from(batch: ColumnBatch) -> Self {
        let ColumnBatch { rows, from_offset, to_offset, unreadable, columns } = batch;
        ScanBatch { rows, from_offset, to_offset, unreadable, columns: Mutex::new(columns) }
    }
}

/// Number of nulls, and the buffers.
type PyBuffers<'py> = (usize, Vec<Option<Bound<'py, PyBytes>>>);

#[pymethods]
impl ScanBatch {
    /// Hands the columns over; a second call returns none.
    fn columns<'py>(&self, py: Python<'py>) -> Vec<PyBuffers<'py>> {
        let columns = std::mem::take(&mut *self.columns.lock());
        let owned = |buffer: Option<Vec<u8>>| buffer.map(|buffer| PyBytes::new(py, &buffer));
        columns
            .into_iter()
            .map(|column| (column.nulls, column.buffers.into_iter().map(owned).collect()))
            .collect()
    }
}

#[pyclass(frozen, module = "metaq._core")]
pub struct Scan {
    inner: ColumnScan,
}

#[pymethods]
impl Scan {
    #[new]
    fn new(
        network: &Network,
        settings: ScanSettings,
        queue: &Bound<'_, PyAny>,
        subscription: Subscription,
        address: &str,
        from_offset: i64,
        to_offset: i64,
    ) -> PyResult<Self> {
        if from_offset < 0 || to_offset < from_offset {
            let range = format!("{from_offset} to {to_offset} is not a valid range of queue offsets");
            return Err(PyValueError::new_err(range));
        }
        let column = |name: &String| {
            Column::from_name(name).ok_or_else(|| PyValueError::new_err(format!("there is no column {name}")))
        };
        let columns = settings.columns.iter().map(column).collect::<PyResult<Vec<_>>>()?;
        let source = RowSource {
            topic: queue.getattr("topic")?.extract()?,
            broker: queue.getattr("broker")?.extract()?,
            queue_id: queue.getattr("id")?.extract()?,
            hidden_names: settings.hidden_names,
            inflated_bytes_max: settings.inflated_bytes_max,
        };
        let query = subscription.query(settings.group, source.topic.clone(), source.queue_id, 0);
        let scan_limits = ScanLimits {
            held_bytes_max: settings.held_bytes_max,
            pulls_in_flight_max: settings.pulls_in_flight_max,
            pull_count_max: settings.pull_count_max,
            pull_bytes_max: settings.pull_bytes_max,
            pull_timeout: Duration::from_millis(settings.pull_timeout_ms),
        };
        let scan =
            metaq_client::Scan::begin(&network.inner, query, address, from_offset..to_offset, scan_limits);
        let limits = BatchLimits { rows_max: settings.rows_max, bytes_max: settings.bytes_max };
        Ok(Scan { inner: ColumnScan::new(scan, from_offset, source, columns, limits) })
    }

    /// Waits without the interpreter, and lets signals end the wait.
    fn take(&self, py: Python<'_>, timeout_s: f64) -> PyResult<(Option<ScanBatch>, Option<ScanStop>)> {
        let timeout = Duration::try_from_secs_f64(timeout_s.clamp(0.0, 3.0e7)).unwrap_or_default();
        let deadline = Instant::now() + timeout;
        loop {
            let step = deadline.min(Instant::now() + SIGNAL_INTERVAL);
            if enter_infallible(py, || self.inner.wait(step, step == deadline)) {
                let (batch, end) = enter(py, || self.inner.take())?;
                return Ok((batch.map(ScanBatch::from), end.map(ScanStop::from)));
            }
            if step == deadline {
                return Ok((None, None));
            }
            py.check_signals()?;
        }
    }

    fn close(&self) {
        self.inner.close();
    }
}
