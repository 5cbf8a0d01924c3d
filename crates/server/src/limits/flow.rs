//! Acknowledgements that wait for their topic's limit.
//!
//! A message of a limited topic is stored at once and acknowledged when it has been paid for. A sender that waits for its
//! answer slows down by itself and sees no error. If the wait would be longer than `send_hold_ms_max`, the message is
//! refused, and the refusal is delayed by `send_refusal_hold_ms`: clients repeat a refused send without a pause.
//!
//! Time comes from the store's clock if a test can move it, and from the monotonic clock otherwise: a wall clock that is
//! set back must not stop a topic.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use metaq_store::Clock;
use metaq_wire::{SendHeader, batch_records};
use parking_lot::Mutex;

use crate::codes::response_code;
use crate::limits::paced::Paced;
use crate::limits::rate::Limit;
use crate::net::answers::Answers;
use crate::net::by_network::ByNetwork;
use crate::net::peer::Peer;
use crate::net::route::{Ask, Outcome, Refusal};
use crate::policy::Topic;
use crate::rounds::Rounds;
use crate::settings::LimitSettings;

/// Interval between two looks at the limits while something waits for one.
pub const TICK: Duration = Duration::from_millis(5);
/// Answers of one connection that wait for a limit, at most.
const HELD_PER_CONNECTION_MAX: usize = 16 * 1024;
const MILLISECOND_NS: i64 = 1_000_000;

/// Memory that an answer takes while it waits, besides the ids in it.
const HELD_BYTES: usize = 512;
/// The id of one message in the answer to a batch.
const MESSAGE_ID_BYTES: usize = 33;

struct HeldAnswer {
    peer: Arc<Peer>,
    answers: Answers,
    bytes: usize,
}

#[derive(Default)]
struct HeldAnswers {
    /// By the time at which each is due, and the order in which they came.
    due: BTreeMap<(i64, u64), HeldAnswer>,
    by_network: ByNetwork,
}

/// The acknowledgements of a broker that wait for a limit.
pub struct Flow {
    clock: Clock,
    started: Instant,
    answers: Mutex<HeldAnswers>,
    answers_count: AtomicUsize,
    next: AtomicU64,
    broker_name: String,
    settings: LimitSettings,
    pub(crate) paced: Paced,
    pub(crate) rounds: Rounds,
}

impl Flow {
    pub fn new(clock: Clock, broker_name: String, settings: LimitSettings, pulls_max: usize) -> Self {
        Flow {
            clock,
            started: Instant::now(),
            answers: Mutex::default(),
            answers_count: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            broker_name,
            settings,
            paced: Paced::new(pulls_max),
            rounds: Rounds::default(),
        }
    }

    pub fn now_ns(&self) -> i64 {
        if self.clock.is_movable() {
            return self.clock.now_ms().saturating_mul(MILLISECOND_NS);
        }
        i64::try_from(self.started.elapsed().as_nanos()).unwrap_or(i64::MAX)
    }

    /// The number of answers and pulls that wait for a limit.
    pub fn waiting(&self) -> usize {
        self.answers_count.load(Relaxed) + self.paced.len()
    }

    pub fn wake(&self) {
        self.rounds.nudge();
    }

    /// Why an answer to that many messages may not wait; None if it may.
    fn no_room(&self, peer: &Peer, messages: usize) -> Option<String> {
        let (count, count_max) = (self.answers_count.load(Relaxed), self.settings.send_hold_max);
        let is_full = count >= count_max || peer.answers_held.load(Relaxed) >= HELD_PER_CONNECTION_MAX;
        // No address can have its share while so few wait.
        let may_be_crowded = count >= count_max / 2;
        if is_full || (may_be_crowded && self.answers.lock().by_network.is_full(peer, count_max)) {
            return Some("too many sends wait for a limit (send_hold_max)".to_owned());
        }
        peer.memory.refusal(HELD_BYTES + messages * MESSAGE_ID_BYTES)
    }

