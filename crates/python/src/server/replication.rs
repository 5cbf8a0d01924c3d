//! The links between a master and its replicas, as the control plane uses them.

use std::sync::Arc;
use std::time::Duration;

use metaq_server::StatePosition;
use metaq_store::{Disk, SystemDisk};
use pyo3::exceptions::PyConnectionError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::enter::{enter, enter_infallible};
use crate::server::settings::{ReplicationSettings, StoreSettings};
use crate::server::store::Store;

#[pyclass(frozen, module = "metaq._core")]
pub struct LinkSocket {
    inner: metaq_server::LinkSocket,
}

impl LinkSocket {
    /// Takes the connection out, for whoever streams on it.
    pub(crate) fn take(&self) -> PyResult<std::net::TcpStream> {
        self.inner.take().ok_or_else(given_away)
    }

    pub(crate) fn remote_address(&self) -> &str {
        &self.inner.remote
    }
}

#[pymethods]
impl LinkSocket {
    #[staticmethod]
    fn connect(py: Python<'_>, address: &str, timeout_ms: u64) -> PyResult<Self> {
        let patience = Duration::from_millis(timeout_ms);
        Ok(LinkSocket { inner: py.detach(|| metaq_server::LinkSocket::connect(address, patience))? })
    }

    #[getter]
    fn remote(&self) -> &str {
        &self.inner.remote
    }

    fn send(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        Ok(py.detach(|| self.inner.send(data))?)
    }

    fn receive<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let data = py.detach(|| self.inner.receive(size))?;
        Ok(PyBytes::new(py, &data))
    }

    fn close(&self) {
        self.inner.close();
    }
}

#[pyclass(frozen, module = "metaq._core")]
pub struct LinkListener {
    inner: metaq_server::LinkListener,
}

#[pymethods]
impl LinkListener {
    #[new]
    fn new(address: &str, timeout_ms: u64) -> PyResult<Self> {
        let patience = Duration::from_millis(timeout_ms);
        Ok(LinkListener { inner: metaq_server::LinkListener::bind(address, patience)? })
    }

    #[getter]
    fn port(&self) -> u16 {
        self.inner.port()
    }

    fn fileno(&self) -> i32 {
        self.inner.fileno()
    }

    fn accept(&self) -> PyResult<Option<LinkSocket>> {
        Ok(self.inner.accept()?.map(|inner| LinkSocket { inner }))
    }
}

#[pyclass(frozen, get_all, module = "metaq._core")]
pub struct LinkFigures {
    id: u64,
    node_id: u32,
    sent_offset: i64,
    held_offset: i64,
    state: (u64, u64),
    silent_ms: i64,
    ack_ms: Option<i64>,
    closed: Option<String>,
}

#[pyclass(frozen, module = "metaq._core")]
pub struct ReplicationHub {
    inner: metaq_server::Hub,
}

#[pymethods]
impl ReplicationHub {
    #[new]
    fn new(store: &Store, settings: ReplicationSettings, epochs: Vec<(u64, i64)>) -> PyResult<Self> {
        Ok(ReplicationHub {
            inner: metaq_server::Hub::new(Arc::clone(&store.inner), settings.into(), epochs)?,
        })
    }

    fn fileno(&self) -> i32 {
        self.inner.fileno()
    }

    fn add_link(&self, socket: &LinkSocket, node_id: u32, from_offset: i64) -> PyResult<u64> {
        let stream = socket.take()?;
        Ok(self.inner.add_link(stream, node_id, from_offset)?)
    }

    fn require(&self, py: Python<'_>, node_ids: Vec<u32>) {
        enter_infallible(py, || self.inner.require(&node_ids));
    }

    fn send_state(&self, link: u64, epoch: u64, version: u64, entry: &[u8]) -> bool {
        self.inner.send_state(link, StatePosition { epoch, version }, bytes::Bytes::copy_from_slice(entry))
    }

    fn state_waiting(&self, link: u64) -> Option<usize> {
        self.inner.state_waiting(link)
    }

