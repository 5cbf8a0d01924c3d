//! The memory that clients make a listener hold, in bytes: what was read and not handled, what was not sent yet, pulls
//! that wait, and requests that wait for Python or for another broker.
//!
//! [`Memory`] is the budget of all connections, [`PeerMemory`] the part of one of them. The bytes are counted where they
//! are: whoever keeps some for a peer calls [`PeerMemory::add`], and [`PeerMemory::remove`] when they are gone. The task of a
//! connection counts its own buffers through [`Buffers`]. The sum over all connections changes in steps only, so that
//! connections do not meet at one counter.
//!
//! The sum never exceeds the budget: bytes are counted only if they fit, and whoever cannot count them drops them, with a
//! refusal or the connection. So that this hits those who use much, the budget has three marks below its end:
//!
//! | up to | for |
//! |---|---|
//! | 7/8 | long frames, which ask with [`Buffers::reserve`] before they are read, and pulls that wait. While a long frame waits, [`crate::net::listener`] closes peers that do not read |
//! | 15/16 | answers to peers that have much already. Beyond this mark [`crate::net::listener`] closes the worst peers |
//! | all of it | short frames, answers to peers that have little, and requests on their way to Python |
//!
//! Nothing is freed here. A connection that does not read is not read from, and the allocator gives what was freed back to
//! the system.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::Notify;

use crate::net::group_memory::GroupMemory;

/// Bytes by which a connection's part changes before the sum of all follows.
const STEP_BYTES: usize = 16 * 1024;
/// The memory of a connection that does nothing. It also makes up for what is below a step.
const IDLE_BYTES: usize = STEP_BYTES / 2;

/// A connection that uses less than this is never refused because others have used up the budget.
const SMALL_BYTES: usize = 256 * 1024;

/// The budget of a listener.
pub struct Memory {
    used: AtomicUsize,
    peak: AtomicUsize,
    bytes_max: usize,
    is_tight: Notify,
    /// The bytes of the longest frame that has asked in vain since [`Memory::take_wanted`] was last called.
    wanted: AtomicUsize,
    /// The same bytes where they are kept for a group, and what the control plane keeps for it.
    pub groups: GroupMemory,
}

impl Memory {
    pub fn new(bytes_max: usize, group_bytes_max: usize) -> Arc<Self> {
        Arc::new(Memory {
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            bytes_max,
            is_tight: Notify::new(),
            wanted: AtomicUsize::new(0),
            groups: GroupMemory::new(group_bytes_max),
        })
    }

    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    pub fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }

    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The bytes beyond the mark from which on peers are closed.
    pub fn excess(&self) -> usize {
        self.used().saturating_sub(self.tight_bytes())
    }

    /// Whether nothing more should be taken from clients that hold some of it already.
    pub fn is_scarce(&self) -> bool {
        self.used() >= self.reservable()
    }

    /// The bytes that the longest waiting frame asked for; 0 if none waits. Asking forgets the frames: they try again.
    pub fn take_wanted(&self) -> usize {
        self.wanted.swap(0, Relaxed)
    }

    /// The bytes that others must give back before a long frame of this size fits.
    pub fn lacking(&self, wanted: usize) -> usize {
        if wanted == 0 { 0 } else { self.used().saturating_add(wanted).saturating_sub(self.reservable()) }
    }

    /// The part of the budget that long frames may take.
    fn reservable(&self) -> usize {
        self.bytes_max / 8 * 7
    }

    /// The part that may be used before peers are closed. The rest lasts until their memory has come back.
    fn tight_bytes(&self) -> usize {
        self.bytes_max / 16 * 15
    }

    /// Returns when peers should be closed, since the last call.
    pub async fn is_tight(&self) {
        self.is_tight.notified().await;
    }

    /// Counts bytes if the sum stays within the limit; whether it does.
    fn grow(&self, bytes: usize, limit: usize) -> bool {
        let grown = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| used.checked_add(bytes).filter(|wanted| *wanted <= limit));
        if let Ok(before) = grown {
            self.peak.fetch_max(before + bytes, Relaxed);
        }
        if self.excess() > 0 {
            self.is_tight.notify_one();
        }
        grown.is_ok()
    }

    fn shrink(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Relaxed);
    }
}

/// The part of one connection.
pub struct PeerMemory {
    used: AtomicUsize,
    bytes_max: usize,
    all: Arc<Memory>,
}

impl PeerMemory {
    pub fn new(all: &Arc<Memory>, bytes_max: usize) -> Self {
        PeerMemory { used: AtomicUsize::new(IDLE_BYTES), bytes_max, all: Arc::clone(all) }
    }

    /// Counts bytes that are kept for the peer, if the budget of all peers has room; whether it has. Bytes that are not
    /// counted must not be kept.
    #[must_use]
    pub fn add(&self, bytes: usize) -> bool {
        self.take(bytes, self.all.bytes_max)
    }

