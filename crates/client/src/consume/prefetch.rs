//! The messages that a pull stream holds ahead of its reader: how many, whose turn is next, and what Python must decide.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::consume::pull_answer::Answer;
use crate::consume::records::Records;

/// How far a pull stream reads ahead, and how long it waits.
#[derive(Debug, Clone, Copy)]
pub struct PullLimits {
    /// Messages held of one queue.
    pub count_max: usize,
    /// Bytes held of all queues together. Each queue has an equal share, so a queue that nobody reads stops no other.
    pub bytes_max: usize,
    /// A queue is pulled again when this much of its limits is free.
    pub refill_percent: usize,
    /// The most that one pull asks for.
    pub pull_count_max: usize,
    pub pull_bytes_max: usize,
    /// How long an answer may take beyond the time for which the broker holds the pull.
    pub answer_timeout: Duration,
    /// The pause after a broker answered at once and with nothing, although it was asked to hold the pull.
    pub idle_pause: Duration,
}

/// A decision that Python must make. The queue is not pulled until [`Prefetch::resume`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullEvent {
    Moved {
        queue: u64,
        next_offset: i64,
        is_empty: bool,
    },
    Refused {
        queue: u64,
        code: i32,
        remark: String,
    },
    /// No answer came, or one that cannot be read.
    Failed {
        queue: u64,
        reason: String,
        is_malformed: bool,
    },
    /// The broker wants the next pull to go to another of its replicas.
    Suggested {
        queue: u64,
        broker_id: i64,
    },
}

/// Messages of one answer, all of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullChunk {
    pub queue: u64,
    pub body: Bytes,
    /// Byte positions of the records in `body`.
    pub positions: Vec<u32>,
}

/// The broker that a queue is pulled from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullSource {
    pub address: Arc<str>,
    /// The replica that the broker suggested last, or 0 for its master.
    pub broker_id: i64,
}

/// The next request for a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NextPull {
    pub(crate) source: PullSource,
    pub(crate) queue_offset: i64,
    pub(crate) count_max: usize,
    pub(crate) bytes_max: usize,
}

/// The messages held of one queue.
pub(crate) struct QueuePrefetch {
    source: PullSource,
    next_offset: i64,
    answers: VecDeque<HeldAnswer>,
    count: usize,
    bytes: usize,
    is_paused: bool,
    /// Python has an event of this queue and has not resumed it yet.
    is_stopped: bool,
    turn: u64,
    /// There is space again, or Python has resumed or ended the queue.
    pub(crate) go_on: Arc<Notify>,
}

/// An answer, some messages of which may be taken already.
struct HeldAnswer {
    records: Records,
    taken: usize,
}

impl PullLimits {
    fn is_refill(&self, free: usize, max: usize) -> bool {
        free.saturating_mul(100) >= max.saturating_mul(self.refill_percent.min(100))
    }

    fn shared_by(&self, queues: usize) -> PullLimits {
        PullLimits { bytes_max: (self.bytes_max / queues.max(1)).max(1), ..*self }
    }
}

impl QueuePrefetch {
    pub(crate) fn new(source: PullSource, queue_offset: i64, is_paused: bool) -> Self {
        QueuePrefetch {
            source,
            next_offset: queue_offset,
            answers: VecDeque::new(),
            count: 0,
            bytes: 0,
            is_paused,
            is_stopped: false,
            turn: 0,
            go_on: Arc::new(Notify::new()),
        }
    }

    /// The queue offset of the next message.
    pub(crate) fn position(&self) -> i64 {
        self.answers.front().and_then(HeldAnswer::queue_offset).unwrap_or(self.next_offset)
    }

