//! One key-index file: a hash table on disk from `topic#key` to physical offsets.
//!
//! ```text
//!  0 | begin time: i64 | end time: i64 | begin offset: i64 | end offset: i64 | used slots: i32 | count: i32 |
//! 40 | slot: i32 × slots                 the number of the newest entry of this slot, 0 for none
//!    | entry: 20 bytes × entries         | key hash: i32 | physical offset: i64 | seconds since begin: i32 | previous: i32 |
//! ```
//! The count starts at 1: entry 0 is never used, so that a slot of 0 means none.

use std::path::Path;

use metaq_wire::java_hash;
use metaq_wire::properties::java_hash_on;

use crate::disk::Disk;
use crate::error::StoreError;
use crate::index::sums::{BLOCK_BYTES, BlockSums};
use crate::log::mapped::MappedTable;

const HEADER_BYTES: u64 = 40;
const SLOT_BYTES: u64 = 4;
const ENTRY_BYTES: u64 = 20;
/// Blocks for entries are allocated in steps of this size.
const ALLOCATION_STEP_BYTES: u64 = 1 << 20;
/// Entries of one chain whose blocks a query checks. A scrub checks all blocks.
const CHECKED_MAX: u32 = 64;

mod at {
    pub(super) const BEGIN_TIME: u64 = 0;
    pub(super) const END_TIME: u64 = 8;
    pub(super) const BEGIN_OFFSET: u64 = 16;
    pub(super) const END_OFFSET: u64 = 24;
    pub(super) const USED_SLOTS: u64 = 32;
    pub(super) const COUNT: u64 = 36;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexSizes {
    pub(crate) slots: u32,
    pub(crate) entries: u32,
}

impl IndexSizes {
    pub(crate) fn file_bytes(&self) -> u64 {
        HEADER_BYTES + u64::from(self.slots) * SLOT_BYTES + u64::from(self.entries) * ENTRY_BYTES
    }

    pub(super) fn entry_at(&self, number: i32) -> u64 {
        HEADER_BYTES + u64::from(self.slots) * SLOT_BYTES + number as u64 * ENTRY_BYTES
    }

    pub(super) fn slot_at(&self, key_hash: i32) -> u64 {
        HEADER_BYTES + u64::from(key_hash as u32 % self.slots) * SLOT_BYTES
    }
}

/// The part of the log that a file covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) begin_time_ms: i64,
    pub(crate) end_time_ms: i64,
    pub(crate) begin_offset: i64,
    /// The start of the last record that has an entry here.
    pub(crate) end_offset: i64,
}

pub(crate) struct IndexFile {
    pub(super) table: MappedTable,
    pub(super) sizes: IndexSizes,
    /// A copy of the header's numbers.
    span: Span,
    used_slots: i32,
    pub(super) count: i32,
    /// None before the file is verified.
    sums: Option<BlockSums>,
}

/// The content of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key_hash: i32,
    pub(crate) physical_offset: i64,
    pub(crate) seconds: i32,
    /// The number of the entry before it in the same chain, or 0.
    pub(crate) previous: i32,
}

impl IndexFile {
    /// Opens the file; a new one is empty. Returns `Damaged` if its header cannot be right.
    pub(crate) fn open(disk: &dyn Disk, path: &Path, sizes: IndexSizes) -> Result<Self, StoreError> {
        let table = MappedTable::open(disk, path, sizes.file_bytes())?;
        let long = |at| table.read::<8>(at).map_or(0, i64::from_be_bytes);
        let int = |at| table.read::<4>(at).map_or(0, i32::from_be_bytes);
        let span = Span {
            begin_time_ms: long(at::BEGIN_TIME),
            end_time_ms: long(at::END_TIME),
            begin_offset: long(at::BEGIN_OFFSET),
            end_offset: long(at::END_OFFSET),
        };
        let (used_slots, count) = (int(at::USED_SLOTS), int(at::COUNT));
        let is_sane = (0..=sizes.slots as i64).contains(&i64::from(used_slots))
            && (0..=i64::from(sizes.entries)).contains(&i64::from(count))
            && span.begin_offset >= 0
            && span.begin_offset <= span.end_offset
            && span.begin_time_ms <= span.end_time_ms;
        if !is_sane {
            return Err(StoreError::Damaged {
                path: path.to_owned(),
                detail: "the header of the index file is out of range".to_owned(),
            });
        }
        let sums = (count == 0).then(BlockSums::default);
        Ok(Self { table, sizes, span, used_slots, count: count.max(1), sums })
    }

