//! The events that `Listener.drain` returns: requests to answer, answers to our own requests, connections that ended.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use metaq_server::{Crossed, Event, Shared};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::enter::{Failure, enter, enter_infallible};

#[pyclass(frozen, module = "metaq._core")]
pub struct Request {
    crossed: Crossed,
    shared: Arc<Shared>,
}

#[pymethods]
impl Request {
    #[getter]
    fn code(&self) -> i32 {
        self.crossed.code
    }

    #[getter]
    fn version(&self) -> i32 {
        self.crossed.version
    }

    #[getter]
    fn language(&self) -> u8 {
        self.crossed.language
    }

    #[getter]
    fn oneway(&self) -> bool {
        self.crossed.oneway
    }

    #[getter]
    fn remark(&self) -> Option<&str> {
        self.crossed.remark.as_deref()
    }

    #[getter]
    fn fields(&self) -> PyResult<HashMap<String, String>> {
        fields(&self.crossed)
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.crossed.body)
    }

    #[getter]
    fn connection(&self) -> u64 {
        self.crossed.peer.id
    }

    #[getter]
    fn remote(&self) -> String {
        self.crossed.peer.remote.to_string()
    }

    #[getter]
    fn age_ms(&self) -> u64 {
        self.crossed.elapsed_ms()
    }

    #[pyo3(signature = (code=0, *, remark=None, fields=None, body=&[][..]))]
    fn respond(
        &self,
        py: Python<'_>,
        code: i32,
        remark: Option<&str>,
        fields: Option<HashMap<String, String>>,
        body: &[u8],
    ) {
        let fields: Vec<(String, String)> = fields.unwrap_or_default().into_iter().collect();
        let body = Bytes::copy_from_slice(body);
        enter_infallible(py, || self.shared.respond(&self.crossed, code, remark, &fields, body));
    }

    fn retry(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.shared.handle_again(&self.crossed))
    }

    fn relay(&self, py: Python<'_>) -> PyResult<bool> {
        enter(py, || self.shared.relay_crossed(&self.crossed))
    }
}

#[pyclass(frozen, module = "metaq._core")]
pub struct Answer {
    crossed: Crossed,
}

#[pymethods]
impl Answer {
    #[getter]
    fn connection(&self) -> u64 {
        self.crossed.peer.id
    }

    #[getter]
    fn opaque(&self) -> i32 {
        self.crossed.opaque
    }

    #[getter]
    fn code(&self) -> i32 {
        self.crossed.code
    }

    #[getter]
    fn remark(&self) -> Option<&str> {
        self.crossed.remark.as_deref()
    }

    #[getter]
    fn fields(&self) -> PyResult<HashMap<String, String>> {
        fields(&self.crossed)
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.crossed.body)
    }
}

#[pyclass(frozen, get_all, module = "metaq._core")]
pub struct Closed {
    connection: u64,
    remote: String,
    reason: Option<String>,
}

fn fields(crossed: &Crossed) -> PyResult<HashMap<String, String>> {
    let fields = crossed.fields().map_err(Failure::from)?;
    Ok(fields.into_iter().collect())
}

/// The Python object of an event.
pub fn to_python(py: Python<'_>, event: Event, shared: &Arc<Shared>) -> PyResult<Py<PyAny>> {
    Ok(match event {
        Event::Request(crossed) => Py::new(py, Request { crossed, shared: Arc::clone(shared) })?.into_any(),
        Event::Answer(crossed) => Py::new(py, Answer { crossed })?.into_any(),
        Event::Closed(peer) => {
            let reason = peer.end_reason().map(str::to_owned);
            Py::new(py, Closed { connection: peer.id, remote: peer.remote.to_string(), reason })?.into_any()
        }
    })
}
