//! A range of one queue, read from its beginning to its end with several pulls under way.
//!
//! ```text
//! [from ─ a ─ b ─ c ─ … ─ to)     one pull per piece, asked ahead of time, taken in their order
//!        └ an answer that ends early: the rest of its piece is asked for before anything behind it is given
//! ```
//!
//! What ends a scan before `to` is told as it is: whether to go on, from where and how often, is decided in Python.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, oneshot};

use crate::consume::pull_answer::{Answer, PullWanted};
use crate::consume::records::queue_offset_at;
use crate::error::ClientError;
use crate::net::network::Network;
use crate::net::request::Reply;

/// How much is asked for and held.
#[derive(Debug, Clone, Copy)]
pub struct ScanLimits {
    /// Read ahead and not taken yet. The answers of pulls in flight come on top.
    pub held_bytes_max: usize,
    pub pulls_in_flight_max: usize,
    pub pull_count_max: usize,
    pub pull_bytes_max: usize,
    /// How long one pull may take; brokers do not hold the pulls of a scan.
    pub pull_timeout: Duration,
}

/// Records of one answer, all of them within the range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanPortion {
    pub body: Bytes,
    /// Where a whole record begins that is wanted.
    pub positions: Vec<u32>,
    /// Queue offsets that this answer has dealt with, wanted or not.
    pub covered: Range<i64>,
}

/// Why nothing more comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanEnd {
    Done,
    /// The queue begins or ends elsewhere: asked at `queue_offset`, the broker names `next_offset`.
    Moved {
        queue_offset: i64,
        next_offset: i64,
    },
    /// Nothing is there (yet), or the broker could not look.
    Stalled {
        queue_offset: i64,
    },
    Refused {
        queue_offset: i64,
        code: i32,
        remark: String,
    },
    /// No answer, or none that can be read.
    Failed {
        queue_offset: i64,
        reason: String,
        is_malformed: bool,
    },
    Closed,
}

/// A range that is being read. Dropped, it is given up.
pub struct Scan {
    shared: Arc<Shared>,
}

struct Shared {
    held: Mutex<Held>,
    /// There is more to take, or the end.
    something: Condvar,
    /// There is room again, or nobody wants more.
    go_on: Notify,
    limits: ScanLimits,
}

#[derive(Default)]
struct Held {
    portions: VecDeque<ScanPortion>,
    count: usize,
    bytes: usize,
    end: Option<ScanEnd>,
}

impl Scan {
    /// Begins to read; nothing of it waits for a broker to get something.
    pub fn begin(
        network: &Arc<Network>,
        wanted: PullWanted,
        address: &str,
        range: Range<i64>,
        limits: ScanLimits,
    ) -> Scan {
        let shared = Arc::new(Shared {
            held: Mutex::default(),
            something: Condvar::new(),
            go_on: Notify::new(),
            limits,
        });
        let reading = Reading {
            network: Arc::clone(network),
            wanted: Arc::new(PullWanted { hold_ms: 0, ..wanted }),
            address: Arc::from(address),
            shared: Arc::clone(&shared),
            piece_count: limits.pull_count_max.max(1),
            ahead: VecDeque::new(),
        };
        network.spawn(reading.run(range));
        Scan { shared }
    }

    /// Waits until so many records or bytes are there, or the end is, or the time is over; gives what is there, whole
    /// answers, and the end once everything before it has been taken.
    pub fn take_until(
        &self,
        count_min: usize,
        bytes_min: usize,
        deadline: Instant,
    ) -> (Vec<ScanPortion>, Option<ScanEnd>) {
        let bytes_min = bytes_min.min(self.shared.limits.held_bytes_max).max(1);
        let mut held = self.shared.held.lock();
        while held.count < count_min && held.bytes < bytes_min && held.end.is_none() {
            if self.shared.something.wait_until(&mut held, deadline).timed_out() {
                break;
            }
        }
        let mut taken = Vec::new();
        let (mut count, mut bytes) = (0, 0);
        while count < count_min
            && bytes < bytes_min
            && let Some(portion) = held.portions.pop_front()
        {
            count += portion.positions.len();
            bytes += portion.body.len();
            taken.push(portion);
        }
        held.count -= count;
        held.bytes -= bytes;
        let end = if held.portions.is_empty() { held.end.clone() } else { None };
        drop(held);
        self.shared.go_on.notify_one();
        (taken, end)
    }

    /// Gives the rest up. Safe to call twice.
    pub fn close(&self) {
        let mut held = self.shared.held.lock();
        *held = Held { end: Some(ScanEnd::Closed), ..Held::default() };
        drop(held);
        self.shared.go_on.notify_one();
        self.shared.something.notify_all();
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// The first to say why is believed.
    fn end(&self, end: ScanEnd) {
        self.held.lock().end.get_or_insert(end);
        self.something.notify_all();
    }
}

/// A pull under way: its answer, and the piece of the queue that it is for.
struct Asked {
    piece: Range<i64>,
    answer: oneshot::Receiver<Result<Reply, ClientError>>,
}

/// The task that reads.
struct Reading {
    network: Arc<Network>,
    wanted: Arc<PullWanted>,
    address: Arc<str>,
    shared: Arc<Shared>,
    /// How many a pull is for: as many as the last ones brought, since brokers have limits of their own.
    piece_count: usize,
    ahead: VecDeque<Asked>,
}

impl Reading {
    async fn run(mut self, range: Range<i64>) {
        let end = self.read(range).await;
        self.shared.end(end);
    }

