//! The buffer of one producer: messages go in one by one and leave in batches.
//!
//! Only the normal path is here. A batch that its first request did not store, for whatever reason, comes up whole
//! ([`Event::Unsent`]). Python decides how to go on and reports the outcome; if order counts, the lane waits for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::error::ClientError;
use crate::net::event_fd::EventFd;
use crate::net::network::Network;
use crate::net::request::{Reply, Request};
use crate::produce::batch::{Batch, BrokerQueue, Form, OffsetIds, Outcome, Stored};
use crate::produce::ids::{IdTail, UniqueIds, now_ms};
use crate::produce::lanes::{LaneLimits, Lanes, NewMessage, Queued, RECORD_FIXED_BYTES};
use crate::produce::routes::{Routes, Target};

const SEND_MESSAGE_V2: i32 = 310;
const SEND_BATCH_MESSAGE: i32 = 320;
const SUCCESS: i32 = 0;
/// New topics copy the settings of this one.
const TEMPLATE_TOPIC: &str = "TBW102";
const BATCH_PROPERTIES: &str = "WAIT\u{1}true\u{2}";

#[derive(Debug, Clone)]
pub struct SendSettings {
    pub group: String,
    pub attempt_timeout: Duration,
    /// For all attempts with one batch.
    pub timeout: Duration,
    pub limits: LaneLimits,
    /// If given, every batch is stored as one half message with these properties, and
    /// [`Accumulator::take_half_batches`] reports where.
    pub half_properties: Option<Arc<str>>,
}

/// A batch that was stored as a half message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HalfBatch {
    batch_id: u64,
    pub topic: Arc<str>,
    /// Its queue was given, so it follows the batches before it.
    pub is_ordered: bool,
    pub count: usize,
    pub stored: Stored,
}

/// Why a message cannot be put into the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutError {
    /// There is no space now.
    Full,
    Closed,
    /// Its lengths do not fit the length fields of the wire.
    TooLong,
}

/// The choice of a caller whose message finds the buffer full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    Refuse,
    /// Refuse it, unless this ticket of [`Accumulator::stand_in_line`] is the first in line and there is space.
    InTurn(u64),
    /// Refuse it, and notify the event descriptor whenever space is freed, until [`Accumulator::stop_watching_space`].
    /// The wish is noted under the lock of the check, so no space is freed in between unnoticed.
    Notify,
    /// Take it all the same: the space may be held by messages that wait for whoever puts this one.
    Exceed,
}

/// The batch of a message, and its number there.
pub type Put<A> = (Arc<Batch<A>>, usize);

/// An event of a buffer.
pub enum Event<A> {
    /// A batch that somebody watches has its outcome.
    Finished(Arc<Batch<A>>),
    Unsent(Unsent<A>),
    /// The first message created this topic, so its real route can be asked for.
    TopicCreated(Arc<str>),
    /// A broker that had failed stored a batch.
    BrokerRecovered(Arc<str>),
}

/// A batch that its first request did not store.
pub struct Unsent<A> {
    pub batch: Arc<Batch<A>>,
    /// The queue it was sent to; `None` if no queue was known.
    pub target: Option<BrokerQueue>,
    pub reason: UnsentReason,
}

#[derive(Debug)]
pub enum UnsentReason {
    NoRoute,
    /// Its time ran out before it could be sent, because batches before it failed.
    Expired,
    Answered(Reply),
    Unanswered(ClientError),
    /// The buffer was closed.
    Closed,
}

/// A message that shares a request with others.
pub struct BatchMessage<'a, F: FnOnce(&mut Vec<u8>)> {
    pub topic: &'a str,
    pub queue: Option<&'a BrokerQueue>,
    pub id: IdTail,
    pub flag: i32,
    pub body: &'a [u8],
    pub properties_bytes: usize,
    /// Appends exactly `properties_bytes` bytes.
    pub push_properties: F,
}

/// Events that were not taken yet, and the number of those that were.
struct Events<A> {
    waiting: VecDeque<Event<A>>,
    taken: u64,
}

