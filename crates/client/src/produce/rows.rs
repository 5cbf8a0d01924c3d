//! Puts the rows of a table into a producer's buffer, straight out of Arrow's buffers.
//!
//! The columns are Arrow's memory, borrowed: nothing here trusts their offsets. Names of topics and of properties were
//! checked in Python, once for each that occurs; everything else is checked here, row by row.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metaq_wire::layout::PROPERTIES_BYTES_MAX;
use metaq_wire::properties::push_bytes;

use crate::produce::accumulator::{Accumulator, BatchMessage, PutError, WhenFull};
use crate::produce::batch::{BrokerQueue, Form, SHARDING_KEY};
use crate::produce::lanes::RECORD_FIXED_BYTES;
use crate::produce::outgoing::{has_tag_separator, push_unique_id, takes_batches};
use crate::produce::routes::Route;

/// Arrow's buffers of texts or bytes.
#[derive(Debug, Clone, Copy)]
pub struct VariableColumn<'a> {
    pub data: &'a [u8],
    /// i32, little-endian, one more than there are rows. The first is the position of `data` in the whole column.
    pub offsets: &'a [u8],
    pub validity: Option<&'a [u8]>,
    /// The bit of row 0 in `validity`.
    pub first_bit: usize,
}

/// Arrow's buffers of numbers.
#[derive(Debug, Clone, Copy)]
pub struct NumberColumn<'a> {
    /// i64, little-endian.
    pub values: &'a [u8],
    pub validity: Option<&'a [u8]>,
    pub first_bit: usize,
}

/// Arrow's buffers of a map: the names and values of a row stand between two offsets.
#[derive(Debug, Clone, Copy)]
pub struct MapColumn<'a> {
    pub offsets: &'a [u8],
    pub validity: Option<&'a [u8]>,
    pub first_bit: usize,
    pub names: VariableColumn<'a>,
    pub values: VariableColumn<'a>,
}

/// A table, one message per row.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    pub count: usize,
    /// For rows whose topic is null.
    pub topic: Option<&'a str>,
    pub topics: Option<VariableColumn<'a>>,
    pub bodies: VariableColumn<'a>,
    pub tags: Option<VariableColumn<'a>>,
    /// Several keys of a row are separated by spaces.
    pub keys: Option<VariableColumn<'a>>,
    pub properties: Option<MapColumn<'a>>,
    pub sharding_keys: Option<VariableColumn<'a>>,
    pub brokers: Option<VariableColumn<'a>>,
    pub queue_ids: Option<NumberColumn<'a>>,
    pub delay_levels: Option<NumberColumn<'a>>,
    pub deliver_ms: Option<NumberColumn<'a>>,
}

/// The limits of a producer for its rows.
#[derive(Debug, Clone, Copy)]
pub struct RowLimits {
    pub body_bytes_max: usize,
    pub batch_bytes_max: usize,
    /// Batches are stored as half messages, so every row may be part of one.
    pub is_half: bool,
}

/// The result of [`RowWriter::put`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowsPut {
    All,
    /// The buffer is full: call [`RowWriter::wait`], then `put` again.
    Full,
    /// The buffer is closed.
    Closed,
    /// This row cannot be sent. The rows before it were put.
    Invalid {
        row: usize,
        reason: String,
    },
}

/// Either a value or what is wrong with its row.
type Checked<T> = Result<T, String>;

#[inline]
fn is_valid(validity: Option<&[u8]>, bit: usize) -> bool {
    let Some(bits) = validity else { return true };
    bits.get(bit / 8).is_some_and(|byte| (byte >> (bit % 8)) & 1 == 1)
}

#[inline]
fn offset(offsets: &[u8], row: usize) -> Option<usize> {
    let bytes = offsets.get(row.checked_mul(4)?..)?.first_chunk()?;
    usize::try_from(i32::from_le_bytes(*bytes)).ok()
}

