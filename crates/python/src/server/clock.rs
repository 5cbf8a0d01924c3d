//! The clock that both planes read.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

#[pyclass(frozen, module = "metaq._core")]
pub struct Clock {
    pub inner: metaq_store::Clock,
}

#[pymethods]
impl Clock {
    #[new]
    fn new() -> Self {
        Clock { inner: metaq_store::Clock::system() }
    }

    #[staticmethod]
    fn manual(start_ms: i64) -> Self {
        Clock { inner: metaq_store::Clock::manual(start_ms) }
    }

    #[staticmethod]
    fn ahead(by_ms: i64) -> Self {
        Clock { inner: metaq_store::Clock::ahead(by_ms) }
    }

    fn now_ms(&self) -> i64 {
        self.inner.now_ms()
    }

    fn advance_ms(&self, by_ms: i64) -> PyResult<()> {
        if self.inner.advance_ms(by_ms) {
            return Ok(());
        }
        Err(PyValueError::new_err("the system's clock cannot be moved; use Clock.manual or Clock.ahead"))
    }
}
