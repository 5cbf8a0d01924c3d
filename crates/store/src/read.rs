//! Reading: by queue offset, by physical offset, by store time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use metaq_wire::{Coverage, Expected, Record, layout};
use parking_lot::Mutex;

use crate::api::{Bounds, DamagedMessage, Filter, GetStatus, Got};
use crate::expression::Program;
use crate::log::commit_log::CommitLog;
use crate::log::gate::Reports;
use crate::log::mapped::MappedFile;
use crate::queue::consume_queue::Queue;
use crate::queue::files::Entry;
use crate::queue::repair::{LANDMARKS_MAX, Searched};
use crate::queue::table::Queues;
use crate::recovery::log_walk::{Content, content_at};

/// A pull looks at no more entries than this (16,000 bytes of the queue) or what it asks for, whichever is more.
const SCAN_ENTRIES_MIN: usize = 800;
/// Entries read at a time.
const CHUNK_ENTRIES: usize = 128;
/// Damaged entries that are remembered, so that each is reported once. Beyond them, the first ones are forgotten.
const DAMAGE_REMEMBERED_MAX: usize = 10_000;
/// Damaged messages that operators see by name.
const DAMAGE_NAMED_MAX: usize = 100;

pub(crate) struct Reader<'a> {
    pub(crate) log: &'a CommitLog,
    pub(crate) queues: &'a Queues,
    pub(crate) damage: &'a Damage,
    pub(crate) reports: &'a Reports,
    /// Reads wait in front of a damaged record.
    pub(crate) stops: bool,
}

/// Damage that reads have found.
#[derive(Default)]
pub(crate) struct Damage {
    /// By queue (its serial) and queue offset.
    seen: Mutex<BTreeMap<(u64, i64), Seen>>,
    /// How far searches got that ended at their limit.
    searches: Mutex<BTreeMap<(u64, i64), Search>>,
    pub(crate) search_bytes_max: i64,
    pub(crate) count: AtomicU64,
    /// Queue entries that were corrected.
    pub(crate) repaired: AtomicU64,
}

/// A damaged message that a read met.
struct Seen {
    message: DamagedMessage,
    /// An entry nearby was corrected since, so another search may find the record.
    is_outdated: bool,
}

/// How far the log was searched for the record of a queue offset.
#[derive(Clone, Copy, Default)]
pub(crate) struct Search {
    pub(crate) end: i64,
    /// It met something that is not a record.
    pub(crate) has_gap: bool,
}

/// The part of a queue that one pull asks for.
pub(crate) struct Wanted<'a> {
    pub(crate) queue_offset: i64,
    pub(crate) bounds: Bounds,
    pub(crate) filter: &'a Filter,
}

/// A filter's verdict on an entry, before its record is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Wanted,
    Unwanted,
    /// There is no such record.
    Missing,
    /// The record was not examined, because the pull has examined as much as it may.
    Exhausted,
}

