//! One consume queue: where the records of one topic and queue id lie in the commit log, in order.
//!
//! New entries stay in memory (the tail) until they are written together. If a kill loses them, they are rebuilt from
//! the commit log. Older entries are read from the files.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::disk::DiskFile;
use crate::error::StoreError;
use crate::queue::files::{ENTRY_BYTES, Entry, QueueDisk, file_name};

/// Entries that may wait in memory before dispatch itself writes them.
const TAIL_ENTRIES_MAX: usize = 65_536;
/// Entries between two attempts to write a tail that is too long.
const RETRY_ENTRIES: usize = 4_096;
/// A larger jump of queue offsets is taken for a damaged record, not for lost ones. This is below the limit of the
/// tail, so that a jump can be undone while it is in memory.
const GAP_ENTRIES_MAX: i64 = 16_384;
/// No queue reaches this; a greater offset comes from a damaged record.
const QUEUE_OFFSET_MAX: i64 = 1 << 52;

pub(crate) struct Queue {
    pub(crate) topic: Arc<str>,
    pub(crate) queue_id: i32,
    /// Identifies this queue among the open files; a queue that is deleted and created again gets a new one.
    pub(crate) serial: u64,
    /// The offset of the next record; moves under the append lock, ahead of `max_offset`.
    next_offset: AtomicI64,
    /// The end of what can be read.
    max_offset: AtomicI64,
    /// The dispatch pass that last touched this queue, and its slot in that pass.
    pub(crate) touched: AtomicU64,
    removed: AtomicBool,
    /// Readers get nothing below: a purge or the retention of the topic has ended there.
    start: AtomicI64,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// Files, in order; each covers `entries` from `first` on.
    pub(crate) segments: Vec<Segment>,
    /// The queue offset of the first entry in memory: all below are in files.
    tail_first: i64,
    tail: Vec<Entry>,
    /// The start of the commit log, and the lowest queue offset whose record is at this start or after it.
    min: Option<(i64, i64)>,
    removed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) first: i64,
    pub(crate) entries: i64,
}

/// The outcome of adding an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// The entry is visible and the queue ends at `max_offset`. `was_clean`: no other entry waits in memory.
    /// `is_crowded`: too many do.
    Done { max_offset: i64, was_clean: bool, is_crowded: bool },
    /// The entry was there already.
    Known,
    /// Its queue offset cannot be right.
    Misfit,
}

impl Queue {
    pub(crate) fn new(topic: Arc<str>, queue_id: i32, serial: u64, segments: Vec<Segment>, end: i64) -> Self {
        Self {
            topic,
            queue_id,
            serial,
            next_offset: AtomicI64::new(end),
            max_offset: AtomicI64::new(end),
            touched: AtomicU64::new(0),
            removed: AtomicBool::new(false),
            start: AtomicI64::new(0),
            state: Mutex::new(State { segments, tail_first: end, ..State::default() }),
        }
    }

    /// Hands out queue offsets; the caller holds the append lock.
    pub(crate) fn take_offsets(&self, count: i64) -> i64 {
        self.next_offset.fetch_add(count, Ordering::Relaxed)
    }

    /// Counts a record of another log: the next one gets a later offset. At 0 the queue begins again, because its topic
    /// was deleted in between. The caller holds the append lock.
    pub(crate) fn pass_offset(&self, queue_offset: i64) {
        if queue_offset == 0 {
            self.next_offset.store(1, Ordering::Relaxed);
        } else {
            self.next_offset.fetch_max(queue_offset + 1, Ordering::Relaxed);
        }
    }

    pub(crate) fn max_offset(&self) -> i64 {
        self.max_offset.load(Ordering::Acquire)
    }

    /// The next record gets offset 0, because the topic was deleted. The caller holds the append lock, or nothing is
    /// appended yet.
    pub(crate) fn begin_again(&self) {
        self.next_offset.store(0, Ordering::Relaxed);
    }

    /// Whether the queue has had no record since its topic was deleted: to readers it does not exist.
    pub(crate) fn is_unused(&self) -> bool {
        self.max_offset() == 0 && self.next_offset.load(Ordering::Relaxed) == 0
    }

    /// Ends a replay, before the first append: the next record follows the last entry.
    pub(crate) fn finish_replay(&self) {
        self.next_offset.store(self.max_offset(), Ordering::Relaxed);
    }

