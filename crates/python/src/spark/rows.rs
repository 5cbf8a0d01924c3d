//! Rows of a table put into the buffer of a producer: read out of Arrow's buffers, with no Python object for a row.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use metaq_client::{Accumulator, Asks, Form, NotTaken, Place, Plain, Route};
use metaq_wire::properties::push_bytes;
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::client::send_future::{Attached, SIGNAL_INTERVAL, deadline};
use crate::enter::enter_infallible;

const PROPERTIES_BYTES_MAX: usize = i16::MAX as usize;
const RECORD_FIXED_BYTES: usize = 22;

/// `metaq.client.producer.arrow_rows.Texts`: what Arrow keeps of texts or bytes.
#[derive(FromPyObject)]
pub struct Texts {
    data: PyBackedBytes,
    /// i32, one more than there are rows; the first says where `data` begins.
    offsets: PyBackedBytes,
    validity: Option<PyBackedBytes>,
    first_bit: usize,
}

/// `metaq.client.producer.arrow_rows.Numbers`
#[derive(FromPyObject)]
pub struct Numbers {
    /// i64
    values: PyBackedBytes,
    validity: Option<PyBackedBytes>,
    first_bit: usize,
}

/// `metaq.client.producer.arrow_rows.Pairs`: for each row, names and values between two offsets.
#[derive(FromPyObject)]
pub struct Pairs {
    offsets: PyBackedBytes,
    validity: Option<PyBackedBytes>,
    first_bit: usize,
    names: Texts,
    values: Texts,
}

/// `metaq.client.producer.arrow_rows.Rows`
#[derive(FromPyObject)]
pub struct Rows {
    count: usize,
    /// Of all rows that name none.
    topic: Option<String>,
    topics: Option<Texts>,
    bodies: Texts,
    tags: Option<Texts>,
    /// Several of a row are separated by spaces.
    keys: Option<Texts>,
    properties: Option<Pairs>,
    sharding_keys: Option<Texts>,
    brokers: Option<Texts>,
    queue_ids: Option<Numbers>,
    delay_levels: Option<Numbers>,
    deliver_ms: Option<Numbers>,
}

/// Why the rows from one on were not put.
enum Stop {
    End,
    Full(usize),
    Closed,
    Wrong(String),
}

type Reading<T> = Result<T, String>;

fn is_set(validity: &Option<PyBackedBytes>, bit: usize) -> bool {
    let Some(bits) = validity else { return true };
    bits.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
}

fn offset(offsets: &[u8], row: usize) -> Option<usize> {
    let bytes = offsets.get(row.checked_mul(4)?..)?.first_chunk()?;
    usize::try_from(i32::from_le_bytes(*bytes)).ok()
}

impl Texts {
    /// None for a null.
    fn get(&self, row: usize, column: &str) -> Reading<Option<&[u8]>> {
        if !is_set(&self.validity, self.first_bit.saturating_add(row)) {
            return Ok(None);
        }
        let found = || {
            let base = offset(&self.offsets, 0)?;
            let (start, end) = (offset(&self.offsets, row)?, offset(&self.offsets, row + 1)?);
            self.data.get(start.checked_sub(base)?..end.checked_sub(base)?)
        };
        found().map(Some).ok_or_else(|| format!("{column} is not laid out as Arrow lays it out"))
    }

    /// What can be a property: None for a null and for an empty one.
    fn property(&self, row: usize, column: &str) -> Reading<Option<&[u8]>> {
        let Some(text) = self.get(row, column)?.filter(|text| !text.is_empty()) else { return Ok(None) };
        if text.iter().any(|byte| *byte == 1 || *byte == 2) {
            return Err(format!("{column} holds a character 1 or 2, which separate properties on the wire"));
        }
        if std::str::from_utf8(text).is_err() {
            return Err(format!("{column} is not UTF-8"));
        }
        Ok(Some(text))
    }
}

impl Numbers {
    fn get(&self, row: usize, column: &str) -> Reading<Option<i64>> {
        if !is_set(&self.validity, self.first_bit.saturating_add(row)) {
            return Ok(None);
        }
        let bytes = row.checked_mul(8).and_then(|at| self.values.get(at..)?.first_chunk());
        bytes
            .map(|bytes| Some(i64::from_le_bytes(*bytes)))
            .ok_or_else(|| format!("{column} is not laid out as Arrow lays it out"))
    }
}

impl Pairs {
    /// Appends the properties of a row. Names were checked in Python, once for each that occurs.
    fn push(&self, row: usize, out: &mut Vec<u8>) -> Reading<()> {
        if !is_set(&self.validity, self.first_bit.saturating_add(row)) {
            return Ok(());
        }
        let base = offset(&self.offsets, 0);
        let (Some(base), Some(start), Some(end)) =
            (base, offset(&self.offsets, row), offset(&self.offsets, row + 1))
        else {
            return Err("properties is not laid out as Arrow lays it out".to_owned());
        };
        for pair in start.saturating_sub(base)..end.saturating_sub(base) {
            let name = self.names.property(pair, "the name of a property")?;
            let name = name.ok_or("the name of a property is empty")?;
            let value = self.values.property(pair, "a property")?;
            let value = value
                .ok_or_else(|| format!("the property {} is empty or null", String::from_utf8_lossy(name)))?;
            push_bytes(out, name, value);
        }
        Ok(())
    }
}

