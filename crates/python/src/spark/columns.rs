//! Records as columns: buffers in Arrow's layout, filled without an object per message.
//!
//! ```text
//! fixed width   | values, little-endian |
//! text, bytes   | validity bits, if any is missing | ends: i32, one more than rows | bytes |
//! map           | ends: i32 | names: ends, bytes | values: ends, bytes |
//! ```

use std::collections::{HashMap, HashSet};

use metaq_wire::properties::{find_many, iterate};
use metaq_wire::{MessageIds, Record};

use crate::codec::compression::{self, CompressionError};

const TAGS: &str = "TAGS";
const KEYS: &str = "KEYS";
const UNIQUE_KEY: &str = "UNIQ_KEY";
const COMPRESSED: i32 = 1;
const MICROSECONDS_PER_MS: i64 = 1000;
/// Years 1 to 9999, without the days that another time zone has in another year: what producers say may be anything,
/// and Python's dates end there.
const TIMES_MS: (i64, i64) = (-62_135_424_000_000, 253_402_127_999_999);
/// Up to so many properties each is compared with those behind it; more are looked up.
const FEW: usize = 16;

/// What can be asked for, by the names that Spark shows.
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
    pub fn named(name: &str) -> Option<Column> {
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

    fn values(self) -> Values {
        match self {
            Column::QueueId
            | Column::QueueOffset
            | Column::BornTimestamp
            | Column::StoreTimestamp
            | Column::SystemFlag
            | Column::ReconsumeTimes => Values::Fixed(Vec::new()),
            Column::Properties => {
                Values::Map { ends: Ends::default(), names: Texts::default(), values: Texts::default() }
            }
            _ => Values::Texts(Texts::default()),
        }
    }
}

/// Where each value of a column ends in its bytes.
pub struct Ends(Vec<u8>);

impl Default for Ends {
    fn default() -> Self {
        Ends(0_i32.to_le_bytes().to_vec())
    }
}

impl Ends {
    /// A batch ends long before its bytes pass what 31 bits can say.
    #[inline]
    fn push(&mut self, end: usize) {
        self.0.extend_from_slice(&i32::try_from(end).unwrap_or(i32::MAX).to_le_bytes());
    }
}

/// Values of any length, some of which may be missing.
#[derive(Default)]
pub struct Texts {
    ends: Ends,
    bytes: Vec<u8>,
    rows: usize,
    /// Made with the first that is missing.
    validity: Vec<u8>,
    missing: usize,
}

impl Texts {
    #[inline]
    fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.close(true);
    }

    /// As it was sent, which may be anything, while readers of columns rely on UTF-8.
    #[inline]
    fn push_text(&mut self, value: &[u8]) {
        match std::str::from_utf8(value) {
            Ok(text) => self.push(text.as_bytes()),
            Err(_) => self.push(String::from_utf8_lossy(value).as_bytes()),
        }
    }

    #[inline]
    fn push_some(&mut self, value: Option<&[u8]>) {
        match value {
            Some(value) => self.push_text(value),
            None => self.close(false),
        }
    }

    #[inline]
    fn close(&mut self, is_there: bool) {
        self.ends.push(self.bytes.len());
        if !is_there || self.missing > 0 {
            if !is_there {
                self.missing += 1;
            }
            // Everything up to here was there, if this is the first that is not.
            let (byte, bit) = (self.rows / 8, self.rows % 8);
            if self.validity.len() <= byte {
                self.validity.resize(byte + 1, 0xFF);
            }
            if !is_there && let Some(bits) = self.validity.get_mut(byte) {
                *bits &= !(1 << bit);
            }
        }
        self.rows += 1;
    }
}

enum Values {
    Fixed(Vec<u8>),
    Texts(Texts),
    Map { ends: Ends, names: Texts, values: Texts },
}

/// One column as it is handed over: how many values are missing, and its buffers.
pub type Buffers = (usize, Vec<Option<Vec<u8>>>);

/// What all rows have in common, and how bodies are read.
pub struct Origin {
    pub topic: String,
    pub broker: String,
    pub queue_id: i32,
    /// Names that are left out of the properties.
    pub hidden_names: HashSet<String>,
    pub inflated_bytes_max: usize,
}

/// Columns that are being filled.
pub struct Columns<'a> {
    origin: &'a Origin,
    columns: Vec<(Column, Values)>,
    needs_properties: bool,
    pub rows: usize,
    /// Of everything that has no fixed width.
    pub bytes: usize,
}