fn bad_layout(column: &str) -> String {
    format!("{column} does not have Arrow's layout")
}

impl<'a> VariableColumn<'a> {
    /// `None` for a null.
    #[inline]
    fn get(&self, row: usize, column: &str) -> Checked<Option<&'a [u8]>> {
        if !is_valid(self.validity, self.first_bit.saturating_add(row)) {
            return Ok(None);
        }
        let found = || {
            let base = offset(self.offsets, 0)?;
            let (start, end) = (offset(self.offsets, row)?, offset(self.offsets, row.checked_add(1)?)?);
            self.data.get(start.checked_sub(base)?..end.checked_sub(base)?)
        };
        found().map(Some).ok_or_else(|| bad_layout(column))
    }

    /// The value of a property: `None` for a null and for an empty text.
    #[inline]
    fn property(&self, row: usize, column: &str) -> Checked<Option<&'a str>> {
        let Some(text) = self.get(row, column)?.filter(|text| !text.is_empty()) else { return Ok(None) };
        if text.iter().any(|byte| *byte == 1 || *byte == 2) {
            return Err(format!("{column} holds a character 1 or 2, which separate properties on the wire"));
        }
        std::str::from_utf8(text).map(Some).map_err(|_| format!("{column} is not UTF-8"))
    }
}

impl NumberColumn<'_> {
    #[inline]
    fn get(&self, row: usize, column: &str) -> Checked<Option<i64>> {
        if !is_valid(self.validity, self.first_bit.saturating_add(row)) {
            return Ok(None);
        }
        let bytes = row.checked_mul(8).and_then(|at| self.values.get(at..)?.first_chunk());
        bytes.map(|bytes| Some(i64::from_le_bytes(*bytes))).ok_or_else(|| bad_layout(column))
    }
}

impl MapColumn<'_> {
    /// Appends the properties of a row.
    fn push(&self, row: usize, out: &mut Vec<u8>) -> Checked<()> {
        if !is_valid(self.validity, self.first_bit.saturating_add(row)) {
            return Ok(());
        }
        let base = offset(self.offsets, 0);
        let (Some(base), Some(start), Some(end)) =
            (base, offset(self.offsets, row), offset(self.offsets, row.saturating_add(1)))
        else {
            return Err(bad_layout("properties"));
        };
        for pair in start.saturating_sub(base)..end.saturating_sub(base) {
            let name = self.names.property(pair, "the name of a property")?;
            let name = name.ok_or("the name of a property is empty")?;
            let value = self.values.property(pair, "a property")?;
            let value = value.ok_or_else(|| format!("the property {name} is empty or null"))?;
            push_bytes(out, name.as_bytes(), value.as_bytes());
        }
        Ok(())
    }
}

/// A row that was read; its properties are in the writer's buffer.
struct Row<'a> {
    topic: &'a str,
    body: &'a [u8],
    queue: Option<BrokerQueue>,
    is_timed: bool,
}

