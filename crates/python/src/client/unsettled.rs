//! `Unsettled`: the messages of one queue that a consumer has pulled and not acknowledged yet.

use metaq_client::InFlight;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::client::message::Message;

#[pyclass(frozen, module = "metaq._core")]
pub struct Unsettled {
    in_flight: Mutex<InFlight>,
}

#[pymethods]
impl Unsettled {
    #[new]
    fn new() -> Self {
        Unsettled { in_flight: Mutex::default() }
    }

    /// Adds messages and returns those that were added: a broker may return older ones than it was asked for.
    fn put<'py>(&self, messages: Bound<'py, PyList>, from_offset: i64) -> PyResult<Bound<'py, PyList>> {
        let py = messages.py();
        let mut has_older = false;
        for message in &messages {
            let message = message.cast::<Message>().map_err(PyErr::from)?.get();
            // Before the lock is taken: decompressing a body may run Python.
            let (queue_offset, bytes) = (message.queue_offset_number(py)?, message.size(py)?);
            if queue_offset < from_offset {
                has_older = true;
                continue;
            }
            self.in_flight.lock().add(queue_offset, bytes);
        }
        if !has_older {
            return Ok(messages);
        }
        let added = PyList::empty(py);
        for message in &messages {
            if message.cast::<Message>().map_err(PyErr::from)?.get().queue_offset_number(py)? >= from_offset {
                added.append(message)?;
            }
        }
        Ok(added)
    }

    fn settle(&self, message: &Bound<'_, Message>) -> PyResult<()> {
        let queue_offset = message.get().queue_offset_number(message.py())?;
        self.in_flight.lock().finish(queue_offset);
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.in_flight.lock().count()
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.in_flight.lock().bytes()
    }

    #[getter]
    fn first(&self) -> Option<i64> {
        self.in_flight.lock().first()
    }

    #[getter]
    fn span(&self) -> i64 {
        self.in_flight.lock().span()
    }
}
