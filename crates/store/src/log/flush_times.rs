//! When the log came to the disk, for answers to the question what a slow send waited for.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::Mutex;

/// Syncs within this time share an entry.
const STEP_MS: u64 = 10;
/// Together with the step, this covers more than the longest wait for a confirmation.
const ENTRIES_MAX: usize = 1_024;

/// The ends of the last syncs, oldest first.
pub(crate) struct FlushTimes {
    created: Instant,
    entries: Mutex<VecDeque<Entry>>,
}

struct Entry {
    at_ms: u64,
    end_offset: i64,
}

impl Default for FlushTimes {
    fn default() -> Self {
        FlushTimes { created: Instant::now(), entries: Mutex::default() }
    }
}

impl FlushTimes {
    /// Notes that everything below `end_offset` is on the disk. To be called once for each sync.
    pub(crate) fn note(&self, end_offset: i64) {
        self.note_at(end_offset, self.now_ms());
    }

    fn note_at(&self, end_offset: i64, at_ms: u64) {
        let mut entries = self.entries.lock();
        if let Some(last) = entries.back_mut().filter(|last| at_ms < last.at_ms + STEP_MS) {
            last.end_offset = last.end_offset.max(end_offset);
            return;
        }
        if entries.len() == ENTRIES_MAX {
            entries.pop_front();
        }
        entries.push_back(Entry { at_ms, end_offset });
    }

    /// How long everything below `end_offset` has been on the disk; None if it is not there.
    pub(crate) fn age_ms(&self, end_offset: i64) -> Option<u64> {
        self.age_ms_at(end_offset, self.now_ms())
    }

    fn age_ms_at(&self, end_offset: i64, now_ms: u64) -> Option<u64> {
        let entries = self.entries.lock();
        let first = entries.partition_point(|entry| entry.end_offset < end_offset);
        entries.get(first).map(|entry| now_ms.saturating_sub(entry.at_ms))
    }

    fn now_ms(&self) -> u64 {
        self.created.elapsed().as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_as_old_on_the_disk_as_the_first_sync_that_covers_it() {
        let times = FlushTimes::default();
        for (end_offset, at_ms) in [(100, 0), (200, 50), (250, 55), (300, 90)] {
            times.note_at(end_offset, at_ms);
        }
        let ages: Vec<_> = [90, 100, 101, 250, 300].map(|end| times.age_ms_at(end, 100)).into();
        assert_eq!(ages, [Some(100), Some(100), Some(50), Some(50), Some(10)]);
        assert_eq!(times.age_ms_at(301, 100), None);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let times = FlushTimes::default();
        for entry in 0..2_000 {
            times.note_at(entry, entry as u64 * STEP_MS);
        }
        assert_eq!(times.entries.lock().len(), ENTRIES_MAX);
        assert_eq!(times.age_ms_at(1_999, 20_000), Some(10));
    }
}
