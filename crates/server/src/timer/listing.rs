//! Lists and counts of delayed messages, for operators. Every search has a limit, and none disturbs a delivery.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::Ordering::SeqCst;

use metaq_store::{Filter, GetStatus, SCHEDULE_TOPIC, TIMER_TOPIC, TimerSearch, TimerSpans};
use metaq_wire::Record;

use crate::send::copy::without_body;
use crate::timer::delay_levels::DelayLevels;
use crate::timer::delivery::{Timers, Waiting};

/// Entries of the timer log that one search reads: 32 MB.
const ENTRIES_MAX: u64 = 1 << 20;
/// The same for the first due time alone.
const FIRST_ENTRIES_MAX: u64 = 1 << 14;
/// Records that one search reads if it is for one topic, in the timer log and in all delay levels.
const TOPIC_RECORDS_MAX: usize = 4_096;
/// Bytes of records that one search reads, in the timer log and in all delay levels.
const BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of records without bodies that one search returns.
const HEADS_BYTES_MAX: usize = 1024 * 1024;

/// A search for messages that are due from `from_ms` up to but not including `to_ms`.
pub struct DelayedSearch {
    pub from_ms: i64,
    pub to_ms: i64,
    pub count_max: usize,
    pub topic: Option<String>,
}

impl DelayedSearch {
    fn wants(&self, due_ms: i64, record: &Record<'_>) -> bool {
        (self.from_ms..self.to_ms).contains(&due_ms)
            && self.topic.as_ref().is_none_or(|topic| record.property("REAL_TOPIC") == Some(topic.as_bytes()))
    }

    fn records_max(&self) -> usize {
        if self.topic.is_some() { TOPIC_RECORDS_MAX } else { self.count_max }
    }
}

/// A message that waits.
pub struct DelayedMessage {
    /// Its record without the body.
    pub head: Vec<u8>,
    /// The size of the whole record.
    pub size: usize,
    pub due_ms: i64,
    /// None if it has a time of its own.
    pub level: Option<usize>,
    pub is_recalled: bool,
    physical_offset: i64,
}

impl DelayedMessage {
    fn new(record: &Record<'_>, due_ms: i64) -> Self {
        let (head, physical_offset) = (without_body(record), record.physical_offset);
        Self { head, size: record.size, due_ms, level: None, is_recalled: false, physical_offset }
    }
}

/// The first messages of a search, by due time.
#[derive(Default)]
pub struct DelayedListing {
    pub messages: Vec<DelayedMessage>,
    /// There may be more than those.
    pub is_cut: bool,
    heads_bytes: usize,
}

impl DelayedListing {
    /// Adds a message; false if there is no room for it.
    fn push(&mut self, message: DelayedMessage, count_max: usize) -> bool {
        self.heads_bytes += message.head.len();
        if self.messages.len() >= count_max || self.heads_bytes > HEADS_BYTES_MAX {
            self.is_cut = true;
            return false;
        }
        self.messages.push(message);
        true
    }

    /// The first messages of both.
    pub fn joined(mut self, other: Self, count_max: usize) -> Self {
        self.messages.extend(other.messages);
        self.messages.sort_by_key(|message| (message.due_ms, message.physical_offset));
        self.is_cut |= other.is_cut || self.messages.len() > count_max;
        self.messages.truncate(count_max);
        self
    }
}

/// The messages that wait for a time of their own, in numbers.
pub struct DelayedCounts {
    pub messages: u64,
    pub recalls: u64,
    /// Exact, unless very many messages are due in the same minute.
    pub first_ms: Option<i64>,
    /// To the minute.
    pub last_ms: Option<i64>,
    pub spans: Vec<u64>,
}

/// The place of a message in the queue of a delay level, in the order of due times.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    due_ms: i64,
    level: usize,
    queue_offset: i64,
}

/// The messages that wait for a delay level.
pub struct LevelCount {
    pub level: usize,
    pub delay_ms: i64,
    pub messages: u64,
    pub first_ms: Option<i64>,
    pub last_ms: Option<i64>,
    pub spans: Vec<u64>,
}

