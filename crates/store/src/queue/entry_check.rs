//! Compares queue entries with the records that a scrub has verified, and corrects those that are wrong.
//!
//! An entry has no checksum. If its tag code is wrong, a consumer with a filter passes its record by and no read notices.

use std::collections::HashMap;
use std::sync::Arc;

use metaq_wire::Record;
use metaq_wire::properties::tag_code_of;

use crate::log::commit_log::is_queued;
use crate::queue::consume_queue::Queue;
use crate::queue::dispatch::{SCHEDULE_TOPIC, entry_code};
use crate::queue::files::Entry;
use crate::store::OpenStore;

/// Entries of a queue that are read at a time.
const CHUNK_ENTRIES: usize = 256;

/// Entries of one queue from a queue offset on.
struct Chunk {
    queue: Arc<Queue>,
    first: i64,
    entries: Vec<Entry>,
}

impl Chunk {
    fn entry(&self, queue_offset: i64) -> Option<Entry> {
        self.entries.get(usize::try_from(queue_offset - self.first).ok()?).copied()
    }
}

impl OpenStore {
    /// Checks the entries of whole, verified records that lie one after the other.
    pub(crate) fn check_entries(&self, records: &[u8]) -> std::io::Result<()> {
        let dispatched_end = self.dispatch.dispatched_end();
        let mut chunks: HashMap<(&[u8], i32), Option<Chunk>> = HashMap::new();
        let mut rest = records;
        while let Ok(record) = Record::decode(rest) {
            rest = &rest[record.size..];
            if record.physical_offset >= dispatched_end {
                break;
            }
            if !is_queued(record.system_flag) {
                continue;
            }
            let chunk = chunks.entry((record.topic, record.queue_id)).or_insert_with(|| {
                let queue = self.queues.find(record.topic, record.queue_id).ok().flatten()?;
                Some(Chunk { queue, first: 0, entries: Vec::new() })
            });
            // A topic that was deleted has no queue.
            let Some(chunk) = chunk else { continue };
            if chunk.entry(record.queue_offset).is_none() {
                self.read_chunk(chunk, record.queue_offset)?;
            }
            match chunk.entry(record.queue_offset) {
                Some(entry) if !is_right(&entry, &record) => self.correct(&chunk.queue, &record, &entry)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_chunk(&self, chunk: &mut Chunk, queue_offset: i64) -> std::io::Result<()> {
        let disk = &self.queues.disk;
        chunk.entries.clear();
        chunk.first = queue_offset;
        if queue_offset >= chunk.queue.min_offset(disk, self.log.start_offset())? {
            chunk.queue.read(disk, queue_offset, CHUNK_ENTRIES, &mut chunk.entries)?;
        }
        Ok(())
    }

    #[cold]
    fn correct(&self, queue: &Queue, record: &Record<'_>, entry: &Entry) -> std::io::Result<()> {
        let is_own = !entry.is_void() && entry.physical_offset == record.physical_offset;
        if !is_own && !self.is_last(queue, record) {
            return Ok(());
        }
        let tag_code = if is_own && is_timed(record) {
            entry.tag_code
        } else {
            entry_code(record, &self.settings.delay_levels_ms)
        };
        let right = Entry { physical_offset: record.physical_offset, size: record.size as i32, tag_code };
        queue.rewrite(&self.queues.disk, record.queue_offset, right)?;
        self.damage.note_repair(queue, record.queue_offset);
        self.reports.add(format!(
            "topic {}, queue {}: the damaged entry {} was repaired from the commit log",
            queue.topic, queue.queue_id, record.queue_offset
        ));
        Ok(())
    }

    /// Whether the record belongs to the queue as it is. If the topic was deleted and created again, a later record has the
    /// same queue offset, and entries in front of it lead to later records too.
    fn is_last(&self, queue: &Queue, record: &Record<'_>) -> bool {
        let reader = self.reader();
        let is_earlier = |entry: Entry| entry.physical_offset < record.physical_offset;
        reader.sound_entry(queue, record.queue_offset).is_none_or(is_earlier)
            && reader.landmark_before(queue, record.queue_offset).is_none_or(is_earlier)
    }
}

fn is_right(entry: &Entry, record: &Record<'_>) -> bool {
    entry.physical_offset == record.physical_offset
        && entry.size as usize == record.size
        && (is_timed(record) || entry.tag_code == tag_code_of(record.properties))
}

/// The entries of the delay levels have a time in place of the tag code, which depends on the levels of their day.
fn is_timed(record: &Record<'_>) -> bool {
    record.topic == SCHEDULE_TOPIC.as_bytes()
}
