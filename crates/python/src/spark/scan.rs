//! A range of a queue, given as columns: read ahead by the network thread, decoded by whoever takes it.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use metaq_client::{Scan as Range, ScanEnd, ScanLimits, ScanPortion};
use metaq_wire::{Record, WireError};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::client::network::Network;
use crate::client::pull_stream::Subscription;
use crate::enter::{Failure, enter, enter_infallible};
use crate::spark::columns::{Buffers, Column, Columns, Origin};

/// How long a thread that waits for messages is deaf for signals.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);
/// Bodies that cannot be read are told of one by one up to here.
const UNREADABLE_MAX: usize = 100;

/// `metaq.settings.ScanSettings`, read by attribute.
#[derive(FromPyObject)]
pub struct ScanSettings {
    group: String,
    columns: Vec<String>,
    hidden_names: HashSet<String>,
    rows_max: usize,
    bytes_max: usize,
    held_bytes_max: usize,
    pull_count_max: usize,
    pull_bytes_max: usize,
    inflated_bytes_max: usize,
}

/// Why a scan came to an end.
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
    columns: Mutex<Vec<Buffers>>,
}

type PyBuffers<'py> = (usize, Vec<Option<Bound<'py, PyBytes>>>);

#[pymethods]
impl ScanBatch {
    /// Handed over once.
    fn columns<'py>(&self, py: Python<'py>) -> Vec<PyBuffers<'py>> {
        let columns = std::mem::take(&mut *self.columns.lock());
        let owned = |buffer: Option<Vec<u8>>| buffer.map(|buffer| PyBytes::new(py, &buffer));
        columns
            .into_iter()
            .map(|(missing, buffers)| (missing, buffers.into_iter().map(owned).collect()))
            .collect()
    }
}

/// An answer of which some rows may have been given already.
struct Pending {
    portion: ScanPortion,
    given: usize,
}

#[pyclass(frozen, module = "metaq._core")]
pub struct Scan {
    scan: Range,
    origin: Origin,
    columns: Vec<Column>,
    rows_max: usize,
    bytes_max: usize,
    state: Mutex<State>,
}

struct State {
    pending: VecDeque<Pending>,
    rows: usize,
    end: Option<ScanEnd>,
    next_offset: i64,
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
            let range = format!("{from_offset} to {to_offset} is no range of a queue");
            return Err(PyValueError::new_err(range));
        }
        let column = |name: &String| {
            Column::named(name).ok_or_else(|| PyValueError::new_err(format!("there is no column {name}")))
        };
        let columns = settings.columns.iter().map(column).collect::<PyResult<Vec<_>>>()?;
        let origin = Origin {
            topic: queue.getattr("topic")?.extract()?,
            broker: queue.getattr("broker")?.extract()?,
            queue_id: queue.getattr("id")?.extract()?,
            hidden_names: settings.hidden_names,
            inflated_bytes_max: settings.inflated_bytes_max,
        };
        let wanted = subscription.wanted(settings.group, origin.topic.clone(), origin.queue_id, 0);
        let limits = ScanLimits {
            held_bytes_max: settings.held_bytes_max,
            pull_count_max: settings.pull_count_max,
            pull_bytes_max: settings.pull_bytes_max,
        };
        Ok(Scan {
            scan: Range::begin(&network.inner, wanted, address, from_offset..to_offset, limits),
            origin,
            columns,
            rows_max: settings.rows_max.max(1),
            bytes_max: settings.bytes_max.max(1),
            state: Mutex::new(State {
                pending: VecDeque::new(),
                rows: 0,
                end: None,
                next_offset: from_offset,
            }),
        })
    }

    /// Waits with the interpreter released, and hears signals while it does.
    fn take(&self, py: Python<'_>, timeout_s: f64) -> PyResult<(Option<ScanBatch>, Option<ScanStop>)> {
        let timeout = Duration::try_from_secs_f64(timeout_s.clamp(0.0, 3.0e7)).unwrap_or_default();
        let deadline = Instant::now() + timeout;
        loop {
            let step = deadline.min(Instant::now() + SIGNALS_EVERY);
            let is_ready = enter_infallible(py, || self.fill(step, step == deadline));
            if is_ready {
                let batch = enter(py, || self.decode())?;
                let state = self.state.lock();
                let end = if state.pending.is_empty() { state.end.clone() } else { None };
                return Ok((batch, end.map(ScanStop::from)));
            }
            if step == deadline {
                return Ok((None, None));
            }
            py.check_signals()?;
        }
    }

    fn close(&self) {
        self.scan.close();
    }
}

impl Scan {
    /// Whether there is enough for a batch, or nothing more to wait for.
    fn fill(&self, deadline: Instant, is_last: bool) -> bool {
        let mut state = self.state.lock();
        loop {
            let is_enough = state.rows >= self.rows_max || state.end.is_some();
            if is_enough || state.bytes() >= self.bytes_max {
                return true;
            }
            let count = self.rows_max - state.rows;
            let (portions, end) = self.scan.take_until(count, self.bytes_max, deadline);
            let is_idle = portions.is_empty() && end.is_none();
            for portion in portions {
                state.rows += portion.places.len();
                state.pending.push_back(Pending { portion, given: 0 });
            }
            state.end = end;
            if is_idle || Instant::now() >= deadline {
                // What has come in the time that the caller gave is given.
                return is_last && !state.pending.is_empty() || state.end.is_some();
            }
        }
    }

    /// Rows out of what is there, until there are enough of them.
    fn decode(&self) -> Result<Option<ScanBatch>, Failure> {
        let mut state = self.state.lock();
        let from_offset = state.next_offset;
        let mut columns = Columns::new(&self.origin, &self.columns);
        let mut unreadable = Vec::new();
        while columns.rows < self.rows_max
            && columns.bytes < self.bytes_max
            && let Some(first) = state.pending.front_mut()
        {
            let Some(at) = first.portion.places.get(first.given) else {
                let covered_to = first.portion.covered.end;
                state.pending.pop_front();
                state.next_offset = covered_to;
                continue;
            };
            let bytes = first.portion.body.get(*at as usize..).unwrap_or_default();
            // It was whole when it came.
            let record =
                Record::decode(bytes).map_err(|_| WireError::BadRecord("changed while it was held"))?;
            first.given += 1;
            let outcome = columns.push(&record);
            let queue_offset = record.queue_offset;
            state.rows = state.rows.saturating_sub(1);
            state.next_offset = queue_offset + 1;
            if let Err(error) = outcome
                && unreadable.len() < UNREADABLE_MAX
            {
                unreadable.push((queue_offset, error.to_string()));
            }
        }
        state.drop_given();
        if columns.rows == 0 && state.next_offset == from_offset {
            return Ok(None);
        }
        Ok(Some(ScanBatch {
            rows: columns.rows,
            from_offset,
            to_offset: state.next_offset,
            unreadable,
            columns: Mutex::new(columns.finish()),
        }))
    }
}

impl State {
    fn bytes(&self) -> usize {
        self.pending.iter().map(|pending| pending.portion.body.len()).sum()
    }

    /// Answers whose rows have all been given are done with, and so is what they found unwanted.
    fn drop_given(&mut self) {
        while let Some(first) = self.pending.front()
            && first.given == first.portion.places.len()
        {
            self.next_offset = first.portion.covered.end;
            self.pending.pop_front();
        }
    }
}