impl Reader<'_> {
    pub(crate) fn get(&self, topic: &str, queue_id: i32, wanted: &Wanted<'_>) -> Got {
        let queue_offset = wanted.queue_offset;
        let queue = match self.queues.find(topic.as_bytes(), queue_id) {
            Ok(Some(queue)) => queue,
            Ok(None) => return Got::nothing(GetStatus::NoQueue, 0, 0, 0),
            Err(error) => {
                // Nothing is known about the queue, so the caller has to ask again.
                self.reports.add(format!("queue {queue_id} of {topic} cannot be read: {error}"));
                return Got::nothing(GetStatus::NoMatch, queue_offset, 0, 0);
            }
        };
        let max_offset = queue.max_offset();
        let min_offset = match queue.min_offset(&self.queues.disk, self.log.start_offset()) {
            Ok(min_offset) => min_offset.min(max_offset),
            Err(error) => {
                self.reports.add(format!("queue {queue_id} of {topic} cannot be read: {error}"));
                return Got::nothing(GetStatus::NoMatch, queue_offset, 0, max_offset);
            }
        };
        let nothing = |status, next_offset| Got::nothing(status, next_offset, min_offset, max_offset);
        if max_offset == 0 {
            nothing(GetStatus::EmptyQueue, 0)
        } else if queue_offset < min_offset {
            nothing(GetStatus::BeforeStart, min_offset)
        } else if queue_offset == max_offset {
            nothing(GetStatus::AtEnd, queue_offset)
        } else if queue_offset > max_offset {
            nothing(GetStatus::PastEnd, max_offset)
        } else {
            self.collect(&queue, wanted, nothing(GetStatus::NoMatch, queue_offset))
        }
    }

    /// Goes through the entries from the wanted offset on and gathers their records.
    fn collect(&self, queue: &Arc<Queue>, wanted: &Wanted<'_>, mut got: Got) -> Got {
        let Bounds { count_max, bytes_max, .. } = wanted.bounds;
        let scan_end = wanted.queue_offset + count_max.max(SCAN_ENTRIES_MIN) as i64;
        let chunk_entries = count_max.clamp(1, CHUNK_ENTRIES);
        let mut entries = Vec::with_capacity(chunk_entries);
        let mut gathered = Gathered::default();
        let mut is_stopped = false;
        'scan: while got.next_offset < scan_end.min(got.max_offset) {
            let chunk = chunk_entries.min((scan_end - got.next_offset) as usize);
            if let Err(error) = queue.read(&self.queues.disk, got.next_offset, chunk, &mut entries) {
                self.reports
                    .add(format!("queue {} of {} cannot be read: {error}", queue.queue_id, queue.topic));
                break;
            }
            if entries.is_empty() {
                break;
            }
            for entry in &entries {
                if !wanted.filter.matches(entry.tag_code) && !entry.is_void() {
                    got.next_offset += 1;
                    continue;
                }
                let verdict = self.judge(wanted, queue, entry, &mut got, &gathered);
                match verdict {
                    Verdict::Unwanted => {
                        got.next_offset += 1;
                        continue;
                    }
                    Verdict::Exhausted => break 'scan,
                    Verdict::Wanted | Verdict::Missing => {}
                }
                // Before the body is read: a pull that finds no room for it must not cost as much as one that does.
                if got.count > 0 && !entry.is_void() && got.bytes + entry.size as usize > bytes_max {
                    break 'scan;
                }
                let mut found = self.find_sound(queue, got.next_offset, entry, &gathered);
                if let Some((sound, _)) = &found {
                    // A corrected entry leads to another record, which has not been checked yet.
                    let is_same =
                        verdict == Verdict::Wanted && sound.physical_offset == entry.physical_offset;
                    if !is_same {
                        match self.judge(wanted, queue, sound, &mut got, &gathered) {
                            Verdict::Wanted => {}
                            Verdict::Exhausted => break 'scan,
                            Verdict::Unwanted | Verdict::Missing => found = None,
                        }
                    }
                }
                if let Some((entry, file)) = found {
                    let size = entry.size as usize;
                    if got.count > 0 && got.bytes + size > bytes_max {
                        break 'scan;
                    }
                    gathered.add(&mut got.slices, file, &entry);
                    got.count += 1;
                    got.bytes += size;
                } else if self.must_wait(queue, got.next_offset) {
                    is_stopped = true;
                    break 'scan;
                }
                got.next_offset += 1;
                if got.count >= count_max {
                    break 'scan;
                }
            }
        }
        gathered.finish(&mut got.slices);
        if got.count > 0 {
            got.status = GetStatus::Found;
        } else if is_stopped && got.next_offset == wanted.queue_offset {
            got.status = GetStatus::Damaged;
        }
        got
    }

    /// Whether a read may not go past a queue offset for which no sound record was found.
    #[cold]
    fn must_wait(&self, queue: &Queue, queue_offset: i64) -> bool {
        let is_deleted = || {
            let min_offset = queue.min_offset(&self.queues.disk, self.log.start_offset());
            min_offset.is_ok_and(|min_offset| queue_offset < min_offset)
        };
        let waits = if self.stops {
            !self.damage.is_skipped(queue, queue_offset)
        } else {
            self.damage.is_searched_for(queue, queue_offset)
        };
        waits && !is_deleted()
    }

    /// Applies the filter to the entry at `got.next_offset`.
    #[inline]
    fn judge(
        &self,
        wanted: &Wanted<'_>,
        queue: &Queue,
        entry: &Entry,
        got: &mut Got,
        gathered: &Gathered,
    ) -> Verdict {
        match wanted.filter {
            Filter::Expression(program) => {
                self.examine(program, wanted, queue, entry, got, gathered).unwrap_or(Verdict::Missing)
            }
            _ => Verdict::Wanted,
        }
    }

    /// Runs the expression over the record's properties, as far as the bounds allow; None if there is no such record, or
    /// if it is damaged.
    fn examine(
        &self,
        program: &Program,
        wanted: &Wanted<'_>,
        queue: &Queue,
        entry: &Entry,
        got: &mut Got,
        gathered: &Gathered,
    ) -> Option<Verdict> {
        if entry.is_void() {
            return None;
        }
        let file = gathered.file_at(self.log, entry.physical_offset)?;
        let position = (entry.physical_offset - file.start_offset) as u64;
        let content = content_at(file.slice(position, entry.size as usize)?, entry.physical_offset, false);
        let Content::Record(record) = content else { return None };
        if !fits(&record, queue, got.next_offset, entry) {
            return None;
        }
        let examined_bytes = got.examined_bytes.saturating_add(program.examined_bytes(record.properties));
        let bytes_max = wanted.bounds.examined_bytes_max;
        // Each pull examines at least one record. Otherwise a consumer would never get past a large one.
        if examined_bytes > bytes_max && (got.examined_bytes > 0 || bytes_max == 0) {
            return Some(Verdict::Exhausted);
        }
        got.examined_bytes = examined_bytes;
        if program.matches(record.properties) {
            return Some(Verdict::Wanted);
        }
        // A damaged property must not hide a message. A wanted record is checked later.
        (record.coverage() == Coverage::Body || record.crc_matches()).then_some(Verdict::Unwanted)
    }

    /// The entry and the file with its record. If the two do not fit, the corrected entry, if there is one.
    #[inline]
    fn find_sound(
        &self,
        queue: &Queue,
        queue_offset: i64,
        entry: &Entry,
        gathered: &Gathered,
    ) -> Option<(Entry, Arc<MappedFile>)> {
        match self.find_record(queue, queue_offset, entry, gathered) {
            Some(file) => Some((*entry, file)),
            None => self.find_damaged(queue, queue_offset, entry, gathered),
        }
    }

    #[cold]
    fn find_damaged(
        &self,
        queue: &Queue,
        queue_offset: i64,
        entry: &Entry,
        gathered: &Gathered,
    ) -> Option<(Entry, Arc<MappedFile>)> {
        let min_offset = queue.min_offset(&self.queues.disk, self.log.start_offset()).ok()?;
        if queue_offset < min_offset || self.damage.is_known(queue, queue_offset) {
            // Deleted meanwhile, or searched for in vain before.
            return None;
        }
        let searched = self.repair(queue, queue_offset);
        match searched {
            Searched::Found(entry) => {
                return Some((entry, self.find_record(queue, queue_offset, &entry, gathered)?));
            }
            Searched::Unfinished => return None,
            Searched::Nowhere | Searched::InDamage => {}
        }
        if !entry.is_void() {
            self.log.damage.suspect(entry.physical_offset);
        }
        let is_skipped = !self.stops || matches!(searched, Searched::Nowhere);
        self.damage.note(self.reports, queue, queue_offset, entry, is_skipped);
        None
    }

    /// The file with the entry's record, if everything about the record fits.
    fn find_record(
        &self,
        queue: &Queue,
        queue_offset: i64,
        entry: &Entry,
        gathered: &Gathered,
    ) -> Option<Arc<MappedFile>> {
        if entry.is_void() {
            return None;
        }
        let file = gathered.file_at(self.log, entry.physical_offset)?;
        let position = (entry.physical_offset - file.start_offset) as u64;
        let bytes = file.slice(position, entry.size as usize)?;
        let physical_offset = entry.physical_offset;
        let (topic, queue_id) = (queue.topic.as_bytes(), queue.queue_id);
        if (Expected { topic, queue_id, queue_offset, physical_offset }).is_sealed(bytes) {
            return Some(file);
        }
        match content_at(bytes, physical_offset, true) {
            Content::Record(record) if fits(&record, queue, queue_offset, entry) => Some(file),
            _ => None,
        }
    }

    /// The whole record that starts there, if it is sound.
    pub(crate) fn record_at(&self, physical_offset: i64) -> Option<Bytes> {
        self.record_with(physical_offset, true)
    }

    /// The same, whether or not its checksum is right.
    pub(crate) fn head_at(&self, physical_offset: i64) -> Option<Bytes> {
        self.record_with(physical_offset, false)
    }

    fn record_with(&self, physical_offset: i64, check_crc: bool) -> Option<Bytes> {
        let file = self.log.file_at(physical_offset)?;
        let position = (physical_offset - file.start_offset) as u64;
        let bytes = file.readable().get(position as usize..)?;
        match content_at(bytes, physical_offset, check_crc) {
            Content::Record(record) => file.bytes(position, record.size),
            _ => None,
        }
    }

    /// The same, if the record's queue points at it. Dispatch gives every record its entry before anybody can know of
    /// it, and retention keeps the entry as long as the record. Only a record whose topic was deleted has none.
    pub(crate) fn queued_record_at(&self, physical_offset: i64) -> Option<Bytes> {
        let bytes = self.record_at(physical_offset)?;
        let record = Record::decode(&bytes).ok()?;
        let queue = self.queues.find(record.topic, record.queue_id).ok().flatten()?;
        let entry = queue.entry(&self.queues.disk, record.queue_offset).ok().flatten()?;
        let is_its_own = entry.physical_offset == physical_offset && entry.size as usize == record.size;
        is_its_own.then_some(bytes)
    }

    /// When the entry's record was stored, read from the record's header alone.
    pub(crate) fn entry_time_ms(&self, entry: &Entry) -> Option<i64> {
        if entry.is_void() { None } else { self.record_time_ms(entry.physical_offset) }
    }

    pub(crate) fn record_time_ms(&self, physical_offset: i64) -> Option<i64> {
        let file = self.log.file_at(physical_offset)?;
        let bytes = file.readable().get((physical_offset - file.start_offset) as usize..)?;
        let own_offset = i64::from_be_bytes(*bytes.get(layout::at::PHYSICAL_OFFSET..)?.first_chunk()?);
        let system_flag = i32::from_be_bytes(*bytes.get(layout::at::SYSTEM_FLAG..)?.first_chunk()?);
        let time_ms =
            i64::from_be_bytes(*bytes.get(layout::store_timestamp_at(system_flag)..)?.first_chunk()?);
        (own_offset == physical_offset).then_some(time_ms)
    }

    /// The first queue offset stored at or after the time, or the end; with `upper` the last one stored at or before
    /// it, or 0.
    pub(crate) fn search_offset(
        &self,
        queue: &Queue,
        timestamp_ms: i64,
        upper: bool,
    ) -> std::io::Result<i64> {
        let disk = &self.queues.disk;
        let max_offset = queue.max_offset();
        let min_offset = queue.min_offset(disk, self.log.start_offset())?.min(max_offset);
        if min_offset == max_offset {
            return Ok(max_offset);
        }
        let passes = |entry: &Entry| {
            self.entry_time_ms(entry)
                .is_some_and(|time_ms| if upper { time_ms > timestamp_ms } else { time_ms >= timestamp_ms })
        };
        let found = queue.first_where(disk, min_offset, max_offset, passes)?;
        Ok(match upper {
            false => found,
            true if found == min_offset => 0,
            true => found - 1,
        })
    }
}