    /// Whether the topic was deleted; the answer stays true to the end of the append lock.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Whether too many entries wait in memory to accept another one.
    pub(crate) fn is_overcrowded(&self) -> bool {
        self.state.lock().tail.len() >= 2 * TAIL_ENTRIES_MAX
    }

    /// Whether the queue is empty and would start after this offset. In a replay that means that a power loss took its
    /// first files but not the last one, whose name then says nothing.
    pub(crate) fn starts_behind(&self, queue_offset: i64) -> bool {
        let state = self.state.lock();
        !state.removed && state.first() == state.end() && (0..state.end()).contains(&queue_offset)
    }

    /// Marks the queue as deleted: nothing is read or written any more, because its files are about to be deleted.
    pub(crate) fn remove(&self, disk: &QueueDisk) {
        self.removed.store(true, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.removed = true;
        state.tail = Vec::new();
        for segment in std::mem::take(&mut state.segments) {
            disk.forget((self.serial, segment.first));
        }
    }

    /// Adds the entry of a record. Offsets normally follow each other; any other offset is examined closely.
    #[inline]
    pub(crate) fn put(&self, queue_offset: i64, entry: Entry) -> Put {
        let mut state = self.state.lock();
        if queue_offset == state.end() && !state.removed {
            return self.push(&mut state, entry, 0);
        }
        self.put_apart(&mut state, queue_offset, entry)
    }

    #[inline]
    fn push(&self, state: &mut State, entry: Entry, holes: usize) -> Put {
        let was_clean = state.tail.is_empty();
        if holes > 0 {
            state.tail.resize(state.tail.len() + holes, Entry::HOLE);
        }
        state.tail.push(entry);
        let max_offset = state.end();
        self.max_offset.store(max_offset, Ordering::Release);
        let waiting = state.tail.len();
        // Now and then only, because each attempt to write copies the whole tail.
        let is_crowded = waiting >= TAIL_ENTRIES_MAX && waiting % RETRY_ENTRIES == 0;
        Put::Done { max_offset, was_clean, is_crowded }
    }

    #[cold]
    fn put_apart(&self, state: &mut State, queue_offset: i64, entry: Entry) -> Put {
        let end = state.end();
        if state.removed {
            return Put::Known;
        }
        if !(0..QUEUE_OFFSET_MAX).contains(&queue_offset) {
            return Put::Misfit;
        }
        if state.segments.is_empty() && state.tail.len() == 1 && queue_offset < state.tail_first {
            // A rebuilt queue began with a record whose queue offset is wrong; the next record corrects it.
            state.tail.clear();
            state.tail_first = queue_offset;
            state.min = None;
            return self.push(state, entry, 0);
        }
        if queue_offset < end {
            let place = usize::try_from(queue_offset - state.tail_first).ok();
            return match place.and_then(|place| state.tail.get(place).map(|known| (place, *known))) {
                Some((_, known)) if known == entry => Put::Known,
                Some((place, Entry::HOLE)) => {
                    // A record with a wrong queue offset made the queue jump; the right ones continue before it.
                    state.tail.truncate(place);
                    self.push(state, entry, 0)
                }
                _ => Put::Misfit,
            };
        }
        if end == 0 && state.segments.is_empty() {
            // The earlier records were deleted with old files of the commit log.
            state.tail_first = queue_offset;
            state.min = None;
            return self.push(state, entry, 0);
        }
        if queue_offset - end > GAP_ENTRIES_MAX {
            return Put::Misfit;
        }
        // Damaged records are missing: holes take their places, so that offsets stay dense.
        self.push(state, entry, (queue_offset - end) as usize)
    }

    /// Reads up to `count` entries from `queue_offset` on, as far as the queue reaches. Lost entries come as holes; an
    /// error means that the files could not be read.
    pub(crate) fn read(
        &self,
        disk: &QueueDisk,
        queue_offset: i64,
        count: usize,
        entries: &mut Vec<Entry>,
    ) -> io::Result<()> {
        entries.clear();
        let end = self.max_offset().min(queue_offset.saturating_add(count as i64));
        let mut at = queue_offset;
        while at < end {
            let (segment, tail_first) = {
                let state = self.state.lock();
                if state.removed {
                    return Ok(());
                }
                if at >= state.tail_first {
                    let from = (at - state.tail_first) as usize;
                    let until = ((end - state.tail_first) as usize).min(state.tail.len());
                    entries.extend_from_slice(state.tail.get(from..until).unwrap_or_default());
                    return Ok(());
                }
                (state.segment_at(at), state.tail_first)
            };
            let until = end.min(segment.first + segment.entries).min(tail_first);
            if at < segment.first {
                // No file covers these.
                let missing = end.min(segment.first) - at;
                entries.resize(entries.len() + missing as usize, Entry::HOLE);
                at += missing;
                continue;
            }
            self.read_file(disk, segment, at, (until - at) as usize, entries)?;
            at = until;
        }
        Ok(())
    }

    fn read_file(
        &self,
        disk: &QueueDisk,
        segment: Segment,
        from: i64,
        count: usize,
        entries: &mut Vec<Entry>,
    ) -> io::Result<()> {
        let file = disk.file((self.serial, segment.first), || disk.directory(&self.topic, self.queue_id))?;
        read_entries(disk, &file, (from - segment.first) as u64, count, entries)
    }

    pub(crate) fn entry(&self, disk: &QueueDisk, queue_offset: i64) -> io::Result<Option<Entry>> {
        let mut entries = Vec::with_capacity(1);
        self.read(disk, queue_offset, 1, &mut entries)?;
        Ok(entries.first().copied())
    }

    /// Replaces a damaged entry, in memory or in its file.
    pub(crate) fn rewrite(&self, disk: &QueueDisk, queue_offset: i64, entry: Entry) -> io::Result<()> {
        let segment = {
            let mut state = self.state.lock();
            let place = usize::try_from(queue_offset - state.tail_first).ok();
            if let Some(known) = place.and_then(|place| state.tail.get_mut(place)) {
                *known = entry;
                return Ok(());
            }
            state.segment_at(queue_offset)
        };
        if (segment.first..segment.first + segment.entries).contains(&queue_offset) {
            let key = (self.serial, segment.first);
            let file = disk.file(key, || disk.directory(&self.topic, self.queue_id))?;
            let position = (queue_offset - segment.first) as u64 * ENTRY_BYTES;
            disk.write(key, &file, &entry.encode(), position)?;
        }
        Ok(())
    }

    /// The lowest queue offset that a file or the tail covers.
    pub(crate) fn first_offset(&self) -> i64 {
        self.state.lock().first()
    }

    /// The first offset that readers get, or the end of the queue: of the log, or of the topic's own start if that is
    /// later.
    pub(crate) fn min_offset(&self, disk: &QueueDisk, log_start: i64) -> io::Result<i64> {
        let stored = self.stored_min_offset(disk, log_start)?;
        Ok(stored.max(self.start.load(Ordering::Acquire).min(self.max_offset())))
    }

    pub(crate) fn set_start(&self, queue_offset: i64) {
        self.start.store(queue_offset.max(0), Ordering::Release);
    }

    /// The first offset whose record the commit log still has, or the end if it has none.
    pub(crate) fn stored_min_offset(&self, disk: &QueueDisk, log_start: i64) -> io::Result<i64> {
        let known = self.state.lock().min.filter(|(known_for, _)| *known_for == log_start);
        if let Some((_, min_offset)) = known {
            return Ok(min_offset);
        }
        let end = self.max_offset();
        let min_offset =
            self.first_where(disk, self.first_offset(), end, |entry| entry.physical_offset >= log_start)?;
        // While the queue is empty its first record may still come with any offset.
        if end > 0 {
            self.state.lock().min = Some((log_start, min_offset));
        }
        Ok(min_offset)
    }

    /// Binary search for the first offset in the range whose entry passes, given that all entries after it pass too. A
    /// void entry counts like the next one that is not void.
    pub(crate) fn first_where(
        &self,
        disk: &QueueDisk,
        from: i64,
        end: i64,
        mut passes: impl FnMut(&Entry) -> bool,
    ) -> io::Result<i64> {
        let (mut low, mut high) = (from, end);
        while low < high {
            let middle = low + (high - low) / 2;
            let mut probe = middle;
            let mut entry = None;
            while probe < high {
                entry = self.entry(disk, probe)?.filter(|entry| !entry.is_void());
                if entry.is_some() {
                    break;
                }
                probe += 1;
            }
            match entry {
                Some(entry) if !passes(&entry) => low = probe + 1,
                Some(_) | None => high = middle,
            }
        }
        // The search may stop before void entries: step over them.
        while low < end && self.entry(disk, low)?.is_none_or(|entry| entry.is_void()) {
            low += 1;
        }
        Ok(low)
    }

    /// Writes the entries that wait in memory. Returns whether new ones came meanwhile. One caller at a time, guarded
    /// by the table's flush lock.
    pub(crate) fn flush(&self, disk: &QueueDisk) -> Result<bool, StoreError> {
        let (first, entries) = {
            let state = self.state.lock();
            (state.tail_first, state.tail.clone())
        };
        let mut written = 0;
        let outcome = self.write_entries(disk, first, &entries, &mut written);
        let mut state = self.state.lock();
        if !state.removed {
            let written = written.min(state.tail.len());
            state.tail.drain(..written);
            state.tail_first += written as i64;
            if state.tail.is_empty() {
                state.tail = Vec::new();
            }
        }
        let is_dirty = !state.tail.is_empty();
        drop(state);
        outcome
            .map(|()| is_dirty)
            .map_err(|source| StoreError::io(&disk.directory(&self.topic, self.queue_id), source))
    }

    fn write_entries(
        &self,
        disk: &QueueDisk,
        first: i64,
        entries: &[Entry],
        written: &mut usize,
    ) -> io::Result<()> {
        let mut data = Vec::new();
        while *written < entries.len() {
            let at = first + *written as i64;
            let (segment, file) = self.segment_for(disk, at)?;
            let room = (segment.first + segment.entries - at) as usize;
            let part = &entries[*written..entries.len().min(*written + room)];
            data.clear();
            for entry in part {
                data.extend_from_slice(&entry.encode());
            }
            disk.write(
                (self.serial, segment.first),
                &file,
                &data,
                (at - segment.first) as u64 * ENTRY_BYTES,
            )?;
            *written += part.len();
        }
        Ok(())
    }

    /// The file for the entry at `at`, created if there is none yet.
    fn segment_for(&self, disk: &QueueDisk, at: i64) -> io::Result<(Segment, Arc<DiskFile>)> {
        let last = self.state.lock().segments.last().copied();
        if let Some(segment) = last.filter(|segment| at < segment.first + segment.entries) {
            let file =
                disk.file((self.serial, segment.first), || disk.directory(&self.topic, self.queue_id))?;
            return Ok((segment, file));
        }
        let first = match last {
            Some(segment) => segment.first + segment.entries,
            None => at - at % disk.file_entries,
        };
        let segment = Segment { first, entries: disk.file_entries };
        let directory = disk.directory(&self.topic, self.queue_id);
        let file = disk.make_file((self.serial, first), &directory)?;
        if last.is_none() {
            disk.directory_count.fetch_add(1, Ordering::AcqRel);
        }
        if first < at {
            let holes = Entry::HOLE.encode().repeat((at - first) as usize);
            disk.write((self.serial, first), &file, &holes, 0)?;
        }
        self.state.lock().segments.push(segment);
        Ok((segment, file))
    }

    /// Begins again at offset 0, for a topic that was deleted and created again. Returns whether there are files, which
    /// the caller deletes.
    pub(crate) fn restart(&self, disk: &QueueDisk) -> bool {
        let mut state = self.state.lock();
        let has_files = !state.segments.is_empty();
        for segment in &state.segments {
            disk.forget((self.serial, segment.first));
        }
        *state = State::default();
        self.max_offset.store(0, Ordering::Release);
        has_files
    }

    /// Forgets the files that lie wholly below `min_offset`, the last one excepted (it carries the end), and returns
    /// their paths for deletion.
    pub(crate) fn trim(&self, disk: &QueueDisk, min_offset: i64) -> Vec<PathBuf> {
        let mut state = self.state.lock();
        let past = state.segments.partition_point(|segment| segment.first + segment.entries <= min_offset);
        let count = past.min(state.segments.len().saturating_sub(1));
        let directory = disk.directory(&self.topic, self.queue_id);
        let trimmed = state.segments.drain(..count).map(|segment| {
            disk.forget((self.serial, segment.first));
            directory.join(file_name(segment.first))
        });
        trimmed.collect()
    }
}

impl State {
    fn end(&self) -> i64 {
        self.tail_first + self.tail.len() as i64
    }