impl Timers {
    /// Counts what waits; None if not all of it is known yet, which is so just after a start.
    pub fn counts(&self, spans: &TimerSpans) -> Option<DelayedCounts> {
        let outline = self.outline.lock().clone()?;
        let counts = outline.counts(spans);
        let everything =
            TimerSearch { from_ms: i64::MIN, to_ms: i64::MAX, count_max: 1, entries_max: FIRST_ENTRIES_MAX };
        let first = outline.list(&everything).found.first().copied();
        // A message that was sent in this second is counted but not in the list yet.
        let is_first = |due_ms: &i64| counts.first_ms.is_some_and(|first_ms| *due_ms - first_ms < 60_000);
        Some(DelayedCounts {
            messages: counts.messages,
            recalls: counts.recalls,
            first_ms: first.map(|first| first.due_ms).filter(is_first).or(counts.first_ms),
            last_ms: counts.last_ms,
            spans: counts.spans,
        })
    }

    /// Lists what waits; None as for [`Timers::counts`].
    pub fn list(&self, search: &DelayedSearch) -> Option<DelayedListing> {
        let outline = self.outline.lock().clone()?;
        let entries = outline.list(&TimerSearch {
            from_ms: search.from_ms,
            to_ms: search.to_ms,
            count_max: search.records_max(),
            entries_max: ENTRIES_MAX,
        });
        let mut listing = DelayedListing { is_cut: entries.is_cut, ..DelayedListing::default() };
        let mut bytes = 0;
        for entry in entries.found {
            if bytes >= BYTES_MAX {
                listing.is_cut = true;
                break;
            }
            let Some(stored) = self.store.record_at(entry.physical_offset) else { continue };
            bytes += stored.len();
            let Ok(record) = Record::decode(&stored) else { continue };
            let wanted = |message: &DelayedMessage| search.wants(message.due_ms, &record);
            let Some(message) = self.waiting(&record).filter(wanted) else { continue };
            if !listing.push(message, search.count_max) {
                break;
            }
        }
        // The log knows only the minute of a message that is stored again.
        listing.messages.sort_by_key(|message| (message.due_ms, message.physical_offset));
        Some(listing)
    }

    /// The message at this physical offset, if it waits. An operator names the offset, so its queue must point at it.
    pub fn find(&self, physical_offset: i64) -> Option<DelayedMessage> {
        let stored = self.store.queued_record_at(physical_offset)?;
        let record = Record::decode(&stored).ok()?;
        self.waiting(&record).filter(|message| message.due_ms > self.store.clock().now_ms())
    }

    fn waiting(&self, record: &Record<'_>) -> Option<DelayedMessage> {
        let is_timed = record.topic == TIMER_TOPIC.as_bytes();
        let waiting = Waiting::of(record).filter(|waiting| is_timed && !waiting.is_recall)?;
        let is_recalled = self.is_recalled(record, waiting.key_hash, waiting.due_ms).unwrap_or_default()
            || self.has_waiting_recall(record, &waiting);
        Some(DelayedMessage { is_recalled, ..DelayedMessage::new(record, waiting.due_ms) })
    }

    /// Whether a recall waits that will be noted before this message is due.
    fn has_waiting_recall(&self, record: &Record<'_>, waiting: &Waiting) -> bool {
        let Some(outline) = self.outline.lock().clone() else { return false };
        let recalls = outline.recalls(waiting.key_hash, waiting.due_ms);
        recalls.into_iter().any(|recall| self.recalls_message(recall, record, waiting.due_ms))
    }
}

impl DelayLevels {
    /// The levels for which messages wait. Their queues are in the order of time, so no message is read.
    pub fn counts(&self, spans: &TimerSpans) -> Vec<LevelCount> {
        (1..=self.levels_ms.len()).filter_map(|level| self.count(level, spans)).collect()
    }