fn fits(record: &Record<'_>, queue: &Queue, queue_offset: i64, entry: &Entry) -> bool {
    record.size == entry.size as usize
        && record.queue_offset == queue_offset
        && record.queue_id == queue.queue_id
        && record.topic == queue.topic.as_bytes()
}

/// Records found so far; neighbours in one file become one slice.
#[derive(Default)]
struct Gathered {
    file: Option<Arc<MappedFile>>,
    from: u64,
    len: usize,
}

impl Gathered {
    /// The file that contains the offset: the file of the current slice if possible, else one from the log.
    fn file_at(&self, log: &CommitLog, physical_offset: i64) -> Option<Arc<MappedFile>> {
        match &self.file {
            Some(file) if (file.start_offset..file.end_offset()).contains(&physical_offset) => {
                Some(Arc::clone(file))
            }
            _ => log.file_at(physical_offset),
        }
    }

    fn add(&mut self, slices: &mut Vec<Bytes>, file: Arc<MappedFile>, entry: &Entry) {
        let position = (entry.physical_offset - file.start_offset) as u64;
        let is_neighbour = self.from + self.len as u64 == position
            && self.file.as_ref().is_some_and(|current| Arc::ptr_eq(current, &file));
        if !is_neighbour {
            self.finish(slices);
            (self.file, self.from, self.len) = (Some(file), position, 0);
        }
        self.len += entry.size as usize;
    }

