//! The addresses of all mapped files, for the handler of SIGBUS.
//!
//! The kernel sends that signal to a thread that touches a page which its file no longer has, because somebody cut the
//! file, or which the disk cannot read. A handler may take no lock and no memory, so the table is read with atomics
//! alone. Its blocks are never freed, and a range that is no longer mapped leaves its place to the next one.

use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering, fence};

use parking_lot::Mutex;

/// Ranges of one block. A store of 10 TB has about ten thousand files.
const BLOCK_RANGES: usize = 256;
/// Nothing of the mapping is lost.
const SOUND: u64 = u64::MAX;

/// One mapping. While it is mapped, the `MappedFile` that has it is the only one who changes it.
pub(crate) struct MappedRange {
    /// Odd while the range changes.
    version: AtomicUsize,
    start: AtomicUsize,
    /// 0 for a free place.
    len: AtomicUsize,
    file: AtomicI32,
    /// The first byte that is lost, by position in the file.
    lost_from: AtomicU64,
    /// The file was shorter than its mapping.
    is_cut: AtomicBool,
}

/// The mapping in which a thread met a page that cannot be read.
#[derive(Clone, Copy)]
pub(crate) struct Hit {
    pub(crate) range: &'static MappedRange,
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) file: RawFd,
}

struct Block {
    ranges: [MappedRange; BLOCK_RANGES],
    next: OnceLock<&'static Block>,
}

static FIRST: Block = Block::new();
/// Held while a range is taken or given back.
static CHANGING: Mutex<()> = Mutex::new(());

impl Block {
    const fn new() -> Self {
        Self { ranges: [const { MappedRange::new() }; BLOCK_RANGES], next: OnceLock::new() }
    }
}

impl MappedRange {
    const fn new() -> Self {
        Self {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            file: AtomicI32::new(-1),
            lost_from: AtomicU64::new(SOUND),
            is_cut: AtomicBool::new(false),
        }
    }

    /// Notes that the file ends at a position.
    pub(crate) fn note_cut(&self, position: u64) {
        self.is_cut.store(true, Ordering::SeqCst);
        self.note_lost(position);
    }

    /// Notes that the bytes at a position cannot be read.
    pub(crate) fn note_lost(&self, position: u64) {
        self.lost_from.fetch_min(position, Ordering::SeqCst);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    /// The first position at which a page was lost.
    pub(crate) fn lost_from(&self) -> Option<u64> {
        Some(self.lost_from.load(Ordering::SeqCst)).filter(|position| *position != SOUND)
    }

    fn set(&self, start: usize, len: usize, file: RawFd) {
        self.version.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
        self.len.store(len, Ordering::SeqCst);
        self.file.store(file, Ordering::SeqCst);
        self.lost_from.store(SOUND, Ordering::SeqCst);
        self.is_cut.store(false, Ordering::SeqCst);
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// The mapping, if it has the address. A range that changes meanwhile is not the one in which a thread is reading.
    fn hit(&'static self, address: usize) -> Option<Hit> {
        let version = self.version.load(Ordering::SeqCst);
        let (start, len) = (self.start.load(Ordering::SeqCst), self.len.load(Ordering::SeqCst));
        let file = self.file.load(Ordering::SeqCst);
        let is_stable = version % 2 == 0 && self.version.load(Ordering::SeqCst) == version;
        let is_within = address.checked_sub(start).is_some_and(|position| position < len);
        (is_stable && is_within).then_some(Hit { range: self, start, len, file })
    }
}

/// Notes a mapping until [`release`].
pub(crate) fn note(start: usize, len: usize, file: RawFd) -> &'static MappedRange {
    let _changing = CHANGING.lock();
    let mut block = &FIRST;
    loop {
        if let Some(range) = block.ranges.iter().find(|range| range.len.load(Ordering::SeqCst) == 0) {
            range.set(start, len, file);
            return range;
        }
        block = block.next.get_or_init(|| Box::leak(Box::new(Block::new())));
    }
}

/// To be called before the memory is unmapped.
pub(crate) fn release(range: &'static MappedRange) {
    let _changing = CHANGING.lock();
    range.set(0, 0, -1);
}

/// The mapping that has the address. A handler of signals may call this.
pub(crate) fn hit(address: usize) -> Option<Hit> {
    let mut block = &FIRST;
    loop {
        if let Some(hit) = block.ranges.iter().find_map(|range| range.hit(address)) {
            return Some(hit);
        }
        block = block.next.get()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_to_its_mapping_while_that_is_noted() {
        // Addresses that no process has.
        let base = usize::MAX / 2;
        let ranges: Vec<_> = (0..1_000).map(|n| note(base + n * 100, 50, n as RawFd)).collect();
        for (n, range) in ranges.iter().enumerate() {
            let hit = |at: usize| hit(base + n * 100 + at).map(|hit| (hit.start, hit.len, hit.file));
            assert_eq!(hit(0), Some((base + n * 100, 50, n as RawFd)));
            assert!(hit(49).is_some() && hit(50).is_none());
            assert_eq!(range.lost_from(), None);
            range.note_lost(20);
            range.note_lost(30);
            assert_eq!(range.lost_from(), Some(20));
        }
        for range in ranges {
            release(range);
        }
        assert!(hit(base).is_none());
        let again = note(base, 10, 1);
        assert_eq!(again.lost_from(), None, "a new mapping begins sound");
        release(again);
    }
}