impl<A> Default for Events<A> {
    fn default() -> Self {
        Events { waiting: VecDeque::new(), taken: 0 }
    }
}

pub struct Accumulator<A> {
    settings: SendSettings,
    network: Arc<Network>,
    pub ids: Arc<UniqueIds>,
    pub routes: Routes,
    lanes: Mutex<Lanes<A>>,
    is_open: AtomicBool,
    space_freed: Condvar,
    /// The driver task has something to do.
    work: Notify,
    turn: AtomicUsize,
    events: Mutex<Events<A>>,
    half_batches: Mutex<Vec<HalfBatch>>,
    pub event_fd: EventFd,
}

impl<A: Default + Send + 'static> Accumulator<A> {
    pub fn start(
        network: Arc<Network>,
        ids: Arc<UniqueIds>,
        settings: SendSettings,
    ) -> Result<Arc<Self>, ClientError> {
        let accumulator = Arc::new(Accumulator {
            lanes: Mutex::new(Lanes::new(
                settings.limits,
                settings.half_properties.clone(),
                Arc::clone(&ids),
            )),
            settings,
            network,
            routes: Routes::default(),
            is_open: AtomicBool::new(true),
            space_freed: Condvar::new(),
            work: Notify::new(),
            // Producers that start together should not all begin with the same queue.
            turn: AtomicUsize::new(ids.next().number()),
            ids,
            events: Mutex::default(),
            half_batches: Mutex::default(),
            event_fd: EventFd::new()?,
        });
        let driver = Arc::clone(&accumulator);
        accumulator.network.spawn(driver.drive());
        Ok(accumulator)
    }

    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Takes a message if its lane exists; `None` if it does not, and the caller should use `put`.
    pub fn put_known<F: FnOnce(&mut Vec<u8>)>(
        &self,
        message: BatchMessage<'_, F>,
    ) -> Result<Option<Put<A>>, PutError> {
        let mut lanes = self.lanes.lock();
        // Messages of the event loop, which waits outside of the line, go first.
        if lanes.budget.is_watched {
            return Err(PutError::Full);
        }
        let Some(lane) = lanes.find(message.topic, message.queue) else { return Ok(None) };
        self.put_into(&mut lanes, lane, message, WhenFull::Refuse).map(|taken| {
            drop(lanes);
            Some(self.wake_driver(taken))
        })
    }

    /// Takes a message.
    pub fn put<F: FnOnce(&mut Vec<u8>)>(
        &self,
        message: BatchMessage<'_, F>,
        when_full: WhenFull,
    ) -> Result<Put<A>, PutError> {
        let mut lanes = self.lanes.lock();
        let lane = lanes.find_or_make(message.topic, message.queue);
        let taken = self.put_into(&mut lanes, lane, message, when_full);
        drop(lanes);
        taken.map(|taken| self.wake_driver(taken))
    }

    /// Takes a message that is sent as a request of its own.
    pub fn put_alone(
        &self,
        topic: &str,
        queue: Option<&BrokerQueue>,
        id: IdTail,
        form: Form,
        body: Bytes,
        when_full: WhenFull,
    ) -> Result<Put<A>, PutError> {
        let properties_bytes = match &form {
            Form::Alone { properties, .. } => properties.len(),
            Form::Together => 0,
        };
        let size_bytes = RECORD_FIXED_BYTES + body.len() + properties_bytes;
        let mut lanes = self.lanes.lock();
        self.take_space(&mut lanes, size_bytes, when_full)?;
        let lane = lanes.find_or_make(topic, queue);
        let taken = lanes.put_alone(lane, id, form, body, size_bytes);
        drop(lanes);
        taken.map(|taken| self.wake_driver(taken)).ok_or(PutError::TooLong)
    }

    fn put_into<F: FnOnce(&mut Vec<u8>)>(
        &self,
        lanes: &mut Lanes<A>,
        lane: usize,
        message: BatchMessage<'_, F>,
        when_full: WhenFull,
    ) -> Result<Queued<A>, PutError> {
        if message.properties_bytes > i16::MAX as usize || message.body.len() > i32::MAX as usize / 2 {
            return Err(PutError::TooLong);
        }
        let size_bytes = RECORD_FIXED_BYTES + message.body.len() + message.properties_bytes;
        self.take_space(lanes, size_bytes, when_full)?;
        let message = NewMessage {
            id: message.id,
            flag: message.flag,
            body: message.body,
            properties_bytes: message.properties_bytes,
            push_properties: message.push_properties,
        };
        lanes.put(lane, message, Instant::now).ok_or(PutError::TooLong)
    }

    fn take_space(
        &self,
        lanes: &mut Lanes<A>,
        size_bytes: usize,
        when_full: WhenFull,
    ) -> Result<(), PutError> {
        // Checked under the lock: a message put after `close` emptied the lanes would be lost.
        if !self.is_open() {
            return Err(PutError::Closed);
        }
        let ticket = match when_full {
            WhenFull::InTurn(ticket) => Some(ticket),
            WhenFull::Refuse | WhenFull::Notify => None,
            WhenFull::Exceed => {
                lanes.budget.exceed(size_bytes);
                return Ok(());
            }
        };
        if !lanes.budget.take(size_bytes, ticket) {
            lanes.budget.is_watched |= when_full == WhenFull::Notify;
            return Err(PutError::Full);
        }
        if ticket.is_some() {
            self.space_freed.notify_all();
        }
        Ok(())
    }

    fn wake_driver(&self, taken: Queued<A>) -> Put<A> {
        if taken.wakes {
            self.work.notify_one();
        }
        (taken.batch, taken.number)
    }

    // Waiting for space

    pub fn stand_in_line(&self) -> u64 {
        self.lanes.lock().budget.stand_in_line()
    }

    /// Waits up to `patience` until this ticket is the first in line and `size_bytes` are free.
    pub fn wait_in_line(&self, ticket: u64, size_bytes: usize, patience: Duration) {
        let mut lanes = self.lanes.lock();
        if self.is_open() && !lanes.budget.is_free(size_bytes, Some(ticket)) {
            self.space_freed.wait_for(&mut lanes, patience);
        }
    }

    /// Whether it is this ticket's turn and there is space, or the buffer is closed and waiting is pointless.
    pub fn has_space(&self, ticket: u64, size_bytes: usize) -> bool {
        !self.is_open() || self.lanes.lock().budget.is_free(size_bytes, Some(ticket))
    }

    pub fn leave_line(&self, ticket: u64) {
        self.lanes.lock().budget.leave_line(ticket);
        self.space_freed.notify_all();
    }

    /// Ends the wish of [`WhenFull::Notify`].
    pub fn stop_watching_space(&self) {
        self.lanes.lock().budget.is_watched = false;
    }

    // Flush and close

    /// Sends everything that is here now. The result is for [`Accumulator::unfinished_count`].
    pub fn flush(&self) -> u64 {
        let epoch = self.lanes.lock().flush();
        self.work.notify_one();
        epoch
    }

    /// Returns how many messages from before that flush have no outcome yet. The descriptor is notified at zero.
    pub fn unfinished_count(&self, epoch: u64) -> usize {
        self.lanes.lock().unfinished_count(epoch)
    }

    /// Bytes of the messages that have no outcome yet.
    pub fn held_bytes(&self) -> usize {
        self.lanes.lock().budget.taken()
    }

    /// Takes no more messages and gives up those without an outcome. The caller must finish each of these batches.
    pub fn close(&self) -> Vec<Unsent<A>> {
        let mut lanes = self.lanes.lock();
        self.is_open.store(false, Ordering::Release);
        let left = lanes.drain();
        drop(lanes);
        self.space_freed.notify_all();
        self.work.notify_one();
        let unsent = |batch| Unsent { batch, target: None, reason: UnsentReason::Closed };
        left.into_iter().map(unsent).collect()
    }

    /// Makes the buffer refuse everything without touching a lock, for a forked process, which lacks the thread.
    pub fn disable(&self) {
        self.is_open.store(false, Ordering::Release);
    }

    // Events and outcomes

    /// Takes events, up to about `messages_max` messages in finished batches.
    pub fn drain(&self, messages_max: usize) -> Vec<Event<A>> {
        self.event_fd.clear();
        let mut events = self.events.lock();
        let mut taken = Vec::new();
        let mut messages = 0;
        while messages < messages_max {
            let Some(event) = events.waiting.pop_front() else { break };
            events.taken += 1;
            if let Event::Finished(batch) = &event {
                messages += batch.count();
            }
            taken.push(event);
        }
        let has_more = !events.waiting.is_empty();
        drop(events);
        if has_more {
            self.event_fd.notify();
        }
        taken
    }

    /// Returns the number of events so far, for [`Accumulator::has_events_before`].
    pub fn events_end(&self) -> u64 {
        let events = self.events.lock();
        events.taken + events.waiting.len() as u64
    }

    /// Whether `drain` has still to return an event from before that number.
    pub fn has_events_before(&self, end: u64) -> bool {
        self.events.lock().taken < end
    }

    /// Sets the outcome of a batch; only the first one counts. If somebody watches the batch, its space is freed by
    /// [`Accumulator::release`], after the watchers were called.
    pub fn finish(&self, batch: &Arc<Batch<A>>, outcome: Outcome) {
        let half_batch = match &outcome {
            Outcome::Stored(stored) if self.settings.half_properties.is_some() => Some(stored.clone()),
            _ => None,
        };
        let Some(watched) = batch.finish(outcome) else { return };
        if let Some(stored) = half_batch {
            self.half_batches.lock().push(HalfBatch {
                batch_id: batch.id,
                topic: Arc::clone(&batch.topic),
                is_ordered: batch.queue.is_some(),
                count: batch.count(),
                stored,
            });
        }
        // Before it is counted as done: whoever waits for the count then finds all events there.
        if watched {
            self.events.lock().waiting.push_back(Event::Finished(Arc::clone(batch)));
        }
        let mut lanes = self.lanes.lock();
        let done = lanes.done(batch);
        let is_space_watched = !watched && self.free_space(&mut lanes, batch);
        drop(lanes);
        drop(done.removed);
        if done.wakes {
            self.work.notify_one();
        }
        if watched || is_space_watched || done.flushed {
            self.event_fd.notify();
        }
    }

    /// Takes the half messages that were stored since the last call, in the order in which they were filled.
    pub fn take_half_batches(&self) -> Vec<HalfBatch> {
        let mut half_batches = std::mem::take(&mut *self.half_batches.lock());
        half_batches.sort_unstable_by_key(|half_batch| half_batch.batch_id);
        half_batches
    }

    /// Frees the space of a batch whose watchers were called.
    pub fn release(&self, batch: &Batch<A>) {
        let is_space_watched = self.free_space(&mut self.lanes.lock(), batch);
        if is_space_watched {
            self.event_fd.notify();
        }
    }

    fn free_space(&self, lanes: &mut Lanes<A>, batch: &Batch<A>) -> bool {
        lanes.budget.free(batch.contents().map_or(0, |contents| contents.size_bytes));
        if lanes.budget.has_line() {
            self.space_freed.notify_all();
        }
        lanes.budget.is_watched
    }

    // Sending

    async fn drive(self: Arc<Self>) {
        while self.is_open() {
            let (due, next) = self.lanes.lock().take_due(Instant::now());
            for batch in due {
                let sending = Arc::clone(&self);
                tokio::spawn(async move { sending.send(batch).await });
            }
            match next {
                Some(next) => {
                    let _first = tokio::time::timeout_at(next.into(), self.work.notified()).await;
                }
                None => self.work.notified().await,
            }
        }
    }

    async fn send(&self, batch: Arc<Batch<A>>) {
        if batch.spent() >= self.settings.timeout {
            return self.hand_up(batch, None, UnsentReason::Expired);
        }
        let target = match &batch.queue {
            Some(queue) => self.routes.given(&batch.topic, queue),
            None => {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                self.routes.any(&batch.topic, turn, Instant::now())
            }
        };
        let (Some(target), Some(request)) =
            (&target, target.as_ref().and_then(|target| self.request(&batch, target)))
        else {
            return self.hand_up(batch, None, UnsentReason::NoRoute);
        };
        let answer = self.network.call(&target.address, request, self.settings.attempt_timeout).await;
        match answer {
            Ok(reply) => match stored(&reply, target, &batch) {
                Some(stored) => {
                    self.report_recovery(target);
                    if target.is_template {
                        self.push(Event::TopicCreated(Arc::clone(&batch.topic)));
                    }
                    self.finish(&batch, Outcome::Stored(stored));
                }
                None => self.hand_up(batch, Some(target.queue.clone()), UnsentReason::Answered(reply)),
            },
            Err(error) => self.hand_up(batch, Some(target.queue.clone()), UnsentReason::Unanswered(error)),
        }
    }

    fn report_recovery(&self, target: &Target) {
        if self.routes.clear_fault(&target.queue.broker) {
            self.push(Event::BrokerRecovered(Arc::clone(&target.queue.broker)));
        }
    }

    fn hand_up(&self, batch: Arc<Batch<A>>, target: Option<BrokerQueue>, reason: UnsentReason) {
        self.push(Event::Unsent(Unsent { batch, target, reason }));
    }

    fn push(&self, event: Event<A>) {
        self.events.lock().waiting.push_back(event);
        self.event_fd.notify();
    }

    /// `None` for an empty batch, which never occurs.
    fn request(&self, batch: &Batch<A>, target: &Target) -> Option<Request> {
        let contents = batch.contents()?;
        let (code, system_flag, flag, properties) = match &contents.form {
            Form::Together => (SEND_BATCH_MESSAGE, 0, 0, BATCH_PROPERTIES.to_owned()),
            Form::Alone { properties, system_flag, flag } => {
                (SEND_MESSAGE_V2, *system_flag, *flag, properties.clone())
            }
        };
        let queues = i64::try_from(target.queues_at_broker).ok()?;
        let together = if code == SEND_BATCH_MESSAGE { "true" } else { "false" };
        Some(
            Request::new(code)
                .field("a", self.settings.group.clone())
                .field("b", batch.topic.to_string())
                .field("c", TEMPLATE_TOPIC)
                .number("d", queues)
                .number("e", i64::from(target.queue.queue_id))
                .number("f", i64::from(system_flag))
                .number("g", now_ms())
                .number("h", i64::from(flag))
                .field("i", properties)
                .number("j", 0)
                .field("k", "false")
                .field("m", together)
                .field("n", target.queue.broker.to_string())
                .body(batch.body()),
        )
    }
}

/// Reads a plain success; `None` for every other answer, which Python judges.
fn stored<A>(reply: &Reply, target: &Target, batch: &Batch<A>) -> Option<Stored> {
    if reply.code != SUCCESS {
        return None;
    }
    let header = reply.header().ok()?;
    let text = |name: &str| header.field(name).ok().flatten().map(|value| value.into_owned());
    let alone = batch.contents().is_some_and(|contents| contents.form != Form::Together);
    let optional = |name: &str| text(name).filter(|value| alone && !value.is_empty());
    Some(Stored {
        queue: BrokerQueue {
            broker: Arc::clone(&target.queue.broker),
            queue_id: text("queueId")?.parse().ok()?,
        },
        queue_offset: text("queueOffset")?.parse().ok()?,
        code: SUCCESS,
        is_accepted: true,
        offset_ids: OffsetIds::new(text("msgId")?),
        recall_handle: optional("recallHandle"),
        transaction_id: optional("transactionId"),
    })
}