impl<'a> Rows<'a> {
    #[inline]
    fn topic(&self, row: usize) -> Checked<&'a str> {
        let named = match &self.topics {
            Some(topics) => topics.property(row, "topic")?,
            None => None,
        };
        named.or(self.topic).ok_or_else(|| "topic is null, and the option topic is not set".to_owned())
    }

    /// Reads one row, and its properties into `out`.
    fn read(
        &self,
        row: usize,
        route: impl Fn(&str) -> Option<Arc<Route>>,
        out: &mut Vec<u8>,
    ) -> Checked<Row<'a>> {
        let topic = self.topic(row)?;
        let Some(body) = self.bodies.get(row, "body")? else { return Err("body is null".to_owned()) };
        out.clear();
        let text = |texts: &Option<VariableColumn<'a>>, column: &str| match texts {
            Some(texts) => texts.property(row, column),
            None => Ok(None),
        };
        let number = |numbers: &Option<NumberColumn<'a>>, column: &str| match numbers {
            Some(numbers) => numbers.get(row, column),
            None => Ok(None),
        };
        if let Some(properties) = &self.properties {
            properties.push(row, out)?;
        }
        if let Some(tag) = text(&self.tags, "tags")? {
            if has_tag_separator(tag) {
                return Err("tags holds ||, which separates tags in subscriptions".to_owned());
            }
            push_bytes(out, b"TAGS", tag.as_bytes());
        }
        if let Some(keys) = text(&self.keys, "keys")? {
            push_bytes(out, b"KEYS", keys.as_bytes());
        }
        let key = text(&self.sharding_keys, "shardingKey")?;
        let queue_id = number(&self.queue_ids, "queueId")?;
        let broker = text(&self.brokers, "brokerName")?;
        let route = || route(topic).ok_or_else(|| format!("no route to topic {topic} is known"));
        let queue = match (key, queue_id) {
            (None, None) if broker.is_some() => return Err("brokerName is given without queueId".to_owned()),
            (None, None) => None,
            (Some(_), Some(_)) => return Err("shardingKey and queueId are both given".to_owned()),
            (Some(key), None) => {
                push_bytes(out, SHARDING_KEY.as_bytes(), key.as_bytes());
                let route = route()?;
                Some(route.by_key(topic, key).ok_or_else(|| format!("topic {topic} has no queue"))?.clone())
            }
            (None, Some(queue_id)) => Some(find_queue(&*route()?, topic, queue_id, broker)?),
        };
        let level = number(&self.delay_levels, "delayLevel")?.filter(|level| *level != 0);
        let deliver_ms = number(&self.deliver_ms, "deliverAt")?;
        match (level, deliver_ms) {
            (Some(_), Some(_)) => return Err("delayLevel and deliverAt are both given".to_owned()),
            (Some(level), None) if level < 0 => {
                return Err(format!("delayLevel is {level}, but must be 0 or more"));
            }
            (Some(level), None) => push_bytes(out, b"DELAY", level.to_string().as_bytes()),
            (None, Some(due_ms)) => push_bytes(out, b"TIMER_DELIVER_MS", due_ms.to_string().as_bytes()),
            (None, None) => {}
        }
        Ok(Row { topic, body, queue, is_timed: level.is_some() || deliver_ms.is_some() })
    }
}

/// The queue with that number at that broker, or at the only broker that has it.
fn find_queue(route: &Route, topic: &str, queue_id: i64, broker: Option<&str>) -> Checked<BrokerQueue> {
    let is_wanted = |queue: &&BrokerQueue| {
        i64::from(queue.queue_id) == queue_id && broker.is_none_or(|broker| broker == &*queue.broker)
    };
    let mut found = route.queues.iter().filter(is_wanted);
    match (found.next(), found.next()) {
        (Some(queue), None) => Ok(queue.clone()),
        (Some(_), Some(_)) => Err(format!(
            "queueId is {queue_id}, which several brokers of topic {topic} have: give brokerName, too"
        )),
        (None, _) => {
            Err(format!("queueId is {queue_id}, but topic {topic} has no such queue that accepts messages"))
        }
    }
}

/// Puts rows in their order. While the buffer is full, the caller decides how long to wait.
pub struct RowWriter<'a, A: Default + Send + 'static> {
    buffer: &'a Accumulator<A>,
    limits: RowLimits,
    rows: Rows<'a>,
    next: usize,
    /// The writer's place in the line for space in the buffer.
    ticket: Option<u64>,
    /// Size of the row that waits for space.
    waiting_bytes: usize,
    /// Properties of the current row, kept to reuse the allocation.
    properties: Vec<u8>,
}

