//! One entry of the timer log.

use crate::timer::timer_log::bucket::minute_of;

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 32;

const ROLL: u32 = 1;
const RECALL: u32 = 2;
/// The other bits of the marks hold the minutes between the wake time and the due time.
const REST_SHIFT: u32 = 2;
const REST_MINUTES_MAX: u32 = u32::MAX >> REST_SHIFT;

/// The position of an entry in the order in which entries are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerPosition {
    pub wake_ms: i64,
    pub physical_offset: i64,
}

impl TimerPosition {
    pub(crate) const FIRST: Self = Self { wake_ms: i64::MIN, physical_offset: i64::MIN };

    /// Before every entry at this time.
    pub(crate) fn before(time_ms: i64) -> Self {
        Self { wake_ms: time_ms.saturating_sub(1), physical_offset: i64::MAX }
    }

    /// Behind every entry at this time.
    pub(crate) fn at_end_of(time_ms: i64) -> Self {
        Self { wake_ms: time_ms, physical_offset: i64::MAX }
    }
}

/// When to look at a waiting message again, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerEntry {
    pub wake_ms: i64,
    /// The position of the record in the commit log.
    pub physical_offset: i64,
    /// The hash of the topic and the unique key. A message and its recall have the same.
    pub key_hash: u64,
    /// The message is not due yet, but has to be stored again so that retention does not delete it.
    pub is_roll: bool,
    /// The entry is the recall of a message.
    pub is_recall: bool,
    /// The minute of the due time, less that of the wake time. 0 unless the message is stored again before it is due.
    pub rest_minutes: u32,
}

impl TimerEntry {
    /// Whether this is a recall at its own time.
    pub(crate) fn recalls_now(&self) -> bool {
        self.is_recall && !self.is_roll
    }

    /// The minute in which the message is due.
    pub(crate) fn due_minute(&self) -> i64 {
        minute_of(self.wake_ms).saturating_add(i64::from(self.rest_minutes))
    }

    /// The same entry for another wake time. The message stays due in the same minute, or at the wake time.
    pub fn woken_at(self, wake_ms: i64) -> Self {
        let rest = self.due_minute().saturating_sub(minute_of(wake_ms)).max(0);
        Self { wake_ms, rest_minutes: u32::try_from(rest).unwrap_or(REST_MINUTES_MAX), ..self }
    }

    pub fn position(&self) -> TimerPosition {
        TimerPosition { wake_ms: self.wake_ms, physical_offset: self.physical_offset }
    }

    /// `| wake: i64 | physical offset: i64 | key hash: u64 | marks: u32 | crc of the rest: u32 |`
    pub(crate) fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let marks = (u32::from(self.is_roll) * ROLL)
            | (u32::from(self.is_recall) * RECALL)
            | (self.rest_minutes.min(REST_MINUTES_MAX) << REST_SHIFT);
        bytes[..8].copy_from_slice(&self.wake_ms.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.physical_offset.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.key_hash.to_be_bytes());
        bytes[24..28].copy_from_slice(&marks.to_be_bytes());
        let crc = crc32fast::hash(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    /// None if the bytes are damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ENTRY_BYTES] = bytes.first_chunk()?;
        let marks = u32::from_be_bytes(*bytes[24..].first_chunk()?);
        if bytes[28..] != crc32fast::hash(&bytes[..28]).to_be_bytes() {
            return None;
        }
        Some(Self {
            wake_ms: i64::from_be_bytes(*bytes.first_chunk()?),
            physical_offset: i64::from_be_bytes(*bytes[8..].first_chunk()?),
            key_hash: u64::from_be_bytes(*bytes[16..].first_chunk()?),
            is_roll: marks & ROLL != 0,
            is_recall: marks & RECALL != 0,
            rest_minutes: marks >> REST_SHIFT,
        })
    }
}