    fn finish(&mut self, slices: &mut Vec<Bytes>) {
        if let Some(file) = self.file.take() {
            slices.extend(file.bytes(self.from, self.len));
        }
    }
}

impl Damage {
    pub(crate) fn new(search_bytes_max: u64) -> Self {
        Self { search_bytes_max: search_bytes_max.try_into().unwrap_or(i64::MAX), ..Self::default() }
    }

    fn is_known(&self, queue: &Queue, queue_offset: i64) -> bool {
        self.seen.lock().get(&(queue.serial, queue_offset)).is_some_and(|seen| !seen.is_outdated)
    }

    fn is_skipped(&self, queue: &Queue, queue_offset: i64) -> bool {
        self.seen.lock().get(&(queue.serial, queue_offset)).is_some_and(|seen| seen.message.is_skipped)
    }

    fn is_searched_for(&self, queue: &Queue, queue_offset: i64) -> bool {
        self.searches.lock().contains_key(&(queue.serial, queue_offset))
    }

    /// How far the search for a queue offset got before.
    pub(crate) fn search(&self, queue: &Queue, queue_offset: i64) -> Search {
        self.searches.lock().get(&(queue.serial, queue_offset)).copied().unwrap_or_default()
    }

    /// Notes how far it got. Two reads may search for the same one.
    pub(crate) fn note_search(&self, queue: &Queue, queue_offset: i64, now: Search) {
        let mut searches = self.searches.lock();
        let key = (queue.serial, queue_offset);
        if searches.len() >= DAMAGE_REMEMBERED_MAX && !searches.contains_key(&key) {
            searches.pop_first();
        }
        let known = searches.entry(key).or_default();
        *known = Search { end: known.end.max(now.end), has_gap: known.has_gap || now.has_gap };
    }

