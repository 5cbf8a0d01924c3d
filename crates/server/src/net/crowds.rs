//! Addresses that have nearly all the connections that they may have. A connection that nobody uses must not keep its place
//! there while others need one, even if it has sent something once.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use crate::net::newcomers::network_of;
use crate::net::peer::Peer;

/// There is a crowd once an eighth of the places or less is free.
const FREE_SHARE: usize = 8;
/// A connection without traffic for this long makes way in a crowd. Clients send a heartbeat or ask for routes every 30 s.
const IDLE_MS: u64 = 45_000;
/// The least time between two looks at all connections for those that make way.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// The connections that make way between two looks at most.
const AT_ONCE: usize = 64;

/// The connections that there may be.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    pub(crate) in_all: usize,
    pub(crate) per_address: usize,
}

pub(crate) struct Crowds {
    idle_timeout_ms: u64,
    is_everywhere: bool,
    addresses: HashSet<IpAddr, RandomState>,
}

impl Crowds {
    pub(crate) fn of(
        connections: usize,
        per_address: &HashMap<IpAddr, usize, RandomState>,
        places: Places,
        idle_timeout_ms: u64,
    ) -> Self {
        let is_crowd = |count: usize, count_max: usize| count >= count_max - count_max / FREE_SHARE;
        let is_everywhere = is_crowd(connections, places.in_all);
        let crowds = per_address.iter().filter(|(_, count)| is_crowd(**count, places.per_address));
        let addresses = crowds.map(|(address, _)| *address).collect();
        Crowds { idle_timeout_ms, is_everywhere, addresses }
    }

    /// The silence after which a connection from this address is closed.
    pub(crate) fn idle_timeout_ms(&self, address: IpAddr) -> u64 {
        let is_crowded = self.is_everywhere || self.addresses.contains(&address);
        if is_crowded { self.idle_timeout_ms.min(IDLE_MS) } else { self.idle_timeout_ms }
    }
}

/// Connections that make way for a newcomer when all places are taken: those of the network with most connections, and first
/// those that have asked for the least since they came. A network cannot keep all places by asking for a trifle now and then.
#[derive(Default)]
pub(crate) struct Crowd {
    looked: Option<Instant>,
    of_network: HashMap<IpAddr, usize, RandomState>,
    /// The network with most connections.
    largest: Option<IpAddr>,
    /// Its connections, those last that make way first.
    least_used: Vec<Arc<Peer>>,
}

impl Crowd {
    /// Takes out a connection that makes way for a newcomer from this address. None unless the largest network has at least
    /// twice as many connections as the newcomer's will have, or if too many have made way lately.
    pub(crate) fn take_least_used(
        &mut self,
        newcomer: IpAddr,
        now: Instant,
        peers: impl FnOnce() -> Vec<Arc<Peer>>,
    ) -> Option<Arc<Peer>> {
        if self.looked.is_none_or(|looked| now - looked >= LOOK_PAUSE) {
            self.look(now, peers());
        }
        let largest = self.largest?;
        if self.count_of(largest) < 2 * (self.count_of(newcomer) + 1) {
            return None;
        }
        while let Some(peer) = self.least_used.pop() {
            *self.of_network.entry(largest).or_default() -= 1;
            if !peer.is_closing() {
                *self.of_network.entry(network_of(newcomer)).or_default() += 1;
                return Some(peer);
            }
        }
        None
    }

    /// The connections of the address's network, as of the last look.
    pub(crate) fn count_of(&self, address: IpAddr) -> usize {
        self.of_network.get(&network_of(address)).copied().unwrap_or(0)
    }

