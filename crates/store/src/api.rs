//! Types that callers pass in and get back, without behaviour.

use std::sync::Arc;

use bytes::Bytes;

use crate::expression::Program;

/// Receives what happens in the store. Calls come from inside the store, some with its locks held: be brief, never
/// block, never append or delete from here (reading is fine). `arrived` comes on the thread that dispatches: with
/// asynchronous flush the one that called [`crate::Store::dispatch`], with synchronous flush the one that synced.
pub trait StoreEvents: Send + Sync {
    /// New entries of a queue can be read: it now ends at `max_offset`, and these are the tag codes of the
    /// new entries in their order.
    fn arrived(&self, topic: &str, queue_id: i32, max_offset: i64, tag_codes: &[i64]);
    /// Everything below `physical_offset` is confirmed; with `failed`, nothing above it ever will be.
    fn confirmed(&self, physical_offset: i64, failed: bool);
}

/// How a store was found when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOpened {
    /// The end of the log after recovery.
    pub log_end: i64,
    /// The log is known to have been flushed up to here before; if it ends below, it has lost something.
    pub flushed_mark: i64,
    /// The store was closed in order, with everything synced.
    pub stopped_cleanly: bool,
    /// The identity of the machine's current boot.
    pub boot_id: String,
}

/// The position of a stored record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    pub physical_offset: i64,
    /// The first byte after the record: what [`crate::Store::is_confirmed`] takes.
    pub end_offset: i64,
    pub queue_offset: i64,
    pub store_timestamp_ms: i64,
}

/// The positions of a stored batch. Its queue offsets follow `first.queue_offset` one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendedBatch {
    pub first: Appended,
    pub physical_offsets: Vec<i64>,
    pub end_offset: i64,
}

/// Selects the entries of a queue that a pull wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    All,
    /// Only entries with one of these tag codes; without any, it matches nothing.
    Tags(TagCodes),
    /// Only records whose properties the program accepts.
    Expression(Arc<Program>),
    /// Every record, as a candidate; the function decides elsewhere.
    Function(Arc<Call>),
}

/// A set of tag codes. A client chooses how many it has, so looking one up must not take longer with each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagCodes(Arc<[i64]>);

impl TagCodes {
    pub fn contains(&self, tag_code: i64) -> bool {
        match &*self.0 {
            few if few.len() <= 8 => few.contains(&tag_code),
            sorted => sorted.binary_search(&tag_code).is_ok(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = i64> + '_ {
        self.0.iter().copied()
    }
}

impl From<Vec<i64>> for TagCodes {
    fn from(mut codes: Vec<i64>) -> Self {
        codes.sort_unstable();
        codes.dedup();
        TagCodes(codes.into())
    }
}

/// A call of a function that an operator has registered; its arguments are in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub function: String,
    pub text: String,
}

impl Filter {
    /// Whether the entry can be wanted, judged by its tag code alone; an expression needs the record.
    pub fn matches(&self, tag_code: i64) -> bool {
        match self {
            Self::All | Self::Expression(_) | Self::Function(_) => true,
            Self::Tags(codes) => codes.contains(tag_code),
        }
    }

    /// About the memory that the filter takes.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Self::All => 0,
            Self::Tags(codes) => codes.len() * size_of::<i64>(),
            Self::Expression(program) => program.memory_bytes(),
            Self::Function(call) => call.function.len() + call.text.len(),
        }
    }
}

/// The most that one read may return and examine.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The first record counts whatever these two say.
    pub count_max: usize,
    pub bytes_max: usize,
    /// Bytes of properties that an expression examines, as [`Program::examined_bytes`] counts them. The first record is
    /// examined whatever its size, unless this is 0.
    pub examined_bytes_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetStatus {
    /// At least one record.
    Found,
    /// All entries were filtered out, deleted meanwhile or left out as damaged: ask again at `next_offset`.
    NoMatch,
    /// The record there is damaged and may be repaired; with `stop_at_damage` no read goes past it.
    Damaged,
    NoQueue,
    EmptyQueue,
    AtEnd,
    PastEnd,
    BeforeStart,
}

/// The answer to [`crate::Store::get`].
#[derive(Clone, Debug)]
pub struct Got {
    pub status: GetStatus,
    pub next_offset: i64,
    pub min_offset: i64,
    pub max_offset: i64,
    /// Whole records in order, as they lie in the mapped file; neighbours share a slice.
    pub slices: Vec<Bytes>,
    pub count: usize,
    pub bytes: usize,
    /// Bytes that the filter expression examined.
    pub examined_bytes: u64,
}

impl Got {
    pub(crate) fn nothing(status: GetStatus, next_offset: i64, min_offset: i64, max_offset: i64) -> Self {
        Self {
            status,
            next_offset,
            min_offset,
            max_offset,
            slices: Vec::new(),
            count: 0,
            bytes: 0,
            examined_bytes: 0,
        }
    }
}

/// A message that no read could get, because its record is damaged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DamagedMessage {
    pub topic: String,
    pub queue_id: i32,
    pub queue_offset: i64,
    /// The physical offset of the record, or −1 if its queue does not have it.
    pub physical_offset: i64,
    /// Reads have left it out. Otherwise they wait in front of it.
    pub is_skipped: bool,
}

/// The answer to [`crate::Store::query`]: records newest first, and how far the index reaches.
#[derive(Clone, Debug, Default)]
pub struct QueryResult {
    pub records: Vec<Bytes>,
    pub last_store_time: i64,
    pub last_physical_offset: i64,
    /// Index entries that were examined; one whose record had to be read counts for many.
    pub examined_entries: u64,
    /// Whether the query ended at its limit, so that older records may be missing.
    pub is_cut_short: bool,
    /// The first physical offset at which a record that may have the key is damaged.
    pub damaged_at: Option<i64>,
}