    /// Notes that an entry was corrected, which narrows the search for those around it.
    pub(crate) fn note_repair(&self, queue: &Queue, queue_offset: i64) {
        self.repaired.fetch_add(1, Ordering::Relaxed);
        self.searches.lock().remove(&(queue.serial, queue_offset));
        let mut seen = self.seen.lock();
        seen.remove(&(queue.serial, queue_offset));
        let around = |distance| (queue.serial, queue_offset.saturating_add(distance));
        for (_, seen) in seen.range_mut(around(-LANDMARKS_MAX)..=around(LANDMARKS_MAX)) {
            seen.is_outdated = true;
        }
    }

    /// Some of the damaged messages, in order.
    pub(crate) fn messages(&self) -> Vec<DamagedMessage> {
        let mut messages: Vec<DamagedMessage> =
            self.seen.lock().values().map(|seen| seen.message.clone()).collect();
        messages.sort_unstable();
        messages.truncate(DAMAGE_NAMED_MAX);
        messages
    }

    /// Counts and reports a damaged record, but only once.
    pub(crate) fn note(
        &self,
        reports: &Reports,
        queue: &Queue,
        queue_offset: i64,
        entry: &Entry,
        is_skipped: bool,
    ) {
        let message = DamagedMessage {
            topic: queue.topic.to_string(),
            queue_id: queue.queue_id,
            queue_offset,
            physical_offset: if entry.is_void() { -1 } else { entry.physical_offset },
            is_skipped,
        };
        let key = (queue.serial, queue_offset);
        self.searches.lock().remove(&key);
        let mut seen = self.seen.lock();
        if seen.len() >= DAMAGE_REMEMBERED_MAX && !seen.contains_key(&key) {
            seen.pop_first();
        }
        let is_new = seen.insert(key, Seen { message, is_outdated: false }).is_none();
        drop(seen);
        if is_new {
            self.count.fetch_add(1, Ordering::Relaxed);
            let outcome =
                if is_skipped { "not served" } else { "reads wait in front of it until it is repaired" };
            reports.add(format!(
                "topic {}, queue {}: the record with queue offset {queue_offset} (commit log {}, {} bytes) is damaged \
                 and {outcome}",
                queue.topic, queue.queue_id, entry.physical_offset, entry.size
            ));
        }
    }
}
