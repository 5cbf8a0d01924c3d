//! So many bytes; who wants more than are left stands in line.

use std::collections::VecDeque;

#[derive(Debug)]
pub struct Room {
    bytes_max: usize,
    taken: usize,
    line: VecDeque<u64>,
    last_ticket: u64,
    /// Somebody who does not stand in line wants to hear of room.
    pub wanted: bool,
}

impl Room {
    pub fn new(bytes_max: usize) -> Self {
        Room { bytes_max, taken: 0, line: VecDeque::new(), last_ticket: 0, wanted: false }
    }

    /// Whether there was enough, for who has this ticket or, while nobody waits, none. What is larger than the
    /// whole is let in alone.
    pub fn take(&mut self, size_bytes: usize, ticket: Option<u64>) -> bool {
        if !self.is_free(size_bytes, ticket) {
            return false;
        }
        self.taken += size_bytes;
        self.line.pop_front();
        true
    }

    /// Without regard to how much there is, and to who waits.
    pub fn take_anyway(&mut self, size_bytes: usize) {
        self.taken = self.taken.saturating_add(size_bytes);
    }

    pub fn is_free(&self, size_bytes: usize, ticket: Option<u64>) -> bool {
        self.line.front().copied() == ticket && self.fits(size_bytes)
    }

    pub fn give(&mut self, size_bytes: usize) {
        self.taken = self.taken.saturating_sub(size_bytes);
    }

    pub fn taken(&self) -> usize {
        self.taken
    }

    /// A place at the end of the line.
    pub fn stand_in_line(&mut self) -> u64 {
        self.last_ticket += 1;
        self.line.push_back(self.last_ticket);
        self.last_ticket
    }

    pub fn leave_line(&mut self, ticket: u64) {
        self.line.retain(|other| *other != ticket);
    }

    pub fn is_waited_for(&self) -> bool {
        !self.line.is_empty()
    }

    fn fits(&self, size_bytes: usize) -> bool {
        self.taken == 0 || self.taken.saturating_add(size_bytes) <= self.bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_let_in_in_turn() {
        let mut room = Room::new(100);
        assert!(room.take(60, None));
        assert!(!room.take(50, None));
        let [first, second] = [(); 2].map(|()| room.stand_in_line());
        assert!(!room.take(1, None), "those who wait come first");
        assert!(!room.take(10, Some(second)));
        room.leave_line(first);
        assert!(room.take(10, Some(second)));
        assert!(room.take(30, None));
        room.give(100);
        assert!(room.take(1000, None), "larger than everything, but alone");
        assert!(!room.take(1, None));
        room.take_anyway(7);
        assert_eq!(room.taken(), 1007);
    }
}