impl<'a> Columns<'a> {
    pub fn new(origin: &'a Origin, columns: &[Column]) -> Self {
        let needs_properties =
            columns.iter().any(|column| matches!(column, Column::MessageId | Column::Keys | Column::Tags));
        let columns = columns.iter().map(|column| (*column, column.values())).collect();
        Columns { origin, columns, needs_properties, rows: 0, bytes: 0 }
    }

    /// Adds a row. Of a body that cannot be inflated the row is added without it, and why is told.
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), CompressionError> {
        let [id, keys, tags] = if self.needs_properties {
            find_many(record.properties, [UNIQUE_KEY, KEYS, TAGS])
        } else {
            [None; 3]
        };
        let origin = self.origin;
        let mut outcome = Ok(());
        for (column, values) in &mut self.columns {
            match values {
                Values::Fixed(values) => push_number(values, *column, origin, record),
                Values::Map { ends, names, values } => {
                    push_properties(ends, names, values, record.properties, &origin.hidden_names);
                }
                Values::Texts(texts) => {
                    let before = texts.bytes.len();
                    match column {
                        Column::Topic => texts.push(origin.topic.as_bytes()),
                        Column::BrokerName => texts.push(origin.broker.as_bytes()),
                        Column::MessageId => match id {
                            Some(id) => texts.push_text(id),
                            None => {
                                texts
                                    .push(MessageIds::of(record.store_host).bytes_at(record.physical_offset));
                            }
                        },
                        Column::Keys => texts.push_some(keys),
                        Column::Tags => texts.push_some(tags),
                        _ => outcome = push_body(texts, record, origin.inflated_bytes_max),
                    }
                    self.bytes += texts.bytes.len() - before;
                }
            }
        }
        self.rows += 1;
        if self.columns.iter().any(|(column, _)| *column == Column::Properties) {
            self.bytes += record.properties.len();
        }
        outcome
    }

    pub fn finish(self) -> Vec<Buffers> {
        self.columns.into_iter().map(|(_, values)| values.finish()).collect()
    }
}

impl Values {
    fn finish(self) -> Buffers {
        match self {
            Values::Fixed(values) => (0, vec![None, Some(values)]),
            Values::Texts(texts) => {
                let validity = (texts.missing > 0).then_some(texts.validity);
                (texts.missing, vec![validity, Some(texts.ends.0), Some(texts.bytes)])
            }
            Values::Map { ends, names, values } => {
                let parts = [ends.0, names.ends.0, names.bytes, values.ends.0, values.bytes];
                (0, parts.into_iter().map(Some).collect())
            }
        }
    }
}

#[inline]
fn push_number(values: &mut Vec<u8>, column: Column, origin: &Origin, record: &Record<'_>) {
    let time = |time_ms: i64| (time_ms.clamp(TIMES_MS.0, TIMES_MS.1) * MICROSECONDS_PER_MS).to_le_bytes();
    match column {
        Column::QueueOffset => values.extend_from_slice(&record.queue_offset.to_le_bytes()),
        Column::BornTimestamp => values.extend_from_slice(&time(record.born_timestamp_ms)),
        Column::StoreTimestamp => values.extend_from_slice(&time(record.store_timestamp_ms)),
        Column::QueueId => values.extend_from_slice(&origin.queue_id.to_le_bytes()),
        Column::SystemFlag => values.extend_from_slice(&record.system_flag.to_le_bytes()),
        _ => values.extend_from_slice(&record.reconsume_times.to_le_bytes()),
    }
}

#[inline]
fn push_body(texts: &mut Texts, record: &Record<'_>, bytes_max: usize) -> Result<(), CompressionError> {
    if record.system_flag & COMPRESSED == 0 {
        texts.push(record.body);
        return Ok(());
    }
    match compression::inflate_body(record.system_flag, record.body, bytes_max) {
        Ok(body) => {
            texts.push(&body);
            Ok(())
        }
        Err(error) => {
            texts.close(false);
            Err(error)
        }
    }
}

/// Of a name that comes twice the last counts, as for every client.
fn push_properties(
    ends: &mut Ends,
    names: &mut Texts,
    values: &mut Texts,
    properties: &[u8],
    hidden_names: &HashSet<String>,
) {
    let is_hidden = |name: &[u8]| std::str::from_utf8(name).is_ok_and(|name| hidden_names.contains(name));
    let entries: Vec<(&[u8], &[u8])> = iterate(properties).filter(|(name, _)| !is_hidden(name)).collect();
    let last: Option<HashMap<&[u8], usize>> = (entries.len() > FEW)
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
    ends.push(names.rows);
}
