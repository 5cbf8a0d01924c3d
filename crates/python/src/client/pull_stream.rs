//! `PullStream`: messages from many queues, as lists. A `PullEvent` asks Python for a decision.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use metaq_client::{PullChunk, PullEvent, PullLimits, PullQuery, PullSource, PullStream as Stream};
use parking_lot::Mutex;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::client::network::Network;
use crate::client::received::{Decoded, Pulled, add_messages};
use crate::client::send_future::SIGNAL_INTERVAL;
use crate::enter::enter_infallible;

/// `metaq.settings.PullSettings`, read by attribute.
#[derive(FromPyObject)]
pub struct PullSettings {
    group: String,
    hold_ms: i64,
    count_max: usize,
    bytes_max: usize,
    refill_percent: usize,
    pull_count_max: usize,
    pull_bytes_max: usize,
    answer_timeout_ms: u64,
    idle_pause_ms: u64,
}

/// `metaq.client.consumer.subscription.Subscription`, read by attribute.
#[derive(FromPyObject)]
pub struct Subscription {
    expression: String,
    kind: String,
    tags: HashSet<String>,
    version: i64,
}

impl Subscription {
    pub fn query(self, group: String, topic: String, queue_id: i32, hold_ms: i64) -> PullQuery {
        PullQuery {
            group,
            topic,
            queue_id,
            expression: self.expression,
            expression_type: self.kind,
            version: self.version,
            tags: self.tags.into_iter().collect(),
            hold_ms,
            is_fixed_range: false,
        }
    }
}

/// A decision that Python must make about one queue. The queue is not pulled until then.
#[pyclass(frozen, get_all, name = "PullEvent", module = "metaq._core")]
pub struct Event {
    number: u64,
    kind: &'static str,
    value: i64,
    text: String,
    is_empty: bool,
}

impl From<PullEvent> for Event {
    fn from(event: PullEvent) -> Self {
        let number = event.queue();
        let is_empty = matches!(event, PullEvent::Moved { is_empty: true, .. });
        let (kind, value, text) = match event {
            PullEvent::Moved { next_offset, .. } => ("moved", next_offset, String::new()),
            PullEvent::Refused { code, remark, .. } => ("refused", i64::from(code), remark),
            PullEvent::Failed { reason, is_malformed: true, .. } => ("malformed", 0, reason),
            PullEvent::Failed { reason, .. } => ("failed", 0, reason),
            PullEvent::Suggested { broker_id, .. } => ("suggested", broker_id, String::new()),
        };
        Event { number, kind, value, text, is_empty }
    }
}

#[pyclass(frozen, module = "metaq._core")]
pub struct PullStream {
    stream: Arc<Stream>,
    settings: PullSettings,
    /// Number → the queue object that messages show.
    queues: Mutex<HashMap<u64, Py<PyAny>>>,
    numbers: AtomicU64,
}

impl PullStream {
    fn messages(&self, py: Python<'_>, chunks: Vec<PullChunk>) -> PyResult<Decoded> {
        let count = chunks.iter().map(|chunk| chunk.positions.len()).sum();
        let (mut messages, mut compressed) = (Vec::with_capacity(count), Vec::new());
        for chunk in chunks {
            let queue = self.queues.lock().get(&chunk.queue).map(|queue| queue.clone_ref(py));
            // Another thread has ended the queue meanwhile.
            let Some(queue) = queue else { continue };
            let pulled = Pulled::new(chunk.body, queue.bind(py), true)?;
            add_messages(py, &pulled, &chunk.positions, &mut messages, &mut compressed)?;
        }
        Ok((messages, compressed))
    }

    fn source(address: &str, broker_id: i64) -> PullSource {
        PullSource { address: Arc::from(address), broker_id }
    }
}

#[pymethods]
impl PullStream {
    #[new]
    fn new(network: &Network, settings: PullSettings) -> PyResult<Self> {
        let limits = PullLimits {
            count_max: settings.count_max,
            bytes_max: settings.bytes_max,
            refill_percent: settings.refill_percent,
            pull_count_max: settings.pull_count_max,
            pull_bytes_max: settings.pull_bytes_max,
            answer_timeout: Duration::from_millis(settings.answer_timeout_ms),
            idle_pause: Duration::from_millis(settings.idle_pause_ms),
        };
        let failed = |error: metaq_client::ClientError| PyOSError::new_err(error.to_string());
        let stream = Stream::new(Arc::clone(&network.inner), limits).map_err(failed)?;
        Ok(PullStream { stream, settings, queues: Mutex::default(), numbers: AtomicU64::new(1) })
    }

    fn fileno(&self) -> i32 {
        self.stream.fileno()
    }

    #[pyo3(signature = (queue, subscription, address, queue_offset, *, paused=false))]
    fn begin(
        &self,
        queue: &Bound<'_, PyAny>,
        subscription: Subscription,
        address: &str,
        queue_offset: i64,
        paused: bool,
    ) -> PyResult<u64> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (topic, queue_id) = (queue.getattr("topic")?.extract()?, queue.getattr("id")?.extract()?);
        let query = subscription.query(self.settings.group.clone(), topic, queue_id, self.settings.hold_ms);
        self.queues.lock().insert(number, queue.clone().unbind());
        self.stream.begin(number, query, PullStream::source(address, 0), queue_offset, paused);
        Ok(number)
    }

    fn end(&self, number: u64) {
        self.queues.lock().remove(&number);
        self.stream.end(number);
    }

    #[pyo3(signature = (number, address, *, broker_id=0, queue_offset=None))]
    fn resume(&self, number: u64, address: &str, broker_id: i64, queue_offset: Option<i64>) {
        self.stream.resume(number, PullStream::source(address, broker_id), queue_offset);
    }

    #[pyo3(signature = (number, address))]
    fn relocate(&self, number: u64, address: &str) {
        self.stream.relocate(number, PullStream::source(address, 0));
    }

    fn pause(&self, number: u64, paused: bool) {
        self.stream.pause(number, paused);
    }

    fn position(&self, number: u64) -> Option<i64> {
        self.stream.position(number)
    }

    fn take(&self, py: Python<'_>, count: usize) -> PyResult<Decoded> {
        let chunks = self.stream.take(count);
        self.messages(py, chunks)
    }

    /// Waits without the interpreter, and lets signals end the wait.
    fn wait(&self, py: Python<'_>, count: usize, timeout_s: f64, wake_count: u64) -> PyResult<Decoded> {
        // Longer waits are cut to about a year.
        let timeout = Duration::try_from_secs_f64(timeout_s.clamp(0.0, 3.0e7)).unwrap_or_default();
        let deadline = Instant::now() + timeout;
        loop {
            let step = deadline.min(Instant::now() + SIGNAL_INTERVAL);
            let chunks = enter_infallible(py, || self.stream.take_until(count, step, wake_count));
            let is_over =
                step == deadline || self.stream.wake_count() != wake_count || self.stream.is_closed();
            if !chunks.is_empty() || is_over {
                return self.messages(py, chunks);
            }
            py.check_signals()?;
        }
    }

    fn wake_count(&self) -> u64 {
        self.stream.wake_count()
    }

    fn wake(&self) {
        self.stream.wake();
    }

    fn events(&self) -> Vec<Event> {
        self.stream.events().into_iter().map(Event::from).collect()
    }

    fn close(&self) {
        self.queues.lock().clear();
        self.stream.close();
    }
}

impl Drop for PullStream {
    fn drop(&mut self) {
        self.stream.close();
    }
}