    #[cold]
    fn look(&mut self, now: Instant, mut peers: Vec<Arc<Peer>>) {
        self.looked = Some(now);
        self.of_network.clear();
        peers.retain(|peer| !peer.is_closing());
        for peer in &peers {
            *self.of_network.entry(network_of(peer.remote.ip())).or_default() += 1;
        }
        let largest = self.of_network.iter().max_by_key(|(_, count)| **count);
        self.largest = largest.map(|(network, _)| *network);
        peers.retain(|peer| Some(network_of(peer.remote.ip())) == self.largest);
        peers.sort_by_cached_key(|peer| Reverse(peer.requests_per_day()));
        self.least_used = peers.split_off(peers.len().saturating_sub(AT_ONCE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::memory::{Memory, PeerMemory};

    fn peer(id: u64, address: [u8; 4], requests: u64) -> Arc<Peer> {
        let memory = PeerMemory::new(&Memory::new(1 << 20, 1 << 20), 1 << 20);
        let peer = Peer::new(id, (address, 1).into(), memory);
        peer.counts.requests.add(requests);
        Arc::new(peer)
    }

    #[test]
    fn a_newcomer_takes_the_place_of_the_connection_that_the_largest_network_uses_least() {
        let (large, small, other) = ([192, 0, 2, 1], [192, 0, 2, 2], [192, 0, 2, 3]);
        let mut peers: Vec<_> = (0..6).map(|id| peer(id, large, 1_000 * (id + 1))).collect();
        peers.extend([peer(6, small, 0), peer(7, small, 0)]);
        let begin = Instant::now();
        let mut crowd = Crowd::default();
        let mut take = |address: [u8; 4], now| {
            let found = crowd.take_least_used(address.into(), now, || peers.clone());
            found.map(|peer| peer.id)
        };
        assert_eq!(take(large, begin), None, "it has more than anybody else already");
        assert_eq!(take(small, begin), Some(0), "six are twice as many as it will have");
        assert_eq!(take(small, begin), None, "five are not twice as many");
        assert_eq!(take(other, begin), Some(1));
        assert_eq!(take(other, begin), Some(2));
        assert_eq!(take(other, begin), None);
        peers[3].close();
        assert_eq!(take([192, 0, 2, 4], begin), Some(4), "the one before it has left meanwhile");
        let one = [peer(9, large, 0)];
        let found = crowd.take_least_used(other.into(), begin + LOOK_PAUSE, || one.to_vec());
        assert!(found.is_none(), "a single connection is not a crowd");
    }

    #[test]
    fn all_connections_are_looked_at_now_and_then() {
        let crowded: Vec<_> = (0..200).map(|id| peer(id, [192, 0, 2, 1], id)).collect();
        let begin = Instant::now();
        let (mut crowd, mut looks) = (Crowd::default(), 0);
        let mut take = |ms, number: u8| {
            let look = || {
                looks += 1;
                crowded.clone()
            };
            let address = [198, 51, 100, number];
            crowd.take_least_used(address.into(), begin + Duration::from_millis(ms), look).is_some()
        };
        let made_way = (0..100).filter(|number| take(u64::from(*number) / 2, *number)).count();
        assert_eq!(made_way, AT_ONCE);
        assert!(take(100, 200));
        assert_eq!(looks, 2);
    }

    #[test]
    fn only_where_places_are_scarce_an_idle_connection_makes_way_earlier() {
        let places = Places { in_all: 100, per_address: 8 };
        let (crowd, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let timeouts = |connections, of_crowd| {
            let per_address = [(crowd, of_crowd), (other, 1)].into_iter().collect();
            let crowds = Crowds::of(connections, &per_address, places, 120_000);
            [crowd, other].map(|address| crowds.idle_timeout_ms(address))
        };
        assert_eq!(timeouts(7, 6), [120_000; 2]);
        assert_eq!(timeouts(8, 7), [IDLE_MS, 120_000]);
        assert_eq!(timeouts(87, 6), [120_000; 2]);
        assert_eq!(timeouts(88, 6), [IDLE_MS; 2]);
        let short = Crowds::of(100, &HashMap::default(), places, 1_000);
        assert_eq!(short.idle_timeout_ms(crowd), 1_000, "never later than without a crowd");
    }
}
