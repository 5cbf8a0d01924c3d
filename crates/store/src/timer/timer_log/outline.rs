//! The messages that wait, for those who look from outside: how many are due in each minute, and which ones.
//!
//! The delivery thread keeps the outline up to date. Everybody else reads it, and the files that it names, without that
//! thread: the files only grow, and no name is used twice. The files are those of the last checkpoint, so a new message is
//! counted once its record is read, and listed about a second later.

use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::disk::Disk;
use crate::timer::timer_log::bucket::{MINUTE_MS, minute_of, path_of, read_entries};
use crate::timer::timer_log::entry::{TimerEntry, TimerPosition};

/// Keys with recalls that are known. Beyond that number, messages are listed as if they were not recalled.
const RECALLS_MAX: usize = 128 * 1024;
/// Recalls of one key in one minute whose records can be found.
const RECALLS_PER_KEY_MAX: usize = 8;

/// The file of one minute at the last checkpoint.
pub(crate) struct MinuteFile {
    pub(crate) minute: i64,
    pub(crate) serial: u64,
    pub(crate) entries: u64,
    /// The minutes in which the messages are due that this file has only for another copy.
    pub(crate) rolls_due: Option<(i64, i64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DueCount {
    messages: u64,
    recalls: u64,
}

impl DueCount {
    fn of_kind(&mut self, entry: &TimerEntry) -> &mut u64 {
        if entry.is_recall { &mut self.recalls } else { &mut self.messages }
    }
}

/// The recalls of one key in one minute.
struct KeyRecalls {
    times: u32,
    physical_offsets: Vec<i64>,
}

struct State {
    done: TimerPosition,
    due: BTreeMap<i64, DueCount>,
    /// By hash of the key and due minute.
    recalls: HashMap<(u64, i64), KeyRecalls, RandomState>,
    files: Arc<[MinuteFile]>,
}

impl State {
    /// Notes a recall; false if the same message was recalled before.
    fn add_recall(&mut self, key: (u64, i64), physical_offset: i64) -> bool {
        let is_full = self.recalls.len() >= RECALLS_MAX;
        match self.recalls.get_mut(&key) {
            Some(recalls) => {
                recalls.times += 1;
                if recalls.physical_offsets.len() < RECALLS_PER_KEY_MAX {
                    recalls.physical_offsets.push(physical_offset);
                }
                false
            }
            None if is_full => true,
            None => {
                let recalls = KeyRecalls { times: 1, physical_offsets: vec![physical_offset] };
                self.recalls.insert(key, recalls).is_none()
            }
        }
    }

    /// Forgets a recall; false if the same message has another one.
    fn remove_recall(&mut self, key: (u64, i64), physical_offset: i64) -> bool {
        match self.recalls.get_mut(&key) {
            Some(recalls) if recalls.times > 1 => {
                recalls.times -= 1;
                recalls.physical_offsets.retain(|known| *known != physical_offset);
                false
            }
            _ => {
                self.recalls.remove(&key);
                true
            }
        }
    }
}

/// The messages that wait, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimerCounts {
    /// Recalled ones are included.
    pub messages: u64,
    /// Messages that were recalled.
    pub recalls: u64,
    /// When the first and the last minute begin in which a message is due.
    pub first_ms: Option<i64>,
    pub last_ms: Option<i64>,
    /// Messages by due time, in spans of the length that was asked for.
    pub spans: Vec<u64>,
}

/// Spans of equal length in whole minutes. The first one has what is due before it as well, the last one what is due
/// behind it.
#[derive(Clone, Copy, Debug)]
pub struct TimerSpans {
    pub from_ms: i64,
    pub step_ms: i64,
    pub count: usize,
}

impl TimerSpans {
    /// The span of a time; None if there are no spans.
    pub fn place(&self, time_ms: i64) -> Option<usize> {
        let steps = time_ms.saturating_sub(self.from_ms).div_euclid(self.step_ms.max(1));
        Some(usize::try_from(steps.max(0)).unwrap_or(usize::MAX).min(self.count.checked_sub(1)?))
    }
}

/// A search for messages by due time: from `from_ms` up to but not including `to_ms`.
#[derive(Clone, Copy, Debug)]
pub struct TimerSearch {
    pub from_ms: i64,
    pub to_ms: i64,
    pub count_max: usize,
    /// Entries of the timer log that the search reads at most.
    pub entries_max: u64,
}

/// A message that a search found. Its record has the exact due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerFound {
    /// The due time; the begin of its minute if the message is to be stored again before that.
    pub due_ms: i64,
    pub physical_offset: i64,
    pub key_hash: u64,
}

/// The first messages of a search, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TimerListing {
    pub found: Vec<TimerFound>,
    /// There are more than those, or the search ended at its limit.
    pub is_cut: bool,
}

pub struct TimerOutline {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    state: Mutex<State>,
}

impl TimerOutline {
    pub(crate) fn new(disk: Arc<dyn Disk>, directory: PathBuf) -> Self {
        let state = State {
            done: TimerPosition::FIRST,
            due: BTreeMap::new(),
            recalls: HashMap::default(),
            files: Arc::new([]),
        };
        Self { disk, directory, state: Mutex::new(state) }
    }

    pub(crate) fn add(&self, entry: &TimerEntry) {
        let mut state = self.state.lock();
        let minute = entry.due_minute();
        if entry.is_recall && !state.add_recall((entry.key_hash, minute), entry.physical_offset) {
            return;
        }
        let count = state.due.entry(minute).or_default();
        *count.of_kind(entry) += 1;
    }

