//! The buffer of a producer as Python uses it: a fast way in for what is plain, and one for what Python has checked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use metaq_client::{
    Accumulator, Asks, Event, Form, LaneLimits, NotTaken, Part, Place, Plain, Put, Route, SendSettings,
    Stored,
};
use metaq_wire::properties::push;
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::pyclass::{PyTraverseError, PyVisit};
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::client::async_send_future::AsyncSendFuture;
use crate::client::done_batch::DoneBatch;
use crate::client::network::{Network, UniqueIds};
use crate::client::send_future::{Attached, SIGNAL_INTERVAL, SendFuture, deadline, settle};
use crate::client::unsent::UnsentBatch;
use crate::enter::{Failure, enter_infallible};
use crate::spark::rows::{self, Rows};

/// Messages of finished batches that one `drain` takes: about a millisecond's worth of futures.
const DRAIN_MESSAGES: usize = 2048;
/// After so many messages an event loop's other tasks should have their turn.
const TURN_MESSAGES: u32 = 512;
const UNIQUE_KEY: &str = "UNIQ_KEY";
const PROPERTIES_BYTES_MAX: usize = i16::MAX as usize;

/// `metaq.client.producer.options.ProducerOptions`, as far as it matters here.
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
    half_properties: Option<String>,
}

/// A message with nothing unusual about it.
struct Usual<'a> {
    topic: &'a str,
    body: &'a [u8],
    tag: Option<&'a str>,
    keys: Option<String>,
    key: Option<&'a str>,
}

#[pyclass(frozen, module = "metaq._core")]
pub struct SendBuffer {
    inner: Arc<Accumulator<Attached>>,
    body_bytes_max: usize,
    /// What is larger is either compressed or a request of its own.
    plain_bytes_max: usize,
    /// On which `drain` is called, and on which those wait whom it tells.
    event_loop: Py<PyAny>,
    /// Messages that the loop has put in a row.
    since_turn: AtomicU32,
    row_limits: rows::Limits,
}

/// Topic, whether it follows others in its queue, broker, queue, place in the queue of half messages, offset id, count.
type HalfPart = (String, bool, String, i32, i64, String, usize);

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
        };
        let attempt_timeout = seconds(options.attempt_timeout_s).min(Duration::from_secs(86_400));
        let settings = SendSettings {
            group: options.group,
            attempt_timeout,
            timeout: seconds(options.timeout_s),
            limits,
            half_properties: options.half_properties.map(Arc::from),
        };
        let row_limits = rows::Limits {
            body_bytes_max: options.body_bytes_max,
            batch_bytes_max: options.batch_bytes_max,
            is_half: settings.half_properties.is_some(),
        };
        let inner = Accumulator::start(Arc::clone(&network.inner), Arc::clone(&ids.inner), settings)
            .map_err(Failure::from)?;
        Ok(SendBuffer {
            inner,
            body_bytes_max: options.body_bytes_max,
            plain_bytes_max: (options.compress_from_bytes - 1).min(options.batch_bytes_max / 2),
            event_loop,
            since_turn: AtomicU32::new(0),
            row_limits,
        })
    }

    /// The loop has us, while it watches our descriptor.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)
    }

    fn fileno(&self) -> i32 {
        self.inner.bell.fileno()
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
        let usual = self.usual(topic, body, tag, keys, key)?;
        self.put_usual(&usual).map(|(batch, number)| SendFuture { batch, number })
    }

    #[pyo3(signature = (topic, body, tag=None, keys=None, key=None))]
    fn put_here(
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
        let usual = self.usual(topic, body, tag, keys, key)?;
        self.put_usual(&usual).map(|put| self.future_here(py, put))
    }

    fn ends_turn(&self) -> bool {
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
        let message = Checked::new(topic, body, properties, unique_id, queue, alone, system_flag, flag);
        let put = match (self.put_message(&message, Asks::Nothing), wait_s) {
            (Err(NotTaken::Full), Some(wait_s)) => self.put_in_turn(py, &message, wait_s)?,
            (Err(NotTaken::Full), None) => self.put_message(&message, Asks::Anyway),
            (other, _) => other,
        };
        taken(put).map(|put| put.map(|(batch, number)| SendFuture { batch, number }))
    }

    #[pyo3(signature = (topic, body, properties, unique_id, *, queue=None, alone=false, system_flag=0, flag=0))]
    #[allow(clippy::too_many_arguments)]
    fn put_checked_here(
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
        let message = Checked::new(topic, body, properties, unique_id, queue, alone, system_flag, flag);
        self.since_turn.fetch_add(1, Ordering::Relaxed);
        let put = taken(self.put_message(&message, Asks::ToBeTold))?;
        Ok(put.map(|put| self.future_here(py, put)))
    }

    fn want_no_room(&self) {
        self.inner.want_no_room();
    }

    fn put_rows(&self, py: Python<'_>, rows: Rows, wait_s: f64) -> PyResult<bool> {
        rows::put(py, &self.inner, &self.row_limits, &rows, wait_s)
    }

    fn take_parts(&self) -> Vec<HalfPart> {
        let part = |part: Part| {
            let Stored { place, queue_offset, offset_ids, .. } = part.stored;
            let (topic, broker) = (part.topic.to_string(), place.broker.to_string());
            let offset_id = offset_ids.get(0).to_owned();
            (topic, part.is_ordered, broker, place.queue_id, queue_offset, offset_id, part.count)
        };
        self.inner.take_parts().into_iter().map(part).collect()
    }

    fn set_route(&self, topic: &str, queues: Vec<(String, String, i32)>, is_template: bool) {
        let mut route = Route { is_template, ..Route::default() };
        for (broker, address, queue_id) in queues {
            let broker: Arc<str> = match route.addresses.get_key_value(broker.as_str()) {
                Some((known, _)) => Arc::clone(known),
                None => Arc::from(broker),
            };
            route.addresses.entry(Arc::clone(&broker)).or_insert_with(|| Arc::from(address));
            route.queues.push(Place { broker, queue_id });
        }
        self.inner.routes.put(topic, route);
    }

    fn set_faults(&self, faults: Vec<(String, f64)>) {
        let until = |(broker, seconds): (String, f64)| Some((Arc::from(broker), deadline(seconds.max(0.0))?));
        self.inner.routes.set_faults(faults.into_iter().filter_map(until));
    }

    #[allow(clippy::type_complexity)]
    fn drain(&self, py: Python<'_>) -> (Unsent, Vec<DoneBatch>, Vec<String>, Vec<String>) {
        let (mut unsent, mut done) = (Vec::new(), Vec::new());
        let (mut made, mut worked) = (Vec::new(), Vec::new());
        for event in self.inner.drain(DRAIN_MESSAGES) {
            match event {
                Event::Finished(batch) => {
                    settle(py, &batch);
                    done.extend(DoneBatch::new(batch, &self.inner));
                }
                Event::Crossed(crossed) => unsent.push(UnsentBatch::new(crossed, &self.inner)),
                Event::Made(topic) => made.push(topic.to_string()),
                Event::Worked(broker) => worked.push(broker.to_string()),
            }
        }
        (unsent, done, made, worked)
    }

    fn news_end(&self) -> u64 {
        self.inner.news_end()
    }

    fn has_news(&self, until: u64) -> bool {
        self.inner.has_news(until)
    }

    fn flush(&self) -> u64 {
        self.inner.flush()
    }

    /// Asked by whoever measures, also in a process that was forked off, where a lock may be held for ever.
    fn held_bytes(&self) -> usize {
        if self.inner.is_open() { self.inner.held_bytes() } else { 0 }
    }

    fn left(&self, epoch: u64) -> usize {
        self.inner.left(epoch)
    }

    fn close(&self) -> Unsent {
        self.inner.close().into_iter().map(|crossed| UnsentBatch::new(crossed, &self.inner)).collect()
    }

    fn disable(&self) {
        self.inner.disable();
    }
}

