//! What became of one message, made into Python's objects when somebody looks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use metaq_client::{Batch, Form, Outcome, Stored};
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString};

use crate::client::async_send_future::{AsyncSendFuture, call_soon};
use crate::enter::enter_infallible;

/// How long a wait may last before signals are looked at: a Ctrl-C must end it.
pub const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// What Python attaches to a batch.
#[derive(Default)]
pub struct Attached {
    /// Those of an event loop that somebody waits for.
    pub futures: Vec<Py<AsyncSendFuture>>,
    pub callbacks: Vec<(Py<PyAny>, Py<SendFuture>)>,
    /// Why it failed.
    pub error: Option<Py<PyAny>>,
    /// The queue it was stored in, made for the first result.
    queue: Option<Py<PyAny>>,
}

/// Python's classes and functions that results are made with, handed in once by `metaq.client.producer.send_buffer`.
struct SendTypes {
    result: Py<PyAny>,
    queue: Py<PyAny>,
    /// Response code → status.
    statuses: Py<PyDict>,
    /// Makes the error for a result whose status the producer does not accept.
    not_durable: Py<PyAny>,
    /// Calls a user's callback and logs what it raises.
    call_back: Py<PyAny>,
}

static SEND_TYPES: PyOnceLock<SendTypes> = PyOnceLock::new();

impl SendTypes {
    fn get(py: Python<'_>) -> PyResult<&SendTypes> {
        SEND_TYPES
            .get(py)
            .ok_or_else(|| PyRuntimeError::new_err("metaq.client.producer.send_buffer is not imported"))
    }
}

/// The first call counts.
#[pyfunction]
#[pyo3(signature = (*, result, queue, statuses, not_durable, call_back))]
pub fn register_send_types(
    py: Python<'_>,
    result: Py<PyAny>,
    queue: Py<PyAny>,
    statuses: Py<PyDict>,
    not_durable: Py<PyAny>,
    call_back: Py<PyAny>,
) {
    let _first = SEND_TYPES.set(py, SendTypes { result, queue, statuses, not_durable, call_back });
}

/// What one message of a batch comes to: its `SendResult`, or an error to be raised.
pub fn result(
    py: Python<'_>,
    batch: &Batch<Attached>,
    number: usize,
    outcome: &Outcome,
) -> PyResult<Py<PyAny>> {
    match outcome {
        Outcome::Stored(stored) if stored.is_accepted => send_result(py, batch, stored, number),
        _ => {
            let error = error(py, batch, number, outcome)?.into_bound(py);
            // One error for many: without this every raise would leave its frames with it.
            error.setattr(intern!(py, "__traceback__"), py.None())?;
            Err(PyErr::from_value(error))
        }
    }
}

/// The error alone; None where there is none.
pub fn exception(
    py: Python<'_>,
    batch: &Batch<Attached>,
    number: usize,
    outcome: &Outcome,
) -> PyResult<Option<Py<PyAny>>> {
    match outcome {
        Outcome::Stored(stored) if stored.is_accepted => Ok(None),
        _ => error(py, batch, number, outcome).map(Some),
    }
}

fn send_result(
    py: Python<'_>,
    batch: &Batch<Attached>,
    stored: &Stored,
    number: usize,
) -> PyResult<Py<PyAny>> {
    let types = SendTypes::get(py)?;
    let id = batch.message_id(number).unwrap_or_default();
    let queue_offset = stored.queue_offset.saturating_add(i64::try_from(number).unwrap_or(i64::MAX));
    let status = types.statuses.bind(py).get_item(stored.code)?;
    let together = batch.contents().is_none_or(|contents| contents.form == Form::Together);
    let queue = queue(py, types, batch, stored)?;
    let offset_id = PyString::new(py, stored.offset_ids.get(number));
    if together {
        return types.result.call1(py, (id, queue, queue_offset, status, offset_id));
    }
    let (recall_handle, transaction_id) = (&stored.recall_handle, &stored.transaction_id);
    types.result.call1(py, (id, queue, queue_offset, status, offset_id, recall_handle, transaction_id))
}

