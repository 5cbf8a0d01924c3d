//! `Network` and `UniqueIds`: the network thread of a client, and the ids of its messages.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;

use crate::enter::{enter, enter_infallible};

/// `metaq.settings.NetworkSettings`, read by attribute.
#[derive(FromPyObject)]
pub struct NetworkSettings {
    connect_timeout_ms: u64,
    silence_ms_max: u32,
    frame_bytes_max: usize,
}

#[pyclass(frozen, module = "metaq._core")]
pub struct Network {
    pub inner: Arc<metaq_client::Network>,
}

#[pymethods]
impl Network {
    #[new]
    fn new(py: Python<'_>, settings: NetworkSettings) -> PyResult<Self> {
        let settings = metaq_client::NetworkSettings {
            connect_timeout: Duration::from_millis(settings.connect_timeout_ms),
            silence_ms_max: settings.silence_ms_max,
            frame_bytes_max: settings.frame_bytes_max,
        };
        let inner = enter(py, || metaq_client::Network::start(settings))?;
        Ok(Network { inner })
    }

    fn close(&self, py: Python<'_>) {
        enter_infallible(py, || self.inner.close());
    }
}

#[pyclass(frozen, module = "metaq._core")]
pub struct UniqueIds {
    pub inner: Arc<metaq_client::UniqueIds>,
}

#[pymethods]
impl UniqueIds {
    #[new]
    fn new(prefix: &[u8], counter: u16, month_start_ms: i64) -> Self {
        UniqueIds { inner: Arc::new(metaq_client::UniqueIds::new(prefix, counter, month_start_ms)) }
    }

    fn begin_month(&self, month_start_ms: i64) {
        self.inner.begin_month(month_start_ms);
    }

    fn next(&self) -> String {
        self.inner.text(self.inner.next())
    }
}