    pub(crate) fn path(&self) -> &Path {
        self.table.path()
    }

    pub(crate) fn span(&self) -> Span {
        self.span
    }

    /// Takes the checksums of a file that was verified.
    pub(crate) fn trust(&mut self, sums: BlockSums) {
        self.sums = Some(sums);
    }

    /// How many blocks the file has so far.
    pub(crate) fn blocks(&self) -> u64 {
        self.sums.as_ref().map_or(0, BlockSums::blocks)
    }

    /// Whether a block has the bytes that were written there.
    pub(crate) fn is_block_right(&self, block: u64) -> bool {
        !self.table.has_lost_pages() && self.is_right(block * BLOCK_BYTES)
    }

    #[inline]
    fn is_right(&self, position: u64) -> bool {
        self.sums.as_ref().is_none_or(|sums| sums.is_right(&self.table, position))
    }

    pub(crate) fn has_lost_pages(&self) -> bool {
        self.table.has_lost_pages()
    }

    /// The end of the entries, as a position in the file.
    pub(super) fn used_end(&self) -> u64 {
        self.sizes.entry_at(self.count)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count <= 1
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count as u32 >= self.sizes.entries
    }

    pub(crate) fn sync(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        self.table.sync(disk)
    }

    /// Adds an entry to a file that is not full. The header changes before the slot: a kill in between leaves the entry
    /// out of its chain, and the next start indexes the record again.
    pub(crate) fn put(
        &mut self,
        disk: &dyn Disk,
        key_hash: i32,
        physical_offset: i64,
        store_timestamp_ms: i64,
    ) -> Result<(), StoreError> {
        let entry_at = self.sizes.entry_at(self.count);
        let needed_end = entry_at + ENTRY_BYTES;
        if self.table.allocated_end() < needed_end {
            self.table.allocate(disk, needed_end + ALLOCATION_STEP_BYTES)?;
        }
        if self.count == 1 {
            self.span.begin_time_ms = store_timestamp_ms;
            self.span.begin_offset = physical_offset;
        }
        self.span.end_time_ms = store_timestamp_ms;
        self.span.end_offset = physical_offset;
        let seconds = self.seconds_of(store_timestamp_ms);
        let slot_at = self.sizes.slot_at(key_hash);
        let previous = self.slot(slot_at);

        let mut entry = [0; ENTRY_BYTES as usize];
        entry[..4].copy_from_slice(&key_hash.to_be_bytes());
        entry[4..12].copy_from_slice(&physical_offset.to_be_bytes());
        entry[12..16].copy_from_slice(&seconds.to_be_bytes());
        entry[16..].copy_from_slice(&previous.to_be_bytes());
        self.write(entry_at, &entry);
        let number = self.count;
        self.count += 1;
        if previous == 0 {
            self.used_slots += 1;
        }
        self.write_header();
        self.write(slot_at, &number.to_be_bytes());
        Ok(())
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        if let Some(sums) = &mut self.sums {
            sums.follow(&self.table, at, data);
        }
        self.table.write(at, data);
    }

    /// Reads the slots of keys that are about to be added. Slots are scattered over many megabytes: if they are read
    /// together, the waits for memory overlap.
    #[inline]
    pub(crate) fn bring_in(&self, key_hashes: impl Iterator<Item = i32>) {
        let slots = key_hashes.fold(0, |slots, hash| slots ^ self.slot(self.sizes.slot_at(hash)));
        std::hint::black_box(slots);
    }

    fn write_header(&mut self) {
        let mut header = [0; HEADER_BYTES as usize];
        let longs =
            [self.span.begin_time_ms, self.span.end_time_ms, self.span.begin_offset, self.span.end_offset];
        for (place, value) in header.chunks_exact_mut(8).zip(longs) {
            place.copy_from_slice(&value.to_be_bytes());
        }
        header[at::USED_SLOTS as usize..at::COUNT as usize].copy_from_slice(&self.used_slots.to_be_bytes());
        header[at::COUNT as usize..].copy_from_slice(&self.count.to_be_bytes());
        self.write(0, &header);
    }

