//! Pulls of groups with a limit: each reads as much as the limit has room for, and waits otherwise.

use std::sync::Arc;
use std::time::{Duration, Instant};

use metaq_store::{GetStatus, Got};

use crate::limits::rate::Limit;
use crate::net::answers::Answers;
use crate::net::peer::Peer;
use crate::net::route::{Ask, Outcome};
use crate::pull::Puller;
use crate::pull::handler::{Allowance, Pull};
use crate::pull::held_pulls::Held;
use crate::pull::waiting::refuse_hold;

impl Puller {
    /// Reads as much for a pull as its group's limit has room for; None if the pull has to wait. Pulls that wait already
    /// come first, unless it is this pull's turn.
    pub(super) fn get_within(
        &self,
        pull: &Pull,
        peer: &Peer,
        is_its_turn: bool,
        allowance: &mut Allowance,
    ) -> Option<Got> {
        let Some(limit) = self.consume_limit(&pull.group) else {
            return Some(self.get(pull, allowance));
        };
        let now_ns = self.flow.now_ns();
        let is_there = pull.queue_offset < self.store.max_offset(&pull.topic, pull.queue_id);
        if !is_there || pull.queue_offset < self.store.min_offset(&pull.topic, pull.queue_id) {
            let got = self.get(pull, allowance);
            // Messages that arrived since the look above count as well.
            limit.charge(got.count as u64, got.bytes as u64, now_ns);
            return Some(got);
        }
        if !is_its_turn && self.flow.paced.has(&pull.group) {
            return None;
        }
        let (count_max, bytes_max) = limit.take(pull.count_max, pull.bytes_max, now_ns)?;
        let got = self.get_at_most(pull, count_max, bytes_max, allowance);
        limit.finish_share(count_max - got.count.min(count_max), got.bytes, now_ns);
        self.flow.paced.note_served(pull, peer);
        Some(got)
    }

    /// Charges the messages that a function let through. Their number is known only afterwards, so the next pull waits.
    pub(super) fn charge_consumed(&self, group: &str, got: &Got) {
        if let Some(limit) = self.consume_limit(group) {
            limit.charge(got.count as u64, got.bytes as u64, self.flow.now_ns());
        }
    }

    fn consume_limit(&self, group: &str) -> Option<Arc<Limit>> {
        let policy = self.policy.read();
        if !policy.has_limited_groups() {
            return None;
        }
        policy.group(group)?.consume_limit.clone()
    }

    /// Lets a pull wait for its group's limit; returns it if there is no room.
    pub(super) fn pace(&self, held: Held) -> Result<(), Box<Held>> {
        held.peer.counts.pulls_paced.add(1);
        self.flow.paced.add(held)?;
        self.flow.wake();
        Ok(())
    }

    /// Lets a pull wait for the limit and not for messages.
    pub(super) fn hold_paced(
        &self,
        ask: &Ask<'_>,
        pull: Pull,
        suspend: Option<Duration>,
        answers: &mut Answers,
    ) -> Outcome {
        let wait = suspend.unwrap_or(Duration::from_millis(self.settings.limit_hold_ms));
        match self.held(ask.peer, Instant::now() + wait, pull) {
            Ok(held) => {
                let kept = self.pace(held);
                self.held_or_refused(kept, answers)
            }
            Err(refused) => refuse_hold(&refused.pull, &refused.remark, answers),
        }
    }

    /// Serves the pulls that wait for a limit, as far as the tokens go.
    pub fn serve_paced(&self) {
        let paced = &self.flow.paced;
        if paced.is_empty() {
            return;
        }
        for group in paced.groups() {
            let mut allowance = self.allowance();
            while let Some((turn, held)) = paced.take_first(&group) {
                if let Some(too_early) = self.look_in_turn(held, &mut allowance) {
                    paced.put_back(turn, too_early);
                    break;
                }
            }
            if self.consume_limit(&group).is_none() {
                paced.forget(&group);
            }
        }
    }

    /// Answers some pulls that have waited long enough; whether there were any. They ask again and keep their turn.
    pub(super) fn expire_paced(&self, now: Instant) -> bool {
        let expired = self.flow.paced.take_expired(now);
        let has_expired = !expired.is_empty();
        expired.into_iter().for_each(|held| self.finish_paced(held));
        has_expired
    }

    /// The answer for a pull that timed out before its group's limit had room: there are messages, ask again.
    pub(super) fn not_yet(&self, pull: &Pull) -> Got {
        Got {
            status: GetStatus::NoMatch,
            next_offset: pull.queue_offset,
            min_offset: self.store.min_offset(&pull.topic, pull.queue_id),
            max_offset: self.store.max_offset(&pull.topic, pull.queue_id),
            slices: Vec::new(),
            count: 0,
            bytes: 0,
            examined_bytes: 0,
        }
    }
}
