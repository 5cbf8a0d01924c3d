//! Which connections are closed when clients use up the memory of a listener, and in which order.
//!
//! A network makes way as a whole, the one that uses most first: many small connections of one client cannot push out the
//! few of another one.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::net::peer::Peer;
use crate::transaction::shares::NameKey;

/// A frame of this size that has been arriving for this long comes from a peer that trickles it.
const TRICKLE_BYTES: usize = 256 * 1024;
const TRICKLE_MS: u64 = 1_000;
/// A peer that has had answers to read for this long makes room for a long frame of another one.
const UNREAD_MS: u64 = 1_000;

/// Whether the peer takes its time with a long frame. One that does not read is not read from, so it may look like that.
pub(crate) fn is_trickling(peer: &Peer) -> bool {
    !peer.is_behind()
        && peer.memory.used() > TRICKLE_BYTES
        && peer.partial_for_ms().is_some_and(|ms| ms > TRICKLE_MS)
}

pub(crate) fn does_not_read(peer: &Peer) -> bool {
    peer.behind_for_ms().is_some_and(|ms| ms > UNREAD_MS)
}

/// Returns the peers that may be closed, and closes none: first those that do not read their answers; then, from the network
/// that uses most, those with answers to read, and the largest. Peers that have less than half of an equal share are left out.
pub(crate) fn in_order(mut peers: Vec<Arc<Peer>>, bytes_max: usize) -> Vec<Arc<Peer>> {
    let mut of_network: HashMap<NameKey, usize, RandomState> = HashMap::default();
    for peer in peers.iter().filter(|peer| !peer.is_closing()) {
        *of_network.entry(peer.network).or_default() += peer.memory.used();
    }
    let share = bytes_max / (2 * peers.len().max(1));
    peers.retain(|peer| peer.memory.used() > share);
    peers.sort_by_cached_key(|peer| {
        let network_bytes = of_network.get(&peer.network).copied();
        Reverse((does_not_read(peer), network_bytes, peer.is_behind(), peer.memory.used()))
    });
    peers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::memory::{Memory, PeerMemory};

    const BYTES_MAX: usize = 1 << 20;

    fn peer(all: &Arc<Memory>, id: u64, host: u8, bytes: usize) -> Arc<Peer> {
        let peer = Peer::new(id, ([192, 0, 2, host], 1).into(), PeerMemory::new(all, BYTES_MAX));
        assert!(peer.memory.add(bytes));
        Arc::new(peer)
    }

    fn ids(peers: &[Arc<Peer>]) -> Vec<u64> {
        in_order(peers.to_vec(), BYTES_MAX / 2).iter().map(|peer| peer.id).collect()
    }

    #[test]
    fn a_crowd_of_small_connections_makes_way_before_the_largest_one_of_another_network() {
        let all = Memory::new(BYTES_MAX, usize::MAX);
        let mut peers = vec![peer(&all, 0, 1, 200_000), peer(&all, 1, 1, 90_000)];
        peers.extend((2..10).map(|id| peer(&all, id, 2, 40_000 + 1_000 * id as usize)));
        let order = ids(&peers);
        assert_eq!(order[..4], [9, 8, 7, 6], "the network with most, its largest first");
        assert_eq!(order[8..], [0, 1]);
    }

    #[test]
    fn a_connection_with_answers_to_read_goes_first_in_its_own_network_only() {
        let all = Memory::new(BYTES_MAX, usize::MAX);
        let peers = [
            peer(&all, 0, 1, 300_000),
            peer(&all, 1, 1, 200_000),
            peer(&all, 2, 2, 150_000),
            peer(&all, 3, 2, 1_000),
        ];
        for reads_late in [1, 2] {
            peers[reads_late].mark_behind(true);
        }
        assert_eq!(ids(&peers), [1, 0, 2], "the last one has less than half of an equal share");
    }
}