    /// The newest entry of a slot; 0 if the number in the slot belongs to no entry.
    fn slot(&self, slot_at: u64) -> i32 {
        let number = self.slot_number(slot_at);
        if (1..self.count).contains(&number) { number } else { 0 }
    }

    pub(super) fn slot_number(&self, slot_at: u64) -> i32 {
        self.table.read::<4>(slot_at).map_or(0, i32::from_be_bytes)
    }

    pub(super) fn entry(&self, number: i32) -> Option<Entry> {
        let entry = self.table.read::<{ ENTRY_BYTES as usize }>(self.sizes.entry_at(number))?;
        let int = |at: usize| entry[at..].first_chunk().copied().map_or(0, i32::from_be_bytes);
        Some(Entry {
            key_hash: int(0),
            physical_offset: entry[4..].first_chunk().copied().map_or(0, i64::from_be_bytes),
            seconds: int(12),
            previous: int(16),
        })
    }

    /// The entries of a record, which lie one behind the other.
    pub(crate) fn entries_of(&self, physical_offset: i64) -> impl Iterator<Item = Entry> + '_ {
        let (mut first, mut end) = (1, self.count);
        while first < end {
            let middle = first + (end - first) / 2;
            if self.entry(middle).is_some_and(|entry| entry.physical_offset < physical_offset) {
                first = middle + 1;
            } else {
                end = middle;
            }
        }
        (first..self.count)
            .filter_map(|number| self.entry(number))
            .take_while(move |entry| entry.physical_offset == physical_offset)
    }

    /// The seconds that the entry of a record stored at this time has.
    pub(crate) fn seconds_of(&self, store_timestamp_ms: i64) -> i32 {
        ((store_timestamp_ms - self.span.begin_time_ms) / 1_000).clamp(0, i64::from(i32::MAX)) as i32
    }

    /// Visits the entries of the key's slot, newest first, until `visit` returns false. Other keys share the slot. Returns
    /// false if it met something that nobody wrote there, so that entries may be missing.
    pub(crate) fn find(&self, key_hash: i32, mut visit: impl FnMut(FoundEntry) -> bool) -> bool {
        let slot_at = self.sizes.slot_at(key_hash);
        let mut number = self.slot_number(slot_at);
        let mut is_sound = self.is_right(slot_at) && (0..self.count).contains(&number);
        let mut checked = 0;
        while is_sound && number > 0 {
            let Some(entry) = self.entry(number) else { return false };
            checked += 1;
            // Chains lead to older entries of the same slot only. Anything else is damage and might never end.
            is_sound = (0..number).contains(&entry.previous)
                && self.sizes.slot_at(entry.key_hash) == slot_at
                && (checked > CHECKED_MAX || self.is_right(self.sizes.entry_at(number)));
            let found = FoundEntry {
                is_of_key: entry.key_hash == key_hash,
                physical_offset: entry.physical_offset,
                seconds: entry.seconds,
            };
            if is_sound && !visit(found) {
                break;
            }
            number = entry.previous;
        }
        is_sound && !self.table.has_lost_pages()
    }
}

/// An entry of a key's slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundEntry {
    /// Whether it has the hash of the key; the key itself is in the record only.
    pub(crate) is_of_key: bool,
    pub(crate) physical_offset: i64,
    seconds: i32,
}

impl FoundEntry {
    /// Whether its record may be stored in the time range. Entries have whole seconds since the file's first record, and
    /// records from before it, after the clock was set back, have 0.
    pub(crate) fn may_be_within(&self, span: &Span, begin_ms: i64, end_ms: i64) -> bool {
        let earliest_ms = span.begin_time_ms.saturating_add(i64::from(self.seconds) * 1_000);
        let is_too_late = self.seconds > 0 && earliest_ms > end_ms;
        let is_too_early = self.seconds < i32::MAX && earliest_ms.saturating_add(999) < begin_ms;
        !is_too_late && !is_too_early
    }
}

/// The part of a key's hash that all keys of a topic share.
pub(crate) fn topic_hash(topic: &str) -> i32 {
    java_hash_on(java_hash(topic), "#")
}