    /// The next pull; `None` while too little space is free or the queue is stopped. Without `refill_percent`, a reader
    /// that takes single messages would cause pulls for single messages.
    fn next_pull(&self, limits: &PullLimits) -> Option<NextPull> {
        let count_free = limits.count_max.saturating_sub(self.count);
        let bytes_free = limits.bytes_max.saturating_sub(self.bytes);
        let is_full = !limits.is_refill(count_free, limits.count_max)
            || !limits.is_refill(bytes_free, limits.bytes_max);
        if self.is_stopped || is_full {
            return None;
        }
        Some(NextPull {
            source: self.source.clone(),
            queue_offset: self.next_offset,
            count_max: count_free.min(limits.pull_count_max).max(1),
            bytes_max: bytes_free.min(limits.pull_bytes_max).max(1),
        })
    }

    /// Drops the messages that nobody has taken, and continues at another offset.
    fn restart(&mut self, queue_offset: i64) {
        self.answers.clear();
        self.count = 0;
        self.bytes = 0;
        self.next_offset = queue_offset;
    }

    fn is_ready(&self) -> bool {
        self.count > 0 && !self.is_paused
    }

    /// Moves up to `count_max` messages to `chunks` and returns how many more may be taken.
    fn take(&mut self, queue: u64, count_max: usize, chunks: &mut Vec<PullChunk>) -> usize {
        let mut left = count_max;
        while left > 0 {
            let Some(first) = self.answers.front_mut() else { break };
            let (positions, is_compressed) = first.take(left);
            left = if is_compressed { 0 } else { left - positions.len() };
            self.count -= positions.len();
            chunks.push(PullChunk { queue, body: first.records.body.clone(), positions });
            if first.taken == first.records.positions.len() {
                self.bytes -= first.records.body.len();
                self.answers.pop_front();
            }
        }
        left
    }
}

impl HeldAnswer {
    fn queue_offset(&self) -> Option<i64> {
        self.records.queue_offset(self.taken)
    }

    /// Takes up to `count_max` positions, none after a compressed message; `true` if the last one is compressed.
    fn take(&mut self, count_max: usize) -> (Vec<u32>, bool) {
        let mut end = (self.taken + count_max).min(self.records.positions.len());
        let compressed = self.records.compressed.get(self.taken..).unwrap_or_default();
        let first = compressed.iter().position(|is_compressed| *is_compressed);
        let compressed = first.map(|index| self.taken + index).filter(|position| *position < end);
        if let Some(position) = compressed {
            end = position + 1;
        }
        let positions = self.records.positions.get(self.taken..end).unwrap_or_default().to_vec();
        self.taken = end;
        (positions, compressed.is_some())
    }
}

/// All queues of a stream.
#[derive(Default)]
pub(crate) struct Prefetch {
    queues: BTreeMap<u64, QueuePrefetch>,
    events: Vec<PullEvent>,
    turns: u64,
    /// The next message must notify the event descriptor.
    pub(crate) is_awaited: bool,
    pub(crate) is_closed: bool,
    /// Counts the calls of `wake`, for readers that wait for other things besides messages.
    pub(crate) wake_count: u64,
}

/// Tells which waiting readers a change must wake.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) messages: bool,
    pub(crate) event: bool,
}

impl Prefetch {
    pub(crate) fn begin(&mut self, queue: u64, held: QueuePrefetch) {
        self.queues.insert(queue, held);
    }

    pub(crate) fn end(&mut self, queue: u64) -> Option<QueuePrefetch> {
        self.events.retain(|event| event.queue() != queue);
        self.queues.remove(&queue)
    }

    pub(crate) fn end_all(&mut self) -> Vec<QueuePrefetch> {
        self.events.clear();
        std::mem::take(&mut self.queues).into_values().collect()
    }

    pub(crate) fn get(&self, queue: u64) -> Option<&QueuePrefetch> {
        self.queues.get(&queue)
    }

