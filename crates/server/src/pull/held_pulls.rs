//! Pulls that wait for a message, found by queue when one arrives, by deadline when none does, and by connection when it
//! ends.
//!
//! Arrivals take the lock of the table, so they are slowed by whoever holds it. Taking out a pull costs the same
//! however many wait beside it: a client decides how many that are.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use foldhash::fast::RandomState;
use metaq_store::Filter;
use parking_lot::Mutex;

use crate::net::peer::Peer;
use crate::pull::handler::Pull;

/// Memory that a held pull takes besides its names and its filter, with its places in the table.
const HELD_BYTES: usize = 512;

/// A pull that waits for its answer. It counts as one of its connection's, with its memory, until it is dropped.
pub struct Held {
    pub peer: Arc<Peer>,
    pub deadline: Instant,
    pub pull: Pull,
    /// Whether its offset moved while it waited, past messages that its filter did not want.
    pub advanced: bool,
    bytes: usize,
}

/// A pull that may not wait, and why.
pub struct NoRoom {
    pub pull: Pull,
    pub remark: String,
}

impl Held {
    /// Fails if too many pulls of the connection wait, or if they take too much memory.
    pub fn new(
        peer: &Arc<Peer>,
        deadline: Instant,
        pull: Pull,
        connection_hold_max: usize,
    ) -> Result<Self, Box<NoRoom>> {
        let bytes = HELD_BYTES + pull.group.len() + pull.topic.len() + pull.filter.memory_bytes();
        match peer.begin_hold(bytes, connection_hold_max) {
            Ok(()) => Ok(Held { peer: Arc::clone(peer), deadline, pull, advanced: false, bytes }),
            Err(remark) => Err(Box::new(NoRoom { pull, remark })),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.peer.end_hold(self.bytes);
    }
}

/// Identifies a held pull; later ones have higher numbers.
#[derive(Debug, Clone, Copy)]
pub struct Ticket(u64);

impl Ord for Ticket {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        tests::COMPARISONS.set(tests::COMPARISONS.get() + 1);
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Ticket {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ticket {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ticket {}

type Tickets = BTreeSet<Ticket>;

#[derive(Default)]
struct Table {
    held: BTreeMap<Ticket, Held>,
    by_queue: HashMap<Arc<str>, HashMap<i32, Tickets, RandomState>, RandomState>,
    by_deadline: BTreeSet<(Instant, Ticket)>,
    by_peer: HashMap<u64, Tickets, RandomState>,
    next: u64,
    is_closed: bool,
}

/// All held pulls of a broker.
pub struct Holds {
    table: Mutex<Table>,
    /// Read before the lock, because most arrivals find no pull.
    count: AtomicUsize,
    count_max: usize,
}

impl Holds {
    pub fn new(count_max: usize) -> Self {
        Holds { table: Mutex::default(), count: AtomicUsize::new(0), count_max }
    }

    /// Returns the pull if there is no room for it.
    pub fn add(&self, held: Held) -> Result<Ticket, Box<Held>> {
        let mut table = self.table.lock();
        if table.is_closed || table.held.len() >= self.count_max {
            return Err(Box::new(held));
        }
        let ticket = table.insert(held);
        self.count.store(table.held.len(), SeqCst);
        Ok(ticket)
    }

    /// Takes out one pull; None if another thread was faster.
    pub fn take_one(&self, ticket: Ticket) -> Option<Held> {
        self.take_listed(|_| [ticket]).pop()
    }

    /// Takes out the pulls of a queue that want one of these tags and lie before its end. No tags stand for any.
    pub fn take(&self, topic: &str, queue_id: i32, max_offset: i64, tag_codes: &[i64]) -> Vec<Held> {
        if self.count.load(SeqCst) == 0 {
            return Vec::new();
        }
        self.take_listed(|table| {
            let tickets = table.by_queue.get(topic).and_then(|queues| queues.get(&queue_id));
            let is_wanted = |ticket: &&Ticket| {
                table.held.get(ticket).is_some_and(|held| {
                    held.pull.queue_offset < max_offset && wants(&held.pull.filter, tag_codes)
                })
            };
            tickets.into_iter().flatten().filter(is_wanted).copied().collect::<Vec<Ticket>>()
        })
    }

    /// Takes out the pulls whose time is over.
    pub fn take_expired(&self, now: Instant) -> Vec<Held> {
        self.take_listed(|table| {
            let overdue = table.by_deadline.range(..=(now, Ticket(u64::MAX)));
            overdue.map(|(_, ticket)| *ticket).collect::<Vec<Ticket>>()
        })
    }

    /// Takes out everything and has no room from now on.
    pub fn close(&self) -> Vec<Held> {
        self.take_listed(|table| {
            table.is_closed = true;
            table.held.keys().copied().collect::<Vec<Ticket>>()
        })
    }

    /// Forgets the pulls of a peer that has left.
    pub fn drop_peer(&self, peer: &Peer) {
        if self.count.load(SeqCst) > 0 {
            drop(self.take_listed(|table| table.by_peer.get(&peer.id).cloned().unwrap_or_default()));
        }
    }

    /// Takes out the pulls that `list` names.
    fn take_listed<L: IntoIterator<Item = Ticket>>(&self, list: impl FnOnce(&mut Table) -> L) -> Vec<Held> {
        let table = &mut *self.table.lock();
        let listed = list(table);
        let taken = listed.into_iter().filter_map(|ticket| table.remove(ticket)).collect();
        self.count.store(table.held.len(), SeqCst);
        taken
    }
}

impl Table {
    fn insert(&mut self, held: Held) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        let queues = match self.by_queue.get_mut(&held.pull.topic) {
            Some(queues) => queues,
            None => self.by_queue.entry(Arc::clone(&held.pull.topic)).or_default(),
        };
        queues.entry(held.pull.queue_id).or_default().insert(ticket);
        self.by_deadline.insert((held.deadline, ticket));
        self.by_peer.entry(held.peer.id).or_default().insert(ticket);
        self.held.insert(ticket, held);
        ticket
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Held> {
        let held = self.held.remove(&ticket)?;
        self.by_deadline.remove(&(held.deadline, ticket));
        if let Some(queues) = self.by_queue.get_mut(&held.pull.topic) {
            if let Some(tickets) = queues.get_mut(&held.pull.queue_id) {
                tickets.remove(&ticket);
                if tickets.is_empty() {
                    queues.remove(&held.pull.queue_id);
                }
            }
            if queues.is_empty() {
                self.by_queue.remove(&held.pull.topic);
            }
        }
        if let Some(tickets) = self.by_peer.get_mut(&held.peer.id) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.by_peer.remove(&held.peer.id);
            }
        }
        Some(held)
    }
}

fn wants(filter: &Filter, tag_codes: &[i64]) -> bool {
    match filter {
        // An expression or a function needs the record.
        Filter::All | Filter::Expression(_) | Filter::Function(_) => true,
        Filter::Tags(wanted) => tag_codes.is_empty() || tag_codes.iter().any(|code| wanted.contains(*code)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(in crate::pull) mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use metaq_wire::Encoding;

    use super::*;
    use crate::net::memory::{Memory, PeerMemory};

    thread_local! {
        pub(super) static COMPARISONS: Cell<u64> = const { Cell::new(0) };
    }

    pub(in crate::pull) fn peer(id: u64) -> Arc<Peer> {
        let memory = PeerMemory::new(&Memory::new(usize::MAX), usize::MAX);
        Arc::new(Peer::new(id, "127.0.0.1:1".parse().unwrap(), memory))
    }

    pub(in crate::pull) fn held(peer: &Arc<Peer>, opaque: i32, filter: Filter) -> Held {
        let pull = Pull {
            encoding: Encoding::Json,
            opaque,
            group: "g".into(),
            topic: "t".into(),
            queue_id: 0,
            queue_offset: 0,
            count_max: 1,
            bytes_max: 1,
            filter,
            broker_id: 0,
            slow_broker_id: 1,
        };
        Held::new(peer, Instant::now(), pull, usize::MAX).map_err(|refused| refused.remark).unwrap()
    }

    fn opaques(taken: &[Held]) -> Vec<i32> {
        taken.iter().map(|held| held.pull.opaque).collect()
    }

    /// Comparisons of tickets for each of `count` pulls of one queue, which `take` takes out again.
    fn comparisons(count: u64, take: fn(&Holds, &Peer) -> usize) -> u64 {
        let (holds, one, other) = (Holds::new(usize::MAX), peer(1), peer(2));
        for opaque in 0..count as i32 {
            holds.add(held(&one, opaque, Filter::All)).map_err(|_| "no room").unwrap();
            holds.add(held(&other, opaque, Filter::Tags(vec![7].into()))).map_err(|_| "no room").unwrap();
        }
        COMPARISONS.set(0);
        assert_eq!(take(&holds, &one) as u64, count);
        COMPARISONS.get() / count
    }

    #[test]
    fn taking_many_pulls_out_costs_little_more_for_each_of_them() {
        let ways: [fn(&Holds, &Peer) -> usize; 3] = [
            |holds, peer| {
                let before = holds.count.load(SeqCst);
                holds.drop_peer(peer);
                before - holds.count.load(SeqCst)
            },
            |holds, _| holds.take("t", 0, 1, &[8]).len(),
            |holds, _| holds.take_expired(Instant::now() + Duration::from_secs(1)).len() / 2,
        ];
        for take in ways {
            let (few, many) = (comparisons(300, take), comparisons(3_000, take));
            assert!(many < 2 * few, "{few} comparisons for each of 300 pulls, {many} for each of 3,000");
        }
    }

    #[test]
    fn pulls_are_found_by_queue_and_tag_by_time_and_by_peer_and_by_nothing_else() {
        let (holds, one, other) = (Holds::new(5), peer(1), peer(2));
        for (peer, opaque, tag) in [(&one, 1, 7), (&other, 2, 7), (&one, 3, 8), (&other, 4, 9)] {
            assert!(holds.add(held(peer, opaque, Filter::Tags(vec![tag].into()))).is_ok());
        }
        let ticket = holds.add(held(&one, 5, Filter::All)).map_err(|_| "no room").unwrap();
        assert!(holds.add(held(&one, 6, Filter::All)).is_err_and(|back| back.pull.opaque == 6));
        assert_eq!(opaques(holds.take_one(ticket).as_slice()), [5]);
        assert!(holds.take_one(ticket).is_none());
        for (topic, queue_id, max_offset) in [("u", 0, 1), ("t", 1, 1), ("t", 0, 0)] {
            assert!(holds.take(topic, queue_id, max_offset, &[7]).is_empty());
        }
        assert_eq!(opaques(&holds.take("t", 0, 1, &[7])), [1, 2]);
        holds.drop_peer(&one);
        assert!(holds.take("t", 0, 1, &[8]).is_empty());
        assert_eq!(opaques(&holds.take_expired(Instant::now())), [4]);
        let table = holds.table.lock();
        assert!(table.held.is_empty() && table.by_queue.is_empty());
        assert!(table.by_peer.is_empty() && table.by_deadline.is_empty());
    }
}
