//! Verifies an index file as a whole: every entry is in the chain of its slot, and no chain leads elsewhere.

use crate::index::file::IndexFile;
use crate::index::sums::BlockSums;

/// Entries between two checks whether to stop.
const ENTRIES_PER_LOOK: i32 = 1 << 16;

/// The result of a check of one file.
pub(crate) enum FileCheck {
    /// The file is sound, and these are the checksums of its blocks.
    Sound(BlockSums),
    /// The reason why it is not.
    Wrong(String),
    Stopped,
}

impl IndexFile {
    /// Reads the whole file in order. Entries lie in the order of the log, and each names the newest entry before it in its
    /// slot; so the slots that the file must have can be counted up.
    pub(crate) fn check(&self, is_stopped: impl Fn() -> bool) -> FileCheck {
        let wrong = |what: String| FileCheck::Wrong(what);
        let mut newest = vec![0_i32; self.sizes.slots as usize];
        let mut before = self.span().begin_offset;
        for number in 1..self.count {
            if number % ENTRIES_PER_LOOK == 0 && is_stopped() {
                return FileCheck::Stopped;
            }
            let Some(entry) = self.entry(number) else {
                return wrong(format!("entry {number} is behind the end"));
            };
            if entry.key_hash < 0 || entry.physical_offset < before {
                return wrong(format!("entry {number} is out of order"));
            }
            let slot = &mut newest[entry.key_hash as usize % self.sizes.slots as usize];
            if entry.previous != *slot && !self.is_again(*slot, entry.physical_offset, entry.previous) {
                return wrong(format!("entry {number} is not in the chain of its slot"));
            }
            before = entry.physical_offset;
            *slot = number;
        }
        let is_first = |first: i64| self.entry(1).is_none_or(|entry| entry.physical_offset == first);
        if !self.is_empty() && (!is_first(self.span().begin_offset) || before != self.span().end_offset) {
            return wrong("the header does not fit the entries".to_owned());
        }
        for (slot, newest) in newest.into_iter().enumerate() {
            let number = self.slot_number(self.sizes.slot_at(slot as i32));
            if number != newest && !(newest == self.count - 1 && self.is_left_out(newest, number)) {
                return wrong(format!("slot {slot} does not lead to its newest entry"));
            }
        }
        if self.has_lost_pages() {
            return wrong("pages of it were lost".to_owned());
        }
        FileCheck::Sound(BlockSums::of(&self.table, self.used_end()))
    }

    /// Whether an entry comes again for a record whose first entry a kill left out of its chain.
    fn is_again(&self, left_out: i32, physical_offset: i64, previous: i32) -> bool {
        left_out > 0
            && self
                .entry(left_out)
                .is_some_and(|first| first.physical_offset == physical_offset && first.previous == previous)
    }

    /// Whether a kill came between the last entry and its slot.
    fn is_left_out(&self, last: i32, slot: i32) -> bool {
        self.entry(last).is_some_and(|entry| entry.previous == slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;
    use crate::index::file::IndexSizes;

    const SIZES: IndexSizes = IndexSizes { slots: 7, entries: 60 };

    fn is_sound(file: &IndexFile) -> bool {
        matches!(file.check(|| false), FileCheck::Sound(_))
    }

    #[test]
    fn every_changed_byte_of_a_chain_is_found() -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("20260101000000000");
        let mut file = IndexFile::open(&SystemDisk, &path, SIZES)?;
        for number in 0..50 {
            file.put(&SystemDisk, number * 37 % 23, 1_000 * i64::from(number / 2), 5_000)?;
        }
        assert!(is_sound(&file));
        drop(file);
        let sound = std::fs::read(&path)?;
        let mut unseen = 0;
        let used = SIZES.entry_at(51) as usize;
        for at in (0..used).filter(|at| !(32..36).contains(at)) {
            for bit in [1, 0x80] {
                let mut bytes = sound.clone();
                bytes[at] ^= bit;
                std::fs::write(&path, &bytes)?;
                let seen = IndexFile::open(&SystemDisk, &path, SIZES).map_or(true, |file| !is_sound(&file));
                unseen += u32::from(!seen);
            }
        }
        // A time, and an offset that is still in order, are compared with the records.
        assert!(unseen < 2 * 50 * (4 + 3) + 32, "{unseen}");
        std::fs::write(&path, &sound)?;
        assert!(is_sound(&IndexFile::open(&SystemDisk, &path, SIZES)?));
        Ok(())
    }

    #[test]
    fn a_kill_between_an_entry_and_its_slot_is_no_damage() -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("20260101000000000");
        let mut file = IndexFile::open(&SystemDisk, &path, SIZES)?;
        file.put(&SystemDisk, 3, 0, 5_000)?;
        file.put(&SystemDisk, 3, 100, 5_000)?;
        drop(file);
        let mut bytes = std::fs::read(&path)?;
        let slot = SIZES.slot_at(3) as usize;
        bytes[slot..slot + 4].copy_from_slice(&1_i32.to_be_bytes());
        std::fs::write(&path, &bytes)?;
        let mut file = IndexFile::open(&SystemDisk, &path, SIZES)?;
        assert!(is_sound(&file));
        // The next start indexes the record again.
        file.put(&SystemDisk, 3, 100, 5_000)?;
        assert!(is_sound(&file));
        Ok(())
    }
}
