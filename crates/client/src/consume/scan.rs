//! Reads a range of one queue from its beginning to its end, with several pulls in flight.
//!
//! ```text
//! [from ─ a ─ b ─ c ─ … ─ to)     one pull per piece, sent ahead of time, taken in order
//!        └ an answer that ends early: the rest of its piece is pulled before anything after it is delivered
//! ```
//!
//! If a scan ends before `to`, it reports why. Python decides whether to go on, from where and how often.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, oneshot};

use crate::consume::pull_answer::{Answer, PullQuery};
use crate::consume::records::queue_offset_at;
use crate::error::ClientError;
use crate::net::network::Network;
use crate::net::request::Reply;

/// How far a scan reads ahead, and how long it waits.
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

/// The records of one answer, all within the range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanChunk {
    pub body: Bytes,
    /// Byte positions of the wanted records in `body`.
    pub positions: Vec<u32>,
    /// Queue offsets that this answer covers, wanted or not.
    pub covered: Range<i64>,
}

/// Why a scan ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanEnd {
    Done,
    /// The queue begins or ends elsewhere: to a pull at `queue_offset`, the broker answered `next_offset`.
    Moved {
        queue_offset: i64,
        next_offset: i64,
    },
    /// There is nothing at this offset yet, or the broker could not read it.
    Stalled {
        queue_offset: i64,
    },
    Refused {
        queue_offset: i64,
        code: i32,
        remark: String,
    },
    /// No answer came, or one that cannot be read.
    Failed {
        queue_offset: i64,
        reason: String,
        is_malformed: bool,
    },
    Closed,
}

/// A range that is being read. Dropping it stops the reading.
pub struct Scan {
    shared: Arc<Shared>,
}

struct Shared {
    held: Mutex<Held>,
    /// There are chunks to take, or the scan has ended.
    arrived: Condvar,
    /// There is space again, or the scan was closed.
    go_on: Notify,
    limits: ScanLimits,
}

#[derive(Default)]
struct Held {
    chunks: VecDeque<ScanChunk>,
    count: usize,
    bytes: usize,
    end: Option<ScanEnd>,
}

impl Scan {
    /// Begins to read. Brokers do not hold its pulls: a message that is not there ends the scan.
    pub fn begin(
        network: &Arc<Network>,
        query: PullQuery,
        address: &str,
        range: Range<i64>,
        limits: ScanLimits,
    ) -> Scan {
        let shared = Arc::new(Shared {
            held: Mutex::default(),
            arrived: Condvar::new(),
            go_on: Notify::new(),
            limits,
        });
        let reader = Reader {
            network: Arc::clone(network),
            query: Arc::new(PullQuery { hold_ms: 0, is_fixed_range: true, ..query }),
            address: Arc::from(address),
            shared: Arc::clone(&shared),
            piece_count: limits.pull_count_max.max(1),
            in_flight: VecDeque::new(),
        };
        network.spawn(reader.run(range));
        Scan { shared }
    }

    /// Waits until enough records or bytes are there, the scan ends or the deadline passes. Returns whole answers, and
    /// the reason of the end once everything before it has been taken.
    pub fn take_until(
        &self,
        count_min: usize,
        bytes_min: usize,
        deadline: Instant,
    ) -> (Vec<ScanChunk>, Option<ScanEnd>) {
        let bytes_min = bytes_min.min(self.shared.limits.held_bytes_max).max(1);
        let mut held = self.shared.held.lock();
        while held.count < count_min && held.bytes < bytes_min && held.end.is_none() {
            if self.shared.arrived.wait_until(&mut held, deadline).timed_out() {
                break;
            }
        }
        let mut taken = Vec::new();
        let (mut count, mut bytes) = (0, 0);
        while count < count_min && bytes < bytes_min {
            let Some(chunk) = held.chunks.pop_front() else { break };
            count += chunk.positions.len();
            bytes += chunk.body.len();
            taken.push(chunk);
        }
        held.count -= count;
        held.bytes -= bytes;
        let end = if held.chunks.is_empty() { held.end.clone() } else { None };
        drop(held);
        self.shared.go_on.notify_one();
        (taken, end)
    }