    /// Counts an answer. A peer that has its share of the memory leaves the last part of the budget to others.
    #[must_use]
    pub fn add_answer(&self, bytes: usize) -> bool {
        let has_much = self.used() > SMALL_BYTES;
        self.take(bytes, if has_much { self.all.tight_bytes() } else { self.all.bytes_max })
    }

    /// Counts bytes that are about to be kept for a long frame.
    fn reserve(&self, bytes: usize) -> bool {
        let has_room = self.take(bytes, self.all.reservable());
        if !has_room {
            self.all.wanted.fetch_max(bytes, Relaxed);
        }
        has_room
    }

    /// Counts bytes if the sum of all peers stays within the limit. It is asked first: so the sum is never too large, not
    /// even for a moment.
    fn take(&self, bytes: usize, limit: usize) -> bool {
        let mut before = self.used.load(Relaxed);
        loop {
            let after = before + bytes;
            let steps_bytes = (after / STEP_BYTES - before / STEP_BYTES) * STEP_BYTES;
            if steps_bytes > 0 && !self.all.grow(steps_bytes, limit) {
                return false;
            }
            match self.used.compare_exchange_weak(before, after, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(changed) => {
                    self.all.shrink(steps_bytes);
                    before = changed;
                }
            }
        }
    }

    pub fn remove(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Relaxed);
        let steps = before / STEP_BYTES - (before - bytes) / STEP_BYTES;
        if steps > 0 {
            self.all.shrink(steps * STEP_BYTES);
        }
    }

    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    pub fn all(&self) -> &Memory {
        &self.all
    }

    /// Why these bytes may not be kept for the peer, which has to wait for something; None if they may. Half of its
    /// memory is left for its answers. A peer that uses little does not suffer for others that use too much.
    pub fn refusal(&self, bytes: usize) -> Option<String> {
        let wanted = self.used().saturating_add(bytes);
        if wanted > self.bytes_max / 2 {
            return Some(format!(
                "[OVERLOAD] requests of this connection that wait would take more than {} bytes, half of what one connection may use (connection_memory_bytes_max); ask for less at a time",
                self.bytes_max / 2
            ));
        }
        (wanted > SMALL_BYTES && self.all.is_scarce()).then(|| self.no_room())
    }

    /// Says that the budget of all peers is used up.
    #[cold]
    pub fn no_room(&self) -> String {
        format!(
            "[OVERLOAD] the broker keeps as much for its clients as it may: {} bytes (memory_bytes_max); try again later",
            self.all.bytes_max
        )
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        self.all.shrink(*self.used.get_mut() / STEP_BYTES * STEP_BYTES);
    }
}

/// The buffers of a connection's task, counted roughly: a difference below a step is left out.
pub struct Buffers<'a> {
    memory: &'a PeerMemory,
    counted: usize,
}

impl<'a> Buffers<'a> {
    pub fn new(memory: &'a PeerMemory) -> Self {
        Buffers { memory, counted: 0 }
    }

    /// Counts the bytes that the buffers take now. False if the budget has no room for them: then they must become smaller.
    #[inline]
    #[must_use]
    pub fn count(&mut self, bytes: usize) -> bool {
        bytes.abs_diff(self.counted) < STEP_BYTES || self.recount(bytes)
    }

    /// Counts bytes that a buffer is about to grow by, if the budget has room; whether it has.
    pub fn reserve(&mut self, bytes: usize) -> bool {
        let has_room = self.memory.reserve(bytes);
        self.counted += if has_room { bytes } else { 0 };
        has_room
    }

    #[cold]
    fn recount(&mut self, bytes: usize) -> bool {
        if bytes <= self.counted {
            self.memory.remove(self.counted - bytes);
        } else if !self.memory.add(bytes - self.counted) {
            return false;
        }
        self.counted = bytes;
        true
    }
}