/// The hash of `topic#key` in the index, which is never negative.
#[inline]
pub(crate) fn key_hash(topic_hash: i32, key: &str) -> i32 {
    java_hash_on(topic_hash, key).checked_abs().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;

    const SIZES: IndexSizes = IndexSizes { slots: 3, entries: 10 };

    fn found(file: &IndexFile, key: &str) -> Vec<i64> {
        let mut offsets = Vec::new();
        file.find(key_hash(topic_hash("t"), key), |found| {
            offsets.extend(found.is_of_key.then_some(found.physical_offset));
            true
        });
        offsets
    }

    #[test]
    fn chains_lead_from_new_to_old() -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("20260101000000000");
        let mut file = IndexFile::open(&SystemDisk, &path, SIZES)?;
        assert!(file.is_empty());
        // Three slots for four keys: chains are shared.
        for (number, key) in ["a", "b", "c", "d", "a", "b", "a"].into_iter().enumerate() {
            file.put(
                &SystemDisk,
                key_hash(topic_hash("t"), key),
                100 * number as i64,
                5_000 + 1_000 * number as i64,
            )?;
        }
        let check = |file: &IndexFile| {
            assert_eq!(found(file, "a"), [600, 400, 0]);
            assert_eq!(found(file, "b"), [500, 100]);
            assert_eq!(found(file, "d"), [300]);
            assert_eq!(found(file, "e"), [0; 0]);
            assert_eq!(
                file.span(),
                Span { begin_time_ms: 5_000, end_time_ms: 11_000, begin_offset: 0, end_offset: 600 }
            );
        };
        check(&file);
        assert!(!file.is_full());
        drop(file);
        check(&IndexFile::open(&SystemDisk, &path, SIZES)?);
        // The count starts at 1, and the file has its full length.
        let bytes = std::fs::read(&path)?;
        assert_eq!(bytes[36..40], 8_i32.to_be_bytes());
        assert_eq!(bytes.len() as u64, SIZES.file_bytes());
        Ok(())
    }

    #[test]
    fn an_entry_tells_whether_its_record_may_lie_in_a_span_of_time() {
        let span = Span { begin_time_ms: 10_500, ..Span::default() };
        let within = |seconds, begin_ms, end_ms| {
            let found = FoundEntry { is_of_key: true, physical_offset: 0, seconds };
            found.may_be_within(&span, begin_ms, end_ms)
        };
        // Stored between 12,500 and 13,499.
        assert!(within(2, 0, 12_500) && !within(2, 0, 12_499));
        assert!(within(2, 13_499, i64::MAX) && !within(2, 13_500, i64::MAX));
        assert!(within(0, 0, 5_000), "the clock may have been set back");
        assert!(!within(0, 11_500, i64::MAX));
        assert!(within(i32::MAX, i64::MAX, i64::MAX), "or forward");
    }

    #[test]
    fn a_wild_header_or_chain_is_survived() -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("20260101000000000");
        let mut file = IndexFile::open(&SystemDisk, &path, SIZES)?;
        for number in 0..3 {
            file.put(&SystemDisk, key_hash(topic_hash("t"), "a"), number, 5_000)?;
        }
        drop(file);
        let mut bytes = std::fs::read(&path)?;
        // The newest entry's link points at itself.
        let link = SIZES.entry_at(3) as usize + 16;
        bytes[link..link + 4].copy_from_slice(&3_i32.to_be_bytes());
        std::fs::write(&path, &bytes)?;
        let file = IndexFile::open(&SystemDisk, &path, SIZES)?;
        assert!(!file.find(key_hash(topic_hash("t"), "a"), |_| true), "it is reported");
        drop(file);
        bytes[36..40].copy_from_slice(&1_000_i32.to_be_bytes());
        std::fs::write(&path, &bytes)?;
        assert!(matches!(IndexFile::open(&SystemDisk, &path, SIZES), Err(StoreError::Damaged { .. })));
        Ok(())
    }

    #[test]
    fn hashes_are_javas_and_never_negative() {
        assert_eq!(
            key_hash(topic_hash("t"), "a"),
            "t#a".bytes().fold(0, |hash, byte| hash * 31 + i32::from(byte))
        );
        assert!((0..1_000).all(|number| key_hash(topic_hash("topic"), &number.to_string()) >= 0));
        assert_eq!(key_hash(topic_hash("schön"), "schlüssel"), java_hash("schön#schlüssel").abs());
    }
}
