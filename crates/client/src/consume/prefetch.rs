//! What a pull stream holds of its queues: how much may be, whose turn it is, and what Python has to decide.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::consume::pull_answer::Answer;
use crate::consume::records::Records;

/// How much is held before nothing more is pulled.
#[derive(Debug, Clone, Copy)]
pub struct PullLimits {
    /// Of one queue.
    pub count_max: usize,
    /// Of all queues together: each has an equal share, so that one which nobody takes from stops no other.
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

/// Something that is not decided here. The queue stands still until it is told to go on.
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
    /// No answer, or none that can be read.
    Failed {
        queue: u64,
        reason: String,
        is_malformed: bool,
    },
    /// The broker wants the next pull to go to another one of its replicas.
    Suggested {
        queue: u64,
        broker_id: i64,
    },
}

/// Messages of one answer that were taken, all of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullPortion {
    pub queue: u64,
    pub body: Bytes,
    pub positions: Vec<u32>,
}

/// Where a queue is pulled from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullPlace {
    pub address: Arc<str>,
    /// As the broker suggested it, or 0: what makes no difference is not told.
    pub broker_id: i64,
}

/// One queue.
pub(crate) struct Held {
    place: PullPlace,
    next_offset: i64,
    answers: VecDeque<Taken>,
    count: usize,
    bytes: usize,
    is_paused: bool,
    /// Python has been told something and not said yet how to go on.
    waits: bool,
    turn: u64,
    /// There is room again, or Python has decided.
    pub(crate) go_on: Arc<Notify>,
}

struct Taken {
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

impl Held {
    pub(crate) fn new(place: PullPlace, queue_offset: i64, is_paused: bool) -> Self {
        Held {
            place,
            next_offset: queue_offset,
            answers: VecDeque::new(),
            count: 0,
            bytes: 0,
            is_paused,
            waits: false,
            turn: 0,
            go_on: Arc::new(Notify::new()),
        }
    }

    /// The offset of the message that is given next.
    pub(crate) fn position(&self) -> i64 {
        self.answers.front().and_then(Taken::queue_offset).unwrap_or(self.next_offset)
    }

    /// Where to pull from, and how much; None while there is no room or Python decides. Room is half of what may
    /// be held, for otherwise a reader that takes one by one would have us pull one by one.
    fn next_pull(&self, limits: &PullLimits) -> Option<(PullPlace, i64, usize, usize)> {
        let count_room = limits.count_max.saturating_sub(self.count);
        let bytes_room = limits.bytes_max.saturating_sub(self.bytes);
        let is_full = !limits.is_refill(count_room, limits.count_max)
            || !limits.is_refill(bytes_room, limits.bytes_max);
        if self.waits || is_full {
            return None;
        }
        let count = count_room.min(limits.pull_count_max).max(1);
        let bytes = bytes_room.min(limits.pull_bytes_max).max(1);
        Some((self.place.clone(), self.next_offset, count, bytes))
    }

    fn is_ready(&self) -> bool {
        self.count > 0 && !self.is_paused
    }

    /// How many more may be taken.
    fn take(&mut self, queue: u64, count_max: usize, portions: &mut Vec<PullPortion>) -> usize {
        let mut left = count_max;
        while left > 0
            && let Some(first) = self.answers.front_mut()
        {
            let (positions, is_compressed) = first.take(left);
            left = if is_compressed { 0 } else { left - positions.len() };
            self.count -= positions.len();
            portions.push(PullPortion { queue, body: first.records.body.clone(), positions });
            if first.taken == first.records.positions.len() {
                self.bytes -= first.records.body.len();
                self.answers.pop_front();
            }
        }
        left
    }
}

impl Taken {
    fn queue_offset(&self) -> Option<i64> {
        self.records.queue_offset(self.taken)
    }

    /// Whether the last one is compressed.
    fn take(&mut self, count_max: usize) -> (Vec<u32>, bool) {
        let mut end = (self.taken + count_max).min(self.records.positions.len());
        let compressed = self.records.compressed.get(self.taken..).unwrap_or_default();
        let first = compressed.iter().position(|is_compressed| *is_compressed);
        let is_compressed = first.is_some_and(|place| self.taken + place < end);
        if is_compressed && let Some(place) = first {
            end = self.taken + place + 1;
        }
        let positions = self.records.positions.get(self.taken..end).unwrap_or_default().to_vec();
        self.taken = end;
        (positions, is_compressed)
    }
}

/// All queues of a stream.
#[derive(Default)]
pub(crate) struct Desk {
    queues: BTreeMap<u64, Held>,
    events: Vec<PullEvent>,
    turns: u64,
    /// Somebody wants to hear, through the descriptor, when there is something to take.
    pub(crate) is_awaited: bool,
    pub(crate) is_closed: bool,
    /// Grows with every call of `wake`, for those who wait for something else than messages.
    pub(crate) wakes: u64,
}

/// What somebody has to be told of after a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) messages: bool,
    pub(crate) event: bool,
}

