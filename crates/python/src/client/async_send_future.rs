//! `AsyncSendFuture`: the outcome of one message for the tasks of an event loop. asyncio accepts it as a future, because
//! it knows futures by their methods (PEP 3156) and not by their class.
//!
//! A future of asyncio's own costs more to create, resolve and collect than everything else that happens to a message,
//! and nobody reads most of them: a flush reports what failed. This one leaves no trace at its batch and makes no result
//! until somebody awaits it or asks.
//!
//! A message that the buffer has no room for has a future too. It waits for its place, and gets it when the message
//! enters the buffer.

use std::sync::{Arc, OnceLock};

use metaq_client::{Batch, Outcome};
use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::client::send_future::{Attached, exception, result, state_of};

#[pyclass(frozen, module = "metaq._core")]
pub struct AsyncSendFuture {
    /// Empty while the message waits for room in the buffer.
    place: OnceLock<Place>,
    event_loop: Py<PyAny>,
    /// Only the thread of the event loop uses it, as with every future of asyncio. No Python runs while it is locked.
    state: Mutex<State>,
}

enum Place {
    InBatch(Arc<Batch<Attached>>, usize),
    /// The message never entered the buffer, for this reason.
    Refused(Py<PyAny>),
}

#[derive(Default)]
struct State {
    /// asyncio's `_asyncio_future_blocking`: a task has awaited this future and does not wait yet.
    is_blocking: bool,
    /// The message of the cancellation, if it was cancelled.
    cancelled: Option<Option<Py<PyAny>>>,
    /// The batch has a reference to this future.
    is_watched: bool,
    /// Each with the context to run it in.
    callbacks: Vec<(Py<PyAny>, Py<PyAny>)>,
}

/// Objects of Python's standard library, looked up once.
struct Borrowed {
    copy_context: Py<PyAny>,
    cancelled_error: Py<PyAny>,
    invalid_state_error: Py<PyAny>,
}

static BORROWED: PyOnceLock<Borrowed> = PyOnceLock::new();

impl Borrowed {
    fn get(py: Python<'_>) -> PyResult<&Borrowed> {
        BORROWED.get_or_try_init(py, || {
            let asyncio = py.import("asyncio")?;
            Ok(Borrowed {
                copy_context: py.import("contextvars")?.getattr("copy_context")?.unbind(),
                cancelled_error: asyncio.getattr("CancelledError")?.unbind(),
                invalid_state_error: asyncio.getattr("InvalidStateError")?.unbind(),
            })
        })
    }
}

impl AsyncSendFuture {
    pub fn new(batch: Arc<Batch<Attached>>, number: usize, event_loop: Py<PyAny>) -> Self {
        AsyncSendFuture { place: Place::InBatch(batch, number).into(), event_loop, state: Mutex::default() }
    }

    fn is_done(&self) -> bool {
        self.is_settled() || self.is_cancelled()
    }

    fn is_settled(&self) -> bool {
        match self.place.get() {
            Some(Place::InBatch(batch, _)) => batch.outcome().is_some(),
            Some(Place::Refused(_)) => true,
            None => false,
        }
    }

    fn is_cancelled(&self) -> bool {
        self.state.lock().cancelled.is_some()
    }

