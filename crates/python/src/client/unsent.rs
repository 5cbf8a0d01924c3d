//! `UnsentBatch`: a batch that its first request did not store. Python decides how to go on, and reports the outcome.

use std::collections::HashMap;
use std::sync::Arc;

use metaq_client::{Accumulator, Batch, BrokerQueue, Form, OffsetIds, Outcome, Stored, Unsent, UnsentReason};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::client::send_future::{Attached, exception};
use crate::enter::Failure;

#[pyclass(frozen, module = "metaq._core")]
pub struct UnsentBatch {
    batch: Arc<Batch<Attached>>,
    target: Option<BrokerQueue>,
    reason: UnsentReason,
    buffer: Arc<Accumulator<Attached>>,
}

impl UnsentBatch {
    pub fn new(unsent: Unsent<Attached>, buffer: &Arc<Accumulator<Attached>>) -> Self {
        let Unsent { batch, target, reason } = unsent;
        UnsentBatch { batch, target, reason, buffer: Arc::clone(buffer) }
    }
}

fn pair(queue: Option<&BrokerQueue>) -> Option<(&str, i32)> {
    queue.map(|queue| (&*queue.broker, queue.queue_id))
}

/// Code, remark and fields.
type Answer<'a> = (i32, Option<&'a str>, HashMap<String, String>);

#[pymethods]
impl UnsentBatch {
    #[getter]
    fn topic(&self) -> &str {
        &self.batch.topic
    }

    #[getter]
    fn queue(&self) -> Option<(&str, i32)> {
        pair(self.batch.queue.as_ref())
    }

    #[getter]
    fn key(&self) -> Option<String> {
        self.batch.sharding_key()
    }

    #[getter]
    fn target(&self) -> Option<(&str, i32)> {
        pair(self.target.as_ref())
    }

    #[getter]
    fn count(&self) -> usize {
        self.batch.count()
    }

    #[getter]
    fn first_id(&self) -> String {
        self.batch.message_id(0).unwrap_or_default()
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.batch.body())
    }

    #[getter]
    fn alone(&self) -> Option<(&str, i32, i32)> {
        match &self.batch.contents()?.form {
            Form::Together => None,
            Form::Alone { properties, system_flag, flag } => Some((properties, *system_flag, *flag)),
        }
    }

    #[getter]
    fn answer(&self) -> PyResult<Option<Answer<'_>>> {
        let UnsentReason::Answered(reply) = &self.reason else { return Ok(None) };
        let fields = reply.fields().map_err(Failure::from)?;
        Ok(Some((reply.code, reply.remark.as_deref(), fields.into_iter().collect())))
    }

    #[getter]
    fn failure(&self) -> Option<String> {
        match &self.reason {
            UnsentReason::Unanswered(error) => Some(error.to_string()),
            UnsentReason::Answered(_)
            | UnsentReason::NoRoute
            | UnsentReason::Expired
            | UnsentReason::Closed => None,
        }
    }

    #[getter]
    fn spent_s(&self) -> f64 {
        self.batch.spent().as_secs_f64()
    }

    #[pyo3(signature = (broker, queue_id, queue_offset, code, offset_ids, recall_handle=None, transaction_id=None, *, is_accepted=true))]
    #[allow(clippy::too_many_arguments)]
    fn stored(
        &self,
        broker: &str,
        queue_id: i32,
        queue_offset: i64,
        code: i32,
        offset_ids: String,
        recall_handle: Option<String>,
        transaction_id: Option<String>,
        is_accepted: bool,
    ) {
        let stored = Stored {
            queue: BrokerQueue { broker: Arc::from(broker), queue_id },
            queue_offset,
            code,
            is_accepted,
            offset_ids: OffsetIds::new(offset_ids),
            recall_handle,
            transaction_id,
        };
        self.buffer.finish(&self.batch, Outcome::Stored(stored));
    }

    /// The errors of the first `count_max` messages; none before the outcome is reported.
    fn errors(&self, py: Python<'_>, count_max: usize) -> PyResult<Vec<Py<PyAny>>> {
        let Some(outcome) = self.batch.outcome() else { return Ok(Vec::new()) };
        (0..self.batch.count().min(count_max))
            .filter_map(|number| exception(py, &self.batch, number, outcome).transpose())
            .collect()
    }

    fn failed(&self, error: Py<PyAny>) {
        let before =
            self.batch.with(|attached, done| if done { Some(error) } else { attached.error.replace(error) });
        drop(before);
        self.buffer.finish(&self.batch, Outcome::Failed);
    }
}
