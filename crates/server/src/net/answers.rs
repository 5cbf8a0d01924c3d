//! The answers of one connection: encoded and ready to be written, or waiting until the store confirms their records.
//!
//! An acknowledgement that waits stays typed. It is encoded when it is known what it says: success, a time-out with the
//! same fields, or an error after a failed sync.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use metaq_store::Store;
use metaq_wire::{Encoding, FrameEncoder};

use crate::broker::Broker;
use crate::codes::response_code;
use crate::metrics::latency::{Answered, Exchange, Latencies};
use crate::metrics::slow_requests::{SlowRequest, SlowRequests, part};
use crate::net::output::{Body, Output};
use crate::net::peer::Peer;
use crate::net::route::Ask;
use crate::send::answer::{Origin, SendAnswer, Stored};

/// A request that is done, and what its answer says about it.
enum Acknowledged {
    Sent(SendAnswer<'static>),
    TransactionEnded,
}

impl Acknowledged {
    fn batch_bytes(&self) -> usize {
        match self {
            Acknowledged::Sent(SendAnswer { physical_offset: Stored::AllAt(offsets), .. }) => {
                size_of_val(&offsets[..])
            }
            Acknowledged::Sent(_) | Acknowledged::TransactionEnded => 0,
        }
    }

    /// The physical offset of its first message.
    fn first_offset(&self) -> Option<i64> {
        match self {
            Acknowledged::Sent(sent) => match &sent.physical_offset {
                Stored::At(physical_offset) => Some(*physical_offset),
                Stored::AllAt(physical_offsets) => physical_offsets.first().copied(),
            },
            Acknowledged::TransactionEnded => None,
        }
    }
}

/// An acknowledgement that waits until everything below `end_offset` is confirmed.
struct Unconfirmed {
    end_offset: i64,
    since_ms: u64,
    /// When the wait for a limit ended; `since_ms` if there was none.
    held_until_ms: u64,
    request_code: i32,
    encoding: Encoding,
    opaque: i32,
    acknowledged: Acknowledged,
}

/// How the wait of an acknowledgement ended.
#[derive(Clone, Copy)]
enum Verdict {
    Confirmed,
    /// The own disk was too slow.
    DiskTimedOut,
    /// The record is on the own disk, but replicas were too slow.
    ReplicasTimedOut,
    SyncFailed,
    /// The broker is not the master any more.
    Replaced,
}

impl Verdict {
    fn code(self) -> i32 {
        match self {
            Verdict::Confirmed => response_code::SUCCESS,
            Verdict::DiskTimedOut => response_code::FLUSH_DISK_TIMEOUT,
            Verdict::ReplicasTimedOut | Verdict::Replaced => response_code::FLUSH_SLAVE_TIMEOUT,
            Verdict::SyncFailed => response_code::SYSTEM_ERROR,
        }
    }

    fn remark(self) -> Option<&'static str> {
        match self {
            Verdict::Confirmed => None,
            Verdict::DiskTimedOut => Some("[FLUSH] the disk did not confirm in time"),
            Verdict::ReplicasTimedOut => Some(
                "[REPLICAS] stored here, but the replicas did not confirm in time: it may be lost if this broker fails",
            ),
            Verdict::Replaced => Some(
                "[ROLE] stored here, but this broker stopped being the master before replicas confirmed it: it may be lost, send it again",
            ),
            Verdict::SyncFailed => Some(
                "a sync of the commit log failed: the broker no longer accepts messages; check its disk and restart it",
            ),
        }
    }
}

/// The answers of a connection, or of another thread on their way to it, and the store's work that their requests left.
#[derive(Default)]
pub struct Answers {
    pub output: Output,
    unconfirmed: VecDeque<Unconfirmed>,
    /// Memory of the batches among them, besides their places.
    unconfirmed_bytes: usize,
    /// The broker that stored the messages of `unconfirmed`.
    origin: Option<Arc<Origin>>,
    appended: bool,
    ended: bool,
    costly: bool,
    confirm_to: i64,
    /// The code of the answer that was added last, until it is noted with its request.
    last_code: Option<i32>,
    answered: Answered,
}

/// Records the times of answers that waited.
pub struct Waits<'a> {
    pub peer: &'a Peer,
    pub broker: Option<&'a Broker>,
    pub now_ms: u64,
    pub slow_requests: &'a SlowRequests,
    /// The limit of slow requests, read once for all.
    pub slow_ms: u64,
}

impl Waits<'_> {
    /// Notes a request that waited long for its confirmation, with the topic of its first record. The time that it
    /// waited for a limit does not count.
    #[cold]
    fn note_slow(&self, answer: &Unconfirmed) {
        let waited_ms = self.now_ms.saturating_sub(answer.held_until_ms);
        let Some(broker) = self.broker.filter(|_| waited_ms >= self.slow_ms) else {
            return;
        };
        let (flush_ms, replicas_ms) = broker.store.confirmation_parts(answer.end_offset, waited_ms);
        self.slow_requests.note(SlowRequest {
            remote: self.peer.remote,
            request_code: Some(answer.request_code),
            requests: 1,
            topic: answer.acknowledged.first_offset().and_then(|at| broker.topic_of(at)),
            parts: vec![(part::FLUSH, flush_ms), (part::REPLICAS, replicas_ms)],
        });
    }
}

