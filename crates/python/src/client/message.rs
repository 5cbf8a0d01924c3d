//! `Message`: made by a user, or received and read from the buffer of its pull.

use std::sync::Arc;

use pyo3::IntoPyObjectExt;
use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDateTime, PyDict, PyMappingProxy, PyString, PyTuple, PyType, PyTzInfo};

use crate::client::received::{self, Received};

/// The attributes, in the order of the constructor's parameters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Topic,
    Body,
    Tag,
    Keys,
    Properties,
    Id,
    OffsetId,
    Queue,
    QueueOffset,
    PhysicalOffset,
    BornAt,
    StoredAt,
    BornHost,
    StoreHost,
    ReconsumeTimes,
    Flag,
    SystemFlag,
    SystemProperties,
}

const FIELDS: [(&str, Field); 18] = [
    ("topic", Field::Topic),
    ("body", Field::Body),
    ("tag", Field::Tag),
    ("keys", Field::Keys),
    ("properties", Field::Properties),
    ("id", Field::Id),
    ("offset_id", Field::OffsetId),
    ("queue", Field::Queue),
    ("queue_offset", Field::QueueOffset),
    ("physical_offset", Field::PhysicalOffset),
    ("born_at", Field::BornAt),
    ("stored_at", Field::StoredAt),
    ("born_host", Field::BornHost),
    ("store_host", Field::StoreHost),
    ("reconsume_times", Field::ReconsumeTimes),
    ("flag", Field::Flag),
    ("system_flag", Field::SystemFlag),
    ("system_properties", Field::SystemProperties),
];

impl Field {
    /// `repr` leaves out long and technical attributes.
    fn is_shown(self) -> bool {
        !matches!(
            self,
            Field::Body
                | Field::PhysicalOffset
                | Field::BornHost
                | Field::StoreHost
                | Field::Flag
                | Field::SystemFlag
                | Field::SystemProperties
        )
    }

    fn is_mapping(self) -> bool {
        matches!(self, Field::Properties | Field::SystemProperties)
    }
}

type Values = [Py<PyAny>; FIELDS.len()];

enum Origin {
    Made(Arc<Values>),
    Received(Received),
}

#[pyclass(frozen, subclass, module = "metaq")]
pub struct Message {
    origin: Origin,
}

impl From<Received> for Message {
    fn from(received: Received) -> Self {
        Message { origin: Origin::Received(received) }
    }
}

impl Message {
    fn value(&self, py: Python<'_>, field: Field) -> PyResult<Py<PyAny>> {
        match &self.origin {
            Origin::Made(values) => Ok(values[field as usize].clone_ref(py)),
            Origin::Received(received) => received.value(py, field),
        }
    }

    pub fn queue_offset_number(&self, py: Python<'_>) -> PyResult<i64> {
        match &self.origin {
            Origin::Made(values) => values[Field::QueueOffset as usize].extract(py),
            Origin::Received(received) => Ok(received.queue_offset()),
        }
    }

    /// Bytes of its body.
    pub fn size(&self, py: Python<'_>) -> PyResult<usize> {
        match &self.origin {
            Origin::Made(values) => values[Field::Body as usize].bind(py).len(),
            Origin::Received(received) => received.body_size(py),
        }
    }

    fn values(&self, py: Python<'_>) -> PyResult<Vec<(&'static str, Field, Py<PyAny>)>> {
        FIELDS.iter().map(|(name, field)| Ok((*name, *field, self.value(py, *field)?))).collect()
    }

    fn copied(&self) -> Self {
        let origin = match &self.origin {
            Origin::Made(values) => Origin::Made(Arc::clone(values)),
            Origin::Received(received) => Origin::Received(received.copied()),
        };
        Message { origin }
    }

