//! `DoneBatch`: a batch with an outcome whose messages have callbacks. It occupies the buffer until they were called.

use std::sync::Arc;

use metaq_client::{Accumulator, Batch};
use pyo3::prelude::*;

use crate::client::send_future::{Attached, call_back};

#[pyclass(frozen, module = "metaq._core")]
pub struct DoneBatch {
    batch: Arc<Batch<Attached>>,
    buffer: Arc<Accumulator<Attached>>,
}

impl DoneBatch {
    /// `None` if no message has a callback; the space of the batch is then free.
    pub fn new(batch: Arc<Batch<Attached>>, buffer: &Arc<Accumulator<Attached>>) -> Option<Self> {
        if batch.with(|attached, _| attached.callbacks.is_empty()) {
            buffer.release(&batch);
            return None;
        }
        Some(DoneBatch { batch, buffer: Arc::clone(buffer) })
    }
}

#[pymethods]
impl DoneBatch {
    fn call_back(&self, py: Python<'_>) {
        let callbacks = self.batch.with(|attached, _| std::mem::take(&mut attached.callbacks));
        for (callback, future) in callbacks {
            if let Err(error) = call_back(py, &callback, &future) {
                error.write_unraisable(py, Some(callback.bind(py)));
            }
        }
        self.buffer.release(&self.batch);
    }
}
