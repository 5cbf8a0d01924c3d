//! The listener as the control plane uses it: its life, what comes up from its connections, what goes down to them.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use metaq_server::HotRequests;
use pyo3::prelude::*;

use crate::enter::{Failure, enter, enter_infallible};
use crate::server::event::to_python;
use crate::server::figures::{ListenerFigures, SlowRequest};
use crate::server::settings::ServerSettings;

#[pyclass(frozen, module = "metaq._core")]
pub struct Listener {
    pub inner: metaq_server::Listener,
}

#[pymethods]
impl Listener {
    #[new]
    #[pyo3(signature = (settings, *, serves_broker))]
    fn new(settings: ServerSettings, serves_broker: bool) -> PyResult<Self> {
        let hot = if serves_broker { HotRequests::Plane } else { HotRequests::Cross };
        let inner = metaq_server::Listener::bind(settings.into(), hot).map_err(Failure::from)?;
        Ok(Listener { inner })
    }

    #[getter]
    fn port(&self) -> u16 {
        self.inner.port()
    }

    #[getter]
    fn old_port(&self) -> Option<u16> {
        self.inner.old_port()
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.inner.start())
    }

    #[pyo3(signature = (timeout_ms=5000))]
    fn stop(&self, py: Python<'_>, timeout_ms: u64) {
        enter_infallible(py, || self.inner.stop(Duration::from_millis(timeout_ms)));
    }

    fn fileno(&self) -> i32 {
        self.inner.shared.crossing.fileno()
    }

    #[pyo3(signature = (count_max=256))]
    fn drain(&self, py: Python<'_>, count_max: usize) -> PyResult<Vec<Py<PyAny>>> {
        let events = self.inner.shared.crossing.drain(count_max);
        events.into_iter().map(|event| to_python(py, event, &self.inner.shared)).collect()
    }

    fn pause(&self, connection: u64, paused: bool) {
        self.inner.shared.crossing.pause(connection, paused);
    }

    #[pyo3(signature = (connection, code, *, fields=None, body=&[][..], oneway=false))]
    fn invoke(
        &self,
        py: Python<'_>,
        connection: u64,
        code: i32,
        fields: Option<HashMap<String, String>>,
        body: &[u8],
        oneway: bool,
    ) -> PyResult<i32> {
        let fields: Vec<(String, String)> = fields.unwrap_or_default().into_iter().collect();
        let body = Bytes::copy_from_slice(body);
        enter(py, || self.inner.invoke(connection, code, &fields, body, oneway))
    }

    fn set_relay(&self, py: Python<'_>, address: Option<&str>) -> PyResult<()> {
        enter(py, || self.inner.set_relay(address))
    }

    fn hold_appends(&self, py: Python<'_>, timeout_ms: u64) {
        enter_infallible(py, || self.inner.shared.hold_appends(Duration::from_millis(timeout_ms)));
    }

    fn release_appends(&self, py: Python<'_>) -> bool {
        enter_infallible(py, || self.inner.shared.release_appends())
    }

    fn count_group_memory(&self, group: &str, bytes: i64) {
        self.inner.count_group_memory(group, bytes);
    }

    fn set_slow_request_ms(&self, limit_ms: u64) {
        self.inner.shared.slow_requests.set_limit_ms(limit_ms);
    }

    fn take_slow_requests(&self) -> (Vec<SlowRequest>, u64) {
        let (requests, left_out) = self.inner.shared.slow_requests.take();
        (requests.into_iter().map(Into::into).collect(), left_out)
    }

    fn figures(&self) -> ListenerFigures {
        self.inner.figures().into()
    }
}
