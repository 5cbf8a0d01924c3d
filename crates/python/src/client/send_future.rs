//! `SendFuture`: the outcome of one message. Python objects are made only when somebody asks for it.

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

/// How often a wait checks for signals, so that Ctrl-C ends it.
pub const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// The Python objects that belong to a batch.
#[derive(Default)]
pub struct Attached {
    /// Futures of an event loop that somebody awaits.
    pub futures: Vec<Py<AsyncSendFuture>>,
    pub callbacks: Vec<(Py<PyAny>, Py<SendFuture>)>,
    /// Why the batch failed.
    pub error: Option<Py<PyAny>>,
    /// The queue where it was stored, made with the first result.
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

/// Returns the `SendResult` of one message, or raises its error.
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
            // All messages of the batch share one error; without this it would collect the frames of every raise.
            error.setattr(intern!(py, "__traceback__"), py.None())?;
            Err(PyErr::from_value(error))
        }
    }
}

/// Returns the error of one message, if it has one.
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
    let queue = types.queue.call1(py, (&*batch.topic, &*stored.queue.broker, stored.queue.queue_id))?;
    let before = batch.with(|attached, _| attached.queue.replace(queue.clone_ref(py)));
    drop(before);
    Ok(queue)
}

/// A failed batch has one error. A batch that was stored less safely than required has an error for each message.
fn error(py: Python<'_>, batch: &Batch<Attached>, number: usize, outcome: &Outcome) -> PyResult<Py<PyAny>> {
    if let Outcome::Stored(stored) = outcome {
        let result = send_result(py, batch, stored, number)?;
        return SendTypes::get(py)?.not_durable.call1(py, (result,));
    }
    let error = batch.with(|attached, _| attached.error.as_ref().map(|error| error.clone_ref(py)));
    Ok(error.unwrap_or_else(|| {
        PyRuntimeError::new_err("the batch failed for an unknown reason").into_value(py).into_any()
    }))
}

/// One word for `repr`.
pub fn state_of(batch: &Batch<Attached>) -> &'static str {
    match batch.outcome() {
        None => "under way",
        Some(Outcome::Stored(_)) => "stored",
        Some(Outcome::Failed) => "failed",
    }
}

/// Calls a user's callback; what it raises is logged.
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

/// `None` if the time is too far away to come.
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

/// Resolves the futures of a batch. A future that fails must not keep the others from their result.
pub fn resolve_futures(py: Python<'_>, batch: &Batch<Attached>) {
    let futures = batch.with(|attached, _| std::mem::take(&mut attached.futures));
    for future in futures {
        if let Err(error) = call_soon(future.bind(py)) {
            error.write_unraisable(py, Some(future.bind(py)));
        }
    }
}
