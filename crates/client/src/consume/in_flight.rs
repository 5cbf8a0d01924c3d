//! The messages of one queue that were pulled and are not processed yet.
//!
//! Messages finish in any order, but a consumer can commit only the offset below which all of them are finished.

use std::collections::VecDeque;

#[derive(Debug, Clone, Copy)]
struct Entry {
    queue_offset: i64,
    bytes: usize,
    is_finished: bool,
}

/// Queue offsets in ascending order. Finished entries stay in the middle; neither end is ever a finished one.
#[derive(Debug, Default)]
pub struct InFlight {
    entries: VecDeque<Entry>,
    count: usize,
    bytes: usize,
}

impl InFlight {
    pub fn add(&mut self, queue_offset: i64, bytes: usize) {
        let entry = Entry { queue_offset, bytes, is_finished: false };
        if self.entries.back().is_none_or(|last| last.queue_offset < queue_offset) {
            self.entries.push_back(entry);
        } else {
            // Only a broker that returns messages out of order gets here.
            match self.entries.binary_search_by_key(&queue_offset, |entry| entry.queue_offset) {
                Ok(_) => return,
                Err(index) => self.entries.insert(index, entry),
            }
        }
        self.count += 1;
        self.bytes += bytes;
    }

    /// Does nothing for an offset that is finished already or was never added.
    pub fn finish(&mut self, queue_offset: i64) {
        let Ok(index) = self.entries.binary_search_by_key(&queue_offset, |entry| entry.queue_offset) else {
            return;
        };
        let Some(entry) = self.entries.get_mut(index).filter(|entry| !entry.is_finished) else { return };
        entry.is_finished = true;
        self.count -= 1;
        self.bytes -= entry.bytes;
        while self.entries.front().is_some_and(|entry| entry.is_finished) {
            self.entries.pop_front();
        }
        while self.entries.back().is_some_and(|entry| entry.is_finished) {
            self.entries.pop_back();
        }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of the bodies.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The lowest queue offset that is not finished.
    pub fn first(&self) -> Option<i64> {
        self.entries.front().map(|entry| entry.queue_offset)
    }

    /// The distance from the lowest to the highest queue offset that is not finished.
    pub fn span(&self) -> i64 {
        match (self.entries.front(), self.entries.back()) {
            (Some(first), Some(last)) => last.queue_offset.saturating_sub(first.queue_offset),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn only_what_lies_below_the_first_open_message_is_finished() {
        let mut in_flight = InFlight::default();
        for queue_offset in [10, 11, 14] {
            in_flight.add(queue_offset, 100);
        }
        in_flight.finish(11);
        assert_eq!((in_flight.first(), in_flight.count(), in_flight.bytes()), (Some(10), 2, 200));
        in_flight.finish(10);
        assert_eq!((in_flight.first(), in_flight.span()), (Some(14), 0));
        in_flight.finish(14);
        assert_eq!((in_flight.first(), in_flight.count(), in_flight.bytes()), (None, 0, 0));
    }

    proptest! {
        #[test]
        fn it_behaves_as_a_sorted_map(
            steps in prop::collection::vec((any::<bool>(), 0..30_i64, 0..1000_usize), 0..200),
        ) {
            let mut in_flight = InFlight::default();
            let mut open = BTreeMap::new();
            let mut finished = Vec::new();
            for (is_add, queue_offset, bytes) in steps {
                if is_add {
                    // An offset that was finished does not come back while older ones are open.
                    if finished.contains(&queue_offset) {
                        continue;
                    }
                    in_flight.add(queue_offset, bytes);
                    open.entry(queue_offset).or_insert(bytes);
                } else {
                    in_flight.finish(queue_offset);
                    if open.remove(&queue_offset).is_some() {
                        finished.push(queue_offset);
                    }
                }
                let (first, last) = (open.keys().next().copied(), open.keys().last().copied());
                prop_assert_eq!(in_flight.count(), open.len());
                prop_assert_eq!(in_flight.bytes(), open.values().sum::<usize>());
                prop_assert_eq!(in_flight.first(), first);
                prop_assert_eq!(in_flight.span(), last.unwrap_or(0) - first.unwrap_or(0));
            }
        }
    }
}
