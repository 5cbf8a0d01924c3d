//! Corrects a damaged consume-queue entry when a read meets it.
//!
//! An entry has no checksum. It is wrong if the record it points at does not fit. The right record is then searched for
//! in the commit log, between the records of the neighbouring entries.

use std::sync::atomic::Ordering;

use metaq_wire::Record;
use metaq_wire::properties::tag_code_of;

use crate::log::commit_log::is_queued;
use crate::queue::consume_queue::Queue;
use crate::queue::files::Entry;
use crate::read::Reader;
use crate::recovery::log_walk::{Content, Step, content_at, walk};

/// How many entries around the damaged one are tried as landmarks.
const LANDMARKS_MAX: i64 = 64;
/// The most bytes of the log that are searched while somebody waits for an answer.
const SEARCH_BYTES_MAX: i64 = 256 << 20;

/// The outcome of a search for the record of a queue offset.
pub(crate) enum Searched {
    Found(Entry),
    /// The log has no such record, and what was searched is sound.
    Nowhere,
    /// The record may be in a damaged part of the log.
    InDamage,
}

impl Reader<'_> {
    /// Finds the right entry for the queue offset and writes it back.
    #[cold]
    pub(crate) fn repair(&self, queue: &Queue, queue_offset: i64) -> Searched {
        let from = (1..=LANDMARKS_MAX)
            .find_map(|distance| self.sound_entry(queue, queue_offset - distance))
            .map_or(self.log.start_offset(), |entry| entry.end_offset());
        let to = (1..=LANDMARKS_MAX)
            .find_map(|distance| self.sound_entry(queue, queue_offset + distance))
            .map_or(self.log.progress.confirmable(), |entry| entry.physical_offset);
        let end = to.min(from.saturating_add(SEARCH_BYTES_MAX));
        let (mut found, mut gap) = (None, None);
        walk(self.log, from, end, true, |step| {
            match step {
                Step::Record(record) => found = entry_for(&record, queue, queue_offset),
                Step::Gap { from, .. } => gap = gap.or(Some(from)),
            }
            found.is_none()
        });
        let Some(entry) = found else {
            if let Some(gap) = gap {
                self.log.damage.suspect(gap);
            }
            return if gap.is_some() || end < to { Searched::InDamage } else { Searched::Nowhere };
        };
        match queue.rewrite(&self.queues.disk, queue_offset, entry) {
            Ok(()) => self.reports.add(format!(
                "topic {}, queue {}: the damaged entry {queue_offset} was repaired from the commit log",
                queue.topic, queue.queue_id
            )),
            Err(error) => self.reports.add(format!(
                "topic {}, queue {}: the damaged entry {queue_offset} cannot be repaired: {error}",
                queue.topic, queue.queue_id
            )),
        }
        self.damage.repaired.fetch_add(1, Ordering::Relaxed);
        Searched::Found(entry)
    }

    /// The entry, if its record is the right one.
    pub(crate) fn sound_entry(&self, queue: &Queue, queue_offset: i64) -> Option<Entry> {
        let entry = queue.entry(&self.queues.disk, queue_offset.max(0)).ok().flatten()?;
        let file = self.log.file_at(entry.physical_offset)?;
        let bytes = file.readable().get((entry.physical_offset - file.start_offset) as usize..)?;
        match content_at(bytes, entry.physical_offset, true) {
            Content::Record(record) => entry_for(&record, queue, queue_offset),
            _ => None,
        }
    }
}

/// The entry that the record should have, if it belongs to the queue at that offset.
fn entry_for(record: &Record<'_>, queue: &Queue, queue_offset: i64) -> Option<Entry> {
    let belongs = record.queue_offset == queue_offset
        && record.queue_id == queue.queue_id
        && record.topic == queue.topic.as_bytes()
        && is_queued(record.system_flag);
    belongs.then(|| Entry {
        physical_offset: record.physical_offset,
        size: record.size as i32,
        tag_code: tag_code_of(record.properties),
    })
}
