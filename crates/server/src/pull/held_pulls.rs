//! Pulls that wait for a message, found by queue and tag when one arrives, by deadline when none does, and by connection
//! when it ends.
//!
//! Arrivals take the lock of the table, so they are slowed by whoever holds it. An arrival costs what the pulls cost that
//! it wakes, and nothing for the others of its queue. If arrivals wake very many, they take the oldest, and the plane's
//! thread takes the others in turns by address: nothing of any topic becomes visible while an arrival is at work.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use foldhash::fast::RandomState;
use metaq_store::{Filter, TagCodes};
use parking_lot::Mutex;

use crate::net::by_network::ByNetwork;
use crate::net::peer::Peer;
use crate::pull::handler::Pull;
use crate::pull::held_table::{HeldTable, Ticket};
use crate::pull::woken_line::WokenLine;

/// A pull is found by each of its tags, unless it has more than these.
const INDEXED_TAGS_MAX: usize = 64;
/// Pulls of one queue with more tags, and half of them from one address. Every arrival on the queue looks at all of them.
pub const WIDE_PULLS_MAX: usize = 1_000;
/// Lookups of tags among pulls with many, by one arrival. It wakes pulls beyond it without a look at their tags.
const TAG_LOOKUPS_MAX: usize = 1 << 16;
/// Pulls that arrivals take, until the plane's thread has taken all that they left.
const WOKEN_MAX: usize = 1_024;
/// Pulls that an arrival takes in any case: those of other queues must not use up what all may take.
const WOKEN_MIN: usize = 16;
/// Memory of a tag by which a pull is found.
const INDEXED_TAG_BYTES: usize = 40;
/// Memory that a held pull takes besides its names and its filter, with its places in the table.
const HELD_BYTES: usize = 512;

/// A pull that waits for its answer. Its memory counts as its connection's and its group's until it is dropped.
pub struct Held {
    pub peer: Arc<Peer>,
    pub since: Instant,
    pub deadline: Instant,
    pub pull: Pull,
    /// Whether its offset moved while it waited, past messages that its filter did not want.
    pub advanced: bool,
    /// It stands in front of a damaged record, so messages that arrive do not concern it.
    pub is_before_damage: bool,
    bytes: usize,
}

/// A pull that may not wait, and why.
pub struct NoRoom {
    pub pull: Pull,
    pub remark: String,
}

impl Held {
    /// Fails if too many pulls of the connection wait, or if they or those of the group take too much memory.
    pub fn new(
        peer: &Arc<Peer>,
        deadline: Instant,
        pull: Pull,
        connection_hold_max: usize,
    ) -> Result<Self, Box<NoRoom>> {
        let bytes = memory_bytes(&pull);
        match peer.begin_hold(&pull.group, bytes, connection_hold_max) {
            Ok(()) => Ok(Held {
                peer: Arc::clone(peer),
                since: Instant::now(),
                deadline,
                pull,
                advanced: false,
                is_before_damage: false,
                bytes,
            }),
            Err(remark) => Err(Box::new(NoRoom { pull, remark })),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.peer.end_hold(&self.pull.group, self.bytes);
    }
}

fn memory_bytes(pull: &Pull) -> usize {
    let indexed_tags = match wanted(&pull.filter) {
        Wanted::Few(codes) => codes.len(),
        Wanted::Anything | Wanted::Many => 0,
    };
    let names = pull.group.len() + pull.topic.len();
    HELD_BYTES + names + pull.filter.memory_bytes() + indexed_tags * INDEXED_TAG_BYTES
}

/// The place of a pull in its queue: the offset beyond which a message must lie to wake it, and its ticket.
type Spot = (i64, Ticket);

fn spot(held: &Held, ticket: Ticket) -> Spot {
    // No queue gets that long, so only those who wake everybody wake it.
    let waits_for = if held.is_before_damage { i64::MAX - 1 } else { held.pull.queue_offset };
    (waits_for, ticket)
}

/// The pulls that wait for messages of one queue.
#[derive(Default)]
struct Queue {
    /// Pulls that any message may be for.
    untagged: BTreeSet<Spot>,
    by_tag: BTreeSet<(i64, Spot)>,
    /// Pulls with too many tags for that.
    wide: BTreeSet<Spot>,
    wide_by_network: ByNetwork,
}

enum Wanted<'a> {
    Anything,
    Few(&'a TagCodes),
    Many,
}

fn wanted(filter: &Filter) -> Wanted<'_> {
    match filter {
        // An expression or a function needs the record.
        Filter::All | Filter::Expression(_) | Filter::Function(_) => Wanted::Anything,
        Filter::Tags(codes) if codes.len() <= INDEXED_TAGS_MAX => Wanted::Few(codes),
        Filter::Tags(_) => Wanted::Many,
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.untagged.is_empty() && self.by_tag.is_empty() && self.wide.is_empty()
    }