impl SendBuffer {
    /// None for whatever is not plainly right: Python looks at that, and says what is wrong if something is.
    fn usual<'a>(
        &self,
        topic: &'a Bound<'_, PyAny>,
        body: &'a Bound<'_, PyAny>,
        tag: Option<&'a Bound<'_, PyAny>>,
        keys: Option<&Bound<'_, PyAny>>,
        key: Option<&'a Bound<'_, PyAny>>,
    ) -> Option<Usual<'a>> {
        if !self.inner.is_open() {
            return None;
        }
        let topic = topic.cast_exact::<PyString>().ok()?.to_str().ok()?;
        let body = body.cast_exact::<PyBytes>().ok()?.as_bytes();
        // Retry topics take no batches.
        if topic.starts_with('%') || body.len() > self.body_bytes_max || body.len() > self.plain_bytes_max {
            return None;
        }
        let tag = tag.map(|tag| text(tag).filter(|tag| !tag.contains("||"))).map_or(Ok(None), maybe).ok()?;
        let key = key.map(|key| text(key)).map_or(Ok(None), maybe).ok()?;
        let keys = keys.map(joined).map_or(Ok(None), maybe).ok()?.filter(|keys| !keys.is_empty());
        Some(Usual { topic, body, tag, keys, key })
    }

    fn put_usual(&self, usual: &Usual<'_>) -> Option<Put<Attached>> {
        let named = [("TAGS", usual.tag), ("KEYS", usual.keys.as_deref()), ("__SHARDINGKEY", usual.key)];
        let ids = &*self.inner.ids;
        let own: usize =
            named.iter().filter_map(|(name, value)| value.map(|value| name.len() + value.len() + 2)).sum();
        let properties_bytes = own + UNIQUE_KEY.len() + ids.length() + 2;
        if properties_bytes > PROPERTIES_BYTES_MAX {
            return None;
        }
        let place = match usual.key {
            Some(key) => Some(self.inner.routes.get(usual.topic)?.by_key(key)?.clone()),
            None => None,
        };
        let id = ids.next();
        let plain = Plain {
            topic: usual.topic,
            queue: place.as_ref(),
            id,
            flag: 0,
            body: usual.body,
            properties_bytes,
            push_properties: |out: &mut Vec<u8>| {
                for (name, value) in named {
                    if let Some(value) = value {
                        push(out, name, value);
                    }
                }
                out.extend_from_slice(UNIQUE_KEY.as_bytes());
                out.push(1);
                ids.push(id, out);
                out.push(2);
            },
        };
        // A lane is made by a message that Python has checked, so the name of its topic is right.
        self.inner.put_known(plain).ok().flatten()
    }

    fn put_message(&self, message: &Checked<'_>, asks: Asks) -> Result<Put<Attached>, NotTaken> {
        let id = self.inner.ids.tail_of(message.unique_id).ok_or(NotTaken::TooLong)?;
        match &message.alone {
            Some(form) => {
                let body = Bytes::copy_from_slice(message.body);
                self.inner.put_alone(message.topic, message.queue.as_ref(), id, form.clone(), body, asks)
            }
            None => self.inner.put(
                Plain {
                    topic: message.topic,
                    queue: message.queue.as_ref(),
                    id,
                    flag: message.flag,
                    body: message.body,
                    properties_bytes: message.properties.len(),
                    push_properties: |out: &mut Vec<u8>| out.extend_from_slice(message.properties.as_bytes()),
                },
                asks,
            ),
        }
    }

    /// Stands in line without the interpreter; raises TimeoutError.
    fn put_in_turn(
        &self,
        py: Python<'_>,
        message: &Checked<'_>,
        wait_s: f64,
    ) -> PyResult<Result<Put<Attached>, NotTaken>> {
        let deadline = deadline(wait_s.max(0.0));
        let ticket = self.inner.stand_in_line();
        let outcome = loop {
            match self.put_message(message, Asks::InTurn(ticket)) {
                Err(NotTaken::Full) => {}
                other => break Ok(other),
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break Err(PyTimeoutError::new_err("the buffer stayed full"));
            }
            let patience = left.map_or(SIGNAL_INTERVAL, |left| left.min(SIGNAL_INTERVAL));
            enter_infallible(py, || self.inner.wait_in_line(ticket, message.size_bytes(), patience));
            if let Err(signal) = py.check_signals() {
                break Err(signal);
            }
        };
        self.inner.leave_line(ticket);
        outcome
    }

    fn future_here(&self, py: Python<'_>, (batch, number): Put<Attached>) -> AsyncSendFuture {
        AsyncSendFuture::new(batch, number, self.event_loop.clone_ref(py))
    }
}