    /// The outcome with its batch. Raises if it was cancelled or has no outcome yet.
    fn settled(&self, py: Python<'_>) -> PyResult<Settled<'_>> {
        if self.is_cancelled() {
            return Err(PyErr::from_value(self.cancelled_error(py)?.into_bound(py)));
        }
        match self.place.get() {
            Some(Place::Refused(error)) => return Ok(Settled::Refused(error)),
            Some(Place::InBatch(batch, number)) => {
                if let Some(outcome) = batch.outcome() {
                    return Ok(Settled::InBatch(batch, *number, outcome));
                }
            }
            None => {}
        }
        let maker = &Borrowed::get(py)?.invalid_state_error;
        let error = maker.call1(py, ("the message is still being sent",))?;
        Err(PyErr::from_value(error.into_bound(py)))
    }

    /// Sets the place of a message that waited. The first call counts.
    fn settle_in(slf: &Bound<'_, Self>, place: Place) -> PyResult<()> {
        let future = slf.get();
        if future.place.set(place).is_err() {
            return Ok(());
        }
        let is_watched = {
            let mut state = future.state.lock();
            // A cancelled future has called its callbacks already.
            let wants = state.cancelled.is_none() && !state.callbacks.is_empty();
            wants && !std::mem::replace(&mut state.is_watched, true)
        };
        if is_watched { watch(slf) } else { Ok(()) }
    }
}

/// The outcome of a message, and what is needed to show it.
enum Settled<'a> {
    InBatch(&'a Batch<Attached>, usize, &'a Outcome),
    Refused(&'a Py<PyAny>),
}

/// Calls the callbacks when the outcome is known, which may be now.
fn watch(future: &Bound<'_, AsyncSendFuture>) -> PyResult<()> {
    let is_known = match future.get().place.get() {
        Some(Place::InBatch(batch, _)) => {
            !batch.watch(|attached| attached.futures.push(future.clone().unbind()))
        }
        Some(Place::Refused(_)) => true,
        None => false,
    };
    // If the outcome is known by now, nobody else will call the callbacks.
    if is_known { call_soon(future) } else { Ok(()) }
}

/// Lets the loop call all callbacks.
pub fn call_soon(future: &Bound<'_, AsyncSendFuture>) -> PyResult<()> {
    let callbacks = std::mem::take(&mut future.get().state.lock().callbacks);
    callbacks.into_iter().try_for_each(|(callback, context)| call_one_soon(future, callback, context))
}

fn call_one_soon(
    future: &Bound<'_, AsyncSendFuture>,
    callback: Py<PyAny>,
    context: Py<PyAny>,
) -> PyResult<()> {
    let py = future.py();
    let named = PyDict::new(py);
    named.set_item(intern!(py, "context"), context)?;
    let event_loop = future.get().event_loop.bind(py);
    event_loop.call_method(intern!(py, "call_soon"), (callback, future), Some(&named))?;
    Ok(())
}

#[pymethods]
impl AsyncSendFuture {
    /// The future of a message that waits for room in the buffer.
    #[staticmethod]
    fn waiting(event_loop: Py<PyAny>) -> Self {
        AsyncSendFuture { place: OnceLock::new(), event_loop, state: Mutex::default() }
    }

    /// The message is in the buffer now, under this other future.
    #[pyo3(name = "_enter")]
    fn enter(slf: &Bound<'_, Self>, entered: &Bound<'_, Self>) -> PyResult<()> {
        match entered.get().place.get() {
            Some(Place::InBatch(batch, number)) => {
                Self::settle_in(slf, Place::InBatch(batch.clone(), *number))
            }
            _ => Err(PyValueError::new_err("the other future waits too")),
        }
    }

    /// The message does not enter the buffer, for this reason.
    #[pyo3(name = "_refuse")]
    fn refuse(slf: &Bound<'_, Self>, error: Py<PyAny>) -> PyResult<()> {
        Self::settle_in(slf, Place::Refused(error))
    }

    #[getter(_asyncio_future_blocking)]
    fn is_blocking(&self) -> bool {
        self.state.lock().is_blocking
    }

    #[setter(_asyncio_future_blocking)]
    fn set_blocking(&self, is_blocking: bool) {
        self.state.lock().is_blocking = is_blocking;
    }

    fn get_loop(&self, py: Python<'_>) -> Py<PyAny> {
        self.event_loop.clone_ref(py)
    }

    fn done(&self) -> bool {
        self.is_done()
    }

    fn cancelled(&self) -> bool {
        self.is_cancelled()
    }

    #[pyo3(signature = (msg=None))]
    fn cancel(slf: &Bound<'_, Self>, msg: Option<Py<PyAny>>) -> PyResult<bool> {
        if slf.get().is_done() {
            return Ok(false);
        }
        slf.get().state.lock().cancelled = Some(msg);
        call_soon(slf)?;
        Ok(true)
    }