impl<'a, A: Default + Send + 'static> RowWriter<'a, A> {
    pub fn new(buffer: &'a Accumulator<A>, limits: RowLimits, rows: Rows<'a>) -> Self {
        let properties = Vec::with_capacity(512);
        RowWriter { buffer, limits, rows, next: 0, ticket: None, waiting_bytes: 0, properties }
    }

    /// Puts rows until all are in the buffer, or it is full or closed, or a row is invalid.
    pub fn put(&mut self) -> RowsPut {
        let buffer = self.buffer;
        let route = |topic: &str| buffer.routes.get(topic);
        while self.next < self.rows.count {
            let row = match self.rows.read(self.next, route, &mut self.properties) {
                Ok(row) => row,
                Err(reason) => return RowsPut::Invalid { row: self.next, reason },
            };
            match self.put_row(&row) {
                Ok(()) => {
                    // A successful put has left the line.
                    self.ticket = None;
                    self.next += 1;
                }
                Err(Refused::ByBuffer(PutError::Full)) => {
                    self.waiting_bytes = RECORD_FIXED_BYTES + row.body.len() + self.properties.len();
                    self.leave_line();
                    self.ticket = Some(self.buffer.stand_in_line());
                    return RowsPut::Full;
                }
                Err(Refused::ByBuffer(PutError::Closed)) => return RowsPut::Closed,
                Err(Refused::ByBuffer(PutError::TooLong)) => {
                    let reason = "the message is too long for the wire format".to_owned();
                    return RowsPut::Invalid { row: self.next, reason };
                }
                Err(Refused::Invalid(reason)) => return RowsPut::Invalid { row: self.next, reason },
            }
        }
        RowsPut::All
    }

    /// Waits up to `patience` for space; `true` if another `put` is worth it.
    pub fn wait(&self, patience: Duration) -> bool {
        let Some(ticket) = self.ticket else { return true };
        self.buffer.wait_in_line(ticket, self.waiting_bytes, patience);
        self.buffer.has_space(ticket, self.waiting_bytes)
    }

    fn leave_line(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.buffer.leave_line(ticket);
        }
    }

    fn put_row(&mut self, row: &Row<'_>) -> Result<(), Refused> {
        let (body_bytes, body_bytes_max) = (row.body.len(), self.limits.body_bytes_max);
        if body_bytes > body_bytes_max {
            let reason = format!("body has {body_bytes} bytes: at most {body_bytes_max} are accepted");
            return Err(Refused::Invalid(reason));
        }
        let id = self.buffer.ids.next();
        push_unique_id(&mut self.properties, &self.buffer.ids, id);
        let properties = &self.properties;
        if properties.len() > PROPERTIES_BYTES_MAX {
            let reason = format!("tags, keys and properties take more than {PROPERTIES_BYTES_MAX} bytes");
            return Err(Refused::Invalid(reason));
        }
        let size_bytes = RECORD_FIXED_BYTES + body_bytes + properties.len();
        let is_alone = !self.limits.is_half
            && (row.is_timed || !takes_batches(row.topic) || size_bytes > self.limits.batch_bytes_max);
        let when_full = self.ticket.map_or(WhenFull::Refuse, WhenFull::InTurn);
        let taken = if is_alone {
            let properties = String::from_utf8_lossy(properties).into_owned();
            let form = Form::Alone { properties, system_flag: 0, flag: 0 };
            let body = Bytes::copy_from_slice(row.body);
            self.buffer.put_alone(row.topic, row.queue.as_ref(), id, form, body, when_full)
        } else {
            let plain = BatchMessage {
                topic: row.topic,
                queue: row.queue.as_ref(),
                id,
                flag: 0,
                body: row.body,
                properties_bytes: properties.len(),
                push_properties: |out: &mut Vec<u8>| out.extend_from_slice(properties),
            };
            self.buffer.put(plain, when_full)
        };
        taken.map(|_| ()).map_err(Refused::ByBuffer)
    }
}

impl<A: Default + Send + 'static> Drop for RowWriter<'_, A> {
    fn drop(&mut self) {
        self.leave_line();
    }
}

enum Refused {
    ByBuffer(PutError),
    Invalid(String),
}

#[cfg(test)]
mod tests;
