//! Addresses that have nearly all the connections that they may have. A connection that nobody uses must not keep its place
//! there while others need one, even if it has sent something once.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use foldhash::fast::RandomState;

/// There is a crowd once an eighth of the places or less is free.
const FREE_SHARE: usize = 8;
/// A connection without traffic for this long makes way in a crowd. Clients send a heartbeat or ask for routes every 30 s.
const IDLE_MS: u64 = 45_000;

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

#[cfg(test)]
mod tests {
    use super::*;

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
