//! `SendBuffer`: a producer's buffer, with a fast path for plain messages and one for messages that Python has checked.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use metaq_client::outgoing::{is_ascii_key, is_property, is_tag};
use metaq_client::{
    Accumulator, BrokerQueue, CheckedMessage, Event, HalfBatch, LaneLimits, PlainLimits, PlainMessage, Put,
    PutError, Route, RowLimits, SendSettings, Stored, WhenFull,
};
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::pyclass::{PyTraverseError, PyVisit};
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::client::async_send_future::AsyncSendFuture;
use crate::client::done_batch::DoneBatch;
use crate::client::network::{Network, UniqueIds};
use crate::client::send_future::{Attached, SIGNAL_INTERVAL, SendFuture, deadline, resolve_futures};
use crate::client::unsent::UnsentBatch;
use crate::enter::{Failure, enter_infallible};
use crate::spark::rows::{self, Rows};

/// Messages of finished batches that one `drain` takes: their futures take about a millisecond.
const DRAIN_MESSAGES: usize = 2048;
/// After this many messages, the event loop should run its other tasks.
const TURN_MESSAGES: u32 = 512;

/// `metaq.client.producer.options.ProducerOptions`, read by attribute.
#[derive(FromPyObject)]
struct ProducerOptions {
    group: String,
    attempt_timeout_s: f64,
    timeout_s: f64,
    body_bytes_max: usize,
    compress_from_bytes: usize,
    linger_s: f64,
    batch_bytes_max: usize,
    buffer_bytes_max: usize,
    batches_in_flight_max: usize,
    half_properties: Option<String>,
}

#[pyclass(frozen, module = "metaq._core")]
pub struct SendBuffer {
    inner: Arc<Accumulator<Attached>>,
    plain_limits: PlainLimits,
    /// The loop that calls `drain` and runs the tasks that await a message.
    event_loop: Py<PyAny>,
    /// Messages that the loop has put since its other tasks ran.
    since_turn: AtomicU32,
    row_limits: RowLimits,
}

/// Topic, whether its queue was given, broker, queue, offset in the queue of half messages, offset id, count.
type HalfBatchRow = (String, bool, String, i32, i64, String, usize);

type Unsent = Vec<UnsentBatch>;