    fn first(&self) -> i64 {
        self.segments.first().map_or(self.tail_first, |segment| segment.first.min(self.tail_first))
    }

    /// The segment with the entry, or else the next one, or else an empty segment at the tail.
    fn segment_at(&self, at: i64) -> Segment {
        let found = self.segments.partition_point(|segment| segment.first + segment.entries <= at);
        self.segments.get(found).copied().unwrap_or(Segment { first: self.tail_first, entries: 0 })
    }
}

/// Reads entries by their index in the file. If the file ends early, the rest are holes.
pub(crate) fn read_entries(
    disk: &QueueDisk,
    file: &DiskFile,
    from_entry: u64,
    count: usize,
    entries: &mut Vec<Entry>,
) -> io::Result<()> {
    const CHUNK_ENTRIES: usize = 200;
    let mut buffer = [0; CHUNK_ENTRIES * ENTRY_BYTES as usize];
    let mut done = 0;
    while done < count {
        let part = (count - done).min(CHUNK_ENTRIES);
        let buffer = &mut buffer[..part * ENTRY_BYTES as usize];
        let filled = disk.disk.read_at(file, buffer, (from_entry + done as u64) * ENTRY_BYTES)?;
        let whole = buffer[..filled].chunks_exact(ENTRY_BYTES as usize);
        let missing = part - whole.len();
        entries.extend(whole.filter_map(|bytes| bytes.first_chunk()).map(Entry::decode));
        entries.resize(entries.len() + missing, Entry::HOLE);
        done += part;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;

    fn entry(number: i64) -> Entry {
        Entry { physical_offset: 1_000 + number * 100, size: 100, tag_code: number }
    }

    fn queue() -> Queue {
        Queue::new(Arc::from("t"), 0, 1, Vec::new(), 0)
    }

    fn entries(queue: &Queue, disk: &QueueDisk, from: i64) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        queue.read(disk, from, 100, &mut entries)?;
        Ok(entries)
    }

    fn is_done(put: Put) -> bool {
        matches!(put, Put::Done { .. })
    }

    #[test]
    fn entries_are_read_across_files_and_memory() -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let disk = QueueDisk::new(Arc::new(SystemDisk), directory.path(), 4);
        let queue = queue();
        for number in 0..20 {
            assert!(is_done(queue.put(number, entry(number))));
            if number == 5 || number == 13 {
                assert!(!queue.flush(&disk)?);
            }
        }
        let expected: Vec<Entry> = (0..20).map(entry).collect();
        for from in 0..20 {
            assert_eq!(entries(&queue, &disk, from)?, expected[from as usize..], "from {from}");
        }
        assert_eq!(entries(&queue, &disk, 20)?, []);
        assert_eq!(queue.min_offset(&disk, 0)?, 0);
        assert_eq!(queue.min_offset(&disk, 1_650)?, 7);
        assert_eq!(queue.min_offset(&disk, i64::MAX)?, 20);
        assert_eq!(queue.trim(&disk, 7).len(), 1);
        assert_eq!(queue.first_offset(), 4);
        Ok(())
    }