    /// `asyncio.gather` uses this getter and the method below.
    #[getter(_cancel_message)]
    fn cancel_message(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state.lock().cancelled.as_ref()?.as_ref().map(|message| message.clone_ref(py))
    }

    #[pyo3(name = "_make_cancelled_error")]
    fn cancelled_error(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let maker = &Borrowed::get(py)?.cancelled_error;
        match self.cancel_message(py) {
            Some(message) => maker.call1(py, (message,)),
            None => maker.call0(py),
        }
    }

    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.settled(py)? {
            Settled::InBatch(batch, number, outcome) => result(py, batch, number, outcome),
            Settled::Refused(error) => {
                // Otherwise it would collect the frames of every raise.
                error.setattr(py, intern!(py, "__traceback__"), py.None())?;
                Err(PyErr::from_value(error.bind(py).clone()))
            }
        }
    }

    fn exception(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.settled(py)? {
            Settled::InBatch(batch, number, outcome) => exception(py, batch, number, outcome),
            Settled::Refused(error) => Ok(Some(error.clone_ref(py))),
        }
    }

    #[pyo3(signature = (callback, *, context=None))]
    fn add_done_callback(
        slf: &Bound<'_, Self>,
        callback: Py<PyAny>,
        context: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let py = slf.py();
        let context = match context {
            Some(context) => context,
            None => Borrowed::get(py)?.copy_context.call0(py)?,
        };
        let future = slf.get();
        if future.is_done() {
            return call_one_soon(slf, callback, context);
        }
        let is_first = {
            let mut state = future.state.lock();
            state.callbacks.push((callback, context));
            // A message that waits for room is watched from the moment it enters the buffer.
            future.place.get().is_some() && !std::mem::replace(&mut state.is_watched, true)
        };
        if is_first { watch(slf) } else { Ok(()) }
    }

    fn remove_done_callback(&self, py: Python<'_>, callback: &Bound<'_, PyAny>) -> PyResult<usize> {
        // Without the lock: comparing callbacks may run Python.
        let before = std::mem::take(&mut self.state.lock().callbacks);
        let mut kept = Vec::new();
        let mut removed = 0;
        for (known, context) in before {
            if known.bind(py).eq(callback)? {
                removed += 1;
            } else {
                kept.push((known, context));
            }
        }
        self.state.lock().callbacks.splice(0..0, kept);
        Ok(removed)
    }

    fn __await__(slf: &Bound<'_, Self>) -> Awaited {
        Awaited { future: slf.clone().unbind(), has_yielded: false }
    }

    fn __iter__(slf: &Bound<'_, Self>) -> Awaited {
        Awaited { future: slf.clone().unbind(), has_yielded: false }
    }

    fn __repr__(&self) -> String {
        let (batch, number) = match self.place.get() {
            Some(Place::InBatch(batch, number)) => (batch, *number),
            Some(Place::Refused(_)) => return "<AsyncSendFuture of a message that was not sent>".to_owned(),
            None => return "<AsyncSendFuture of a message that waits for room>".to_owned(),
        };
        let state = if self.is_cancelled() { "cancelled" } else { state_of(batch) };
        let topic = &batch.topic;
        match batch.message_id(number) {
            Some(id) => format!("<AsyncSendFuture of {id} to {topic}, {state}>"),
            None => format!("<AsyncSendFuture to {topic}, {state}>"),
        }
    }
}

/// One `await` of the future: yields it to its task, then returns the result.
#[pyclass(module = "metaq._core")]
pub struct Awaited {
    future: Py<AsyncSendFuture>,
    has_yielded: bool,
}

#[pymethods]
impl Awaited {
    fn __iter__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        slf.clone()
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Py<AsyncSendFuture>> {
        let future = self.future.get();
        if future.is_done() {
            return Err(PyStopIteration::new_err((future.result(py)?,)));
        }
        if self.has_yielded {
            return Err(PyRuntimeError::new_err("a task continued before its future was done"));
        }
        self.has_yielded = true;
        future.state.lock().is_blocking = true;
        Ok(self.future.clone_ref(py))
    }
}
