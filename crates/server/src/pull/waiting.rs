//! The life of a held pull: it is registered, looked at again when messages arrive, and answered in the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use metaq_store::{GetStatus, Got};

use crate::codes::response_code;
use crate::net::answers::Answers;
use crate::net::peer::Peer;
use crate::net::route::{Ask, Outcome};
use crate::pull::Puller;
use crate::pull::answer::pull_code;
use crate::pull::function::is_unjudged;
use crate::pull::handler::{Allowance, Pull};
use crate::pull::held_pulls::{Held, NoRoom, WIDE_PULLS_MAX};

/// Looks at one pull on a foreign thread, before it is answered as it stands.
const LOOKS_MAX: usize = 8;

impl Puller {
    /// The time for which a pull is held that asks for `suspend_ms`.
    pub(super) fn suspension(&self, suspend_ms: u64) -> Duration {
        Duration::from_millis(if self.settings.long_polling {
            suspend_ms.min(self.settings.hold_ms_max)
        } else {
            self.settings.short_polling_ms
        })
    }

    /// Lets the pull wait for a message or for a function's verdict. A second look after the registration sees messages
    /// that arrived in between, so that no wake-up is missed.
    pub(super) fn hold(
        &self,
        ask: &Ask<'_>,
        pull: Pull,
        wait: Duration,
        put: fn(&Puller, Held) -> Result<(), Box<Held>>,
        answers: &mut Answers,
    ) -> Outcome {
        match self.held(ask.peer, Instant::now() + wait, pull) {
            Ok(held) => {
                let kept = put(self, held);
                if kept.is_ok() {
                    ask.peer.counts.held.add(1);
                }
                self.held_or_refused(kept, answers)
            }
            Err(refused) => refuse_hold(&refused.pull, &refused.remark, answers),
        }
    }

    pub(super) fn held(&self, peer: &Arc<Peer>, deadline: Instant, pull: Pull) -> Result<Held, Box<NoRoom>> {
        Held::new(peer, deadline, pull, self.settings.connection_hold_max)
    }

    pub(super) fn held_or_refused(&self, kept: Result<(), Box<Held>>, answers: &mut Answers) -> Outcome {
        match kept {
            Ok(()) => Outcome::Done,
            Err(held) => {
                let remark = format!(
                    "[OVERLOAD] {} pulls are held already (hold_max), half of them of this address, or {WIDE_PULLS_MAX} of this queue with many tags; try again later",
                    self.settings.hold_max
                );
                refuse_hold(&held.pull, &remark, answers)
            }
        }
    }

    /// Registers a pull that has found nothing, and looks once more: messages that arrived before the registration woke
    /// nobody. Returns the pull if there is no room.
    pub(super) fn register(&self, held: Held) -> Result<(), Box<Held>> {
        self.register_within(held, &mut self.allowance())
    }

    /// The same for a pull that stands in front of a damaged record.
    pub(super) fn register_before_damage(&self, mut held: Held) -> Result<(), Box<Held>> {
        held.is_before_damage = true;
        self.register(held)
    }

    fn register_within(&self, mut held: Held, allowance: &mut Allowance) -> Result<(), Box<Held>> {
        for _ in 0..LOOKS_MAX {
            let (group, topic) = (Arc::clone(&held.pull.group), Arc::clone(&held.pull.topic));
            let (queue_id, queue_offset) = (held.pull.queue_id, held.pull.queue_offset);
            let is_fixed_range = held.pull.is_fixed_range;
            let is_before_damage = held.is_before_damage;
            let ticket = self.holds.add(held)?;
            if (is_before_damage || self.store.max_offset(&topic, queue_id) <= queue_offset)
                && (is_fixed_range || !self.offsets.awaits_reset(&group, &topic, queue_id))
            {
                return Ok(());
            }
            match self.holds.take_one(ticket).and_then(|taken| self.look(taken, allowance)) {
                Some(again) => held = again,
                None => return Ok(()),
            }
        }
        self.finish(held, allowance);
        Ok(())
    }

    /// Looks at the held pulls of a queue that got messages with these tags. This runs on the thread of the sender, so
    /// all of them together get one allowance, and the plane's thread looks at those beyond the first ones.
    pub fn wake(&self, topic: &str, queue_id: i32, max_offset: i64, tag_codes: &[i64]) {
        let mut allowance = self.allowance();
        for held in self.holds.take(topic, queue_id, max_offset, tag_codes) {
            if let Some(still_waiting) = self.look(held, &mut allowance) {
                self.register_or_finish_within(still_waiting, &mut allowance);
            }
        }
        if self.holds.has_woken() {
            self.flow.wake();
        }
    }

    /// Looks at some of the pulls that arrivals have woken and left; whether there may be more.
    pub fn serve_woken(&self) -> bool {
        let mut allowance = self.allowance();
        for held in self.holds.take_woken() {
            if let Some(still_waiting) = self.look(held, &mut allowance) {
                self.register_or_finish_within(still_waiting, &mut allowance);
            }
        }
        self.holds.has_woken()
    }

