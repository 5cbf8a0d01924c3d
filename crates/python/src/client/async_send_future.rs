//! `AsyncSendFuture`: the outcome of one message for the tasks of an event loop. asyncio accepts it as a future, because
//! it knows futures by their methods (PEP 3156) and not by their class.
//!
//! A future of asyncio's own costs more to create, resolve and collect than everything else that happens to a message,
//! and nobody reads most of them: a flush reports what failed. This one leaves no trace at its batch and makes no result
//! until somebody awaits it or asks.

use std::sync::Arc;

use metaq_client::{Batch, Outcome};
use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::client::send_future::{Attached, exception, result, state_of};

#[pyclass(frozen, module = "metaq._core")]
pub struct AsyncSendFuture {
    batch: Arc<Batch<Attached>>,
    number: usize,
    event_loop: Py<PyAny>,
    /// Only the thread of the event loop uses it, as with every future of asyncio. No Python runs while it is locked.
    state: Mutex<State>,
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
        AsyncSendFuture { batch, number, event_loop, state: Mutex::default() }
    }

    fn is_done(&self) -> bool {
        self.batch.outcome().is_some() || self.is_cancelled()
    }

    fn is_cancelled(&self) -> bool {
        self.state.lock().cancelled.is_some()
    }

    /// Raises if it was cancelled or has no outcome yet.
    fn outcome(&self, py: Python<'_>) -> PyResult<&Outcome> {
        if self.is_cancelled() {
            return Err(PyErr::from_value(self.cancelled_error(py)?.into_bound(py)));
        }
        match self.batch.outcome() {
            Some(outcome) => Ok(outcome),
            None => {
                let maker = &Borrowed::get(py)?.invalid_state_error;
                let error = maker.call1(py, ("the message is still being sent",))?;
                Err(PyErr::from_value(error.into_bound(py)))
            }
        }
    }
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
        result(py, &self.batch, self.number, self.outcome(py)?)
    }

    fn exception(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        exception(py, &self.batch, self.number, self.outcome(py)?)
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
            !std::mem::replace(&mut state.is_watched, true)
        };
        // If the batch has its outcome by now, nobody else will call the callbacks.
        if is_first && !future.batch.watch(|attached| attached.futures.push(slf.clone().unbind())) {
            return call_soon(slf);
        }
        Ok(())
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
        let state = if self.is_cancelled() { "cancelled" } else { state_of(&self.batch) };
        let topic = &self.batch.topic;
        match self.batch.message_id(self.number) {
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
