//! Corrects a damaged consume-queue entry when a read meets it.
//!
//! An entry has no checksum. It is wrong if the record it points at does not fit. The right record is then searched for
//! in the commit log, between the records of the neighbouring entries.

use metaq_wire::Record;
use metaq_wire::properties::tag_code_of;

use crate::log::commit_log::is_queued;
use crate::queue::consume_queue::Queue;
use crate::queue::files::Entry;
use crate::read::{Reader, Search};
use crate::recovery::log_walk::{Content, Step, content_at, walk};

/// How many entries on each side of the damaged one are tried as landmarks one by one. Beyond them, the distance doubles.
pub(crate) const LANDMARKS_MAX: i64 = 64;
/// The outcome of a search for the record of a queue offset.
pub(crate) enum Searched {
    Found(Entry),
    /// The log has no such record, and what was searched is sound.
    Nowhere,
    /// The record may be in a damaged part of the log.
    InDamage,
    /// One read may search no more. The next one goes on from there.
    Unfinished,
}

impl Reader<'_> {
    /// Finds the right entry for the queue offset and writes it back.
    #[cold]
    pub(crate) fn repair(&self, queue: &Queue, queue_offset: i64) -> Searched {
        let before = self.damage.search(queue, queue_offset);
        let from = self
            .landmark_before(queue, queue_offset)
            .map_or(self.log.start_offset(), |entry| entry.end_offset())
            .max(before.end);
        let to = self
            .landmark_behind(queue, queue_offset)
            .map_or(self.log.progress.confirmable(), |entry| entry.physical_offset);
        let limit = from.saturating_add(self.damage.search_bytes_max);
        let (mut found, mut gap) = (None, None);
        let end = walk(self.log, from, to, true, |step| {
            let end = match step {
                Step::Record(record) => {
                    found = entry_for(&record, queue, queue_offset);
                    record.physical_offset + record.size as i64
                }
                Step::Gap { from, to } => {
                    gap = gap.or(Some(from));
                    to
                }
            };
            found.is_none() && end < limit
        });
        let Some(entry) = found else {
            if let Some(gap) = gap {
                self.log.damage.suspect(gap);
            }
            let has_gap = before.has_gap || gap.is_some();
            if end < to {
                self.damage.note_search(queue, queue_offset, Search { end, has_gap });
                return Searched::Unfinished;
            }
            return if has_gap { Searched::InDamage } else { Searched::Nowhere };
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
        self.damage.note_repair(queue, queue_offset);
        Searched::Found(entry)
    }

    /// A sound entry in front of the queue offset, as near as possible.
    pub(crate) fn landmark_before(&self, queue: &Queue, queue_offset: i64) -> Option<Entry> {
        let min_offset = queue.min_offset(&self.queues.disk, self.log.start_offset()).ok()?;
        distances(queue_offset - min_offset)
            .find_map(|distance| self.sound_entry(queue, queue_offset - distance))
    }

    /// The same behind it.
    pub(crate) fn landmark_behind(&self, queue: &Queue, queue_offset: i64) -> Option<Entry> {
        distances(queue.max_offset() - 1 - queue_offset)
            .find_map(|distance| self.sound_entry(queue, queue_offset + distance))
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

/// Distances at which landmarks are tried, up to the farthest one.
fn distances(farthest: i64) -> impl Iterator<Item = i64> {
    let far = std::iter::successors(Some(2 * LANDMARKS_MAX), |distance| distance.checked_mul(2));
    (1..=LANDMARKS_MAX.min(farthest))
        .chain(far.take_while(move |distance| *distance < farthest))
        .chain((farthest > LANDMARKS_MAX).then_some(farthest))
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
