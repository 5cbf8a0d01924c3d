//! The links to Apache masters and slaves, as the control plane uses them.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;

use crate::enter::enter_infallible;
use crate::server::replication::LinkSocket;
use crate::server::store::Store;

#[pyclass(frozen, get_all, module = "metaq._core")]
pub struct ApacheFollowerFigures {
    received_offset: i64,
    silent_ms: i64,
    closed: Option<String>,
}

#[pyclass(frozen, module = "metaq._core")]
pub struct ApacheHaFollower {
    inner: metaq_server::ApacheFollower,
}

#[pymethods]
impl ApacheHaFollower {
    #[new]
    #[pyo3(signature = (store, socket, *, silence_ms))]
    fn new(store: &Store, socket: &LinkSocket, silence_ms: u64) -> PyResult<Self> {
        let (stream, store) = (socket.take()?, Arc::clone(&store.inner));
        let inner = metaq_server::ApacheFollower::start(stream, store, Duration::from_millis(silence_ms))?;
        Ok(ApacheHaFollower { inner })
    }

    fn fileno(&self) -> i32 {
        self.inner.fileno()
    }

    fn figures(&self) -> ApacheFollowerFigures {
        let figures = self.inner.figures();
        ApacheFollowerFigures {
            received_offset: figures.received,
            silent_ms: figures.silent_ms,
            closed: figures.closed,
        }
    }

    fn stop(&self, py: Python<'_>) {
        enter_infallible(py, || self.inner.stop());
    }
}

#[pyclass(frozen, get_all, module = "metaq._core")]
pub struct ApacheSlaveFigures {
    id: u64,
    remote: String,
    sent_offset: i64,
    reported_offset: i64,
    silent_ms: i64,
    closed: Option<String>,
}

#[pyclass(frozen, module = "metaq._core")]
pub struct ApacheHaMaster {
    inner: metaq_server::ApacheMaster,
}

#[pymethods]
impl ApacheHaMaster {
    #[new]
    #[pyo3(signature = (store, *, silence_ms, bytes_per_second=0))]
    fn new(store: &Store, silence_ms: u64, bytes_per_second: u64) -> PyResult<Self> {
        let (store, silence_max) = (Arc::clone(&store.inner), Duration::from_millis(silence_ms));
        let inner = metaq_server::ApacheMaster::new(store, silence_max, bytes_per_second)?;
        Ok(ApacheHaMaster { inner })
    }

    fn fileno(&self) -> i32 {
        self.inner.fileno()
    }

    fn add_link(&self, socket: &LinkSocket) -> PyResult<u64> {
        let remote = socket.remote_address().to_owned();
        Ok(self.inner.add_link(socket.take()?, remote)?)
    }

    fn links(&self) -> Vec<ApacheSlaveFigures> {
        let links = self.inner.links().into_iter();
        let figures = links.map(|link| ApacheSlaveFigures {
            id: link.id,
            remote: link.remote,
            sent_offset: link.sent,
            reported_offset: link.reported,
            silent_ms: link.silent_ms,
            closed: link.closed,
        });
        figures.collect()
    }

    fn stop(&self, py: Python<'_>) {
        enter_infallible(py, || self.inner.stop());
    }
}
