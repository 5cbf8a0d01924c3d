//! Messages that wait to be sent: one lane per topic, and one per queue that was given explicitly.
//!
//! A state machine without clocks, threads or sockets. [`crate::produce::accumulator`] drives it under a lock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldhash::fast::RandomState;

use crate::produce::batch::{Batch, BatchOrigin, BrokerQueue, Contents, Form, HALF_BATCH, Outcome};
use crate::produce::byte_budget::ByteBudget;
use crate::produce::ids::{IdTail, UniqueIds};

/// Messages of one batch: the smallest limit that any broker has.
const BATCH_COUNT_MAX: usize = 32_000;
/// A batch for any queue is closed at this many messages while fewer batches are on their way than may be, so that a burst
/// is spread over several queues. When the brokers are slower than the senders, batches grow up to their limit.
const SPREAD_COUNT: usize = 128;
/// Bytes of a batch record apart from body and properties.
pub const RECORD_FIXED_BYTES: usize = 22;
const TRANSACTION_PREPARED: i32 = 4;
/// The first allocation of a batch, unless the previous batch of its lane was larger.
const FIRST_BYTES: usize = 4096;

#[derive(Debug, Clone, Copy)]
pub struct LaneLimits {
    pub linger: Duration,
    pub batch_bytes_max: usize,
    pub buffer_bytes_max: usize,
    /// Batches of one topic that are sent at the same time. Batches for one given queue are sent one after the other,
    /// because their order counts.
    pub in_flight_max: usize,
}

/// A message to be laid out in a batch. The caller has checked that its properties fit into 16 bits.
pub struct NewMessage<'a, F: FnOnce(&mut Vec<u8>)> {
    pub id: IdTail,
    pub flag: i32,
    pub body: &'a [u8],
    pub properties_bytes: usize,
    /// Appends exactly `properties_bytes` bytes.
    pub push_properties: F,
}

/// The result of a put.
pub struct Queued<A> {
    pub batch: Arc<Batch<A>>,
    pub number: usize,
    /// The driver must be woken.
    pub wakes: bool,
}

/// The effects of one batch's outcome on the other batches.
pub struct Done<A> {
    /// The driver must be woken.
    pub wakes: bool,
    /// All messages from before some flush have an outcome.
    pub flushed: bool,
    /// Drop it without holding a lock: its attachment may run other code.
    pub removed: Option<Arc<Batch<A>>>,
}

struct Lane<A> {
    topic: Arc<str>,
    queue: Option<BrokerQueue>,
    open: Option<Open<A>>,
    /// The open batch has lingered long enough and is sent as soon as another one ends.
    open_is_due: bool,
    ready: VecDeque<Arc<Batch<A>>>,
    in_flight: usize,
    /// The last batch that ended was not stored.
    has_failed: bool,
    is_listed: bool,
    typical_bytes: usize,
}

/// The batch that is being filled.
struct Open<A> {
    batch: Arc<Batch<A>>,
    body: Vec<u8>,
    ids: Vec<IdTail>,
}

/// The lanes of one topic.
#[derive(Default)]
struct TopicLanes {
    any: Option<usize>,
    by_queue: HashMap<BrokerQueue, usize, RandomState>,
}

pub struct Lanes<A> {
    limits: LaneLimits,
    /// If given, every batch is a half message with these properties.
    half_properties: Option<Arc<str>>,
    ids: Arc<UniqueIds>,
    topics: HashMap<Arc<str>, TopicLanes, RandomState>,
    lanes: Vec<Lane<A>>,
    /// When open batches have lingered long enough. All linger equally long, so the first entry is due next.
    lingering: VecDeque<(Instant, usize, u64)>,
    /// Lanes that may have something to send.
    listed: VecDeque<usize>,
    in_flight: HashMap<u64, Arc<Batch<A>>, RandomState>,
    last_batch_id: u64,
    /// Messages without an outcome, by the flush that they came before. The last entry is for the next flush.
    epochs: VecDeque<(u64, usize)>,
    pub budget: ByteBudget,
}