    /// Adds the answer of a queue; ignored if the queue has ended meanwhile.
    pub(crate) fn put(&mut self, queue: u64, answer: Answer) -> Change {
        let Some(held) = self.queues.get_mut(&queue) else { return Change::default() };
        let mut change = Change::default();
        let event = match answer {
            Answer::Records { records, next_offset, suggested_broker_id } => {
                held.next_offset = held.next_offset.max(next_offset);
                if !records.positions.is_empty() {
                    held.count += records.positions.len();
                    held.bytes += records.body.len();
                    held.answers.push_back(HeldAnswer { records, taken: 0 });
                    change.messages = held.is_ready();
                }
                if suggested_broker_id == held.source.broker_id {
                    return change;
                }
                PullEvent::Suggested { queue, broker_id: suggested_broker_id }
            }
            Answer::Moved { next_offset } => {
                PullEvent::Moved { queue, next_offset, is_empty: held.count == 0 }
            }
            Answer::Reset { next_offset } => {
                held.restart(next_offset);
                return change;
            }
            Answer::Refused { code, remark } => PullEvent::Refused { queue, code, remark },
            Answer::Malformed(reason) => PullEvent::Failed { queue, reason, is_malformed: true },
        };
        held.is_stopped = true;
        self.events.push(event);
        change.event = true;
        change
    }

    /// Notes that a pull got no answer.
    pub(crate) fn put_failure(&mut self, queue: u64, reason: String) -> Change {
        let Some(held) = self.queues.get_mut(&queue) else { return Change::default() };
        held.is_stopped = true;
        self.events.push(PullEvent::Failed { queue, reason, is_malformed: false });
        Change { messages: false, event: true }
    }

    /// Continues with this source, from `queue_offset` if one is given.
    pub(crate) fn resume(&mut self, queue: u64, source: PullSource, queue_offset: Option<i64>) {
        let Some(held) = self.queues.get_mut(&queue) else { return };
        held.source = source;
        held.is_stopped = false;
        if let Some(queue_offset) = queue_offset {
            held.next_offset = queue_offset;
        }
        held.go_on.notify_one();
    }

    /// Sets the source of later pulls.
    pub(crate) fn relocate(&mut self, queue: u64, source: PullSource) {
        if let Some(held) = self.queues.get_mut(&queue) {
            held.source = source;
        }
    }

    /// Pauses or resumes delivery; `true` if messages are ready to be taken.
    pub(crate) fn pause(&mut self, queue: u64, is_paused: bool) -> bool {
        let Some(held) = self.queues.get_mut(&queue) else { return false };
        held.is_paused = is_paused;
        held.is_ready()
    }

    /// The next pull of a queue, see [`QueuePrefetch::next_pull`]; the outer `None` if the queue has ended.
    pub(crate) fn next_pull(&self, queue: u64, limits: &PullLimits) -> Option<Option<NextPull>> {
        let limits = limits.shared_by(self.queues.len());
        self.queues.get(&queue).map(|held| held.next_pull(&limits))
    }

    /// Takes up to `count_max` messages, and none after a compressed one: only its reader knows how long it becomes, and
    /// whether there is space for more. The queue that has waited longest goes first.
    pub(crate) fn take(&mut self, count_max: usize) -> Vec<PullChunk> {
        let mut ready: Vec<(u64, u64)> = self
            .queues
            .iter()
            .filter(|(_, held)| held.is_ready())
            .map(|(key, held)| (held.turn, *key))
            .collect();
        ready.sort_unstable();
        let mut chunks = Vec::new();
        let mut left = count_max;
        for (_, queue) in ready {
            if left == 0 {
                break;
            }
            let Some(held) = self.queues.get_mut(&queue) else { continue };
            self.turns += 1;
            held.turn = self.turns;
            left = held.take(queue, left, &mut chunks);
            held.go_on.notify_one();
        }
        chunks
    }

    pub(crate) fn events(&mut self) -> Vec<PullEvent> {
        std::mem::take(&mut self.events)
    }
}

impl PullEvent {
    pub fn queue(&self) -> u64 {
        match self {
            PullEvent::Moved { queue, .. }
            | PullEvent::Refused { queue, .. }
            | PullEvent::Failed { queue, .. }
            | PullEvent::Suggested { queue, .. } => *queue,
        }
    }
}
