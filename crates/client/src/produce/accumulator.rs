//! The buffer of one producer: messages go in one by one and leave in batches.
//!
//! This is the happy path alone. A batch that is not stored by its first request, for whatever reason, is handed up
//! whole ([`Event::Crossed`]) and whoever takes it decides what becomes of it; its lane waits where order counts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::error::ClientError;
use crate::net::event_fd::Bell;
use crate::net::network::Network;
use crate::net::request::{Reply, Request};
use crate::produce::batch::{Batch, Form, OffsetIds, Outcome, Place, Stored};
use crate::produce::ids::{IdTail, UniqueIds, now_ms};
use crate::produce::lanes::{Fresh, LaneLimits, Lanes, RECORD_FIXED_BYTES, Taken};
use crate::produce::routes::{Routes, Target};

const SEND_MESSAGE_V2: i32 = 310;
const SEND_BATCH_MESSAGE: i32 = 320;
const SUCCESS: i32 = 0;
/// The topic that new ones are made after.
const TEMPLATE_TOPIC: &str = "TBW102";
const BATCH_PROPERTIES: &str = "WAIT\u{1}true\u{2}";

#[derive(Debug, Clone)]
pub struct SendSettings {
    pub group: String,
    pub attempt_timeout: Duration,
    /// For all that is tried with a batch.
    pub timeout: Duration,
    pub limits: LaneLimits,
    /// Where they are given, every batch is stored as one half message with these properties, and
    /// [`Accumulator::take_parts`] tells where.
    pub half_properties: Option<Arc<str>>,
}

/// A batch that was stored as a half message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    batch_id: u64,
    pub topic: Arc<str>,
    /// It had to go to that queue, after those that came before it.
    pub is_ordered: bool,
    pub count: usize,
    pub stored: Stored,
}

/// What cannot be put into the buffer, and why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotTaken {
    /// There is no room now.
    Full,
    Closed,
    /// Its lengths are past what the wire can say.
    TooLong,
}

/// What whoever puts a message asks for where there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    Nothing,
    /// It is the turn of this ticket of [`Accumulator::stand_in_line`], if anybody's.
    InTurn(u64),
    /// The bell rings whenever there is more room, until [`Accumulator::want_no_room`]. Asked under the lock that the
    /// room was looked at: what is given back in between would be told to nobody.
    ToBeTold,
    /// To be taken all the same: room may be kept by what waits for whoever puts this one.
    Anyway,
}

/// A message's batch and its place there.
pub type Put<A> = (Arc<Batch<A>>, usize);

/// What the owner of a buffer gets to see.
pub enum Event<A> {
    /// Of a batch that is watched.
    Finished(Arc<Batch<A>>),
    Crossed(Crossed<A>),
    /// A message has made this topic: there is a route to be asked for.
    Made(Arc<str>),
    /// A broker that had failed stored something.
    Worked(Arc<str>),
}

/// A batch that its first request did not get stored.
pub struct Crossed<A> {
    pub batch: Arc<Batch<A>>,
    /// Where it was sent; None where there was nowhere to send it.
    pub target: Option<Place>,
    pub reason: Reason,
}

#[derive(Debug)]
pub enum Reason {
    NoRoute,
    /// Its time was over before it could be sent: those in front of it failed.
    Late,
    Answered(Reply),
    Unanswered(ClientError),
    /// The buffer was closed.
    Abandoned,
}

/// A message that goes into a request with others.
pub struct Plain<'a, F: FnOnce(&mut Vec<u8>)> {
    pub topic: &'a str,
    pub queue: Option<&'a Place>,
    pub id: IdTail,
    pub flag: i32,
    pub body: &'a [u8],
    pub properties_bytes: usize,
    /// Appends exactly so many bytes.
    pub push_properties: F,
}

/// What has happened and was not looked at, and how much was.
struct News<A> {
    events: VecDeque<Event<A>>,
    taken: u64,
}

impl<A> Default for News<A> {
    fn default() -> Self {
        News { events: VecDeque::new(), taken: 0 }
    }
}