    fn has_room(&self, held: &Held) -> bool {
        !matches!(wanted(&held.pull.filter), Wanted::Many)
            || !(self.wide.len() >= WIDE_PULLS_MAX
                || self.wide_by_network.is_full(&held.peer, WIDE_PULLS_MAX))
    }

    fn insert(&mut self, held: &Held, ticket: Ticket) {
        let spot = spot(held, ticket);
        let _is_new = match wanted(&held.pull.filter) {
            Wanted::Anything => self.untagged.insert(spot),
            Wanted::Few(codes) => codes.iter().all(|code| self.by_tag.insert((code, spot))),
            Wanted::Many => {
                self.wide_by_network.add(&held.peer);
                self.wide.insert(spot)
            }
        };
    }

    fn remove(&mut self, held: &Held, ticket: Ticket) {
        let spot = spot(held, ticket);
        let _was_there = match wanted(&held.pull.filter) {
            Wanted::Anything => self.untagged.remove(&spot),
            Wanted::Few(codes) => codes.iter().all(|code| self.by_tag.remove(&(code, spot))),
            Wanted::Many => {
                self.wide_by_network.remove(&held.peer);
                self.wide.remove(&spot)
            }
        };
    }

    /// The pulls that want one of these tags and lie before the end of the queue, oldest first. No tags stand for any.
    fn wanting(&self, max_offset: i64, tag_codes: &[i64], pulls: &HeldTable<()>) -> Vec<Ticket> {
        let end = (max_offset, Ticket::FIRST);
        let mut found: Vec<Ticket> = self.untagged.range(..end).map(|spot| spot.1).collect();
        if tag_codes.is_empty() {
            found.extend(self.wide.range(..end).map(|spot| spot.1));
            let tagged = self.by_tag.iter().filter(|(_, spot)| *spot < end);
            found.extend(tagged.map(|(_, spot)| spot.1));
        } else if !(self.wide.is_empty() && self.by_tag.is_empty()) {
            // Many messages may have arrived at once, most of them with the same few tags.
            let mut codes = tag_codes.to_vec();
            codes.sort_unstable();
            codes.dedup();
            let mut lookups = 0;
            let mut wants = |ticket: Ticket| {
                lookups += codes.len();
                let matches = |held: &Held| codes.iter().any(|code| held.pull.filter.matches(*code));
                lookups > TAG_LOOKUPS_MAX || pulls.get(ticket).is_some_and(matches)
            };
            found.extend(self.wide.range(..end).map(|spot| spot.1).filter(|ticket| wants(*ticket)));
            for code in codes {
                let tagged = self.by_tag.range((code, (i64::MIN, Ticket::FIRST))..(code, end));
                found.extend(tagged.map(|(_, spot)| spot.1));
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

type Queues = HashMap<Arc<str>, HashMap<i32, Queue, RandomState>, RandomState>;

fn remove_from_queue(by_queue: &mut Queues, held: &Held, ticket: Ticket) {
    let Some(queues) = by_queue.get_mut(&held.pull.topic) else { return };
    if let Some(queue) = queues.get_mut(&held.pull.queue_id) {
        queue.remove(held, ticket);
        if queue.is_empty() {
            queues.remove(&held.pull.queue_id);
        }
    }
    if queues.is_empty() {
        by_queue.remove(&held.pull.topic);
    }
}

#[derive(Default)]
struct Table {
    pulls: HeldTable<()>,
    by_queue: Queues,
    /// Pulls that arrivals have left to [`Holds::take_woken`]. Their queues no longer have them.
    woken: WokenLine,
    /// Pulls that arrivals have taken since that list was empty.
    woken_count: usize,
    is_closed: bool,
}

/// All held pulls of a broker.
pub struct Holds {
    table: Mutex<Table>,
    /// Read before the lock, because most arrivals find no pull.
    count: AtomicUsize,
    /// The same for the list of woken pulls, which is nearly always empty.
    has_woken: AtomicBool,
    count_max: usize,
}

impl Holds {
    pub fn new(count_max: usize) -> Self {
        Holds {
            table: Mutex::default(),
            count: AtomicUsize::new(0),
            has_woken: AtomicBool::new(false),
            count_max,
        }
    }

    /// Returns the pull if there is no room for it.
    pub fn add(&self, held: Held) -> Result<Ticket, Box<Held>> {
        let mut table = self.table.lock();
        if table.is_closed
            || table.pulls.is_full(&held.peer, self.count_max)
            || !table.queue(&held.pull).has_room(&held)
        {
            return Err(Box::new(held));
        }
        let ticket = table.insert(held);
        self.count.store(table.pulls.len(), SeqCst);
        Ok(ticket)
    }

    /// Takes out one pull; None if another thread was faster.
    pub fn take_one(&self, ticket: Ticket) -> Option<Held> {
        self.take_listed(|_| vec![ticket]).pop()
    }

    /// Takes out the pulls of a queue that want one of these tags and lie before its end. No tags stand for any. If there
    /// are very many, it takes the oldest and leaves the others to [`Holds::take_woken`].
    pub fn take(&self, topic: &str, queue_id: i32, max_offset: i64, tag_codes: &[i64]) -> Vec<Held> {
        if self.count.load(SeqCst) == 0 {
            return Vec::new();
        }
        self.take_listed(|table| {
            let queue = table.by_queue.get(topic).and_then(|queues| queues.get(&queue_id));
            let mut wanting =
                queue.map_or_else(Vec::new, |queue| queue.wanting(max_offset, tag_codes, &table.pulls));
            let taken = wanting.len().min(WOKEN_MIN.max(WOKEN_MAX.saturating_sub(table.woken_count)));
            let left = wanting.split_off(taken);
            table.woken_count += taken;
            if !left.is_empty() {
                left.into_iter().for_each(|ticket| table.leave(ticket));
                self.has_woken.store(true, SeqCst);
            }
            wanting
        })
    }

    /// Whether arrivals have left pulls to [`Holds::take_woken`].
    pub fn has_woken(&self) -> bool {
        self.has_woken.load(SeqCst)
    }

    /// Takes out some of the pulls that arrivals have left, those of one address. Call it now and then: once there are
    /// none, arrivals may take many again.
    pub fn take_woken(&self) -> Vec<Held> {
        self.take_listed(|table| {
            if table.woken.is_empty() {
                self.has_woken.store(false, SeqCst);
                table.woken_count = 0;
            }
            table.woken.next_turn()
        })
    }

    /// Takes out some pulls whose time is over. Call it until there are none.
    pub fn take_expired(&self, now: Instant) -> Vec<Held> {
        self.take_listed(|table| table.pulls.overdue(now))
    }

    /// Takes out everything and has no room from now on.
    pub fn close(&self) -> Vec<Held> {
        self.take_listed(|table| {
            table.is_closed = true;
            table.pulls.all()
        })
    }

    /// Forgets the pulls of a peer that has left.
    pub fn drop_peer(&self, peer: &Peer) {
        if self.count.load(SeqCst) > 0 {
            while !self.take_listed(|table| table.pulls.of_peer(peer)).is_empty() {}
        }
    }

    /// Takes out the pulls that `list` names.
    fn take_listed(&self, list: impl FnOnce(&mut Table) -> Vec<Ticket>) -> Vec<Held> {
        let table = &mut *self.table.lock();
        let listed = list(table);
        let taken = listed.into_iter().filter_map(|ticket| table.remove(ticket)).collect();
        self.count.store(table.pulls.len(), SeqCst);
        taken
    }
}

impl Table {
    /// The queue of a pull that is about to wait.
    fn queue(&mut self, pull: &Pull) -> &mut Queue {
        self.by_queue.entry(Arc::clone(&pull.topic)).or_default().entry(pull.queue_id).or_default()
    }

    fn insert(&mut self, held: Held) -> Ticket {
        let ticket = self.pulls.next_ticket();
        self.queue(&held.pull).insert(&held, ticket);
        let deadline = held.deadline;
        self.pulls.insert(held, deadline, ())
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Held> {
        let (held, ()) = self.pulls.remove(ticket)?;
        if !self.woken.remove(held.peer.network, ticket) {
            remove_from_queue(&mut self.by_queue, &held, ticket);
        }
        Some(held)
    }

    /// Moves a pull from its queue to the line of those that are woken: later arrivals need not find it again.
    fn leave(&mut self, ticket: Ticket) {
        if let Some(held) = self.pulls.get(ticket) {
            remove_from_queue(&mut self.by_queue, held, ticket);
            self.woken.add(held.peer.network, ticket);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use std::time::Duration;

    use metaq_wire::Encoding;

    use super::*;
    use crate::net::memory::{Memory, PeerMemory};
    use crate::pull::held_table::tests::COMPARISONS;

    pub(crate) fn peer(id: u64) -> Arc<Peer> {
        peer_at(id, "127.0.0.1:1")
    }

    pub(crate) fn peer_at(id: u64, remote: &str) -> Arc<Peer> {
        let memory = PeerMemory::new(&Memory::new(usize::MAX, usize::MAX), usize::MAX);
        Arc::new(Peer::new(id, remote.parse().unwrap(), memory))
    }

    pub(crate) fn held(peer: &Arc<Peer>, opaque: i32, filter: Filter) -> Held {
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
            request_code: 11,
            delivered: None,
            is_fixed_range: false,
        };
        Held::new(peer, Instant::now(), pull, usize::MAX).map_err(|refused| refused.remark).unwrap()
    }

    fn opaques(taken: &[Held]) -> Vec<i32> {
        taken.iter().map(|held| held.pull.opaque).collect()
    }

    /// Everything that is taken until nothing is left.
    fn drained(take: impl Fn() -> Vec<Held>) -> Vec<Held> {
        std::iter::repeat_with(take).take_while(|taken| !taken.is_empty()).flatten().collect()
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
            |holds, _| holds.take("t", 0, 1, &[8]).len() + drained(|| holds.take_woken()).len(),
            |holds, _| {
                let later = Instant::now() + Duration::from_secs(1);
                drained(|| holds.take_expired(later)).len() / 2
            },
        ];
        for take in ways {
            let (few, many) = (comparisons(300, take), comparisons(3_000, take));
            assert!(many < 5 * few, "{few} comparisons for each of 300 pulls, {many} for each of 3,000");
        }
    }

    #[test]
    fn pulls_are_found_by_queue_and_tag_by_time_and_by_peer_and_by_nothing_else() {
        let (holds, one, other) = (Holds::new(10), peer(1), peer(2));
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
        assert!(table.pulls.is_clean() && table.by_queue.is_empty());
    }

    #[test]
    fn no_address_takes_more_than_half_of_the_places() {
        let (holds, stranger) = (Holds::new(5), peer_at(1, "127.0.0.1:1"));
        let (again, honest) = (peer_at(2, "127.0.0.1:2"), peer_at(3, "127.0.0.9:1"));
        for opaque in 0..3 {
            assert!(holds.add(held(&stranger, opaque, Filter::All)).is_ok());
        }
        assert!(holds.add(held(&again, 3, Filter::All)).is_err(), "another connection of the same address");
        assert!(holds.add(held(&honest, 4, Filter::All)).is_ok());
        assert!(holds.add(held(&honest, 5, Filter::All)).is_ok());
        assert!(holds.add(held(&honest, 6, Filter::All)).is_err(), "no place is left");
        holds.drop_peer(&stranger);
        assert!(holds.add(held(&again, 7, Filter::All)).is_ok());
    }

    #[test]
    fn an_arrival_costs_nothing_for_pulls_that_it_does_not_wake() {
        let (holds, peer) = (Holds::new(usize::MAX), peer(1));
        for opaque in 0..3_000 {
            let tags = vec![7, 1_000 + i64::from(opaque)];
            holds.add(held(&peer, opaque, Filter::Tags(tags.into()))).map_err(|_| "no room").unwrap();
        }
        COMPARISONS.set(0);
        assert!(holds.take("t", 0, 1, &[8, 8, 9]).is_empty());
        assert!(holds.take("t", 0, 0, &[7]).is_empty(), "they lie at its end");
        assert!(COMPARISONS.get() < 100, "{} comparisons for 3,000 pulls", COMPARISONS.get());
        assert_eq!(opaques(&holds.take("t", 0, 1, &[1_500, 1_700])), [500, 700]);
        assert!(COMPARISONS.get() < 300, "{} comparisons to take out two", COMPARISONS.get());
        assert_eq!(holds.take("t", 0, 1, &[]).len() + drained(|| holds.take_woken()).len(), 2_998);
        assert!(holds.table.lock().by_queue.is_empty());
    }

    #[test]
    fn an_arrival_takes_some_of_the_pulls_that_it_wakes_and_leaves_the_others() {
        let (holds, peer, leaving) = (Holds::new(usize::MAX), peer(1), peer(2));
        let (most, count) = (WOKEN_MAX as i32, 3 * WOKEN_MAX as i32);
        for opaque in 0..count {
            let peer = if opaque == count - 1 { &leaving } else { &peer };
            holds.add(held(peer, opaque, Filter::All)).map_err(|_| "no room").unwrap();
        }
        assert!(holds.take_woken().is_empty());
        let first = holds.take("t", 0, 1, &[]);
        assert_eq!(opaques(&first), (0..most).collect::<Vec<i32>>());
        assert!(holds.has_woken());
        COMPARISONS.set(0);
        assert!(holds.take("t", 0, 1, &[]).is_empty());
        assert!(COMPARISONS.get() < 10, "a second arrival finds nothing more to do");
        for opaque in 0..WOKEN_MIN as i32 + 1 {
            let mut own = held(&peer, opaque, Filter::All);
            own.pull.queue_id = 1;
            holds.add(own).map_err(|_| "no room").unwrap();
        }
        assert_eq!(holds.take("t", 1, 1, &[]).len(), WOKEN_MIN, "whatever waits in other queues");
        holds.drop_peer(&leaving);
        let rest = drained(|| holds.take_woken());
        let own = [WOKEN_MIN as i32];
        assert_eq!(opaques(&rest), (most..count - 1).chain(own).collect::<Vec<i32>>());
        assert!(!holds.has_woken());
        holds.add(held(&peer, 0, Filter::All)).map_err(|_| "no room").unwrap();
        assert_eq!(holds.take("t", 0, 1, &[]).len(), 1, "arrivals take pulls again");
        let table = holds.table.lock();
        assert!(table.pulls.is_clean() && table.by_queue.is_empty() && table.woken.is_empty());
    }

    #[test]
    fn addresses_take_turns_with_the_pulls_that_are_left() {
        let (holds, stranger, honest) = (Holds::new(usize::MAX), peer(1), peer_at(2, "127.0.0.9:1"));
        for opaque in 0..4 * WOKEN_MAX as i32 {
            holds.add(held(&stranger, opaque, Filter::All)).map_err(|_| "no room").unwrap();
        }
        holds.add(held(&honest, -1, Filter::All)).map_err(|_| "no room").unwrap();
        assert_eq!(holds.take("t", 0, 1, &[]).len(), WOKEN_MAX);
        let turns: Vec<Vec<Held>> = (0..2).map(|_| holds.take_woken()).collect();
        assert!(turns.iter().any(|turn| opaques(turn) == [-1]), "not behind all others");
        let left = drained(|| holds.take_woken()).len();
        assert_eq!(left + turns.iter().map(Vec::len).sum::<usize>(), 3 * WOKEN_MAX + 1);
    }

    #[test]
    fn many_messages_with_one_tag_cost_one_look_at_each_pull_with_many_tags() {
        let (holds, peer) = (Holds::new(usize::MAX), peer(1));
        let many = |first: i64| Filter::Tags((first..first + 100).collect::<Vec<i64>>().into());
        for opaque in 0..100 {
            holds.add(held(&peer, opaque, many(0))).map_err(|_| "no room").unwrap();
        }
        assert!(holds.take("t", 0, 1, &[1_000; 4_096]).is_empty(), "one lookup for each of them");
        let codes: Vec<i64> = (1_000..5_096).collect();
        let woken = holds.take("t", 0, 1, &codes).len();
        assert_eq!(woken, 100 - TAG_LOOKUPS_MAX / codes.len(), "the others look at what has come");
    }

    #[test]
    fn pulls_with_many_tags_are_found_and_few_of_them_may_wait() {
        let (holds, peer, other) = (Holds::new(usize::MAX), peer(1), peer_at(2, "127.0.0.9:1"));
        let many =
            |first: i64| Filter::Tags((first..=first + INDEXED_TAGS_MAX as i64).collect::<Vec<i64>>().into());
        for opaque in 0..WIDE_PULLS_MAX as i32 / 2 {
            let first = if opaque == 5 { 100_000 } else { 0 };
            holds.add(held(&peer, opaque, many(first))).map_err(|_| "no room").unwrap();
        }
        assert!(holds.add(held(&peer, -1, many(0))).is_err(), "the others are for other addresses");
        for opaque in WIDE_PULLS_MAX as i32 / 2..WIDE_PULLS_MAX as i32 {
            holds.add(held(&other, opaque, many(0))).map_err(|_| "no room").unwrap();
        }
        assert!(holds.add(held(&peer, -1, many(0))).is_err());
        assert!(holds.add(held(&peer, -2, Filter::Tags(vec![1].into()))).is_ok());
        assert_eq!(opaques(&holds.take("t", 0, 1, &[100_001])), [5]);
        assert!(holds.add(held(&peer, -1, many(0))).is_ok(), "there is room again");
        let taken = holds.take("t", 0, 1, &[]).len() + drained(|| holds.take_woken()).len();
        assert_eq!(taken, WIDE_PULLS_MAX + 1);
        assert!(holds.table.lock().by_queue.is_empty());
    }
}