    fn hold(&self, due_ns: i64, peer: &Arc<Peer>, held: Answers) {
        let bytes = HELD_BYTES + held.memory();
        if !peer.memory.add(bytes) {
            // The message is stored, so its sender gets the answer early rather than never.
            let _gone = peer.post(held);
            return;
        }
        peer.answers_held.fetch_add(1, Relaxed);
        let ticket = self.next.fetch_add(1, Relaxed);
        let mut answers = self.answers.lock();
        answers.by_network.add(peer);
        answers.due.insert((due_ns, ticket), HeldAnswer { peer: Arc::clone(peer), answers: held, bytes });
        self.answers_count.store(answers.due.len(), SeqCst);
        drop(answers);
        self.wake();
    }

    /// Posts the answers whose limit has room by now.
    pub fn release_due(&self) {
        self.release(self.now_ns());
    }

    /// Posts the answers that are due by then.
    pub fn release(&self, due_ns: i64) {
        let due = {
            let mut answers = self.answers.lock();
            let later = answers.due.split_off(&(due_ns, u64::MAX));
            let due = std::mem::replace(&mut answers.due, later);
            for held in due.values() {
                answers.by_network.remove(&held.peer);
            }
            self.answers_count.store(answers.due.len(), SeqCst);
            due
        };
        for HeldAnswer { peer, mut answers, bytes } in due.into_values() {
            peer.answers_held.fetch_sub(1, Relaxed);
            peer.memory.remove(bytes);
            answers.end_hold(peer.now_ms());
            let _gone = peer.post(answers);
        }
    }

    /// Stores a message of a limited topic and delays its answer, or refuses it.
    pub fn send_within(
        &self,
        limit: &Limit,
        topic: &Topic,
        ask: &Ask<'_>,
        header: &SendHeader<'_>,
        answers: &mut Answers,
        store: impl FnOnce(&mut Answers) -> Result<(), Refusal>,
    ) -> Outcome {
        let now_ns = self.now_ns();
        let debt_ns = limit.debt_ns(now_ns);
        let hold_ns_max = self.settings.send_hold_ms_max as i64 * MILLISECOND_NS;
        let messages = if header.batch { batch_records(ask.body).count() } else { 1 };
        let no_room = self.no_room(ask.peer, messages);
        if debt_ns > hold_ns_max || (debt_ns > 0 && no_room.is_some()) {
            let mut remark = self.over_limit(limit, topic, debt_ns);
            if let Some(reason) = &no_room {
                remark = format!("{remark}; {reason}");
            }
            if no_room.is_some() || ask.header.is_oneway() {
                return self.refuse_flow(ask, &remark, answers);
            }
            let mut own = Answers::default();
            let outcome = self.refuse_flow(ask, &remark, &mut own);
            let refusal_ns = self.settings.send_refusal_hold_ms as i64 * MILLISECOND_NS;
            self.hold(now_ns.saturating_add(refusal_ns), ask.peer, own);
            return outcome;
        }
        let mut own = Answers::default();
        if let Err(refusal) = store(&mut own) {
            return ask.refuse_with(answers, &refusal);
        }
        let wait_ns = limit.charge(messages as u64, ask.body.len() as u64, now_ns);
        answers.take_store_work(&mut own);
        if wait_ns == 0 || ask.header.is_oneway() {
            answers.absorb(own);
        } else {
            ask.peer.counts.sends_slowed.add(1);
            self.hold(now_ns.saturating_add(wait_ns), ask.peer, own);
        }
        Outcome::Done
    }

    fn refuse_flow(&self, ask: &Ask<'_>, remark: &str, answers: &mut Answers) -> Outcome {
        ask.peer.counts.sends_over_limit.add(1);
        ask.refuse(answers, response_code::SYSTEM_BUSY, remark)
    }

    fn over_limit(&self, limit: &Limit, topic: &Topic, debt_ns: i64) -> String {
        let rates = limit.rates();
        let mut parts = Vec::new();
        for (rate, unit) in [(rates.messages, "messages"), (rates.bytes, "bytes")] {
            if rate > 0 {
                parts.push(format!("{rate} {unit}"));
            }
        }
        format!(
            "[FLOW] topic[{}] takes at most {} a second on broker[{}] and is {} ms behind: send slower, or raise the limit (metaq topic limit)",
            topic.name,
            parts.join(" and "),
            self.broker_name,
            debt_ns / MILLISECOND_NS
        )
    }
}