    pub(super) fn register_or_finish(&self, held: Held) {
        self.register_or_finish_within(held, &mut self.allowance());
    }

    fn register_or_finish_within(&self, held: Held, allowance: &mut Allowance) {
        if let Err(without_room) = self.register_within(held, allowance) {
            self.finish(*without_room, allowance);
        }
    }

    /// Runs a held pull again. Returns it, to be held on, if it found nothing up to the end of the queue; answers it
    /// otherwise.
    fn look(&self, held: Held, allowance: &mut Allowance) -> Option<Held> {
        let held = self.redirect(held)?;
        match self.get_within(&held.pull, &held.peer, false, allowance) {
            Some(got) => self.line_up_or_answer(held, got),
            None => {
                if let Err(without_room) = self.pace(held) {
                    self.finish_paced(*without_room);
                }
                None
            }
        }
    }

    /// The same for a pull that waited for its group's limit. Returns it if the limit has no room yet.
    pub(super) fn look_in_turn(&self, held: Held, allowance: &mut Allowance) -> Option<Held> {
        let held = self.redirect(held)?;
        let Some(got) = self.get_within(&held.pull, &held.peer, true, allowance) else {
            return Some(held);
        };
        if let Some(still_waiting) = self.line_up_or_answer(held, got) {
            self.register_or_finish_within(still_waiting, allowance);
        }
        None
    }

    /// Puts a pull in line if its function has to decide. Otherwise returns it, to be held on, or answers it.
    fn line_up_or_answer(&self, held: Held, got: Got) -> Option<Held> {
        if !is_unjudged(&held.pull, &got) {
            return self.wait_on_or_answer(held, got);
        }
        if let Err(without_room) = self.line_up(held) {
            self.answer_held(*without_room, got);
        }
        None
    }

    /// Returns a pull that is to be held on from where it found nothing; answers any other.
    pub(super) fn wait_on_or_answer(&self, mut held: Held, got: Got) -> Option<Held> {
        let waits_on = match pull_code(&got, held.pull.queue_offset) {
            response_code::PULL_NOT_FOUND => true,
            response_code::PULL_RETRY_IMMEDIATELY => {
                got.next_offset > held.pull.queue_offset && got.next_offset >= got.max_offset
            }
            _ => false,
        };
        if !waits_on || Instant::now() >= held.deadline || held.peer.is_closing() {
            self.answer_held(held, got);
            return None;
        }
        held.is_before_damage = got.status == GetStatus::Damaged;
        if got.status == GetStatus::NoMatch {
            held.pull.queue_offset = got.next_offset;
            held.advanced = true;
        }
        Some(held)
    }

    /// Runs a held pull for the last time and answers whatever it finds.
    fn finish(&self, held: Held, allowance: &mut Allowance) {
        if let Some(held) = self.redirect(held) {
            let got = self.get_within(&held.pull, &held.peer, false, allowance);
            let got = got.unwrap_or_else(|| self.not_yet(&held.pull));
            self.answer_held(held, got);
        }
    }

    /// Answers a pull that timed out while it waited for its group's limit.
    pub(super) fn finish_paced(&self, held: Held) {
        if let Some(held) = self.redirect(held) {
            let got = self.not_yet(&held.pull);
            self.answer_held(held, got);
        }
    }

    fn answer_held(&self, held: Held, got: Got) {
        let code = match pull_code(&got, held.pull.queue_offset) {
            // There were messages, but none that it wanted: the client continues after them.
            response_code::PULL_NOT_FOUND if held.advanced => response_code::PULL_RETRY_IMMEDIATELY,
            code => code,
        };
        self.post_answer(&held, code, got);
    }

    /// Answers some pulls that have waited long enough; whether there may be more.
    pub fn end_overdue(&self, now: Instant) -> bool {
        let mut allowance = self.allowance();
        let (held, in_line) = (self.holds.take_expired(now), self.function_lines.take_expired(now));
        let is_done = held.is_empty() && in_line.is_empty();
        for held in held.into_iter().chain(in_line) {
            self.finish(held, &mut allowance);
        }
        let has_paced = self.expire_paced(now);
        has_paced || !is_done
    }

    /// Answers every pull that waits. From now on no pull waits.
    pub fn close(&self) {
        let mut allowance = self.allowance();
        for held in self.holds.close().into_iter().chain(self.function_lines.close()) {
            self.finish(held, &mut allowance);
        }
        for held in self.flow.paced.close() {
            self.finish_paced(held);
        }
    }
}

pub(super) fn refuse_hold(pull: &Pull, remark: &str, answers: &mut Answers) -> Outcome {
    answers.add(pull.encoding, pull.opaque, response_code::SYSTEM_BUSY, remark, &[]);
    Outcome::Done
}
