//! Pulls that wait for a message, found by queue when one arrives and by deadline when none does.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use foldhash::fast::RandomState;
use metaq_store::Filter;
use parking_lot::Mutex;

use crate::net::peer::Peer;
use crate::pull::handler::Pull;

/// A pull that waits for its answer.
pub struct Held {
    pub peer: Arc<Peer>,
    pub deadline: Instant,
    pub pull: Pull,
    /// Whether its offset moved while it waited, past messages that its filter did not want.
    pub advanced: bool,
}

/// Identifies a held pull.
pub type Ticket = (Instant, u64);

#[derive(Default)]
struct Table {
    by_queue: HashMap<String, HashMap<i32, Vec<Ticket>>, RandomState>,
    by_deadline: BTreeMap<Ticket, Held>,
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
        if table.is_closed || table.by_deadline.len() >= self.count_max {
            return Err(Box::new(held));
        }
        let ticket = (held.deadline, table.next);
        table.next += 1;
        let queues = match table.by_queue.get_mut(&held.pull.topic) {
            Some(queues) => queues,
            None => table.by_queue.entry(held.pull.topic.clone()).or_default(),
        };
        queues.entry(held.pull.queue_id).or_default().push(ticket);
        table.by_deadline.insert(ticket, held);
        self.count.store(table.by_deadline.len(), SeqCst);
        Ok(ticket)
    }

    /// Takes out one pull; None if another thread was faster.
    pub fn take_one(&self, ticket: Ticket) -> Option<Held> {
        let taken = self.take_where(|table| {
            table.by_deadline.remove(&ticket).map(|held| (ticket, held)).into_iter().collect()
        });
        taken.into_iter().next()
    }

    /// Takes out the pulls of a queue that want one of these tags and lie before its end. No tags stand for any.
    pub fn take(&self, topic: &str, queue_id: i32, max_offset: i64, tag_codes: &[i64]) -> Vec<Held> {
        if self.count.load(SeqCst) == 0 {
            return Vec::new();
        }
        let table = &mut *self.table.lock();
        let Some(queues) = table.by_queue.get_mut(topic) else {
            return Vec::new();
        };
        let Some(tickets) = queues.get_mut(&queue_id) else {
            return Vec::new();
        };
        let mut taken = Vec::new();
        tickets.retain(|ticket| {
            let wanted = table.by_deadline.get(ticket).is_some_and(|held| {
                held.pull.queue_offset < max_offset && wants(&held.pull.filter, tag_codes)
            });
            if wanted {
                taken.extend(table.by_deadline.remove(ticket));
            }
            !wanted
        });
        if tickets.is_empty() {
            queues.remove(&queue_id);
            if queues.is_empty() {
                table.by_queue.remove(topic);
            }
        }
        self.count.store(table.by_deadline.len(), SeqCst);
        taken
    }

    /// Takes out the pulls whose time is over.
    pub fn take_expired(&self, now: Instant) -> Vec<Held> {
        self.take_where(|table| {
            let later = table.by_deadline.split_off(&(now, u64::MAX));
            std::mem::replace(&mut table.by_deadline, later)
        })
    }

    /// Takes out everything and has no room from now on.
    pub fn close(&self) -> Vec<Held> {
        self.take_where(|table| {
            table.is_closed = true;
            std::mem::take(&mut table.by_deadline)
        })
    }

    /// Forgets the pulls of a peer that has left.
    pub fn drop_peer(&self, peer: &Arc<Peer>) {
        if self.count.load(SeqCst) == 0 {
            return;
        }
        self.take_where(|table| {
            let (left, kept) = std::mem::take(&mut table.by_deadline)
                .into_iter()
                .partition(|(_, held)| Arc::ptr_eq(&held.peer, peer));
            table.by_deadline = kept;
            left
        });
    }

    fn take_where(&self, split: impl FnOnce(&mut Table) -> BTreeMap<Ticket, Held>) -> Vec<Held> {
        let table = &mut *self.table.lock();
        let taken = split(table);
        for (ticket, held) in &taken {
            if let Some(queues) = table.by_queue.get_mut(&held.pull.topic) {
                if let Some(tickets) = queues.get_mut(&held.pull.queue_id) {
                    tickets.retain(|other| other != ticket);
                    if tickets.is_empty() {
                        queues.remove(&held.pull.queue_id);
                    }
                }
                if queues.is_empty() {
                    table.by_queue.remove(&held.pull.topic);
                }
            }
        }
        self.count.store(table.by_deadline.len(), SeqCst);
        taken.into_values().collect()
    }
}

fn wants(filter: &Filter, tag_codes: &[i64]) -> bool {
    match filter {
        // An expression or a function needs the record.
        Filter::All | Filter::Expression(_) | Filter::Function(_) => true,
        Filter::Tags(_) => tag_codes.is_empty() || tag_codes.iter().any(|code| filter.matches(*code)),
    }
}