impl Desk {
    pub(crate) fn begin(&mut self, queue: u64, held: Held) {
        self.queues.insert(queue, held);
    }

    pub(crate) fn end(&mut self, queue: u64) -> Option<Held> {
        self.events.retain(|event| event.queue() != queue);
        self.queues.remove(&queue)
    }

    pub(crate) fn end_all(&mut self) -> Vec<Held> {
        self.events.clear();
        std::mem::take(&mut self.queues).into_values().collect()
    }

    pub(crate) fn get(&self, queue: u64) -> Option<&Held> {
        self.queues.get(&queue)
    }

    /// What a queue's answer changes; nothing where the queue has been given up meanwhile.
    pub(crate) fn put(&mut self, queue: u64, answer: Answer) -> News {
        let Some(held) = self.queues.get_mut(&queue) else { return News::default() };
        let mut news = News::default();
        let event = match answer {
            Answer::Records { records, next_offset, suggested_broker_id } => {
                held.next_offset = held.next_offset.max(next_offset);
                if !records.positions.is_empty() {
                    held.count += records.positions.len();
                    held.bytes += records.body.len();
                    held.answers.push_back(Taken { records, taken: 0 });
                    news.messages = held.is_ready();
                }
                if suggested_broker_id == held.place.broker_id {
                    return news;
                }
                PullEvent::Suggested { queue, broker_id: suggested_broker_id }
            }
            Answer::Moved { next_offset } => {
                PullEvent::Moved { queue, next_offset, is_empty: held.count == 0 }
            }
            Answer::Refused { code, remark } => PullEvent::Refused { queue, code, remark },
            Answer::Malformed(reason) => PullEvent::Failed { queue, reason, is_malformed: true },
        };
        held.waits = true;
        self.events.push(event);
        news.event = true;
        news
    }

    /// The same for a pull without an answer.
    pub(crate) fn put_failure(&mut self, queue: u64, reason: String) -> News {
        let Some(held) = self.queues.get_mut(&queue) else { return News::default() };
        held.waits = true;
        self.events.push(PullEvent::Failed { queue, reason, is_malformed: false });
        News { messages: false, event: true }
    }

    /// Python has decided: from there on, and from another place of the queue where it says so.
    pub(crate) fn resume(&mut self, queue: u64, place: PullPlace, queue_offset: Option<i64>) {
        let Some(held) = self.queues.get_mut(&queue) else { return };
        held.place = place;
        held.waits = false;
        if let Some(queue_offset) = queue_offset {
            held.next_offset = queue_offset;
        }
        held.go_on.notify_one();
    }

    /// Another address for the pulls to come.
    pub(crate) fn relocate(&mut self, queue: u64, place: PullPlace) {
        if let Some(held) = self.queues.get_mut(&queue) {
            held.place = place;
        }
    }

    /// True where this makes something ready to be taken.
    pub(crate) fn pause(&mut self, queue: u64, is_paused: bool) -> bool {
        let Some(held) = self.queues.get_mut(&queue) else { return false };
        held.is_paused = is_paused;
        held.is_ready()
    }

    /// Where to pull a queue from, and how much; see [`Held::next_pull`].
    pub(crate) fn next_pull(
        &self,
        queue: u64,
        limits: &PullLimits,
    ) -> Option<Option<(PullPlace, i64, usize, usize)>> {
        let limits = limits.shared_by(self.queues.len());
        self.queues.get(&queue).map(|held| held.next_pull(&limits))
    }

    /// Up to so many messages, and none after one that is compressed: how long that becomes is known to whoever
    /// inflates it, and whether there is room for another. The queue that has waited longest comes first.
    pub(crate) fn take(&mut self, count_max: usize) -> Vec<PullPortion> {
        let mut ready: Vec<(u64, u64)> = self
            .queues
            .iter()
            .filter(|(_, held)| held.is_ready())
            .map(|(key, held)| (held.turn, *key))
            .collect();
        ready.sort_unstable();
        let mut portions = Vec::new();
        let mut left = count_max;
        for (_, queue) in ready {
            if left == 0 {
                break;
            }
            let Some(held) = self.queues.get_mut(&queue) else { continue };
            self.turns += 1;
            held.turn = self.turns;
            left = held.take(queue, left, &mut portions);
            held.go_on.notify_one();
        }
        portions
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