    fn links(&self) -> Vec<LinkFigures> {
        let links = self.inner.links().into_iter();
        let figures = links.map(|link| LinkFigures {
            id: link.id,
            node_id: link.node_id,
            sent_offset: link.sent,
            held_offset: link.held,
            state: (link.state.epoch, link.state.version),
            silent_ms: link.silent_ms,
            ack_ms: link.ack_ms,
            closed: link.closed,
        });
        figures.collect()
    }

    fn held(&self) -> std::collections::BTreeMap<u32, i64> {
        self.inner.held().into_iter().collect()
    }

    fn close_link(&self, py: Python<'_>, link: u64, reason: &str) {
        enter_infallible(py, || self.inner.close_link(link, reason));
    }

    fn stop(&self, py: Python<'_>) {
        enter_infallible(py, || self.inner.stop());
    }
}

#[pyclass(frozen, get_all, module = "metaq._core")]
pub struct FollowerFigures {
    master_end_offset: i64,
    confirmed_offset: i64,
    silent_ms: i64,
    refused_offset: Option<i64>,
    closed: Option<String>,
}

#[pyclass(frozen, module = "metaq._core")]
pub struct ReplicationFollower {
    inner: metaq_server::Follower,
}

#[pymethods]
impl ReplicationFollower {
    #[new]
    fn new(
        store: &Store,
        settings: ReplicationSettings,
        socket: &LinkSocket,
        epoch: u64,
        state: (u64, u64),
    ) -> PyResult<Self> {
        let stream = socket.take()?;
        let state = StatePosition { epoch: state.0, version: state.1 };
        let store = Arc::clone(&store.inner);
        Ok(ReplicationFollower {
            inner: metaq_server::Follower::start(stream, store, settings.into(), epoch, state)?,
        })
    }

    fn fileno(&self) -> i32 {
        self.inner.fileno()
    }

    fn take_state<'py>(&self, py: Python<'py>) -> Vec<(u64, u64, Bound<'py, PyBytes>)> {
        let entries = self.inner.take_state().into_iter();
        entries.map(|(at, entry)| (at.epoch, at.version, PyBytes::new(py, &entry))).collect()
    }

    fn acknowledge_state(&self, epoch: u64, version: u64) {
        self.inner.acknowledge_state(StatePosition { epoch, version });
    }

    fn figures(&self) -> FollowerFigures {
        let figures = self.inner.figures();
        FollowerFigures {
            master_end_offset: figures.master_end,
            confirmed_offset: figures.confirmed,
            silent_ms: figures.silent_ms,
            refused_offset: figures.refused,
            closed: figures.closed,
        }
    }

    fn stop(&self, py: Python<'_>) {
        enter_infallible(py, || self.inner.stop());
    }
}

/// Cuts the log of a store that is not open, or empties the store.
#[pyfunction]
#[pyo3(signature = (settings, *, cut_at=None, start_over_at=None))]
pub fn truncate_store(
    py: Python<'_>,
    settings: StoreSettings,
    cut_at: Option<i64>,
    start_over_at: Option<i64>,
) -> PyResult<()> {
    let settings = metaq_store::StoreSettings::from(settings);
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
    let wanted = match (cut_at, start_over_at) {
        (Some(end_offset), None) => metaq_store::Truncation::CutAt(end_offset),
        (None, Some(start_offset)) => metaq_store::Truncation::StartOverAt(start_offset),
        _ => return Err(pyo3::exceptions::PyValueError::new_err("give cut_at or start_over_at")),
    };
    enter(py, || metaq_store::truncate(&settings, &disk, wanted))
}

/// Replaces damaged records of a store that is not open by sound ones.
#[pyfunction]
pub fn rewrite_log(
    py: Python<'_>,
    settings: StoreSettings,
    physical_offset: i64,
    records: &[u8],
    rebuild: bool,
) -> PyResult<i64> {
    let settings = metaq_store::StoreSettings::from(settings);
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
    enter(py, || metaq_store::rewrite_log(&settings, &disk, physical_offset, records, rebuild))
}

fn given_away() -> PyErr {
    PyConnectionError::new_err("the socket was closed or given away before")
}
