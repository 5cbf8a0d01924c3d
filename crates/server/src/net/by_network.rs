//! How many of something each address has, where one address must not use up what all need.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::fast::RandomState;

use crate::net::peer::Peer;
use crate::transaction::shares::NameKey;

/// One address may have all places divided by this.
const ADDRESS_PART: usize = 2;

/// Counts by address, or by the network whose addresses one machine can choose from.
#[derive(Default)]
pub struct ByNetwork {
    counts: HashMap<NameKey, usize, RandomState>,
}

impl ByNetwork {
    /// Whether the peer's address has its share of `count_max` places.
    pub fn is_full(&self, peer: &Peer, count_max: usize) -> bool {
        self.counts.get(&peer.network).is_some_and(|count| *count >= count_max.div_ceil(ADDRESS_PART))
    }

    pub fn add(&mut self, peer: &Peer) {
        *self.counts.entry(peer.network).or_default() += 1;
    }

    pub fn remove(&mut self, peer: &Peer) {
        if let Entry::Occupied(mut count) = self.counts.entry(peer.network) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}