#[pymethods]
impl SendBuffer {
    #[new]
    fn new(
        network: &Network,
        ids: &UniqueIds,
        options: ProducerOptions,
        event_loop: Py<PyAny>,
    ) -> PyResult<Self> {
        let seconds = |value: f64| Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX);
        let limits = LaneLimits {
            linger: seconds(options.linger_s),
            batch_bytes_max: options.batch_bytes_max,
            buffer_bytes_max: options.buffer_bytes_max,
            in_flight_max: options.batches_in_flight_max,
        };
        let attempt_timeout = seconds(options.attempt_timeout_s).min(Duration::from_secs(86_400));
        let settings = SendSettings {
            group: options.group,
            attempt_timeout,
            timeout: seconds(options.timeout_s),
            limits,
            half_properties: options.half_properties.map(Arc::from),
        };
        let row_limits = RowLimits {
            body_bytes_max: options.body_bytes_max,
            batch_bytes_max: options.batch_bytes_max,
            is_half: settings.half_properties.is_some(),
        };
        let inner = Accumulator::start(Arc::clone(&network.inner), Arc::clone(&ids.inner), settings)
            .map_err(Failure::from)?;
        Ok(SendBuffer {
            inner,
            plain_limits: PlainLimits::new(
                options.body_bytes_max,
                options.compress_from_bytes,
                options.batch_bytes_max,
            ),
            event_loop,
            since_turn: AtomicU32::new(0),
            row_limits,
        })
    }

    /// The loop refers to this object while it watches the descriptor.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)
    }

    fn fileno(&self) -> i32 {
        self.inner.event_fd.fileno()
    }

    #[pyo3(signature = (topic, body, tag=None, keys=None, key=None))]
    fn put(
        &self,
        topic: &Bound<'_, PyAny>,
        body: &Bound<'_, PyAny>,
        tag: Option<&Bound<'_, PyAny>>,
        keys: Option<&Bound<'_, PyAny>>,
        key: Option<&Bound<'_, PyAny>>,
    ) -> Option<SendFuture> {
        self.put_plain(topic, body, tag, keys, key).map(|(batch, number)| SendFuture { batch, number })
    }

    #[pyo3(signature = (topic, body, tag=None, keys=None, key=None))]
    fn put_on_loop(
        &self,
        py: Python<'_>,
        topic: &Bound<'_, PyAny>,
        body: &Bound<'_, PyAny>,
        tag: Option<&Bound<'_, PyAny>>,
        keys: Option<&Bound<'_, PyAny>>,
        key: Option<&Bound<'_, PyAny>>,
    ) -> Option<AsyncSendFuture> {
        if self.since_turn.fetch_add(1, Ordering::Relaxed) >= TURN_MESSAGES {
            return None;
        }
        self.put_plain(topic, body, tag, keys, key).map(|put| self.future_on_loop(py, put))
    }

    fn should_yield(&self) -> bool {
        let ends = self.since_turn.load(Ordering::Relaxed) >= TURN_MESSAGES;
        if ends {
            self.since_turn.store(0, Ordering::Relaxed);
        }
        ends
    }

    #[pyo3(signature = (topic, body, properties, unique_id, *, queue=None, alone=false, system_flag=0, flag=0, wait_s=Some(0.0)))]
    #[allow(clippy::too_many_arguments)]
    fn put_checked(
        &self,
        py: Python<'_>,
        topic: &str,
        body: &[u8],
        properties: &str,
        unique_id: &str,
        queue: Option<(String, i32)>,
        alone: bool,
        system_flag: i32,
        flag: i32,
        wait_s: Option<f64>,
    ) -> PyResult<Option<SendFuture>> {
        let queue = queue.map(broker_queue);
        let queue = queue.as_ref();
        let message =
            CheckedMessage { topic, body, properties, unique_id, queue, is_alone: alone, system_flag, flag };
        let put = match (self.inner.put_checked(&message, WhenFull::Refuse), wait_s) {
            (Err(PutError::Full), Some(wait_s)) => self.put_in_turn(py, &message, wait_s)?,
            (Err(PutError::Full), None) => self.inner.put_checked(&message, WhenFull::Exceed),
            (other, _) => other,
        };
        taken(put).map(|put| put.map(|(batch, number)| SendFuture { batch, number }))
    }

    #[pyo3(signature = (topic, body, properties, unique_id, *, queue=None, alone=false, system_flag=0, flag=0))]
    #[allow(clippy::too_many_arguments)]
    fn put_checked_on_loop(
        &self,
        py: Python<'_>,
        topic: &str,
        body: &[u8],
        properties: &str,
        unique_id: &str,
        queue: Option<(String, i32)>,
        alone: bool,
        system_flag: i32,
        flag: i32,
    ) -> PyResult<Option<AsyncSendFuture>> {
        let queue = queue.map(broker_queue);
        let queue = queue.as_ref();
        let message =
            CheckedMessage { topic, body, properties, unique_id, queue, is_alone: alone, system_flag, flag };
        self.since_turn.fetch_add(1, Ordering::Relaxed);
        let put = taken(self.inner.put_checked(&message, WhenFull::Notify))?;
        Ok(put.map(|put| self.future_on_loop(py, put)))
    }

    fn stop_watching_space(&self) {
        self.inner.stop_watching_space();
    }

    fn put_rows(&self, py: Python<'_>, rows: Rows, wait_s: f64) -> PyResult<bool> {
        rows::put(py, &self.inner, self.row_limits, &rows, wait_s)
    }

    fn take_half_batches(&self) -> Vec<HalfBatchRow> {
        let row = |half_batch: HalfBatch| {
            let Stored { queue, queue_offset, offset_ids, .. } = half_batch.stored;
            let (topic, broker) = (half_batch.topic.to_string(), queue.broker.to_string());
            let offset_id = offset_ids.get(0).to_owned();
            (topic, half_batch.is_ordered, broker, queue.queue_id, queue_offset, offset_id, half_batch.count)
        };
        self.inner.take_half_batches().into_iter().map(row).collect()
    }

    fn set_route(&self, topic: &str, queues: Vec<(String, String, i32)>, is_template: bool) {
        self.inner.routes.put(topic, Route::new(queues, is_template));
    }

    fn set_faults(&self, faults: Vec<(String, f64)>) {
        let until = |(broker, seconds): (String, f64)| Some((Arc::from(broker), deadline(seconds.max(0.0))?));
        self.inner.routes.set_faults(faults.into_iter().filter_map(until));
    }

    #[allow(clippy::type_complexity)]
    fn drain(&self, py: Python<'_>) -> (Unsent, Vec<DoneBatch>, Vec<String>, Vec<String>) {
        let (mut unsent, mut done) = (Vec::new(), Vec::new());
        let (mut created, mut recovered) = (Vec::new(), Vec::new());
        for event in self.inner.drain(DRAIN_MESSAGES) {
            match event {
                Event::Finished(batch) => {
                    resolve_futures(py, &batch);
                    done.extend(DoneBatch::new(batch, &self.inner));
                }
                Event::Unsent(batch) => unsent.push(UnsentBatch::new(batch, &self.inner)),
                Event::TopicCreated(topic) => created.push(topic.to_string()),
                Event::BrokerRecovered(broker) => recovered.push(broker.to_string()),
            }
        }
        (unsent, done, created, recovered)
    }

    fn events_end(&self) -> u64 {
        self.inner.events_end()
    }

    fn has_events_before(&self, end: u64) -> bool {
        self.inner.has_events_before(end)
    }

    fn flush(&self) -> u64 {
        self.inner.flush()
    }

    /// Metrics ask for it even in a forked process, where a lock may be held for ever.
    fn held_bytes(&self) -> usize {
        if self.inner.is_open() { self.inner.held_bytes() } else { 0 }
    }

    fn unfinished_count(&self, epoch: u64) -> usize {
        self.inner.unfinished_count(epoch)
    }

    fn close(&self) -> Unsent {
        self.inner.close().into_iter().map(|unsent| UnsentBatch::new(unsent, &self.inner)).collect()
    }

    fn disable(&self) {
        self.inner.disable();
    }
}

