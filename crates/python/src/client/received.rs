//! Received messages: they share the buffer of their pull, and read it when an attribute is asked for.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use metaq_client::records::{self, Records};
use metaq_wire::Record;
use metaq_wire::properties::iterate;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyFrozenSet, PyMappingProxy, PyString, PyTuple};

use crate::client::message::{Field, Message};
use crate::enter::Failure;

/// The rules about received messages that Python owns, handed in once by `metaq.client.message`.
struct MessageRules {
    /// Decompresses a body by its system flag; raises UnreadableBody.
    inflate: Py<PyAny>,
    system_names: Py<PyFrozenSet>,
    /// Replies to a message for the handler that got it.
    reply: Py<PyAny>,
}

static MESSAGE_RULES: PyOnceLock<MessageRules> = PyOnceLock::new();

impl MessageRules {
    fn get(py: Python<'_>) -> PyResult<&MessageRules> {
        MESSAGE_RULES.get(py).ok_or_else(|| PyRuntimeError::new_err("metaq.client.message is not imported"))
    }
}

/// The first call counts.
#[pyfunction]
#[pyo3(signature = (*, inflate, system_names, reply))]
pub fn register_message_rules(
    py: Python<'_>,
    inflate: Py<PyAny>,
    system_names: Py<PyFrozenSet>,
    reply: Py<PyAny>,
) {
    let _first = MESSAGE_RULES.set(py, MessageRules { inflate, system_names, reply });
}

/// Calls Python's function that replies to a message.
pub fn reply(message: &Bound<'_, Message>, body: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    MessageRules::get(message.py())?.reply.call1(message.py(), (message, body))
}

/// The buffer and the queue that all messages of a pull share.
pub struct Pulled {
    bytes: Bytes,
    queue: Py<PyAny>,
    topic: Py<PyString>,
    broker: Py<PyString>,
    queue_id: i32,
    /// A message that came through a retry topic shows the topic it was first sent to.
    shows_first_topic: bool,
}

impl Pulled {
    /// `queue` has the attributes `topic`, `broker` and `id`.
    pub fn new(bytes: Bytes, queue: &Bound<'_, PyAny>, shows_first_topic: bool) -> PyResult<Arc<Self>> {
        let py = queue.py();
        let text = |name: &Bound<'_, PyString>| -> PyResult<Py<PyString>> {
            Ok(queue.getattr(name)?.cast_into::<PyString>().map_err(PyErr::from)?.unbind())
        };
        Ok(Arc::new(Pulled {
            bytes,
            topic: text(pyo3::intern!(py, "topic"))?,
            broker: text(pyo3::intern!(py, "broker"))?,
            queue_id: queue.getattr(pyo3::intern!(py, "id"))?.extract()?,
            queue: queue.clone().unbind(),
            shows_first_topic,
        }))
    }
}

/// One record in the buffer of its pull.
pub struct Received {
    pulled: Arc<Pulled>,
    at: usize,
    body: PyOnceLock<Py<PyAny>>,
    /// The sender's properties, then the system's.
    properties: PyOnceLock<(Py<PyAny>, Py<PyAny>)>,
}

impl Received {
    pub fn new(pulled: &Arc<Pulled>, at: usize) -> Self {
        Received { pulled: Arc::clone(pulled), at, body: PyOnceLock::new(), properties: PyOnceLock::new() }
    }

    pub fn copied(&self) -> Self {
        Received::new(&self.pulled, self.at)
    }

    fn bytes(&self) -> &[u8] {
        self.pulled.bytes.get(self.at..).unwrap_or_default()
    }

