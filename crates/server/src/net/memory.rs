//! The memory that clients make a listener hold, in bytes: what was read and not handled, what was not sent yet, pulls
//! that wait, and requests that wait for Python or for another broker.
//!
//! [`Memory`] is the budget of all connections, [`PeerMemory`] the part of one of them. The bytes are counted where they
//! are: whoever keeps some for a peer calls [`PeerMemory::add`], and [`PeerMemory::remove`] when they are gone. The task of a
//! connection counts its own buffers through [`Buffers`]. The sum over all connections changes in steps only, so that
//! connections do not meet at one counter.
//!
//! The budget holds because memory that a client can make large is asked for before it is taken: a long frame needs
//! [`Buffers::reserve`] before it is read, a pull that waits needs [`PeerMemory::refusal`], and an answer that does not fit
//! closes its peer ([`PeerMemory::is_too_much`]). The last eighth is for everything else: short frames, answers that are
//! made now, and requests on their way to Python.
//!
//! Nothing is freed here. A connection that does not read is not read from; [`crate::net::listener`] closes the worst peer
//! when the budget is exceeded, and `metaq.memory` gives what was freed back to the system.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

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
    exceeded: Notify,
    /// A long frame waits for room since [`Memory::is_wanted`] was last called.
    is_wanted: AtomicBool,
    /// The same bytes where they are kept for a group, and what the control plane keeps for it.
    pub groups: GroupMemory,
}

impl Memory {
    pub fn new(bytes_max: usize, group_bytes_max: usize) -> Arc<Self> {
        Arc::new(Memory {
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            bytes_max,
            exceeded: Notify::new(),
            is_wanted: AtomicBool::new(false),
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

    /// The bytes beyond the budget.
    pub fn excess(&self) -> usize {
        self.used().saturating_sub(self.bytes_max)
    }

    /// Whether nothing more should be taken from clients that hold some of it already.
    pub fn is_scarce(&self) -> bool {
        self.used() >= self.reservable()
    }

    /// Whether somebody needs memory that others have. Asking forgets the frames that had to wait; they try again.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.swap(false, Relaxed) || self.is_scarce()
    }

    /// The part of the budget that long frames may take.
    fn reservable(&self) -> usize {
        self.bytes_max / 8 * 7
    }

    /// Counts bytes if they fit; whether they do. If they are more than half of a small budget, half must be free.
    fn reserve(&self, bytes: usize) -> bool {
        let wanted = bytes.min(self.bytes_max / 2);
        let reserved = self.used.fetch_update(Relaxed, Relaxed, |used| {
            (used.saturating_add(wanted) <= self.reservable()).then_some(used + bytes)
        });
        match reserved {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Relaxed);
            }
            Err(_) => self.is_wanted.store(true, Relaxed),
        }
        reserved.is_ok()
    }

    /// Returns when the budget was exceeded since the last call.
    pub async fn exceeded(&self) {
        self.exceeded.notified().await;
    }

    fn grow(&self, bytes: usize) {
        let used = self.used.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(used, Relaxed);
        if used > self.bytes_max {
            self.exceeded.notify_one();
        }
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

    /// Counts bytes that are kept for the peer, and returns what it had before.
    pub fn add(&self, bytes: usize) -> usize {
        let before = self.used.fetch_add(bytes, Relaxed);
        let steps = (before + bytes) / STEP_BYTES - before / STEP_BYTES;
        if steps > 0 {
            self.all.grow(steps * STEP_BYTES);
        }
        before
    }

    pub fn remove(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Relaxed);
        let steps = before / STEP_BYTES - (before - bytes) / STEP_BYTES;
        if steps > 0 {
            self.all.shrink(steps * STEP_BYTES);
        }
    }