impl Drop for Buffers<'_> {
    fn drop(&mut self) {
        self.memory.remove(self.counted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(peer: &PeerMemory, bytes: usize) {
        assert!(peer.add(bytes));
    }

    #[test]
    fn the_sum_follows_its_parts_in_steps_and_ends_at_zero() {
        let all = Memory::new(16 * STEP_BYTES, usize::MAX);
        let (one, other) = (PeerMemory::new(&all, usize::MAX), PeerMemory::new(&all, usize::MAX));
        for bytes in [1, 100, STEP_BYTES, 3 * STEP_BYTES + 7] {
            add(&one, bytes);
            add(&other, 2 * bytes);
            let exact = one.used() + other.used();
            assert!(all.used().abs_diff(exact) <= 2 * STEP_BYTES, "{} instead of {exact}", all.used());
        }
        for bytes in [STEP_BYTES, 1, 3 * STEP_BYTES + 7, 100] {
            one.remove(bytes);
            other.remove(2 * bytes);
        }
        assert_eq!((all.used(), all.excess()), (0, 0));
        assert!(all.peak() >= 12 * STEP_BYTES);
    }

    #[test]
    fn the_sum_never_exceeds_the_budget_while_many_threads_count() {
        let all = Memory::new(24 * STEP_BYTES, usize::MAX);
        let peer = PeerMemory::new(&all, usize::MAX);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (all, peer) = (&all, &peer);
                scope.spawn(move || {
                    let own = PeerMemory::new(all, usize::MAX);
                    for round in 0..2_000 {
                        let bytes = 1 + (round * (thread + 1) * 7_919) % (15 * STEP_BYTES);
                        let (in_own, in_common) = (own.add(bytes), peer.add_answer(bytes));
                        assert!(all.used() <= all.bytes_max());
                        own.remove(if in_own { bytes } else { 0 });
                        peer.remove(if in_common { bytes } else { 0 });
                    }
                });
            }
        });
        assert!(all.peak() > 16 * STEP_BYTES && all.peak() <= all.bytes_max(), "{}", all.peak());
        assert_eq!((all.used(), peer.used()), (0, IDLE_BYTES));
    }

    #[test]
    fn buffers_are_counted_until_they_are_dropped() {
        let all = Memory::new(16 * STEP_BYTES, usize::MAX);
        let memory = PeerMemory::new(&all, usize::MAX);
        let mut buffers = Buffers::new(&memory);
        assert!(buffers.count(STEP_BYTES - 1));
        assert_eq!(memory.used(), IDLE_BYTES, "too little to count");
        assert!(buffers.count(5 * STEP_BYTES) && buffers.count(5 * STEP_BYTES - 1));
        assert_eq!(memory.used(), IDLE_BYTES + 5 * STEP_BYTES);
        assert!(!buffers.count(17 * STEP_BYTES), "more than there is");
        assert_eq!(memory.used(), IDLE_BYTES + 5 * STEP_BYTES);
        assert!(buffers.count(STEP_BYTES));
        assert_eq!(memory.used(), IDLE_BYTES + STEP_BYTES);
        drop(buffers);
        assert_eq!((memory.used(), all.used()), (IDLE_BYTES, 0));
    }

    #[test]
    fn long_frames_leave_the_last_eighth_of_the_budget_to_others() {
        let all = Memory::new(64 * STEP_BYTES, usize::MAX);
        let (one, other) = (PeerMemory::new(&all, usize::MAX), PeerMemory::new(&all, usize::MAX));
        let (mut first, mut second) = (Buffers::new(&one), Buffers::new(&other));
        assert!(first.reserve(40 * STEP_BYTES));
        assert_eq!((all.take_wanted(), all.lacking(0)), (0, 0));
        assert!(!second.reserve(17 * STEP_BYTES) && !second.reserve(18 * STEP_BYTES) && !all.is_scarce());
        assert_eq!(all.lacking(18 * STEP_BYTES), 2 * STEP_BYTES);
        assert_eq!([all.take_wanted(), all.take_wanted()], [18 * STEP_BYTES, 0], "the frame asks again");
        assert!(second.reserve(16 * STEP_BYTES));
        assert!(all.is_scarce() && !first.reserve(STEP_BYTES));
        assert_eq!((all.used(), all.peak(), all.excess()), (56 * STEP_BYTES, 56 * STEP_BYTES, 0));
        assert!(second.count(0));
        assert!(!second.reserve(20 * STEP_BYTES) && second.reserve(15 * STEP_BYTES + 1));
        drop((first, second));
        assert_eq!(all.used(), 0);
    }

    #[test]
    fn an_answer_to_a_peer_that_has_its_share_leaves_the_end_of_the_budget_to_others() {
        let all = Memory::new(64 * STEP_BYTES, usize::MAX);
        let (large, small) = (PeerMemory::new(&all, usize::MAX), PeerMemory::new(&all, usize::MAX));
        add(&large, 40 * STEP_BYTES);
        assert!(!large.add_answer(21 * STEP_BYTES) && large.add_answer(20 * STEP_BYTES));
        assert_eq!(all.excess(), 0);
        assert!(!large.add_answer(STEP_BYTES));
        assert!(small.add_answer(4 * STEP_BYTES), "it is not to blame");
        assert_eq!((all.used(), all.excess()), (64 * STEP_BYTES, 4 * STEP_BYTES));
        assert!(!small.add_answer(STEP_BYTES), "not even then");
    }

    #[test]
    fn a_refusal_names_the_limit_that_is_reached() {
        let all = Memory::new(1_000_000, usize::MAX);
        let memory = PeerMemory::new(&all, 1_000_000);
        assert_eq!(memory.refusal(400_000), None);
        assert!(memory.refusal(500_000).is_some_and(|remark| remark.contains("500000 bytes, half of")));
        let other = PeerMemory::new(&all, usize::MAX);
        add(&other, 900_000);
        assert!(
            memory.refusal(400_000).is_some_and(|remark| remark.contains("1000000 bytes (memory_bytes_max)"))
        );
        assert_eq!(memory.refusal(100_000), None, "it is not to blame");
    }
}