    /// Makes a message of positional and named arguments.
    fn made(
        py: Python<'_>,
        positional: &Bound<'_, PyTuple>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        if positional.len() > FIELDS.len() {
            return Err(PyTypeError::new_err(format!(
                "a Message takes at most {} values, not {}",
                FIELDS.len(),
                positional.len()
            )));
        }
        let mut values: [Option<Py<PyAny>>; FIELDS.len()] = [const { None }; FIELDS.len()];
        for (value, given) in values.iter_mut().zip(positional) {
            *value = Some(given.unbind());
        }
        for (name, given) in named.into_iter().flatten() {
            let name = name.cast::<PyString>().map_err(PyErr::from)?.to_cow()?.into_owned();
            let Some((place, _)) = values.iter_mut().zip(FIELDS).find(|(_, (known, _))| *known == name)
            else {
                return Err(PyTypeError::new_err(format!("a Message has no {name}")));
            };
            if place.replace(given.unbind()).is_some() {
                return Err(PyTypeError::new_err(format!("{name} is given twice")));
            }
        }
        let mut whole = Vec::with_capacity(FIELDS.len());
        for (value, (name, field)) in values.into_iter().zip(FIELDS) {
            whole.push(match value {
                Some(value) => value,
                None => default(py, field)?
                    .ok_or_else(|| PyTypeError::new_err(format!("a Message needs a {name}")))?,
            });
        }
        let whole = Values::try_from(whole).map_err(|_| PyTypeError::new_err("a Message lacks values"))?;
        Ok(Message { origin: Origin::Made(Arc::new(whole)) })
    }
}

/// The default of an attribute; `None` if it is required.
fn default(py: Python<'_>, field: Field) -> PyResult<Option<Py<PyAny>>> {
    let value = match field {
        Field::Topic | Field::Body => return Ok(None),
        Field::Tag | Field::Queue => py.None(),
        Field::Keys => PyTuple::empty(py).into_any().unbind(),
        Field::Properties | Field::SystemProperties => {
            PyMappingProxy::new(py, PyDict::new(py).as_mapping()).into_any().unbind()
        }
        Field::Id | Field::OffsetId | Field::BornHost | Field::StoreHost => {
            pyo3::intern!(py, "").clone().into_any().unbind()
        }
        Field::QueueOffset | Field::PhysicalOffset => (-1).into_py_any(py)?,
        Field::BornAt | Field::StoredAt | Field::ReconsumeTimes | Field::Flag | Field::SystemFlag => {
            0.into_py_any(py)?
        }
    };
    Ok(Some(value))
}

