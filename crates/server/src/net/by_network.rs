//! How many of something each address has, where one address must not use up what all need.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::fast::RandomState;

use crate::net::peer::Peer;
use crate::transaction::shares::NameKey;

/// One address may have everything divided by this.
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

/// Requests and their bytes.
#[derive(Clone, Copy, Default)]
struct Load {
    requests: usize,
    bytes: usize,
}

impl Load {
    fn fits(self, bytes: usize, requests_max: usize, bytes_max: usize) -> bool {
        self.requests < requests_max && self.bytes.saturating_add(bytes) <= bytes_max
    }

    fn add(&mut self, bytes: usize) {
        self.requests += 1;
        self.bytes += bytes;
    }
}

/// Requests that wait, in all and by address.
#[derive(Default)]
pub struct Loads {
    all: Load,
    of_network: HashMap<NameKey, Load, RandomState>,
}

impl Loads {
    /// Counts a request of this address, or returns false if there is no room. An address of which nothing waits has room
    /// for one request, however long.
    pub fn add(&mut self, network: NameKey, bytes: usize, requests_max: usize, bytes_max: usize) -> bool {
        let fits = self.fits(bytes, requests_max, bytes_max)
            && self.has_share(network, bytes, requests_max, bytes_max);
        if fits {
            self.count(network, bytes);
        }
        fits
    }

    pub fn fits(&self, bytes: usize, requests_max: usize, bytes_max: usize) -> bool {
        self.all.fits(bytes, requests_max, bytes_max)
    }

    /// Whether the address has less than its share of both.
    pub fn has_share(&self, network: NameKey, bytes: usize, requests_max: usize, bytes_max: usize) -> bool {
        let part = |whole: usize| whole.div_ceil(ADDRESS_PART);
        let own = self.of_network.get(&network);
        own.is_none_or(|own| own.fits(bytes, part(requests_max), part(bytes_max)))
    }

    /// Counts a request, whether there is room or not.
    pub fn count(&mut self, network: NameKey, bytes: usize) {
        self.all.add(bytes);
        self.of_network.entry(network).or_default().add(bytes);
    }

    pub fn remove(&mut self, network: NameKey, bytes: usize) {
        self.all.requests -= 1;
        self.all.bytes -= bytes;
        if let Entry::Occupied(mut own) = self.of_network.entry(network) {
            own.get_mut().requests -= 1;
            own.get_mut().bytes -= bytes;
            if own.get().requests == 0 {
                own.remove();
            }
        }
    }
}