    #[test]
    fn a_first_entry_may_come_late_and_damage_leaves_holes() -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let disk = QueueDisk::new(Arc::new(SystemDisk), directory.path(), 4);
        let queue = queue();
        assert!(is_done(queue.put(6, entry(6))));
        queue.flush(&disk)?;
        assert_eq!(entries(&queue, &disk, 4)?, [Entry::HOLE, Entry::HOLE, entry(6)]);
        assert_eq!(queue.min_offset(&disk, 0)?, 6);
        assert!(is_done(queue.put(9, entry(9))));
        assert_eq!(entries(&queue, &disk, 6)?, [entry(6), Entry::HOLE, Entry::HOLE, entry(9)]);
        Ok(())
    }

    #[test]
    fn offsets_that_cannot_be_right_are_refused() {
        let queue = queue();
        for number in 0..5 {
            assert!(is_done(queue.put(number, entry(number))));
        }
        assert_eq!(queue.put(3, entry(3)), Put::Known);
        assert_eq!(queue.put(3, entry(9)), Put::Misfit);
        assert_eq!(queue.put(-1, entry(9)), Put::Misfit);
        assert_eq!(queue.put(i64::MAX, entry(9)), Put::Misfit);
        assert_eq!(queue.put(5 + GAP_ENTRIES_MAX + 1, entry(9)), Put::Misfit);
        // The next record shows that the jump was wrong, so it is undone.
        assert!(is_done(queue.put(500, entry(5))));
        assert!(is_done(queue.put(6, entry(6))));
        assert_eq!(queue.max_offset(), 7);
    }
}