    fn count(&self, level: usize, spans: &TimerSpans) -> Option<LevelCount> {
        let (queue_id, delay_ms) = (level as i32 - 1, self.levels_ms[level - 1]);
        let (from, end) = self.waiting_offsets(level);
        if from >= end {
            return None;
        }
        let due_ms = |offset| Some(self.store.store_time(SCHEDULE_TOPIC, queue_id, offset)? + delay_ms);
        // A span ends where the first message lies that is due behind it.
        let edge = |place: usize| {
            let edge_ms = spans.from_ms.saturating_add(spans.step_ms.saturating_mul(place as i64));
            let stored_ms = edge_ms.saturating_sub(delay_ms);
            self.store.search_offset(SCHEDULE_TOPIC, queue_id, stored_ms, false).clamp(from, end)
        };
        let mut begin = from;
        let spans = (1..=spans.count).map(|place| {
            let next = if place == spans.count || begin == end { end } else { edge(place) };
            (next - std::mem::replace(&mut begin, next)) as u64
        });
        Some(LevelCount {
            level,
            delay_ms,
            messages: (end - from) as u64,
            spans: spans.collect(),
            first_ms: due_ms(from),
            last_ms: due_ms(end - 1),
        })
    }

    fn waiting_offsets(&self, level: usize) -> (i64, i64) {
        let queue_id = level as i32 - 1;
        let delivered = self.delivered.get(level - 1).map_or(0, |delivered| delivered.load(SeqCst));
        let from = delivered.max(self.store.min_offset(SCHEDULE_TOPIC, queue_id));
        (from, self.store.max_offset(SCHEDULE_TOPIC, queue_id))
    }

    /// Lists what waits. The levels are read together in the order of due times, so that the limits hold for all of them.
    pub fn list(&self, search: &DelayedSearch) -> DelayedListing {
        let mut listing = DelayedListing::default();
        let levels = 1..=self.levels_ms.len();
        let mut next: BinaryHeap<_> =
            levels.filter_map(|level| self.first_place(level, search)).map(Reverse).collect();
        let (mut records, mut bytes) = (0, 0);
        while let Some(Reverse(place)) = next.pop().filter(|Reverse(place)| place.due_ms < search.to_ms) {
            if records >= TOPIC_RECORDS_MAX || bytes >= BYTES_MAX {
                listing.is_cut = true;
                break;
            }
            records += 1;
            let queue_id = place.level as i32 - 1;
            let got = self.store.get(SCHEDULE_TOPIC, queue_id, place.queue_offset, 1, 1, &Filter::All);
            let found = got.slices.first().filter(|_| got.status == GetStatus::Found);
            if let Some(record) = found.and_then(|slice| Record::decode(slice).ok()) {
                bytes += record.size;
                let message = || DelayedMessage {
                    level: Some(place.level),
                    ..DelayedMessage::new(&record, place.due_ms)
                };
                if search.wants(place.due_ms, &record) && !listing.push(message(), search.count_max) {
                    break;
                }
            }
            if got.next_offset > place.queue_offset {
                next.extend(self.place(place.level, got.next_offset).map(Reverse));
            }
        }
        listing
    }

    /// The first message of a level that may be due in the span of a search.
    fn first_place(&self, level: usize, search: &DelayedSearch) -> Option<Place> {
        let stored_from_ms = search.from_ms.saturating_sub(self.levels_ms[level - 1]);
        let from = self.store.search_offset(SCHEDULE_TOPIC, level as i32 - 1, stored_from_ms, false);
        self.place(level, self.waiting_offsets(level).0.max(from))
    }

    /// None at the end of the level's queue.
    fn place(&self, level: usize, queue_offset: i64) -> Option<Place> {
        let stored_ms = self.store.store_time(SCHEDULE_TOPIC, level as i32 - 1, queue_offset)?;
        Some(Place { due_ms: stored_ms.saturating_add(self.levels_ms[level - 1]), level, queue_offset })
    }

    /// The message at this physical offset, if it waits for a level.
    pub fn find(&self, physical_offset: i64) -> Option<DelayedMessage> {
        let stored = self.store.queued_record_at(physical_offset)?;
        let record =
            Record::decode(&stored).ok().filter(|record| record.topic == SCHEDULE_TOPIC.as_bytes())?;
        let level = usize::try_from(record.queue_id).ok()?.checked_add(1)?;
        let delay_ms = *self.levels_ms.get(level - 1)?;
        if record.queue_offset < self.waiting_offsets(level).0 {
            return None;
        }
        let due_ms = record.store_timestamp_ms.saturating_add(delay_ms);
        Some(DelayedMessage { level: Some(level), ..DelayedMessage::new(&record, due_ms) })
    }
}