    async fn read(&mut self, range: Range<i64>) -> ScanEnd {
        let mut next = range.start;
        loop {
            while self.ahead.len() < self.shared.limits.pulls_in_flight_max.max(1) && next < range.end {
                let until = next.saturating_add(self.piece_count as i64).min(range.end);
                let asked = self.ask(next..until);
                self.ahead.push_back(asked);
                next = until;
            }
            let Some(first) = self.ahead.pop_front() else { return ScanEnd::Done };
            if !self.has_room().await {
                return ScanEnd::Closed;
            }
            let queue_offset = first.piece.start;
            let outcome = first.answer.await.unwrap_or(Err(ClientError::Closed));
            let answer = match outcome {
                Ok(reply) => Answer::read(&reply, &self.wanted, queue_offset),
                Err(error) => {
                    let reason = error.to_string();
                    return ScanEnd::Failed { queue_offset, reason, is_malformed: false };
                }
            };
            if let Err(end) = self.take(first.piece, answer) {
                return end;
            }
        }
    }

    /// Puts what an answer brought, and asks for what it did not reach.
    fn take(&mut self, piece: Range<i64>, answer: Answer) -> Result<(), ScanEnd> {
        let queue_offset = piece.start;
        match answer {
            Answer::Records { next_offset, .. } if next_offset <= queue_offset => {
                Err(ScanEnd::Stalled { queue_offset })
            }
            Answer::Records { records, next_offset, .. } => {
                let until = next_offset.min(piece.end);
                let body_length = records.body.len();
                let positions = within(&records.body, records.positions, until);
                self.put(ScanPortion { body: records.body, positions, covered: queue_offset..until });
                self.adapt(&piece, next_offset, body_length);
                if until < piece.end {
                    let rest = self.ask(until..piece.end);
                    self.ahead.push_front(rest);
                }
                Ok(())
            }
            Answer::Moved { next_offset } => Err(ScanEnd::Moved { queue_offset, next_offset }),
            Answer::Refused { code, remark } => Err(ScanEnd::Refused { queue_offset, code, remark }),
            Answer::Malformed(reason) => Err(ScanEnd::Failed { queue_offset, reason, is_malformed: true }),
        }
    }

    /// Pieces become as long as answers are: one that ends early costs a round trip, and what was asked behind it waits
    /// in memory meanwhile.
    fn adapt(&mut self, piece: &Range<i64>, next_offset: i64, body_length: usize) {
        let limits = &self.shared.limits;
        if next_offset < piece.end {
            let brought = usize::try_from(next_offset - piece.start).unwrap_or(1);
            self.piece_count = brought.clamp(1, limits.pull_count_max.max(1));
        } else if body_length < limits.pull_bytes_max / 4 {
            self.piece_count = self.piece_count.saturating_mul(2).min(limits.pull_count_max.max(1));
        }
    }

    fn ask(&self, piece: Range<i64>) -> Asked {
        let (sender, answer) = oneshot::channel();
        let count = usize::try_from(piece.end - piece.start).unwrap_or(1);
        let request = self.wanted.request(piece.start, count, self.shared.limits.pull_bytes_max);
        // Held only by who reads: a network that nobody has any more must be able to end.
        let (network, address) = (Arc::downgrade(&self.network), Arc::clone(&self.address));
        let timeout = self.shared.limits.pull_timeout;
        self.network.spawn(async move {
            let Some(network) = network.upgrade() else { return };
            let outcome = network.call(&address, request, timeout).await;
            // Who has given up is not there any more.
            let _gone = sender.send(outcome);
        });
        Asked { piece, answer }
    }

    fn put(&self, portion: ScanPortion) {
        let mut held = self.shared.held.lock();
        if held.end.is_some() {
            return;
        }
        held.count += portion.positions.len();
        held.bytes += portion.body.len();
        held.portions.push_back(portion);
        drop(held);
        self.shared.something.notify_all();
    }

    /// Waits for room; false where nobody wants more.
    async fn has_room(&self) -> bool {
        loop {
            {
                let held = self.shared.held.lock();
                if held.end.is_some() {
                    return false;
                }
                if held.bytes < self.shared.limits.held_bytes_max {
                    return true;
                }
            }
            self.shared.go_on.notified().await;
        }
    }
}

impl Drop for Reading {
    /// A network that is closed drops its tasks: who waits must hear of it.
    fn drop(&mut self) {
        self.shared.end(ScanEnd::Closed);
    }
}

/// Without what lies behind the end: a pull with a filter looks further than it was asked to.
fn within(body: &Bytes, mut positions: Vec<u32>, until: i64) -> Vec<u32> {
    let is_behind = |at: &u32| queue_offset_at(body, *at as usize).is_none_or(|offset| offset >= until);
    while positions.last().is_some_and(is_behind) {
        positions.pop();
    }
    positions
}

#[cfg(test)]
mod tests;