fn queue(py: Python<'_>, types: &SendTypes, batch: &Batch<Attached>, stored: &Stored) -> PyResult<Py<PyAny>> {
    if let Some(queue) = batch.with(|attached, _| attached.queue.as_ref().map(|queue| queue.clone_ref(py))) {
        return Ok(queue);
    }
    let queue = types.queue.call1(py, (&*batch.topic, &*stored.place.broker, stored.place.queue_id))?;
    let before = batch.with(|attached, _| attached.queue.replace(queue.clone_ref(py)));
    drop(before);
    Ok(queue)
}

/// A batch fails as a whole; what is stored less safely than it should be is told of each message.
fn error(py: Python<'_>, batch: &Batch<Attached>, number: usize, outcome: &Outcome) -> PyResult<Py<PyAny>> {
    if let Outcome::Stored(stored) = outcome {
        let result = send_result(py, batch, stored, number)?;
        return SendTypes::get(py)?.not_durable.call1(py, (result,));
    }
    let error = batch.with(|attached, _| attached.error.as_ref().map(|error| error.clone_ref(py)));
    Ok(error.unwrap_or_else(|| {
        PyRuntimeError::new_err("the batch failed for no reason").into_value(py).into_any()
    }))
}

/// In a word, for those who print a future.
pub fn state_of(batch: &Batch<Attached>) -> &'static str {
    match batch.outcome() {
        None => "under way",
        Some(Outcome::Stored(_)) => "stored",
        Some(Outcome::Failed) => "failed",
    }
}

/// Calls what a user gave us; what it raises is logged.
pub fn call_back(py: Python<'_>, callback: &Py<PyAny>, future: &Py<SendFuture>) -> PyResult<()> {
    SendTypes::get(py)?.call_back.call1(py, (callback, future))?;
    Ok(())
}

#[pyclass(frozen, module = "metaq._core")]
pub struct SendFuture {
    pub batch: Arc<Batch<Attached>>,
    pub number: usize,
}

impl SendFuture {
    /// Waits without the interpreter; raises TimeoutError.
    fn outcome(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<&Outcome> {
        if let Some(outcome) = self.batch.outcome() {
            return Ok(outcome);
        }
        let deadline = timeout.and_then(|seconds| deadline(seconds.max(0.0)));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let patience = left.map_or(SIGNAL_INTERVAL, |left| left.min(SIGNAL_INTERVAL));
            enter_infallible(py, || self.batch.wait(patience));
            if let Some(outcome) = self.batch.outcome() {
                return Ok(outcome);
            }
            if left.is_some_and(|left| left <= SIGNAL_INTERVAL) {
                return Err(PyTimeoutError::new_err("the message is still being sent"));
            }
            py.check_signals()?;
        }
    }
}

/// None for a time that never comes.
pub fn deadline(seconds: f64) -> Option<Instant> {
    Instant::now().checked_add(Duration::try_from_secs_f64(seconds).ok()?)
}

#[pymethods]
impl SendFuture {
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        result(py, &self.batch, self.number, self.outcome(py, timeout)?)
    }

    #[pyo3(signature = (timeout=None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        exception(py, &self.batch, self.number, self.outcome(py, timeout)?)
    }

    fn done(&self) -> bool {
        self.batch.outcome().is_some()
    }

    fn add_done_callback(slf: &Bound<'_, Self>, callback: Py<PyAny>) -> PyResult<()> {
        let py = slf.py();
        let pair = (callback.clone_ref(py), slf.clone().unbind());
        if slf.get().batch.watch(|attached| attached.callbacks.push(pair)) {
            return Ok(());
        }
        call_back(py, &callback, slf.as_unbound())
    }

    fn __repr__(&self) -> String {
        let state = state_of(&self.batch);
        let topic = &self.batch.topic;
        match self.batch.message_id(self.number) {
            Some(id) => format!("<SendFuture of {id} to {topic}, {state}>"),
            None => format!("<SendFuture to {topic}, {state}>"),
        }
    }
}

/// Brings the end of a batch to its futures. One that cannot take it must not keep it from the others.
pub fn settle(py: Python<'_>, batch: &Batch<Attached>) {
    let futures = batch.with(|attached, _| std::mem::take(&mut attached.futures));
    for future in futures {
        if let Err(error) = call_soon(future.bind(py)) {
            error.write_unraisable(py, Some(future.bind(py)));
        }
    }
}