    fn record(&self) -> PyResult<Record<'_>> {
        Ok(Record::decode(self.bytes()).map_err(Failure::from)?)
    }

    pub fn queue_offset(&self) -> i64 {
        records::queue_offset_at(&self.pulled.bytes, self.at).unwrap_or(-1)
    }

    pub fn is_compressed(&self) -> bool {
        records::is_compressed_at(&self.pulled.bytes, self.at)
    }

    /// Makes the body only if it is compressed.
    pub fn body_size(&self, py: Python<'_>) -> PyResult<usize> {
        let record = self.record()?;
        if !records::is_compressed(&record) {
            return Ok(record.body.len());
        }
        self.body(py)?.bind(py).len()
    }

    fn body(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let body = self.body.get_or_try_init(py, || {
            let record = self.record()?;
            let stored = PyBytes::new(py, record.body);
            if !records::is_compressed(&record) {
                return Ok::<_, PyErr>(stored.into_any().unbind());
            }
            MessageRules::get(py)?.inflate.call1(py, (stored, record.system_flag))
        })?;
        Ok(body.clone_ref(py))
    }

    /// The body as it is stored, and its system flag.
    pub fn stored_body<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, i32)> {
        let record = self.record()?;
        Ok((PyBytes::new(py, record.body), record.system_flag))
    }

    fn properties(&self, py: Python<'_>) -> PyResult<&(Py<PyAny>, Py<PyAny>)> {
        self.properties.get_or_try_init(py, || {
            let system_names = MessageRules::get(py)?.system_names.bind(py);
            let (own, system) = (PyDict::new(py), PyDict::new(py));
            for (name, value) in iterate(self.record()?.properties) {
                let name = text(py, name);
                let side = if system_names.contains(&name)? { &system } else { &own };
                side.set_item(name, text(py, value))?;
            }
            let seen =
                |dict: Bound<'_, PyDict>| PyMappingProxy::new(py, dict.as_mapping()).into_any().unbind();
            Ok((seen(own), seen(system)))
        })
    }

    fn topic(&self, py: Python<'_>, record: &Record<'_>) -> PyResult<Py<PyAny>> {
        match records::first_topic(record).filter(|_| self.pulled.shows_first_topic) {
            Some(first) => first.into_py_any(py),
            None => self.stored_topic(py, record),
        }
    }

    fn stored_topic(&self, py: Python<'_>, record: &Record<'_>) -> PyResult<Py<PyAny>> {
        let expected = self.pulled.topic.bind(py);
        // Nearly always it is the topic of the queue, whose text exists already.
        if expected.to_cow()?.as_bytes() == record.topic {
            return Ok(expected.clone().into_any().unbind());
        }
        text(py, record.topic).into_py_any(py)
    }

    fn queue(&self, py: Python<'_>, record: &Record<'_>) -> PyResult<Py<PyAny>> {
        let topic = self.stored_topic(py, record)?;
        if record.queue_id == self.pulled.queue_id && topic.is(&self.pulled.topic) {
            return Ok(self.pulled.queue.clone_ref(py));
        }
        let kind = self.pulled.queue.bind(py).get_type();
        Ok(kind.call1((topic, &self.pulled.broker, record.queue_id))?.unbind())
    }

    pub fn value(&self, py: Python<'_>, field: Field) -> PyResult<Py<PyAny>> {
        match field {
            Field::Body => return self.body(py),
            Field::Properties => return Ok(self.properties(py)?.0.clone_ref(py)),
            Field::SystemProperties => return Ok(self.properties(py)?.1.clone_ref(py)),
            _ => {}
        }
        let record = self.record()?;
        match field {
            Field::Topic => self.topic(py, &record),
            Field::Tag => records::tag(&record).into_py_any(py),
            Field::Keys => keys(py, &record),
            Field::Id => records::message_id(&record).into_py_any(py),
            Field::OffsetId => records::offset_id(&record).into_py_any(py),
            Field::Queue => self.queue(py, &record),
            Field::QueueOffset => record.queue_offset.into_py_any(py),
            Field::PhysicalOffset => record.physical_offset.into_py_any(py),
            Field::BornAt => record.born_timestamp_ms.into_py_any(py),
            Field::StoredAt => record.store_timestamp_ms.into_py_any(py),
            Field::BornHost => record.born_host.to_string().into_py_any(py),
            Field::StoreHost => record.store_host.to_string().into_py_any(py),
            Field::ReconsumeTimes => record.reconsume_times.into_py_any(py),
            Field::Flag => record.flag.into_py_any(py),
            Field::SystemFlag => record.system_flag.into_py_any(py),
            Field::Body | Field::Properties | Field::SystemProperties => Ok(py.None()),
        }
    }
}

/// Replaces invalid UTF-8: senders may send anything.
fn text<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyString> {
    PyString::new(py, &String::from_utf8_lossy(bytes))
}

fn keys(py: Python<'_>, record: &Record<'_>) -> PyResult<Py<PyAny>> {
    let Some(keys) = records::joined_keys(record) else {
        return PyTuple::empty(py).into_py_any(py);
    };
    // Python's own idea of white space separates keys.
    let keys = PyString::new(py, &keys);
    let words: Vec<Bound<'_, PyAny>> = keys.call_method0(pyo3::intern!(py, "split"))?.extract()?;
    PyTuple::new(py, words)?.into_py_any(py)
}

/// Messages, and those among them whose bodies are compressed.
pub type Decoded = (Vec<Py<Message>>, Vec<Py<Message>>);

/// The messages of a pull's body that have one of the tags; without tags, all of them.
#[pyfunction]
#[pyo3(signature = (data, queue, *, tags=None, shows_first_topic=true))]
pub fn decode_messages(
    py: Python<'_>,
    data: PyBackedBytes,
    queue: &Bound<'_, PyAny>,
    tags: Option<HashSet<String>>,
    shows_first_topic: bool,
) -> PyResult<Decoded> {
    let bytes = Bytes::from_owner(data);
    let tags: Vec<String> = tags.into_iter().flatten().collect();
    let is_wanted = |record: &Record<'_>| records::has_wanted_tag(record, &tags);
    let found = Records::find(bytes.clone(), i64::MIN, is_wanted).map_err(Failure::from)?;
    let pulled = Pulled::new(bytes, queue, shows_first_topic)?;
    let (mut messages, mut compressed) = (Vec::with_capacity(found.positions.len()), Vec::new());
    add_messages(py, &pulled, &found.positions, &mut messages, &mut compressed)?;
    Ok((messages, compressed))
}

/// Makes messages of positions; the bytes stay where they are.
pub fn add_messages(
    py: Python<'_>,
    pulled: &Arc<Pulled>,
    positions: &[u32],
    messages: &mut Vec<Py<Message>>,
    compressed: &mut Vec<Py<Message>>,
) -> PyResult<()> {
    for at in positions {
        let received = Received::new(pulled, *at as usize);
        let is_compressed = received.is_compressed();
        let message = Py::new(py, Message::from(received))?;
        if is_compressed {
            compressed.push(message.clone_ref(py));
        }
        messages.push(message);
    }
    Ok(())
}