impl Answers {
    /// Adds a response; one too long for a frame becomes an error that says so.
    pub fn add_with_body(
        &mut self,
        encoding: Encoding,
        opaque: i32,
        code: i32,
        remark: Option<&str>,
        fill: impl FnOnce(&mut FrameEncoder<'_>),
        body: Body,
    ) {
        self.last_code = Some(code);
        let mut frame = FrameEncoder::response(self.output.tail(), encoding, code, opaque);
        if let Some(remark) = remark {
            frame.remark(remark);
        }
        fill(&mut frame);
        match frame.finish(body.len()) {
            Ok(_) => self.output.append(body),
            Err(error) => self.add(encoding, opaque, response_code::SYSTEM_ERROR, &error.to_string(), &[]),
        }
    }

    /// Adds a response without body, whose remark is short.
    pub fn add(&mut self, encoding: Encoding, opaque: i32, code: i32, remark: &str, fields: &[(&str, i64)]) {
        self.last_code = Some(code);
        let mut frame = FrameEncoder::response(self.output.tail(), encoding, code, opaque);
        if !remark.is_empty() {
            frame.remark(remark);
        }
        for (name, value) in fields {
            frame.field_i64(name, *value);
        }
        let _never_too_long = frame.finish(0);
    }

    /// Acknowledges a send at once.
    pub fn add_sent(&mut self, ask: &Ask<'_>, origin: &Origin, answer: &SendAnswer<'_>) {
        self.last_code = Some(response_code::SUCCESS);
        let out = self.output.tail();
        let mut frame = FrameEncoder::response(out, ask.encoding, response_code::SUCCESS, ask.header.opaque);
        answer.encode(origin, &mut frame);
        let _never_too_long = frame.finish(0);
    }

    /// Acknowledges a send once everything below `end_offset` is confirmed.
    pub fn add_sent_when_confirmed(
        &mut self,
        ask: &Ask<'_>,
        origin: &Arc<Origin>,
        answer: SendAnswer<'_>,
        end_offset: i64,
    ) {
        if !self.origin.as_ref().is_some_and(|known| Arc::ptr_eq(known, origin)) {
            self.origin = Some(Arc::clone(origin));
        }
        self.add_when_confirmed(ask, Acknowledged::Sent(answer.into_owned()), end_offset);
    }

    /// Acknowledges the end of a transaction once everything below `end_offset` is confirmed.
    pub fn add_ended_when_confirmed(&mut self, ask: &Ask<'_>, end_offset: i64) {
        self.add_when_confirmed(ask, Acknowledged::TransactionEnded, end_offset);
    }

    fn add_when_confirmed(&mut self, ask: &Ask<'_>, acknowledged: Acknowledged, end_offset: i64) {
        self.confirm_to = self.confirm_to.max(end_offset);
        self.unconfirmed_bytes += acknowledged.batch_bytes();
        let since_ms = ask.peer.now_ms();
        self.unconfirmed.push_back(Unconfirmed {
            end_offset,
            since_ms,
            held_until_ms: since_ms,
            request_code: ask.header.code,
            encoding: ask.encoding,
            opaque: ask.header.opaque,
            acknowledged,
        });
    }

    /// Notes that the request was answered in this pass, if it was.
    pub fn note_answered(&mut self, request_code: i32) {
        if let Some(response_code) = self.last_code.take() {
            self.answered.note(Exchange { request_code, response_code, is_long_polling: false });
        }
    }

    /// The requests of this pass that began at `began_ms`, by code: answered ones, and those that wait.
    #[cold]
    pub fn handled_since(&self, began_ms: u64) -> BTreeMap<i32, u64> {
        let mut requests = BTreeMap::new();
        for (exchange, count) in self.answered.all() {
            *requests.entry(exchange.request_code).or_default() += count;
        }
        for answer in self.unconfirmed.iter().rev().take_while(|answer| answer.since_ms >= began_ms) {
            *requests.entry(answer.request_code).or_default() += 1;
        }
        requests
    }

    /// Records how long the requests took that were answered in this pass.
    pub fn record_answered(&mut self, latencies: &Latencies, elapsed_ms: u64) {
        self.answered.record(latencies, elapsed_ms);
    }

    /// Notes that this pass appended to the log, so that `finish_pass` dispatches it.
    pub fn note_appended(&mut self) {
        self.appended = true;
    }

    /// Notes that this pass ended transactions, which is written down once for all of them.
    pub fn note_ended(&mut self) {
        self.ended = true;
    }

    pub fn take_ended(&mut self) -> bool {
        std::mem::take(&mut self.ended)
    }

    /// Notes that this request may have taken long: its cost is more than that of its bytes.
    pub fn note_costly(&mut self) {
        self.costly = true;
    }

    pub fn take_costly(&mut self) -> bool {
        std::mem::take(&mut self.costly)
    }

    /// Once per pass: queue entries for what was appended, and one flush for all answers that wait.
    pub fn finish_pass(&mut self, store: &Store) {
        if std::mem::take(&mut self.appended) {
            store.dispatch();
        }
        let confirm_to = std::mem::take(&mut self.confirm_to);
        if confirm_to > 0 {
            store.request_confirm(confirm_to);
        }
    }

    /// Takes over the store's work that other answers' requests left.
    pub fn take_store_work(&mut self, from: &mut Answers) {
        self.appended |= std::mem::take(&mut from.appended);
        self.ended |= std::mem::take(&mut from.ended);
        self.confirm_to = self.confirm_to.max(std::mem::take(&mut from.confirm_to));
    }

    /// Notes that these answers have waited for a limit until now.
    pub fn end_hold(&mut self, now_ms: u64) {
        for answer in &mut self.unconfirmed {
            answer.held_until_ms = now_ms;
        }
    }

    /// Appends all answers of another pass, whose work for the store is done or taken over.
    pub fn absorb(&mut self, other: Answers) {
        self.output.absorb(other.output);
        if !other.unconfirmed.is_empty() {
            self.unconfirmed_bytes += other.unconfirmed_bytes;
            self.unconfirmed.extend(other.unconfirmed);
            self.origin = other.origin.or(self.origin.take());
        }
    }

    /// About the memory of this process that these answers take.
    pub fn memory(&self) -> usize {
        let unconfirmed = self.unconfirmed.capacity() * size_of::<Unconfirmed>();
        self.output.memory() + unconfirmed + self.unconfirmed_bytes
    }

    /// Gives back buffers that hold nothing.
    pub fn release_buffers(&mut self) {
        self.output.release_buffers();
        if self.unconfirmed.is_empty() {
            self.unconfirmed = VecDeque::new();
        }
    }

    pub fn unconfirmed_count(&self) -> usize {
        self.unconfirmed.len()
    }

    /// When the oldest acknowledgement that waits began to wait.
    pub fn unconfirmed_since_ms(&self) -> Option<u64> {
        self.unconfirmed.front().map(|oldest| oldest.since_ms)
    }

    /// Encodes every acknowledgement whose record is confirmed.
    pub fn release_confirmed(&mut self, confirmed_offset: i64, waits: &Waits<'_>) {
        while self.unconfirmed.front().is_some_and(|oldest| oldest.end_offset <= confirmed_offset) {
            self.release_oldest(Verdict::Confirmed, waits);
        }
    }

    /// Answers those who waited too long with a time-out, which has the same fields as success. Its code says whether
    /// this disk was too slow, which has everything below `held_offset`, or the replicas.
    pub fn release_expired(&mut self, older_than_ms: u64, held_offset: i64, waits: &Waits<'_>) {
        while let Some(oldest) = self.unconfirmed.front().filter(|oldest| oldest.since_ms <= older_than_ms) {
            let is_held = oldest.end_offset <= held_offset;
            let verdict = if is_held { Verdict::ReplicasTimedOut } else { Verdict::DiskTimedOut };
            self.release_oldest(verdict, waits);
        }
    }

    /// Answers everybody who waits with an error: after a failed sync nothing may be called stored.
    pub fn fail_unconfirmed(&mut self, waits: &Waits<'_>) {
        while !self.unconfirmed.is_empty() {
            self.release_oldest(Verdict::SyncFailed, waits);
        }
    }

    /// Answers everybody who waits, because this broker is not the master any more.
    pub fn give_up_unconfirmed(&mut self, waits: &Waits<'_>) {
        while !self.unconfirmed.is_empty() {
            self.release_oldest(Verdict::Replaced, waits);
        }
    }

    fn release_oldest(&mut self, verdict: Verdict, waits: &Waits<'_>) {
        let Some(answer) = self.unconfirmed.pop_front() else {
            return;
        };
        let waited_ms = waits.now_ms.saturating_sub(answer.since_ms);
        if let Some(broker) = waits.broker {
            let (request_code, response_code) = (answer.request_code, verdict.code());
            let exchange = Exchange { request_code, response_code, is_long_polling: false };
            broker.latencies.record(exchange, waited_ms);
        }
        if waited_ms >= waits.slow_ms {
            waits.note_slow(&answer);
        }
        self.unconfirmed_bytes -= answer.acknowledged.batch_bytes();
        let out = self.output.tail();
        let mut frame = FrameEncoder::response(out, answer.encoding, verdict.code(), answer.opaque);
        if let Some(remark) = verdict.remark() {
            frame.remark(remark);
        }
        let has_fields = !matches!(verdict, Verdict::SyncFailed);
        if let (Acknowledged::Sent(sent), Some(origin), true) =
            (&answer.acknowledged, &self.origin, has_fields)
        {
            sent.encode(origin, &mut frame);
        }
        let _never_too_long = frame.finish(0);
    }
}