impl<A: Default> Lanes<A> {
    pub fn new(limits: LaneLimits, half_properties: Option<Arc<str>>, ids: Arc<UniqueIds>) -> Self {
        Lanes {
            limits,
            half_properties,
            ids,
            topics: HashMap::default(),
            lanes: Vec::new(),
            lingering: VecDeque::new(),
            listed: VecDeque::new(),
            in_flight: HashMap::default(),
            last_batch_id: 0,
            epochs: VecDeque::from([(1, 0)]),
            budget: ByteBudget::new(limits.buffer_bytes_max),
        }
    }

    /// The lane of a topic and a queue, if it exists.
    pub fn find(&self, topic: &str, queue: Option<&BrokerQueue>) -> Option<usize> {
        let lanes = self.topics.get(topic)?;
        match queue {
            None => lanes.any,
            Some(queue) => lanes.by_queue.get(queue).copied(),
        }
    }

    pub fn find_or_make(&mut self, topic: &str, queue: Option<&BrokerQueue>) -> usize {
        if let Some(lane) = self.find(topic, queue) {
            return lane;
        }
        let topic: Arc<str> = match self.topics.get_key_value(topic) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::from(topic),
        };
        let number = self.lanes.len();
        self.lanes.push(Lane {
            topic: Arc::clone(&topic),
            queue: queue.cloned(),
            open: None,
            open_is_due: false,
            ready: VecDeque::new(),
            in_flight: 0,
            has_failed: false,
            is_listed: false,
            typical_bytes: FIRST_BYTES,
        });
        let lanes = self.topics.entry(topic).or_default();
        match queue {
            None => lanes.any = Some(number),
            Some(queue) => {
                lanes.by_queue.insert(queue.clone(), number);
            }
        }
        number
    }

    /// Lays a message out in the lane's open batch. The caller has taken its space.
    ///
    /// ```text
    /// | size: i32 | magic 0: i32 | crc 0: i32 | flag: i32 | body length: i32 | body | properties length: i16 | properties |
    /// ```
    pub fn put<F: FnOnce(&mut Vec<u8>)>(
        &mut self,
        lane_number: usize,
        message: NewMessage<'_, F>,
        now: impl FnOnce() -> Instant,
    ) -> Option<Queued<A>> {
        let size = RECORD_FIXED_BYTES + message.body.len() + message.properties_bytes;
        let (size_word, body_word) = (i32::try_from(size).ok()?, i32::try_from(message.body.len()).ok()?);
        let properties_word = i16::try_from(message.properties_bytes).ok()?;
        let mut wakes = false;
        let lane = self.lanes.get(lane_number)?;
        let count_max = if self.is_spread(lane) { SPREAD_COUNT } else { BATCH_COUNT_MAX };
        let is_full = lane.open.as_ref().is_some_and(|open| {
            open.body.len() + size > self.limits.batch_bytes_max || open.ids.len() >= count_max
        });
        if is_full {
            wakes |= self.close_open(lane_number);
        }
        if self.lanes.get(lane_number)?.open.is_none() {
            wakes |= self.open(lane_number, now());
        }
        let open = self.lanes.get_mut(lane_number)?.open.as_mut()?;
        let body = &mut open.body;
        body.reserve(size);
        body.extend_from_slice(&size_word.to_be_bytes());
        body.extend_from_slice(&[0; 8]);
        body.extend_from_slice(&message.flag.to_be_bytes());
        body.extend_from_slice(&body_word.to_be_bytes());
        body.extend_from_slice(message.body);
        body.extend_from_slice(&properties_word.to_be_bytes());
        (message.push_properties)(body);
        open.ids.push(message.id);
        let queued = Queued { batch: Arc::clone(&open.batch), number: open.ids.len() - 1, wakes };
        self.count_one();
        Some(queued)
    }

    /// Whether the next batch of a lane may leave now for another queue. A half message costs more than a message.
    fn is_spread(&self, lane: &Lane<A>) -> bool {
        lane.queue.is_none()
            && self.half_properties.is_none()
            && lane.in_flight + lane.ready.len() < self.limits.in_flight_max
    }

    /// Queues a message that is sent as a request of its own. The caller has taken its space.
    pub fn put_alone(
        &mut self,
        lane_number: usize,
        id: IdTail,
        form: Form,
        body: Bytes,
        size_bytes: usize,
    ) -> Option<Queued<A>> {
        self.close_open(lane_number);
        let batch = self.new_batch(lane_number)?;
        batch.close(Contents { form, ids: Box::new([id]), size_bytes }, body);
        self.lanes.get_mut(lane_number)?.ready.push_back(Arc::clone(&batch));
        self.count_one();
        self.list(lane_number);
        Some(Queued { batch, number: 0, wakes: true })
    }

    /// Returns the batches that may be sent now, in the order of their lanes, and when to look again.
    pub fn take_due(&mut self, now: Instant) -> (Vec<Arc<Batch<A>>>, Option<Instant>) {
        while let Some(&(due, lane_number, batch_id)) = self.lingering.front() {
            if due > now {
                break;
            }
            self.lingering.pop_front();
            let is_open =
                |lane: &&mut Lane<A>| lane.open.as_ref().is_some_and(|open| open.batch.id == batch_id);
            if let Some(lane) = self.lanes.get_mut(lane_number).filter(is_open) {
                lane.open_is_due = true;
                self.list(lane_number);
            }
        }
        let mut due = Vec::new();
        while let Some(lane_number) = self.listed.pop_front() {
            self.take_from(lane_number, &mut due);
        }
        (due, self.lingering.front().map(|(due, _, _)| *due))
    }

    fn take_from(&mut self, lane_number: usize, due: &mut Vec<Arc<Batch<A>>>) {
        if let Some(lane) = self.lanes.get_mut(lane_number) {
            lane.is_listed = false;
        }
        while let Some(lane) = self.lanes.get_mut(lane_number) {
            let at_once = if lane.queue.is_some() { 1 } else { self.limits.in_flight_max.max(1) };
            if lane.in_flight >= at_once {
                return;
            }
            let Some(batch) = lane.ready.pop_front() else {
                if !lane.open_is_due {
                    return;
                }
                self.close_open(lane_number);
                if self.lanes.get(lane_number).is_none_or(|lane| lane.ready.is_empty()) {
                    return;
                }
                continue;
            };
            lane.in_flight += 1;
            batch.begin(lane.has_failed);
            self.in_flight.insert(batch.id, Arc::clone(&batch));
            due.push(batch);
        }
    }

    /// Notes that a batch has its outcome, whether it was sent from here or not.
    pub fn done(&mut self, batch: &Batch<A>) -> Done<A> {
        let removed = self.in_flight.remove(&batch.id);
        if let Some((_, messages)) = self.epochs.iter_mut().find(|(epoch, _)| *epoch == batch.epoch) {
            *messages = messages.saturating_sub(batch.count());
        }
        let mut flushed = false;
        while self.epochs.len() > 1 && self.epochs.front().is_some_and(|(_, messages)| *messages == 0) {
            self.epochs.pop_front();
            flushed = true;
        }
        let mut wakes = false;
        let lane = if removed.is_some() { self.lanes.get_mut(batch.lane) } else { None };
        if let Some(lane) = lane {
            lane.in_flight = lane.in_flight.saturating_sub(1);
            lane.has_failed = matches!(batch.outcome(), Some(Outcome::Failed));
            if !lane.ready.is_empty() || lane.open_is_due {
                self.list(batch.lane);
                wakes = true;
            }
        }
        Done { wakes, flushed, removed }
    }

    /// Closes all open batches. The result is the epoch to ask [`Lanes::unfinished_count`] for.
    pub fn flush(&mut self) -> u64 {
        for lane_number in 0..self.lanes.len() {
            self.close_open(lane_number);
        }
        let (epoch, messages) = self.epochs.back().copied().unwrap_or((1, 0));
        if messages == 0 {
            return epoch - 1;
        }
        self.epochs.push_back((epoch + 1, 0));
        epoch
    }

    /// Returns how many messages from before that flush have no outcome.
    pub fn unfinished_count(&self, epoch: u64) -> usize {
        self.epochs.iter().take_while(|(older, _)| *older <= epoch).map(|(_, messages)| messages).sum()
    }

    /// Removes all batches without an outcome, whether they were sent or not.
    pub fn drain(&mut self) -> Vec<Arc<Batch<A>>> {
        self.flush();
        self.listed.clear();
        self.lingering.clear();
        let mut all: Vec<_> = self.in_flight.values().cloned().collect();
        for lane in &mut self.lanes {
            lane.is_listed = false;
            all.extend(lane.ready.drain(..));
        }
        all.sort_unstable_by_key(|batch| batch.id);
        all
    }

    fn open(&mut self, lane_number: usize, now: Instant) -> bool {
        let Some(batch) = self.new_batch(lane_number) else { return false };
        let wakes = self.lingering.is_empty();
        self.lingering.push_back((now + self.limits.linger, lane_number, batch.id));
        if let Some(lane) = self.lanes.get_mut(lane_number) {
            let body = Vec::with_capacity(lane.typical_bytes);
            lane.open = Some(Open { batch, body, ids: Vec::with_capacity(lane.typical_bytes / 256 + 1) });
            lane.open_is_due = false;
        }
        wakes
    }

    fn new_batch(&mut self, lane_number: usize) -> Option<Arc<Batch<A>>> {
        let lane = self.lanes.get(lane_number)?;
        self.last_batch_id += 1;
        let epoch = self.epochs.back().map_or(0, |(epoch, _)| *epoch);
        let home =
            BatchOrigin { lane: lane_number, topic: Arc::clone(&lane.topic), queue: lane.queue.clone() };
        Some(Arc::new(Batch::new(self.last_batch_id, home, epoch, Arc::clone(&self.ids))))
    }

    /// Closes the open batch; `true` if its lane was added to the list of lanes to look at.
    fn close_open(&mut self, lane_number: usize) -> bool {
        let Some(lane) = self.lanes.get_mut(lane_number) else { return false };
        let Some(open) = lane.open.take() else { return false };
        lane.open_is_due = false;
        lane.typical_bytes = open.body.len().max(FIRST_BYTES);
        let form = match &self.half_properties {
            None => Form::Together,
            Some(properties) => half_form(properties, &self.ids, &open.ids),
        };
        let contents = Contents { form, size_bytes: open.body.len(), ids: open.ids.into_boxed_slice() };
        open.batch.close(contents, Bytes::from(open.body));
        lane.ready.push_back(open.batch);
        self.list(lane_number)
    }

    fn list(&mut self, lane_number: usize) -> bool {
        match self.lanes.get_mut(lane_number) {
            Some(lane) if !lane.is_listed => {
                lane.is_listed = true;
                self.listed.push_back(lane_number);
                true
            }
            _ => false,
        }
    }

    fn count_one(&mut self) {
        if let Some((_, messages)) = self.epochs.back_mut() {
            *messages += 1;
        }
    }
}

/// The form of a batch that is one half message, known by the id of its first message.
fn half_form(properties: &str, ids: &UniqueIds, tails: &[IdTail]) -> Form {
    let first = tails.first().map(|tail| ids.text(*tail)).unwrap_or_default();
    let count = tails.len();
    let properties = format!("{properties}{HALF_BATCH}\u{1}{count}\u{2}UNIQ_KEY\u{1}{first}\u{2}");
    Form::Alone { properties, system_flag: TRANSACTION_PREPARED, flag: 0 }
}

#[cfg(test)]
mod tests;
