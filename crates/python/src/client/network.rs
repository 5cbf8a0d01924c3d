//! What the parts of one client share: its network thread and the ids of its messages.

use std::sync::Arc;

use metaq_client::NetworkSettings;
use pyo3::prelude::*;

use crate::enter::{enter, enter_infallible};

#[pyclass(frozen, module = "metaq._core")]
pub struct Network {
    pub inner: Arc<metaq_client::Network>,
}

#[pymethods]
impl Network {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let inner = enter(py, || metaq_client::Network::start(NetworkSettings::default()))?;
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