    /// Counts bytes that are about to be kept for the peer, if the budget of all peers has room; whether it has.
    fn reserve(&self, bytes: usize) -> bool {
        let before = self.used.fetch_add(bytes, Relaxed);
        let steps = (before + bytes) / STEP_BYTES - before / STEP_BYTES;
        if self.all.reserve(steps * STEP_BYTES) {
            return true;
        }
        // Other threads may have changed it meanwhile, so going back may be one step more or less.
        let after = self.used.fetch_sub(bytes, Relaxed);
        let undone = after / STEP_BYTES - (after - bytes) / STEP_BYTES;
        if undone > steps {
            self.all.shrink((undone - steps) * STEP_BYTES);
        } else if undone < steps {
            self.all.grow((steps - undone) * STEP_BYTES);
        }
        false
    }

    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Whether an answer of this size would exceed the budget of all peers, and this peer has its share of it already.
    pub fn is_too_much(&self, bytes: usize) -> bool {
        self.used() > SMALL_BYTES && self.all.used().saturating_add(bytes) > self.all.bytes_max
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
        (wanted > SMALL_BYTES && self.all.is_scarce()).then(|| {
            format!(
                "[OVERLOAD] the broker keeps as much for its clients as it may: {} bytes (memory_bytes_max); try again later",
                self.all.bytes_max
            )
        })
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

    #[inline]
    pub fn count(&mut self, bytes: usize) {
        if bytes.abs_diff(self.counted) >= STEP_BYTES {
            self.recount(bytes);
        }
    }

    /// Counts bytes that a buffer is about to grow by, if the budget has room; whether it has.
    pub fn reserve(&mut self, bytes: usize) -> bool {
        let has_room = self.memory.reserve(bytes);
        self.counted += if has_room { bytes } else { 0 };
        has_room
    }

    #[cold]
    fn recount(&mut self, bytes: usize) {
        if bytes > self.counted {
            self.memory.add(bytes - self.counted);
        } else {
            self.memory.remove(self.counted - bytes);
        }
        self.counted = bytes;
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

    #[test]
    fn the_sum_follows_its_parts_in_steps_and_ends_at_zero() {
        let all = Memory::new(10 * STEP_BYTES, usize::MAX);
        let (one, other) = (PeerMemory::new(&all, usize::MAX), PeerMemory::new(&all, usize::MAX));
        for bytes in [1, 100, STEP_BYTES, 3 * STEP_BYTES + 7] {
            one.add(bytes);
            other.add(2 * bytes);
            let exact = one.used() + other.used();
            assert!(all.used().abs_diff(exact) <= 2 * STEP_BYTES, "{} instead of {exact}", all.used());
        }
        assert!(all.excess() > 0);
        for bytes in [STEP_BYTES, 1, 3 * STEP_BYTES + 7, 100] {
            one.remove(bytes);
            other.remove(2 * bytes);
        }
        assert_eq!((all.used(), all.excess()), (0, 0));
        assert!(all.peak() >= 12 * STEP_BYTES);
    }

    #[test]
    fn buffers_are_counted_until_they_are_dropped() {
        let all = Memory::new(usize::MAX, usize::MAX);
        let memory = PeerMemory::new(&all, usize::MAX);
        let mut buffers = Buffers::new(&memory);
        buffers.count(STEP_BYTES - 1);
        assert_eq!(memory.used(), IDLE_BYTES, "too little to count");
        buffers.count(5 * STEP_BYTES);
        buffers.count(5 * STEP_BYTES - 1);
        assert_eq!(memory.used(), IDLE_BYTES + 5 * STEP_BYTES);
        buffers.count(STEP_BYTES);
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
        assert!(!all.is_wanted());
        assert!(!second.reserve(17 * STEP_BYTES) && !all.is_scarce());
        assert!(all.is_wanted() && !all.is_wanted(), "the frame that waits asks again");
        assert!(second.reserve(16 * STEP_BYTES));
        assert!(all.is_scarce() && !first.reserve(STEP_BYTES));
        assert_eq!((all.used(), all.peak(), all.excess()), (56 * STEP_BYTES, 56 * STEP_BYTES, 0));
        second.count(0);
        assert!(!second.reserve(20 * STEP_BYTES) && second.reserve(15 * STEP_BYTES + 1));
        drop((first, second));
        assert_eq!(all.used(), 0);
        let mut huge = Buffers::new(&one);
        assert!(huge.reserve(100 * STEP_BYTES), "a frame that is longer than the budget gets through alone");
    }

    #[test]
    fn an_answer_that_does_not_fit_is_too_much_for_a_peer_with_its_share() {
        let all = Memory::new(1_000_000, usize::MAX);
        let (large, small) = (PeerMemory::new(&all, usize::MAX), PeerMemory::new(&all, usize::MAX));
        large.add(600_000);
        assert!(!large.is_too_much(300_000) && large.is_too_much(500_000));
        assert!(!small.is_too_much(500_000), "it is not to blame");
    }

    #[test]
    fn a_refusal_names_the_limit_that_is_reached() {
        let all = Memory::new(1_000_000, usize::MAX);
        let memory = PeerMemory::new(&all, 1_000_000);
        assert_eq!(memory.refusal(400_000), None);
        assert!(memory.refusal(500_000).is_some_and(|remark| remark.contains("500000 bytes, half of")));
        let other = PeerMemory::new(&all, usize::MAX);
        other.add(1_100_000);
        assert!(
            memory.refusal(400_000).is_some_and(|remark| remark.contains("1000000 bytes (memory_bytes_max)"))
        );
        assert_eq!(memory.refusal(100_000), None, "it is not to blame");
    }
}
