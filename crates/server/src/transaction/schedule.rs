//! The order in which open half messages become due, so that a turn of checks looks at those that are due and at no others.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use foldhash::fast::RandomState;

use crate::transaction::open::{Half, Look};
use crate::transaction::shares::NameKey;

/// A half message: the time from which a turn may take it, and its queue offset.
type Place = (i64, i64);

/// The open half messages by address and time.
#[derive(Default)]
pub struct Schedule {
    /// The timeout and the renewal that the times were computed with; None before the first turn.
    periods_ms: Option<(i64, i64)>,
    of_address: HashMap<NameKey, BTreeSet<Place>, RandomState>,
    /// The half messages that turns have looked at, for tests.
    #[cfg(test)]
    pub looked_at: usize,
}

impl Schedule {
    pub fn add(&mut self, queue_offset: i64, half: &Half) {
        if let Some(periods_ms) = self.periods_ms {
            let place = (half.take_from_ms(periods_ms), queue_offset);
            self.of_address.entry(half.kind.address).or_default().insert(place);
        }
    }

    pub fn remove(&mut self, queue_offset: i64, half: &Half) {
        let Some(periods_ms) = self.periods_ms else { return };
        if let Some(places) = self.of_address.get_mut(&half.kind.address) {
            places.remove(&(half.take_from_ms(periods_ms), queue_offset));
            if places.is_empty() {
                self.of_address.remove(&half.kind.address);
            }
        }
    }

    /// Computes all times again if the periods are not those of the last turn.
    pub fn follow<'a>(&mut self, look: &Look, open: impl Iterator<Item = (&'a i64, &'a Half)>) {
        let periods_ms = (look.timeout_ms, look.renew_ms);
        if self.periods_ms != Some(periods_ms) {
            self.periods_ms = Some(periods_ms);
            self.of_address.clear();
            for (queue_offset, half) in open {
                self.add(*queue_offset, half);
            }
        }
    }

    /// Calls `take` with the queue offsets that a turn may take, those first that have been due for longest. After
    /// `Taken::AddressIsFull` it gets no more of that address.
    pub fn take_due(&mut self, look: &Look, mut take: impl FnMut(i64) -> Taken) {
        // Copies that this turn has stored itself come later.
        let mut places: Vec<_> = self
            .of_address
            .values()
            .map(|places| places.range(..(look.stored_before_ms, i64::MIN)))
            .collect();
        let mut next: BinaryHeap<Reverse<(Place, usize)>> = BinaryHeap::new();
        for (number, places) in places.iter_mut().enumerate() {
            next.extend(places.next().map(|place| Reverse((*place, number))));
        }
        while let Some(Reverse(((_, queue_offset), number))) = next.pop() {
            #[cfg(test)]
            {
                self.looked_at += 1;
            }
            match take(queue_offset) {
                Taken::GoOn => next.extend(places[number].next().map(|place| Reverse((*place, number)))),
                Taken::AddressIsFull => {}
                Taken::Enough => return,
            }
        }
    }
}

/// Tells [`Schedule::take_due`] how to go on.
pub enum Taken {
    GoOn,
    AddressIsFull,
    Enough,
}