    /// Gives up the rest. You may call it twice.
    pub fn close(&self) {
        let mut held = self.shared.held.lock();
        *held = Held { end: Some(ScanEnd::Closed), ..Held::default() };
        drop(held);
        self.shared.go_on.notify_one();
        self.shared.arrived.notify_all();
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// Ends the scan; the first reason counts.
    fn end(&self, end: ScanEnd) {
        self.held.lock().end.get_or_insert(end);
        self.arrived.notify_all();
    }
}

/// A pull in flight, and the piece of the range that it is for.
struct PiecePull {
    piece: Range<i64>,
    answer: oneshot::Receiver<Result<Reply, ClientError>>,
}

/// The task that reads.
struct Reader {
    network: Arc<Network>,
    query: Arc<PullQuery>,
    address: Arc<str>,
    shared: Arc<Shared>,
    /// Offsets per pull. It follows what the last answers brought, because brokers have limits of their own.
    piece_count: usize,
    in_flight: VecDeque<PiecePull>,
}

impl Reader {
    async fn run(mut self, range: Range<i64>) {
        let end = self.read(range).await;
        self.shared.end(end);
    }

    async fn read(&mut self, range: Range<i64>) -> ScanEnd {
        let mut next = range.start;
        loop {
            while self.in_flight.len() < self.shared.limits.pulls_in_flight_max.max(1) && next < range.end {
                let until = next.saturating_add(self.piece_count as i64).min(range.end);
                let pull = self.pull(next..until);
                self.in_flight.push_back(pull);
                next = until;
            }
            let Some(first) = self.in_flight.pop_front() else { return ScanEnd::Done };
            if !self.has_space().await {
                return ScanEnd::Closed;
            }
            let queue_offset = first.piece.start;
            let outcome = first.answer.await.unwrap_or(Err(ClientError::Closed));
            let answer = match outcome {
                Ok(reply) => Answer::read(&reply, &self.query, queue_offset),
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

    /// Adds what an answer brought, and pulls what it did not reach.
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
                self.put(ScanChunk { body: records.body, positions, covered: queue_offset..until });
                self.adapt(&piece, next_offset, body_length);
                if until < piece.end {
                    let rest = self.pull(until..piece.end);
                    self.in_flight.push_front(rest);
                }
                Ok(())
            }
            Answer::Moved { next_offset } => Err(ScanEnd::Moved { queue_offset, next_offset }),
            // A broker other than MetaQ's says it once. The range stays as it was fixed.
            Answer::Reset { .. } => Err(ScanEnd::Stalled { queue_offset }),
            Answer::Refused { code, remark } => Err(ScanEnd::Refused { queue_offset, code, remark }),
            Answer::Malformed(reason) => Err(ScanEnd::Failed { queue_offset, reason, is_malformed: true }),
        }
    }

    /// Makes pieces as long as answers are: an answer that ends early costs a round trip, while the answers after it
    /// wait in memory.
    fn adapt(&mut self, piece: &Range<i64>, next_offset: i64, body_length: usize) {
        let limits = &self.shared.limits;
        if next_offset < piece.end {
            let brought = usize::try_from(next_offset - piece.start).unwrap_or(1);
            self.piece_count = brought.clamp(1, limits.pull_count_max.max(1));
        } else if body_length < limits.pull_bytes_max / 4 {
            self.piece_count = self.piece_count.saturating_mul(2).min(limits.pull_count_max.max(1));
        }
    }

    fn pull(&self, piece: Range<i64>) -> PiecePull {
        let (sender, answer) = oneshot::channel();
        let count = usize::try_from(piece.end - piece.start).unwrap_or(1);
        let request = self.query.request(piece.start, count, self.shared.limits.pull_bytes_max);
        // A weak reference, so that an unused network can end.
        let (network, address) = (Arc::downgrade(&self.network), Arc::clone(&self.address));
        let timeout = self.shared.limits.pull_timeout;
        self.network.spawn(async move {
            let Some(network) = network.upgrade() else { return };
            let outcome = network.call(&address, request, timeout).await;
            // The reader may have given up.
            let _gone = sender.send(outcome);
        });
        PiecePull { piece, answer }
    }

    fn put(&self, chunk: ScanChunk) {
        let mut held = self.shared.held.lock();
        if held.end.is_some() {
            return;
        }
        held.count += chunk.positions.len();
        held.bytes += chunk.body.len();
        held.chunks.push_back(chunk);
        drop(held);
        self.shared.arrived.notify_all();
    }

    /// Waits for space; `false` if the scan was closed.
    async fn has_space(&self) -> bool {
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

impl Drop for Reader {
    /// A network that closes drops its tasks, and readers that wait must wake up.
    fn drop(&mut self) {
        self.shared.end(ScanEnd::Closed);
    }
}

/// Drops positions from `until` on: a pull with a filter looks further than it was asked to.
fn within(body: &Bytes, mut positions: Vec<u32>, until: i64) -> Vec<u32> {
    let is_behind = |at: &u32| queue_offset_at(body, *at as usize).is_none_or(|offset| offset >= until);
    while positions.last().is_some_and(is_behind) {
        positions.pop();
    }
    positions
}

#[cfg(test)]
mod tests;
