//! Lays records out as Arrow columns, without an object per message.
//!
//! ```text
//! fixed width   | values, little-endian |
//! text, bytes   | validity bits, if any value is null | offsets: i32, one more than rows | bytes |
//! map           | offsets: i32 | names: offsets, bytes | values: offsets, bytes |
//! ```

use std::collections::{HashMap, HashSet};

use metaq_wire::properties::{find_many, iterate};
use metaq_wire::{MessageIds, Record};

use crate::compression::{self, COMPRESSED_FLAG, CompressionError};
use crate::consume::records::{KEYS, TAGS, UNIQUE_KEY};

const MICROSECONDS_PER_MS: i64 = 1000;
/// Years 1 to 9999, less the days that fall into another year in another time zone. Producers may send any number as
/// a time, and Python's dates end here.
const TIMES_MS: (i64, i64) = (-62_135_424_000_000, 253_402_127_999_999);
/// Up to this many properties, each name is compared with those after it; beyond, a map is built.
const COMPARED_MAX: usize = 16;

/// A column that a scan can produce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Topic,
    BrokerName,
    QueueId,
    QueueOffset,
    MessageId,
    Keys,
    Tags,
    Body,
    BornTimestamp,
    StoreTimestamp,
    SystemFlag,
    ReconsumeTimes,
    Properties,
}

impl Column {
    /// Takes the names that Spark shows.
    pub fn from_name(name: &str) -> Option<Column> {
        Some(match name {
            "topic" => Column::Topic,
            "brokerName" => Column::BrokerName,
            "queueId" => Column::QueueId,
            "queueOffset" => Column::QueueOffset,
            "msgId" => Column::MessageId,
            "keys" => Column::Keys,
            "tags" => Column::Tags,
            "body" => Column::Body,
            "bornTimestamp" => Column::BornTimestamp,
            "storeTimestamp" => Column::StoreTimestamp,
            "sysFlag" => Column::SystemFlag,
            "reconsumeTimes" => Column::ReconsumeTimes,
            "properties" => Column::Properties,
            _ => return None,
        })
    }

    fn builder(self) -> Builder {
        match self {
            Column::QueueId
            | Column::QueueOffset
            | Column::BornTimestamp
            | Column::StoreTimestamp
            | Column::SystemFlag
            | Column::ReconsumeTimes => Builder::Fixed(Vec::new()),
            Column::Properties => Builder::Map {
                offsets: Offsets::default(),
                names: Variable::default(),
                values: Variable::default(),
            },
            _ => Builder::Variable(Variable::default()),
        }
    }
}

/// Arrow's offsets buffer: zero, then the end of each value.
struct Offsets(Vec<u8>);

impl Default for Offsets {
    fn default() -> Self {
        Offsets(0_i32.to_le_bytes().to_vec())
    }
}

impl Offsets {
    /// A batch is closed long before its bytes pass 31 bits.
    #[inline]
    fn push(&mut self, end: usize) {
        self.0.extend_from_slice(&i32::try_from(end).unwrap_or(i32::MAX).to_le_bytes());
    }
}

/// Values of any length, some of which may be null.
#[derive(Default)]
struct Variable {
    offsets: Offsets,
    bytes: Vec<u8>,
    rows: usize,
    /// Stays empty until the first null.
    validity: Vec<u8>,
    nulls: usize,
}

impl Variable {
    #[inline]
    fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.end_row(true);
    }

    /// Replaces invalid UTF-8: senders may send anything, and readers of text columns rely on UTF-8.
    #[inline]
    fn push_text(&mut self, value: &[u8]) {
        match std::str::from_utf8(value) {
            Ok(text) => self.push(text.as_bytes()),
            Err(_) => self.push(String::from_utf8_lossy(value).as_bytes()),
        }
    }

    #[inline]
    fn push_optional_text(&mut self, value: Option<&[u8]>) {
        match value {
            Some(value) => self.push_text(value),
            None => self.end_row(false),
        }
    }

    #[inline]
    fn end_row(&mut self, is_valid: bool) {
        self.offsets.push(self.bytes.len());
        if !is_valid || self.nulls > 0 {
            if !is_valid {
                self.nulls += 1;
            }
            // Bits that are created now belong to rows that were all valid.
            let (byte, bit) = (self.rows / 8, self.rows % 8);
            if self.validity.len() <= byte {
                self.validity.resize(byte + 1, 0xFF);
            }
            if let Some(bits) = self.validity.get_mut(byte).filter(|_| !is_valid) {
                *bits &= !(1 << bit);
            }
        }
        self.rows += 1;
    }
}

enum Builder {
    Fixed(Vec<u8>),
    Variable(Variable),
    Map { offsets: Offsets, names: Variable, values: Variable },
}

/// A finished column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnBuffers {
    pub nulls: usize,
    /// In Arrow's order; `None` for a validity buffer that is not needed.
    pub buffers: Vec<Option<Vec<u8>>>,
}

/// The values that all rows of a scan share, and the rules for their properties and bodies.
#[derive(Debug, Clone, Default)]
pub struct RowSource {
    pub topic: String,
    pub broker: String,
    pub queue_id: i32,
    /// Properties that the column `properties` leaves out.
    pub hidden_names: HashSet<String>,
    pub inflated_bytes_max: usize,
}

/// Columns while rows are added to them.
pub struct ColumnsBuilder<'a> {
    source: &'a RowSource,
    columns: Vec<(Column, Builder)>,
    needs_properties: bool,
    rows: usize,
    bytes: usize,
}