/// Returns a time of the wire as a datetime in UTC. Senders may set a number that is not a valid time.
fn moment(py: Python<'_>, ms: i64) -> PyResult<Bound<'_, PyDateTime>> {
    let utc = PyTzInfo::utc(py)?.to_owned();
    PyDateTime::from_timestamp(py, ms as f64 / 1000.0, Some(&utc))
        .map_err(|_| PyValueError::new_err(format!("{ms} milliseconds since 1970 is not a time")))
}

#[pymethods]
impl Message {
    #[classattr]
    fn __match_args__(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        PyTuple::new(py, FIELDS.map(|(name, _)| name))
    }

    #[new]
    #[pyo3(
        signature = (*values, **named),
        text_signature = "(topic, body=..., tag=None, keys=(), properties=..., id='', offset_id='', queue=None, queue_offset=-1, physical_offset=-1, born_at=0, stored_at=0, born_host='', store_host='', reconsume_times=0, flag=0, system_flag=0, system_properties=...)"
    )]
    fn new(py: Python<'_>, values: &Bound<'_, PyTuple>, named: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        // A subclass may begin with a received message.
        if named.is_none() && values.len() == 1 {
            if let Ok(message) = values.get_item(0)?.cast::<Message>() {
                return Ok(message.get().copied());
            }
        }
        Message::made(py, values, named)
    }

    #[getter]
    fn topic(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::Topic)
    }

    #[getter]
    fn body(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::Body)
    }

    #[getter]
    fn tag(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::Tag)
    }

    #[getter]
    fn keys(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::Keys)
    }

    #[getter]
    fn properties(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::Properties)
    }

    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::Id)
    }

    #[getter]
    fn offset_id(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::OffsetId)
    }

    #[getter]
    fn queue(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::Queue)
    }

    #[getter]
    fn queue_offset(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::QueueOffset)
    }

    #[getter]
    fn physical_offset(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::PhysicalOffset)
    }

    #[getter]
    fn born_at(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::BornAt)
    }

    #[getter]
    fn stored_at(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::StoredAt)
    }

    #[getter]
    fn born_time<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDateTime>> {
        moment(py, self.value(py, Field::BornAt)?.extract(py)?)
    }

    #[getter]
    fn stored_time<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDateTime>> {
        moment(py, self.value(py, Field::StoredAt)?.extract(py)?)
    }

    #[getter]
    fn born_host(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::BornHost)
    }

    #[getter]
    fn store_host(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::StoreHost)
    }

    #[getter]
    fn reconsume_times(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::ReconsumeTimes)
    }

    #[getter]
    fn flag(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::Flag)
    }

    #[getter]
    fn system_flag(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::SystemFlag)
    }

    #[getter]
    fn system_properties(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.value(py, Field::SystemProperties)
    }

    #[getter]
    fn stored_body<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, i32)> {
        match &self.origin {
            // Nobody else has compressed it, whatever the flag of the message says that it was made from.
            Origin::Made(values) => Ok((values[Field::Body as usize].bind(py).clone(), 0)),
            Origin::Received(received) => {
                let (body, system_flag) = received.stored_body(py)?;
                Ok((body.into_any(), system_flag))
            }
        }
    }

    #[getter]
    fn body_size(&self, py: Python<'_>) -> PyResult<usize> {
        self.size(py)
    }

    fn reply(slf: &Bound<'_, Self>, body: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        received::reply(slf, body)
    }

    #[pyo3(signature = (**changes))]
    fn __replace__(&self, py: Python<'_>, changes: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let named = PyDict::new(py);
        for (name, _, value) in self.values(py)? {
            named.set_item(name, value)?;
        }
        if let Some(changes) = changes {
            named.update(changes.as_mapping())?;
        }
        Message::made(py, &PyTuple::empty(py), Some(&named))
    }

    fn __richcmp__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>, how: CompareOp) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let other_kind = other.get_type();
        if !matches!(how, CompareOp::Eq | CompareOp::Ne) || !slf.get_type().is(&other_kind) {
            return Ok(py.NotImplemented());
        }
        let (one, two) = (slf.get(), other.cast::<Message>().map_err(PyErr::from)?.get());
        let mut is_equal = true;
        for (_, field) in FIELDS {
            if !one.value(py, field)?.bind(py).eq(two.value(py, field)?)? {
                is_equal = false;
                break;
            }
        }
        (is_equal == matches!(how, CompareOp::Eq)).into_py_any(py)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        let values = self.values(py)?.into_iter();
        let hashed = values.filter(|(_, field, _)| !field.is_mapping()).map(|(_, _, value)| value);
        PyTuple::new(py, hashed.collect::<Vec<_>>())?.hash()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let py = slf.py();
        let mut parts = Vec::new();
        for (name, field) in FIELDS {
            if field.is_shown() {
                parts.push(format!("{name}={}", slf.get().value(py, field)?.bind(py).repr()?));
            }
        }
        Ok(format!("{}({})", slf.get_type().qualname()?, parts.join(", ")))
    }

    /// Pickles and copies as a plain message, with its mappings as dicts.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let mut plain = Vec::with_capacity(FIELDS.len());
        for (_, field, value) in self.values(py)? {
            plain.push(if field.is_mapping() {
                let dict = PyDict::new(py);
                dict.update(value.bind(py).cast().map_err(PyErr::from)?)?;
                dict.into_any().unbind()
            } else {
                value
            });
        }
        Ok((py.get_type::<Message>(), PyTuple::new(py, plain)?))
    }
}