/// What of a row goes into its message besides its body.
struct Row<'a> {
    topic: &'a str,
    body: &'a [u8],
    place: Option<Place>,
    is_timed: bool,
}

impl Rows {
    fn topic(&self, row: usize) -> Reading<&str> {
        let named = match &self.topics {
            Some(topics) => topics.property(row, "topic")?,
            None => None,
        };
        match (named, &self.topic) {
            (Some(named), _) => std::str::from_utf8(named).map_err(|_| "topic is not UTF-8".to_owned()),
            (None, Some(topic)) => Ok(topic),
            (None, None) => Err("topic is null, and the option topic names none".to_owned()),
        }
    }

    /// Reads one row; its properties go to `out`.
    fn read<'a>(
        &'a self,
        row: usize,
        route: &dyn Fn(&str) -> Option<Arc<Route>>,
        out: &mut Vec<u8>,
    ) -> Reading<Row<'a>> {
        let topic = self.topic(row)?;
        let Some(body) = self.bodies.get(row, "body")? else { return Err("body is null".to_owned()) };
        out.clear();
        let text = |texts: &'a Option<Texts>, column: &str| match texts {
            Some(texts) => texts.property(row, column),
            None => Ok(None),
        };
        let number = |numbers: &Option<Numbers>, column: &str| match numbers {
            Some(numbers) => numbers.get(row, column),
            None => Ok(None),
        };
        if let Some(properties) = &self.properties {
            properties.push(row, out)?;
        }
        if let Some(tag) = text(&self.tags, "tags")? {
            if tag.windows(2).any(|pair| pair == b"||") {
                return Err("tags holds ||, which separates tags in subscriptions".to_owned());
            }
            push_bytes(out, b"TAGS", tag);
        }
        if let Some(keys) = text(&self.keys, "keys")? {
            push_bytes(out, b"KEYS", keys);
        }
        let key = text(&self.sharding_keys, "shardingKey")?;
        let queue_id = number(&self.queue_ids, "queueId")?;
        let broker = text(&self.brokers, "brokerName")?;
        let place = match (key, queue_id) {
            (None, None) if broker.is_some() => return Err("brokerName is given without queueId".to_owned()),
            (None, None) => None,
            (Some(_), Some(_)) => return Err("shardingKey and queueId are both given".to_owned()),
            (Some(key), None) => {
                push_bytes(out, b"__SHARDINGKEY", key);
                let route = route(topic).ok_or_else(|| format!("no route to topic {topic} is known"))?;
                let key = std::str::from_utf8(key).map_err(|_| "shardingKey is not UTF-8".to_owned())?;
                Some(route.by_key(key).ok_or_else(|| format!("topic {topic} has no queue"))?.clone())
            }
            (None, Some(queue_id)) => {
                let route = route(topic).ok_or_else(|| format!("no route to topic {topic} is known"))?;
                Some(queue(&route, topic, queue_id, broker)?)
            }
        };
        let level = number(&self.delay_levels, "delayLevel")?.filter(|level| *level != 0);
        let deliver_ms = number(&self.deliver_ms, "deliverAt")?;
        match (level, deliver_ms) {
            (Some(_), Some(_)) => return Err("delayLevel and deliverAt are both given".to_owned()),
            (Some(level), None) if level < 0 => {
                return Err(format!("delayLevel is {level}: it is 0 or more"));
            }
            (Some(level), None) => push_bytes(out, b"DELAY", level.to_string().as_bytes()),
            (None, Some(due_ms)) => push_bytes(out, b"TIMER_DELIVER_MS", due_ms.to_string().as_bytes()),
            (None, None) => {}
        }
        Ok(Row { topic, body, place, is_timed: level.is_some() || deliver_ms.is_some() })
    }
}

/// The queue of that number: of that broker, or of the only one that has it.
fn queue(route: &Route, topic: &str, queue_id: i64, broker: Option<&[u8]>) -> Reading<Place> {
    let is_wanted = |place: &&Place| {
        i64::from(place.queue_id) == queue_id && broker.is_none_or(|broker| broker == place.broker.as_bytes())
    };
    let mut found = route.queues.iter().filter(is_wanted);
    match (found.next(), found.next()) {
        (Some(place), None) => Ok(place.clone()),
        (Some(_), Some(_)) => Err(format!(
            "queueId is {queue_id}, which several brokers of topic {topic} have: brokerName says which"
        )),
        (None, _) => Err(format!("queueId is {queue_id}, which topic {topic} has not, or not for writing")),
    }
}

/// What the buffer of a producer takes of a row.
pub struct Limits {
    pub body_bytes_max: usize,
    pub batch_bytes_max: usize,
    /// Rows are stored as half messages, many in one: there is nothing that must go alone.
    pub is_half: bool,
}

