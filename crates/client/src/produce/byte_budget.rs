//! The space of a buffer, in bytes. Whoever finds too little of it free can stand in line.

use std::collections::VecDeque;

#[derive(Debug)]
pub struct ByteBudget {
    bytes_max: usize,
    taken: usize,
    line: VecDeque<u64>,
    last_ticket: u64,
    /// Somebody outside of the line wants to hear of freed space.
    pub is_watched: bool,
}

impl ByteBudget {
    pub fn new(bytes_max: usize) -> Self {
        ByteBudget { bytes_max, taken: 0, line: VecDeque::new(), last_ticket: 0, is_watched: false }
    }

    /// Takes space if there is enough and it is this ticket's turn, or nobody's. A request that is larger than the
    /// whole budget is granted when everything is free.
    pub fn take(&mut self, size_bytes: usize, ticket: Option<u64>) -> bool {
        if !self.is_free(size_bytes, ticket) {
            return false;
        }
        self.taken += size_bytes;
        self.line.pop_front();
        true
    }

    /// Takes space even if there is too little, and passes the line.
    pub fn exceed(&mut self, size_bytes: usize) {
        self.taken = self.taken.saturating_add(size_bytes);
    }

    pub fn is_free(&self, size_bytes: usize, ticket: Option<u64>) -> bool {
        self.line.front().copied() == ticket && self.fits(size_bytes)
    }

    pub fn free(&mut self, size_bytes: usize) {
        self.taken = self.taken.saturating_sub(size_bytes);
    }

    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Returns a ticket at the end of the line.
    pub fn stand_in_line(&mut self) -> u64 {
        self.last_ticket += 1;
        self.line.push_back(self.last_ticket);
        self.last_ticket
    }

    pub fn leave_line(&mut self, ticket: u64) {
        self.line.retain(|other| *other != ticket);
    }

    pub fn has_line(&self) -> bool {
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
    fn space_is_granted_in_turn() {
        let mut budget = ByteBudget::new(100);
        assert!(budget.take(60, None));
        assert!(!budget.take(50, None));
        let [first, second] = [(); 2].map(|()| budget.stand_in_line());
        assert!(!budget.take(1, None), "the line goes first");
        assert!(!budget.take(10, Some(second)));
        budget.leave_line(first);
        assert!(budget.take(10, Some(second)));
        assert!(budget.take(30, None));
        budget.free(100);
        assert!(budget.take(1000, None), "larger than the budget, but everything is free");
        assert!(!budget.take(1, None));
        budget.exceed(7);
        assert_eq!(budget.taken(), 1007);
    }
}
