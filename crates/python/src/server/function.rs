//! The batches that `BrokerPlane.take_batch` returns: records for a filter function to judge, and the pull that waits
//! for its verdicts.

use std::sync::Arc;

use metaq_server::{Batch, Broker};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::enter::enter_infallible;

#[pyclass(frozen, module = "metaq._core")]
pub struct FilterBatch {
    /// None once it has been answered.
    batch: Mutex<Option<Batch>>,
    broker: Arc<Broker>,
    #[pyo3(get)]
    call: String,
    #[pyo3(get)]
    topic: String,
    #[pyo3(get)]
    group: String,
    #[pyo3(get)]
    count: usize,
    #[pyo3(get)]
    wanted_max: usize,
    #[pyo3(get)]
    more: bool,
}

impl FilterBatch {
    pub fn new(batch: Batch, broker: Arc<Broker>) -> Self {
        FilterBatch {
            call: batch.call().to_owned(),
            topic: batch.pull().topic.to_string(),
            group: batch.pull().group.to_string(),
            count: batch.records.len(),
            wanted_max: batch.pull().count_max,
            more: batch.more,
            batch: Mutex::new(Some(batch)),
            broker,
        }
    }

    fn take(&self) -> PyResult<Batch> {
        self.batch.lock().take().ok_or_else(|| PyValueError::new_err("this batch has been answered already"))
    }
}

#[pymethods]
impl FilterBatch {
    #[getter]
    fn records<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let batch = self.batch.lock();
        let records: &[bytes::Bytes] = batch.as_ref().map_or(&[], |batch| batch.records.as_slice());
        PyBytes::new_with(py, records.iter().map(bytes::Bytes::len).sum(), |mut into| {
            for record in records {
                let (here, rest) = into.split_at_mut(record.len());
                here.copy_from_slice(record);
                into = rest;
            }
            Ok(())
        })
    }

    fn answer(&self, py: Python<'_>, verdicts: &[u8]) -> PyResult<()> {
        let batch = self.take()?;
        enter_infallible(py, || self.broker.pulls.answer_batch(batch, verdicts));
        Ok(())
    }

    fn refuse(&self, py: Python<'_>, code: i32, remark: &str) -> PyResult<()> {
        let batch = self.take()?;
        enter_infallible(py, || batch.refuse(code, remark));
        Ok(())
    }
}