    pub(crate) fn remove(&self, entry: &TimerEntry) {
        let mut state = self.state.lock();
        let minute = entry.due_minute();
        if entry.is_recall && !state.remove_recall((entry.key_hash, minute), entry.physical_offset) {
            return;
        }
        if let Some(count) = state.due.get_mut(&minute) {
            *count.of_kind(entry) = count.of_kind(entry).saturating_sub(1);
            if *count == DueCount::default() {
                state.due.remove(&minute);
            }
        }
    }

    pub(crate) fn set_done(&self, done: TimerPosition) {
        self.state.lock().done = done;
    }

    pub(crate) fn set_files(&self, files: Vec<MinuteFile>) {
        self.state.lock().files = files.into();
    }

    /// Counts what waits. Its cost depends on the number of minutes, not of messages.
    pub fn counts(&self, spans: &TimerSpans) -> TimerCounts {
        let state = self.state.lock();
        let mut counts = TimerCounts { spans: vec![0; spans.count], ..TimerCounts::default() };
        for (minute, count) in state.due.iter().filter(|(_, count)| count.messages > 0) {
            let begin_ms = minute.saturating_mul(MINUTE_MS);
            counts.messages += count.messages;
            counts.first_ms.get_or_insert(begin_ms);
            counts.last_ms = Some(begin_ms);
            if let Some(place) = spans.place(begin_ms) {
                counts.spans[place] += count.messages;
            }
        }
        counts.recalls = state.due.values().map(|count| count.recalls).sum();
        counts
    }

    /// The physical offsets of recalls that wait for messages with this key in the minute of this time. Their records
    /// have the exact times.
    pub fn recalls(&self, key_hash: u64, due_ms: i64) -> Vec<i64> {
        let state = self.state.lock();
        let recalls = state.recalls.get(&(key_hash, minute_of(due_ms)));
        recalls.map_or_else(Vec::new, |recalls| recalls.physical_offsets.clone())
    }

    /// The first messages of a span of time that are not delivered yet, by due time. Damaged files are left out.
    pub fn list(&self, search: &TimerSearch) -> TimerListing {
        let (files, done) = {
            let state = self.state.lock();
            (Arc::clone(&state.files), state.done)
        };
        let mut nearest = Nearest::new(search, done);
        let minutes = minute_of(search.from_ms)..=minute_of(search.to_ms.saturating_sub(1));
        let begin = files.partition_point(|file| file.minute < *minutes.start());
        let mut read = begin;
        while let Some(file) = files.get(read).filter(|file| minutes.contains(&file.minute)) {
            if nearest.is_behind(file.minute) {
                break;
            }
            self.read(file, &mut nearest);
            read += 1;
        }
        // Messages that are stored again before they are due lie in the file of that earlier minute.
        let others = files[..begin].iter().chain(&files[read..]);
        for file in others {
            let Some((first, last)) = file.rolls_due else { continue };
            if first <= *minutes.end() && last >= *minutes.start() && !nearest.is_behind(first) {
                self.read(file, &mut nearest);
            }
        }
        nearest.finish()
    }

    fn read(&self, file: &MinuteFile, nearest: &mut Nearest) {
        if nearest.entries_left == 0 {
            nearest.is_cut = true;
            return;
        }
        // A file whose minute is over is deleted.
        let Ok(open) = self.disk.open(&path_of(&self.directory, file.minute, file.serial)) else { return };
        let count = file.entries.min(nearest.entries_left);
        nearest.is_cut |= count < file.entries;
        nearest.entries_left -= count;
        let _damaged_is_left_out = read_entries(&*self.disk, &open, count, &mut |entry| {
            nearest.offer(&entry);
            true
        });
    }
}

/// The first messages that a search has found so far.
struct Nearest {
    search: TimerSearch,
    done: TimerPosition,
    entries_left: u64,
    found: BinaryHeap<TimerFound>,
    is_cut: bool,
}

impl Nearest {
    fn new(search: &TimerSearch, done: TimerPosition) -> Self {
        let (entries_left, found) = (search.entries_max, BinaryHeap::new());
        Self { search: *search, done, entries_left, found, is_cut: false }
    }

    /// Whether every message of this minute comes after those that are wanted.
    fn is_behind(&self, minute: i64) -> bool {
        let last = self.found.peek().filter(|_| self.found.len() >= self.search.count_max);
        let is_behind = last.is_some_and(|last| last.due_ms < minute.saturating_mul(MINUTE_MS));
        is_behind && self.is_cut
    }

    fn offer(&mut self, entry: &TimerEntry) {
        if entry.is_recall || entry.position() <= self.done {
            return;
        }
        let begin_ms = entry.due_minute().saturating_mul(MINUTE_MS);
        let due_ms = if entry.is_roll { begin_ms } else { entry.wake_ms };
        // Only the record of a message that is stored again has the exact time.
        let end_ms =
            if entry.is_roll { begin_ms.saturating_add(MINUTE_MS) } else { due_ms.saturating_add(1) };
        if end_ms <= self.search.from_ms || due_ms >= self.search.to_ms {
            return;
        }
        let TimerEntry { physical_offset, key_hash, .. } = *entry;
        self.found.push(TimerFound { due_ms, physical_offset, key_hash });
        if self.found.len() > self.search.count_max {
            self.found.pop();
            self.is_cut = true;
        }
    }

    fn finish(self) -> TimerListing {
        TimerListing { found: self.found.into_sorted_vec(), is_cut: self.is_cut }
    }
}