impl SendBuffer {
    /// `None` if the message is not plain: Python then checks it, and reports what is wrong with it.
    fn put_plain(
        &self,
        topic: &Bound<'_, PyAny>,
        body: &Bound<'_, PyAny>,
        tag: Option<&Bound<'_, PyAny>>,
        keys: Option<&Bound<'_, PyAny>>,
        key: Option<&Bound<'_, PyAny>>,
    ) -> Option<Put<Attached>> {
        if !self.inner.is_open() {
            return None;
        }
        let topic = exact_text(topic)?;
        let body = body.cast_exact::<PyBytes>().ok()?.as_bytes();
        if !self.plain_limits.allow(topic, body) {
            return None;
        }
        let tag = match tag {
            Some(tag) => Some(exact_text(tag).filter(|tag| is_tag(tag))?),
            None => None,
        };
        let sharding_key = match key {
            Some(key) => Some(exact_text(key).filter(|key| is_property(key))?),
            None => None,
        };
        let keys = match keys {
            Some(keys) => Some(joined(keys)?),
            None => None,
        };
        let keys = keys.as_deref().filter(|keys| !keys.is_empty());
        self.inner.put_plain(&PlainMessage { topic, body, tag, keys, sharding_key })
    }

    /// Waits in line without the interpreter; raises TimeoutError.
    fn put_in_turn(
        &self,
        py: Python<'_>,
        message: &CheckedMessage<'_>,
        wait_s: f64,
    ) -> PyResult<Result<Put<Attached>, PutError>> {
        let deadline = deadline(wait_s.max(0.0));
        let ticket = self.inner.stand_in_line();
        let outcome = loop {
            match self.inner.put_checked(message, WhenFull::InTurn(ticket)) {
                Err(PutError::Full) => {}
                other => break Ok(other),
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break Err(PyTimeoutError::new_err("the buffer stayed full"));
            }
            let patience = left.map_or(SIGNAL_INTERVAL, |left| left.min(SIGNAL_INTERVAL));
            enter_infallible(py, || self.inner.wait_for(message, ticket, patience));
            if let Err(signal) = py.check_signals() {
                break Err(signal);
            }
        };
        self.inner.leave_line(ticket);
        outcome
    }

    fn future_on_loop(&self, py: Python<'_>, (batch, number): Put<Attached>) -> AsyncSendFuture {
        AsyncSendFuture::new(batch, number, self.event_loop.clone_ref(py))
    }
}

fn broker_queue((broker, queue_id): (String, i32)) -> BrokerQueue {
    BrokerQueue { broker: Arc::from(broker), queue_id }
}

/// `None` if the buffer is full or closed.
fn taken(put: Result<Put<Attached>, PutError>) -> PyResult<Option<Put<Attached>>> {
    match put {
        Ok(put) => Ok(Some(put)),
        Err(PutError::Full | PutError::Closed) => Ok(None),
        Err(PutError::TooLong) => Err(PyValueError::new_err(
            "the message is too long for the wire format, or this client did not make its id",
        )),
    }
}

fn exact_text<'a>(value: &'a Bound<'_, PyAny>) -> Option<&'a str> {
    value.cast_exact::<PyString>().ok()?.to_str().ok()
}

/// Keys joined as they are sent; `None` if one of them is not plain ASCII.
fn joined<'a>(keys: &'a Bound<'_, PyAny>) -> Option<Cow<'a, str>> {
    if keys.is_exact_instance_of::<PyString>() {
        return exact_text(keys).filter(|key| is_ascii_key(key)).map(Cow::Borrowed);
    }
    let push = |mut all: String, key: Bound<'_, PyAny>| -> Option<String> {
        let key = exact_text(&key).filter(|key| is_ascii_key(key))?;
        if !all.is_empty() {
            all.push(' ');
        }
        all.push_str(key);
        Some(all)
    };
    let all = if let Ok(keys) = keys.cast_exact::<PyTuple>() {
        keys.iter().try_fold(String::new(), push)
    } else {
        keys.cast_exact::<PyList>().ok()?.iter().try_fold(String::new(), push)
    };
    all.map(Cow::Owned)
}