/// A message that Python has checked and encoded.
struct Checked<'a> {
    topic: &'a str,
    body: &'a [u8],
    properties: &'a str,
    unique_id: &'a str,
    queue: Option<Place>,
    flag: i32,
    alone: Option<Form>,
}

impl<'a> Checked<'a> {
    #[allow(clippy::too_many_arguments)]
    fn new(
        topic: &'a str,
        body: &'a [u8],
        properties: &'a str,
        unique_id: &'a str,
        queue: Option<(String, i32)>,
        alone: bool,
        system_flag: i32,
        flag: i32,
    ) -> Self {
        let queue = queue.map(|(broker, queue_id)| Place { broker: Arc::from(broker), queue_id });
        let form = || Form::Alone { properties: properties.to_owned(), system_flag, flag };
        Checked { topic, body, properties, unique_id, queue, flag, alone: alone.then(form) }
    }

    /// About what it takes of the buffer.
    fn size_bytes(&self) -> usize {
        self.body.len() + self.properties.len() + 22
    }
}

/// None where the buffer is closed.
fn taken(put: Result<Put<Attached>, NotTaken>) -> PyResult<Option<Put<Attached>>> {
    match put {
        Ok(put) => Ok(Some(put)),
        Err(NotTaken::Full | NotTaken::Closed) => Ok(None),
        Err(NotTaken::TooLong) => {
            Err(PyValueError::new_err("the message is longer than the wire can say, or its id is not ours"))
        }
    }
}

/// A text that is not empty and can be a property.
fn text<'a>(value: &'a Bound<'_, PyAny>) -> Option<&'a str> {
    let text = value.cast_exact::<PyString>().ok()?.to_str().ok()?;
    (!text.is_empty() && !text.bytes().any(|byte| byte == 1 || byte == 2)).then_some(text)
}

/// Keys as they are sent. What a key may hold beyond ASCII is for Python to say.
fn joined(keys: &Bound<'_, PyAny>) -> Option<String> {
    let plain = |key: &Bound<'_, PyAny>| {
        let key = text(key)?;
        key.bytes().all(|byte| byte.is_ascii_graphic()).then(|| key.to_owned())
    };
    if keys.is_exact_instance_of::<PyString>() {
        return plain(keys);
    }
    let all: Option<Vec<String>> = if let Ok(keys) = keys.cast_exact::<PyTuple>() {
        keys.iter().map(|key| plain(&key)).collect()
    } else {
        keys.cast_exact::<PyList>().ok()?.iter().map(|key| plain(&key)).collect()
    };
    Some(all?.join(" "))
}

/// What was given and is right, or an error where it is not.
fn maybe<T>(value: Option<T>) -> Result<Option<T>, ()> {
    value.map(Some).ok_or(())
}