pub struct Accumulator<A> {
    settings: SendSettings,
    network: Arc<Network>,
    pub ids: Arc<UniqueIds>,
    pub routes: Routes,
    lanes: Mutex<Lanes<A>>,
    is_open: AtomicBool,
    room_was_made: Condvar,
    /// The driver has something to do.
    work: Notify,
    turn: AtomicUsize,
    news: Mutex<News<A>>,
    parts: Mutex<Vec<Part>>,
    pub bell: Bell,
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
            room_was_made: Condvar::new(),
            work: Notify::new(),
            // Many producers that start together should not all begin with the same queue.
            turn: AtomicUsize::new(ids.next().number()),
            ids,
            news: Mutex::default(),
            parts: Mutex::default(),
            bell: Bell::new()?,
        });
        let driven = Arc::clone(&accumulator);
        accumulator.network.spawn(driven.drive());
        Ok(accumulator)
    }

    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Takes a message where its lane is known already; what has none is to be put with `put`.
    pub fn put_known<F: FnOnce(&mut Vec<u8>)>(
        &self,
        plain: Plain<'_, F>,
    ) -> Result<Option<Put<A>>, NotTaken> {
        let mut lanes = self.lanes.lock();
        // Who waits for room outside of the line comes first all the same.
        if lanes.room.wanted {
            return Err(NotTaken::Full);
        }
        let Some(lane) = lanes.find(plain.topic, plain.queue) else { return Ok(None) };
        self.put_into(&mut lanes, lane, plain, Asks::Nothing).map(|taken| {
            drop(lanes);
            Some(self.told(taken))
        })
    }

    /// Takes a message.
    pub fn put<F: FnOnce(&mut Vec<u8>)>(&self, plain: Plain<'_, F>, asks: Asks) -> Result<Put<A>, NotTaken> {
        let mut lanes = self.lanes.lock();
        let lane = lanes.find_or_make(plain.topic, plain.queue);
        let taken = self.put_into(&mut lanes, lane, plain, asks);
        drop(lanes);
        taken.map(|taken| self.told(taken))
    }

    /// Takes a message that is a request of its own.
    pub fn put_alone(
        &self,
        topic: &str,
        queue: Option<&Place>,
        id: IdTail,
        form: Form,
        body: Bytes,
        asks: Asks,
    ) -> Result<Put<A>, NotTaken> {
        let properties_bytes = match &form {
            Form::Alone { properties, .. } => properties.len(),
            Form::Together => 0,
        };
        let size_bytes = RECORD_FIXED_BYTES + body.len() + properties_bytes;
        let mut lanes = self.lanes.lock();
        self.take_room(&mut lanes, size_bytes, asks)?;
        let lane = lanes.find_or_make(topic, queue);
        let taken = lanes.put_alone(lane, id, form, body, size_bytes);
        drop(lanes);
        taken.map(|taken| self.told(taken)).ok_or(NotTaken::TooLong)
    }

    fn put_into<F: FnOnce(&mut Vec<u8>)>(
        &self,
        lanes: &mut Lanes<A>,
        lane: usize,
        plain: Plain<'_, F>,
        asks: Asks,
    ) -> Result<Taken<A>, NotTaken> {
        if plain.properties_bytes > i16::MAX as usize || plain.body.len() > i32::MAX as usize / 2 {
            return Err(NotTaken::TooLong);
        }
        let size_bytes = RECORD_FIXED_BYTES + plain.body.len() + plain.properties_bytes;
        self.take_room(lanes, size_bytes, asks)?;
        let fresh = Fresh {
            id: plain.id,
            flag: plain.flag,
            body: plain.body,
            properties_bytes: plain.properties_bytes,
            push_properties: plain.push_properties,
        };
        lanes.put(lane, fresh, Instant::now).ok_or(NotTaken::TooLong)
    }

    fn take_room(&self, lanes: &mut Lanes<A>, size_bytes: usize, asks: Asks) -> Result<(), NotTaken> {
        // Looked at under the lock: what comes after `close` has emptied the lanes would be forgotten there.
        if !self.is_open() {
            return Err(NotTaken::Closed);
        }
        let ticket = match asks {
            Asks::InTurn(ticket) => Some(ticket),
            Asks::Nothing | Asks::ToBeTold => None,
            Asks::Anyway => {
                lanes.room.take_anyway(size_bytes);
                return Ok(());
            }
        };
        if !lanes.room.take(size_bytes, ticket) {
            lanes.room.wanted |= asks == Asks::ToBeTold;
            return Err(NotTaken::Full);
        }
        if ticket.is_some() {
            self.room_was_made.notify_all();
        }
        Ok(())
    }

    fn told(&self, taken: Taken<A>) -> Put<A> {
        if taken.wakes {
            self.work.notify_one();
        }
        (taken.batch, taken.number)
    }

    // Waiting for room

    pub fn stand_in_line(&self) -> u64 {
        self.lanes.lock().room.stand_in_line()
    }

    /// Waits no longer than this until it is this one's turn and so many bytes are free.
    pub fn wait_in_line(&self, ticket: u64, size_bytes: usize, patience: Duration) {
        let mut lanes = self.lanes.lock();
        if self.is_open() && !lanes.room.is_free(size_bytes, Some(ticket)) {
            self.room_was_made.wait_for(&mut lanes, patience);
        }
    }

    /// Whether it is this one's turn and there is as much room, or there will never be any.
    pub fn has_room(&self, ticket: u64, size_bytes: usize) -> bool {
        !self.is_open() || self.lanes.lock().room.is_free(size_bytes, Some(ticket))
    }

    pub fn leave_line(&self, ticket: u64) {
        self.lanes.lock().room.leave_line(ticket);
        self.room_was_made.notify_all();
    }

    /// Nobody who asked to be told waits any more.
    pub fn want_no_room(&self) {
        self.lanes.lock().room.wanted = false;
    }

    // Its end

    /// Everything that is here goes now; what to ask [`Accumulator::left`] with.
    pub fn flush(&self) -> u64 {
        let epoch = self.lanes.lock().flush();
        self.work.notify_one();
        epoch
    }

    /// Messages put before that flush that are not done. The bell rings when there are none any more.
    pub fn left(&self, epoch: u64) -> usize {
        self.lanes.lock().left(epoch)
    }

    /// What was taken and is not done.
    pub fn held_bytes(&self) -> usize {
        self.lanes.lock().room.taken()
    }

    /// Takes no more and gives up what is not done; each of these batches must be finished by the caller.
    pub fn close(&self) -> Vec<Crossed<A>> {
        let mut lanes = self.lanes.lock();
        self.is_open.store(false, Ordering::Release);
        let left = lanes.drain();
        drop(lanes);
        self.room_was_made.notify_all();
        self.work.notify_one();
        let abandoned = |batch| Crossed { batch, target: None, reason: Reason::Abandoned };
        left.into_iter().map(abandoned).collect()
    }

    /// Nothing works any more and no lock is touched: for a process that was forked off, which has not the thread.
    pub fn disable(&self) {
        self.is_open.store(false, Ordering::Release);
    }

    // What has come

    /// Takes what has happened, until it was about so many messages.
    pub fn drain(&self, messages_max: usize) -> Vec<Event<A>> {
        self.bell.hush();
        let mut news = self.news.lock();
        let mut taken = Vec::new();
        let mut messages = 0;
        while messages < messages_max
            && let Some(event) = news.events.pop_front()
        {
            news.taken += 1;
            if let Event::Finished(batch) = &event {
                messages += batch.count();
            }
            taken.push(event);
        }
        let more = !news.events.is_empty();
        drop(news);
        if more {
            self.bell.ring();
        }
        taken
    }

    /// Where the news ends now; [`Accumulator::has_news`] tells when `drain` has come to there.
    pub fn news_end(&self) -> u64 {
        let news = self.news.lock();
        news.taken + news.events.len() as u64
    }

    pub fn has_news(&self, until: u64) -> bool {
        self.news.lock().taken < until
    }

    /// Says what became of a batch; the first word counts. Room that is watched over is given back by
    /// [`Accumulator::release`], when those who watch have been told.
    pub fn finish(&self, batch: &Arc<Batch<A>>, outcome: Outcome) {
        let part = match &outcome {
            Outcome::Stored(stored) if self.settings.half_properties.is_some() => Some(stored.clone()),
            _ => None,
        };
        let Some(watched) = batch.finish(outcome) else { return };
        if let Some(stored) = part {
            self.parts.lock().push(Part {
                batch_id: batch.id,
                topic: Arc::clone(&batch.topic),
                is_ordered: batch.queue.is_some(),
                count: batch.count(),
                stored,
            });
        }
        // Told before it is counted as done: who has waited for the count finds all the news there.
        if watched {
            self.news.lock().events.push_back(Event::Finished(Arc::clone(batch)));
        }
        let mut lanes = self.lanes.lock();
        let done = lanes.done(batch);
        let room = !watched && self.give_back(&mut lanes, batch);
        drop(lanes);
        drop(done.kept);
        if done.wakes {
            self.work.notify_one();
        }
        if watched || room || done.flushed {
            self.bell.ring();
        }
    }

    /// The half messages that were stored since it was asked last, in the order in which they were filled.
    pub fn take_parts(&self) -> Vec<Part> {
        let mut parts = std::mem::take(&mut *self.parts.lock());
        parts.sort_unstable_by_key(|part| part.batch_id);
        parts
    }

    /// Gives back the room of a batch whose watchers have been told.
    pub fn release(&self, batch: &Batch<A>) {
        let room = self.give_back(&mut self.lanes.lock(), batch);
        if room {
            self.bell.ring();
        }
    }

    fn give_back(&self, lanes: &mut Lanes<A>, batch: &Batch<A>) -> bool {
        lanes.room.give(batch.contents().map_or(0, |contents| contents.size_bytes));
        if lanes.room.is_waited_for() {
            self.room_was_made.notify_all();
        }
        lanes.room.wanted
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
                    // Whichever comes first.
                    let _late = tokio::time::timeout_at(next.into(), self.work.notified()).await;
                }
                None => self.work.notified().await,
            }
        }
    }

    async fn send(&self, batch: Arc<Batch<A>>) {
        if batch.spent() >= self.settings.timeout {
            return self.cross(batch, None, Reason::Late);
        }
        let target = match &batch.queue {
            Some(place) => self.routes.given(&batch.topic, place),
            None => {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                self.routes.any(&batch.topic, turn, Instant::now())
            }
        };
        let (Some(target), Some(request)) =
            (&target, target.as_ref().and_then(|target| self.request(&batch, target)))
        else {
            return self.cross(batch, None, Reason::NoRoute);
        };
        let answer = self.network.call(&target.address, request, self.settings.attempt_timeout).await;
        match answer {
            Ok(reply) => match stored(&reply, target, &batch) {
                Some(stored) => {
                    self.tell(target);
                    if target.is_template {
                        self.push(Event::Made(Arc::clone(&batch.topic)));
                    }
                    self.finish(&batch, Outcome::Stored(stored));
                }
                None => self.cross(batch, Some(target.place.clone()), Reason::Answered(reply)),
            },
            Err(error) => self.cross(batch, Some(target.place.clone()), Reason::Unanswered(error)),
        }
    }

    fn tell(&self, target: &Target) {
        if self.routes.worked(&target.place.broker) {
            self.push(Event::Worked(Arc::clone(&target.place.broker)));
        }
    }

    fn cross(&self, batch: Arc<Batch<A>>, target: Option<Place>, reason: Reason) {
        self.push(Event::Crossed(Crossed { batch, target, reason }));
    }

    fn push(&self, event: Event<A>) {
        self.news.lock().events.push_back(event);
        self.bell.ring();
    }

    /// None where the batch is empty, which it never is.
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
                .number("e", i64::from(target.place.queue_id))
                .number("f", i64::from(system_flag))
                .number("g", now_ms())
                .number("h", i64::from(flag))
                .field("i", properties)
                .number("j", 0)
                .field("k", "false")
                .field("m", together)
                .field("n", target.place.broker.to_string())
                .body(batch.body()),
        )
    }
}

/// What a plain success says; None for every other answer, which is not for us to judge.
fn stored<A>(reply: &Reply, target: &Target, batch: &Batch<A>) -> Option<Stored> {
    if reply.code != SUCCESS {
        return None;
    }
    let header = reply.header().ok()?;
    let text = |name: &str| header.field(name).ok().flatten().map(|value| value.into_owned());
    let alone = batch.contents().is_some_and(|contents| contents.form != Form::Together);
    let optional = |name: &str| text(name).filter(|value| alone && !value.is_empty());
    Some(Stored {
        place: Place { broker: Arc::clone(&target.place.broker), queue_id: text("queueId")?.parse().ok()? },
        queue_offset: text("queueOffset")?.parse().ok()?,
        code: SUCCESS,
        is_accepted: true,
        offset_ids: OffsetIds::new(text("msgId")?),
        recall_handle: optional("recallHandle"),
        transaction_id: optional("transactionId"),
    })
}