/// Puts all of them, and waits while there is no room, without the interpreter.
///
/// Raises ValueError with the number of the row and what is wrong with it, TimeoutError where there is no room for
/// `wait_s`. False where the buffer is closed.
pub fn put(
    py: Python<'_>,
    buffer: &Accumulator<Attached>,
    limits: &Limits,
    rows: &Rows,
    wait_s: f64,
) -> PyResult<bool> {
    let mut next = 0;
    let mut ticket = None;
    let mut out = Vec::with_capacity(512);
    let outcome = loop {
        let stop = enter_infallible(py, || put_some(buffer, limits, rows, &mut next, &mut ticket, &mut out));
        match stop {
            Stop::End => break Ok(true),
            Stop::Closed => break Ok(false),
            Stop::Wrong(what) => break Err(PyValueError::new_err((next, what))),
            Stop::Full(size_bytes) => {
                let place = buffer.stand_in_line();
                ticket = Some(place);
                if let Err(error) = wait(py, buffer, place, size_bytes, deadline(wait_s.max(0.0))) {
                    break Err(error);
                }
            }
        }
    };
    if let Some(ticket) = ticket {
        buffer.leave_line(ticket);
    }
    outcome
}

/// Until there may be room for so much; somebody else's signal ends it.
fn wait(
    py: Python<'_>,
    buffer: &Accumulator<Attached>,
    ticket: u64,
    size_bytes: usize,
    until: Option<Instant>,
) -> PyResult<()> {
    while !enter_infallible(py, || {
        buffer.wait_in_line(ticket, size_bytes, SIGNAL_INTERVAL);
        buffer.has_room(ticket, size_bytes)
    }) {
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(PyTimeoutError::new_err("the buffer stayed full"));
        }
        py.check_signals()?;
    }
    Ok(())
}

fn put_some(
    buffer: &Accumulator<Attached>,
    limits: &Limits,
    rows: &Rows,
    next: &mut usize,
    ticket: &mut Option<u64>,
    out: &mut Vec<u8>,
) -> Stop {
    let route = |topic: &str| buffer.routes.get(topic);
    while *next < rows.count {
        let row = match rows.read(*next, &route, out) {
            Ok(row) => row,
            Err(what) => return Stop::Wrong(what),
        };
        let put = put_one(buffer, limits, &row, out, *ticket);
        match put {
            Ok(()) => {
                *ticket = None;
                *next += 1;
            }
            Err(Refused::Buffer(NotTaken::Full)) => {
                // A place in the line that was not good enough is given up for one at its end.
                if let Some(ticket) = ticket.take() {
                    buffer.leave_line(ticket);
                }
                return Stop::Full(RECORD_FIXED_BYTES + row.body.len() + out.len());
            }
            Err(Refused::Buffer(NotTaken::Closed)) => return Stop::Closed,
            Err(Refused::Buffer(NotTaken::TooLong)) => {
                return Stop::Wrong("the message is longer than the wire can say".to_owned());
            }
            Err(Refused::Row(what)) => return Stop::Wrong(what),
        }
    }
    Stop::End
}

enum Refused {
    Buffer(NotTaken),
    Row(String),
}

fn put_one(
    buffer: &Accumulator<Attached>,
    limits: &Limits,
    row: &Row<'_>,
    out: &mut Vec<u8>,
    ticket: Option<u64>,
) -> Result<(), Refused> {
    if row.body.len() > limits.body_bytes_max {
        let (size, max) = (row.body.len(), limits.body_bytes_max);
        return Err(Refused::Row(format!("body has {size} bytes: at most {max} are taken")));
    }
    let id = buffer.ids.next();
    out.extend_from_slice(b"UNIQ_KEY\x01");
    buffer.ids.push(id, out);
    out.push(2);
    if out.len() > PROPERTIES_BYTES_MAX {
        return Err(Refused::Row(format!(
            "tags, keys and properties take more than {PROPERTIES_BYTES_MAX} bytes"
        )));
    }
    let size_bytes = RECORD_FIXED_BYTES + row.body.len() + out.len();
    // Brokers take nothing that waits for its time in a batch, and nothing for retry topics.
    let alone = !limits.is_half
        && (row.is_timed || row.topic.starts_with('%') || size_bytes > limits.batch_bytes_max);
    let asks = ticket.map_or(Asks::Nothing, Asks::InTurn);
    let taken = if alone {
        let properties = String::from_utf8_lossy(out).into_owned();
        let form = Form::Alone { properties, system_flag: 0, flag: 0 };
        buffer.put_alone(row.topic, row.place.as_ref(), id, form, Bytes::copy_from_slice(row.body), asks)
    } else {
        let plain = Plain {
            topic: row.topic,
            queue: row.place.as_ref(),
            id,
            flag: 0,
            body: row.body,
            properties_bytes: out.len(),
            push_properties: |body: &mut Vec<u8>| body.extend_from_slice(out),
        };
        buffer.put(plain, asks)
    };
    taken.map(|_| ()).map_err(Refused::Buffer)
}