impl<'a> ColumnsBuilder<'a> {
    pub fn new(source: &'a RowSource, columns: &[Column]) -> Self {
        let needs_properties =
            columns.iter().any(|column| matches!(column, Column::MessageId | Column::Keys | Column::Tags));
        let columns = columns.iter().map(|column| (*column, column.builder())).collect();
        ColumnsBuilder { source, columns, needs_properties, rows: 0, bytes: 0 }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of all values that have no fixed width.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a row. If its body cannot be decompressed, the row is added with a null body and the error is returned.
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), CompressionError> {
        let [id, keys, tags] = if self.needs_properties {
            find_many(record.properties, [UNIQUE_KEY, KEYS, TAGS])
        } else {
            [None; 3]
        };
        let source = self.source;
        let mut outcome = Ok(());
        for (column, builder) in &mut self.columns {
            match builder {
                Builder::Fixed(values) => push_number(values, *column, source, record),
                Builder::Map { offsets, names, values } => {
                    push_properties(offsets, names, values, record.properties, &source.hidden_names);
                }
                Builder::Variable(values) => {
                    let before = values.bytes.len();
                    match column {
                        Column::Topic => values.push(source.topic.as_bytes()),
                        Column::BrokerName => values.push(source.broker.as_bytes()),
                        Column::MessageId => match id {
                            Some(id) => values.push_text(id),
                            None => {
                                let mut ids = MessageIds::of(record.store_host);
                                values.push(ids.bytes_at(record.physical_offset));
                            }
                        },
                        Column::Keys => values.push_optional_text(keys),
                        Column::Tags => values.push_optional_text(tags),
                        _ => outcome = push_body(values, record, source.inflated_bytes_max),
                    }
                    self.bytes += values.bytes.len() - before;
                }
            }
        }
        self.rows += 1;
        if self.columns.iter().any(|(column, _)| *column == Column::Properties) {
            self.bytes += record.properties.len();
        }
        outcome
    }

    pub fn finish(self) -> Vec<ColumnBuffers> {
        self.columns.into_iter().map(|(_, builder)| builder.finish()).collect()
    }
}

impl Builder {
    fn finish(self) -> ColumnBuffers {
        match self {
            Builder::Fixed(values) => ColumnBuffers { nulls: 0, buffers: vec![None, Some(values)] },
            Builder::Variable(values) => {
                let validity = (values.nulls > 0).then_some(values.validity);
                let buffers = vec![validity, Some(values.offsets.0), Some(values.bytes)];
                ColumnBuffers { nulls: values.nulls, buffers }
            }
            Builder::Map { offsets, names, values } => {
                let buffers = [offsets.0, names.offsets.0, names.bytes, values.offsets.0, values.bytes];
                ColumnBuffers { nulls: 0, buffers: buffers.into_iter().map(Some).collect() }
            }
        }
    }
}

#[inline]
fn push_number(values: &mut Vec<u8>, column: Column, source: &RowSource, record: &Record<'_>) {
    let time = |time_ms: i64| (time_ms.clamp(TIMES_MS.0, TIMES_MS.1) * MICROSECONDS_PER_MS).to_le_bytes();
    match column {
        Column::QueueOffset => values.extend_from_slice(&record.queue_offset.to_le_bytes()),
        Column::BornTimestamp => values.extend_from_slice(&time(record.born_timestamp_ms)),
        Column::StoreTimestamp => values.extend_from_slice(&time(record.store_timestamp_ms)),
        Column::QueueId => values.extend_from_slice(&source.queue_id.to_le_bytes()),
        Column::SystemFlag => values.extend_from_slice(&record.system_flag.to_le_bytes()),
        _ => values.extend_from_slice(&record.reconsume_times.to_le_bytes()),
    }
}

#[inline]
fn push_body(values: &mut Variable, record: &Record<'_>, bytes_max: usize) -> Result<(), CompressionError> {
    if record.system_flag & COMPRESSED_FLAG == 0 {
        values.push(record.body);
        return Ok(());
    }
    match compression::decompress_body(record.system_flag, record.body, bytes_max) {
        Ok(body) => {
            values.push(&body);
            Ok(())
        }
        Err(error) => {
            values.end_row(false);
            Err(error)
        }
    }
}

/// Adds the properties of one row. If a name occurs twice, the last value counts, as it does for every client.
fn push_properties(
    offsets: &mut Offsets,
    names: &mut Variable,
    values: &mut Variable,
    properties: &[u8],
    hidden_names: &HashSet<String>,
) {
    let is_hidden = |name: &[u8]| std::str::from_utf8(name).is_ok_and(|name| hidden_names.contains(name));
    let entries: Vec<(&[u8], &[u8])> = iterate(properties).filter(|(name, _)| !is_hidden(name)).collect();
    let last: Option<HashMap<&[u8], usize>> = (entries.len() > COMPARED_MAX)
        .then(|| entries.iter().enumerate().map(|(number, (name, _))| (*name, number)).collect());
    for (number, (name, value)) in entries.iter().enumerate() {
        let is_last = match &last {
            Some(last) => last.get(name) == Some(&number),
            None => !entries.iter().skip(number + 1).any(|(later, _)| later == name),
        };
        if is_last {
            names.push_text(name);
            values.push_text(value);
        }
    }
    offsets.push(names.rows);
}

#[cfg(test)]
mod tests;
