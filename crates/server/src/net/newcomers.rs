//! Connections that have not sent a whole frame yet.
//!
//! A client connects because it has something to ask, so its first frame comes at once. Whoever connects and says nothing
//! must not take the place of others: there is room for a limited number of such connections, and when one more comes, the
//! oldest one of the address that has most of them makes way.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::net::peer::Peer;

/// The address, or the network of 64 bits whose addresses one machine can choose from.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        canonical => canonical,
    }
}

#[derive(Default)]
struct Table {
    /// By the order in which they came.
    of_network: HashMap<IpAddr, BTreeMap<u64, Arc<Peer>>, RandomState>,
    count: usize,
}

pub(crate) struct Newcomers {
    table: Mutex<Table>,
    count_max: usize,
}

impl Newcomers {
    pub(crate) fn new(count_max: usize) -> Self {
        Newcomers { table: Mutex::default(), count_max: count_max.max(1) }
    }

    /// Adds a connection, and returns the one that makes way for it.
    pub(crate) fn add(&self, peer: &Arc<Peer>) -> Option<Arc<Peer>> {
        let mut table = self.table.lock();
        let oldest = if table.count >= self.count_max { table.take_oldest(|_| true) } else { None };
        table.of_network.entry(network_of(peer.remote.ip())).or_default().insert(peer.id, Arc::clone(peer));
        table.count += 1;
        oldest
    }

    /// Forgets a connection that has sent a frame, or has ended.
    pub(crate) fn remove(&self, peer: &Peer) {
        self.table.lock().remove(network_of(peer.remote.ip()), peer.id);
    }

    /// Takes out the connection of these networks that makes way if there is no room for any more.
    pub(crate) fn take_oldest(&self, may_be_of: impl Fn(IpAddr) -> bool) -> Option<Arc<Peer>> {
        self.table.lock().take_oldest(may_be_of)
    }

    /// The same if there is no room for more of an address.
    pub(crate) fn take_oldest_of(&self, address: IpAddr) -> Option<Arc<Peer>> {
        let mut table = self.table.lock();
        let network = network_of(address);
        // One of another address in the network makes no room for this one.
        let mut peers = table.of_network.get(&network)?.values();
        let id = peers.find(|peer| peer.remote.ip() == address)?.id;
        table.remove(network, id)
    }
}

impl Table {
    fn remove(&mut self, network: IpAddr, id: u64) -> Option<Arc<Peer>> {
        let peers = self.of_network.get_mut(&network)?;
        let peer = peers.remove(&id)?;
        if peers.is_empty() {
            self.of_network.remove(&network);
        }
        self.count -= 1;
        Some(peer)
    }

    /// The oldest of the network that has most; if several have as many, the oldest of all these.
    fn take_oldest(&mut self, may_be_of: impl Fn(IpAddr) -> bool) -> Option<Arc<Peer>> {
        let networks = || self.of_network.iter().filter(|(network, _)| may_be_of(**network));
        let most = networks().map(|(_, peers)| peers.len()).max()?;
        let largest = networks().filter(|(_, peers)| peers.len() == most);
        let firsts = largest.filter_map(|(network, peers)| Some((*peers.first_key_value()?.0, *network)));
        let (id, network) = firsts.min()?;
        self.remove(network, id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::memory::{Memory, PeerMemory};

    fn peer(id: u64, address: [u8; 4]) -> Arc<Peer> {
        let memory = PeerMemory::new(&Memory::new(1 << 20, 1 << 20), 1 << 20);
        Arc::new(Peer::new(id, (address, 1).into(), memory))
    }

    #[test]
    fn the_oldest_of_the_address_with_most_makes_way() {
        let newcomers = Newcomers::new(4);
        let (crowd, other) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        let add = |id, address| newcomers.add(&peer(id, address)).map(|oldest| oldest.id);
        assert_eq!([add(1, other), add(2, crowd), add(3, crowd), add(4, crowd)], [None; 4]);
        assert_eq!(add(5, other), Some(2));
        assert_eq!(add(6, crowd), Some(1), "as many of both, and this one is older");
        assert_eq!(newcomers.take_oldest_of(other.into()).map(|oldest| oldest.id), Some(5));
        assert_eq!(newcomers.take_oldest_of(other.into()).map(|oldest| oldest.id), None);
        newcomers.remove(&peer(3, crowd));
        newcomers.remove(&peer(3, crowd));
        assert!(newcomers.take_oldest(|network| network == IpAddr::from([192, 0, 2, 3])).is_none());
        let left = [(); 3].map(|()| newcomers.take_oldest(|_| true).map(|oldest| oldest.id));
        assert_eq!(left, [Some(4), Some(6), None]);
        assert!(newcomers.table.lock().of_network.is_empty() && newcomers.table.lock().count == 0);
    }
}
