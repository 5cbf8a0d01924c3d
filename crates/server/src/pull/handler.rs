//! PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): slices of the log to a consumer, or a wait until there are some.

use std::sync::Arc;
use std::time::{Duration, Instant};

use metaq_store::{Filter, GetStatus, Got};
use metaq_wire::{Encoding, FrameEncoder, PullHeader, tag_code};

use crate::broker::Broker;
use crate::codes::response_code;
use crate::net::answers::Answers;
use crate::net::peer::Peer;
use crate::net::route::{Ask, Outcome};
use crate::policy::{Group, PERMISSION_READ, Snapshot};
use crate::pull::function::{is_function, is_unjudged, without_candidates};
use crate::pull::hold::Held;

const FLAG_COMMIT: i32 = 1;
const FLAG_SUSPEND: i32 = 2;
const FLAG_SUBSCRIPTION: i32 = 4;
const SQL92: &str = "SQL92";
const FUNCTION: &str = "FUNCTION";
/// What begins the text of a call where it does not stand under a type of its own.
const FUNCTION_PREFIX: &str = "function:";
/// The longest a client may have its pull held, whatever it asks for.
const SUSPEND_MS_MAX: u64 = 5 * 60 * 1000;
/// What a pull returns that does not say how many bytes it takes: as much as an Apache broker would give it.
const UNASKED_BYTES_MAX: usize = 256 * 1024;
/// How often a pull is looked at on a thread that is not its own before it is answered as it stands.
const LOOKS_MAX: usize = 8;

/// Why a pull is not served.
enum Denial {
    Refused(i32, String),
    /// Its expression is not known here, or may have changed: Python finds out.
    UnknownExpression,
}

/// What a pull needs once it has been admitted; a held pull keeps it to run again.
pub struct Pull {
    pub encoding: Encoding,
    pub opaque: i32,
    pub group: String,
    pub topic: String,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub count_max: usize,
    pub bytes_max: usize,
    pub filter: Filter,
    pub suggested_broker_id: i64,
}

impl Broker {
    pub(crate) fn handle_pull(&self, ask: &Ask<'_>, answers: &mut Answers) -> Outcome {
        let header = match PullHeader::scan(ask.header) {
            Ok(header) => header,
            Err(error) => return ask.refuse(answers, response_code::SYSTEM_ERROR, &error.to_string()),
        };
        let policy = self.policy.read();
        let Some(group) = policy.group(&header.consumer_group) else {
            if ask.again {
                let remark = format!(
                    "group[{}] does not exist; create it or let its consumers send a heartbeat",
                    header.consumer_group
                );
                return ask.refuse(answers, response_code::SUBSCRIPTION_GROUP_NOT_EXIST, &remark);
            }
            return Outcome::Cross;
        };
        let pull = match self.admit_pull(&policy, group, &header, ask) {
            Ok(pull) => pull,
            Err(Denial::Refused(code, remark)) => return ask.refuse(answers, code, &remark),
            Err(Denial::UnknownExpression) => return Outcome::Cross,
        };
        if let Some(elsewhere) = self.redirect(&pull) {
            answer_pull(&pull, ask.peer, response_code::PULL_OFFSET_MOVED, elsewhere, answers);
            return Outcome::Done;
        }
        if header.system_flag & FLAG_COMMIT != 0 && header.commit_offset >= 0 {
            self.offsets.commit(&header.consumer_group, &header.topic, header.queue_id, header.commit_offset);
        }
        let may_wait = header.system_flag & FLAG_SUSPEND != 0 && header.suspend_timeout_ms > 0;
        let wait = may_wait.then(|| self.suspension(header.suspend_timeout_ms as u64));
        let Some(got) = self.get_within(&pull, ask.peer, false) else {
            let kept = self.pace(self.paced_pull(ask, pull, wait));
            return self.held_or_refused(kept, answers);
        };
        let code = pull_code(&got, pull.queue_offset);
        if is_unjudged(&pull, &got) {
            return self.hold(ask, pull, wait.unwrap_or_default(), Broker::line_up, answers);
        }
        if let (response_code::PULL_NOT_FOUND, Some(wait)) = (code, wait) {
            return self.hold(ask, pull, wait, Broker::keep, answers);
        }
        answer_pull(&pull, ask.peer, code, got, answers);
        Outcome::Done
    }

    fn admit_pull(
        &self,
        policy: &Snapshot,
        group: &Group,
        header: &PullHeader<'_>,
        ask: &Ask<'_>,
    ) -> Result<Pull, Denial> {
        if policy.permission & PERMISSION_READ == 0 {
            let remark = format!(
                "broker[{}] does not serve messages: its permission is {}",
                self.settings.name, policy.permission
            );
            return Err(Denial::Refused(response_code::NO_PERMISSION, remark));
        }
        if !group.consume_enabled {
            let remark = format!("group[{}] is not allowed to consume", group.name);
            return Err(Denial::Refused(response_code::NO_PERMISSION, remark));
        }
        let Some(topic) = policy.topic(&header.topic) else {
            let remark = format!("topic[{}] does not exist; create it first", header.topic);
            return Err(Denial::Refused(response_code::TOPIC_NOT_EXIST, remark));
        };
        if topic.permission & PERMISSION_READ == 0 {
            let remark =
                format!("topic[{}] is not readable: its permission is {}", topic.name, topic.permission);
            return Err(Denial::Refused(response_code::NO_PERMISSION, remark));
        }
        if group.forbidden_topics.contains(&topic.name) {
            let remark = format!("group[{}] is forbidden to consume topic[{}]", group.name, topic.name);
            return Err(Denial::Refused(response_code::NO_PERMISSION, remark));
        }
        if header.queue_id < 0 || header.queue_id >= topic.read_queues {
            let remark = format!(
                "queue {} is outside topic[{}], which has {} queues to read",
                header.queue_id, topic.name, topic.read_queues
            );
            return Err(Denial::Refused(response_code::INVALID_PARAMETER, remark));
        }
        let filter = if header.system_flag & FLAG_SUBSCRIPTION != 0 {
            self.carried_filter(header, ask.again)?
        } else {
            standing_filter(group, header, ask.again)?
        };
        let bytes_max =
            header.bytes_max.filter(|bytes| *bytes > 0).map_or(UNASKED_BYTES_MAX, |bytes| bytes as usize);
        Ok(Pull {
            encoding: ask.encoding,
            opaque: ask.header.opaque,
            group: group.name.clone(),
            topic: header.topic.to_string(),
            queue_id: header.queue_id,
            queue_offset: header.queue_offset,
            count_max: (header.count_max.max(1) as usize).min(self.settings.pull_messages_max),
            bytes_max: bytes_max.min(self.settings.pull_bytes_max),
            filter,
            suggested_broker_id: group.broker_id,
        })
    }

    pub(crate) fn get(&self, pull: &Pull) -> Got {
        self.get_at_most(pull, pull.count_max, pull.bytes_max)
    }

    pub(crate) fn get_at_most(&self, pull: &Pull, count_max: usize, bytes_max: usize) -> Got {
        let got =
            self.store.get(&pull.topic, pull.queue_id, pull.queue_offset, count_max, bytes_max, &pull.filter);
        if is_function(&pull.filter) { without_candidates(got, pull.queue_offset) } else { got }
    }

    /// How long a pull that asks to wait so long is held.
    fn suspension(&self, suspend_ms: u64) -> Duration {
        Duration::from_millis(if self.settings.long_polling {
            suspend_ms.min(SUSPEND_MS_MAX)
        } else {
            self.settings.short_polling_ms
        })
    }

    /// Lets the pull wait: for a message, or for a function's verdict. Whatever arrived between the look and the
    /// registration is seen by a second look, so that no wake-up is missed.
    fn hold(
        &self,
        ask: &Ask<'_>,
        pull: Pull,
        wait: Duration,
        put: fn(&Broker, Held) -> Result<(), Box<Held>>,
        answers: &mut Answers,
    ) -> Outcome {
        let deadline = Instant::now() + wait;
        let kept = put(self, Held { peer: Arc::clone(ask.peer), deadline, pull, advanced: false });
        if kept.is_ok() {
            ask.peer.counts.held.add(1);
        }
        self.held_or_refused(kept, answers)
    }

    fn held_or_refused(&self, kept: Result<(), Box<Held>>, answers: &mut Answers) -> Outcome {
        if let Err(held) = kept {
            let remark =
                format!("[OVERLOAD] {} pulls are held already; try again later", self.settings.hold_max);
            answers.add(held.pull.encoding, held.pull.opaque, response_code::SYSTEM_BUSY, &remark, &[]);
        }
        Outcome::Done
    }

    /// Registers a pull that has found nothing, and looks once more: what arrived between its last look and the
    /// registration woke nobody. Gives it back where there is no room.
    pub(crate) fn keep(&self, mut held: Held) -> Result<(), Box<Held>> {
        for _ in 0..LOOKS_MAX {
            let (group, topic) = (held.pull.group.clone(), held.pull.topic.clone());
            let (queue_id, queue_offset) = (held.pull.queue_id, held.pull.queue_offset);
            let ticket = self.holds.add(held)?;
            if self.store.max_offset(&topic, queue_id) <= queue_offset
                && !self.offsets.awaits_reset(&group, &topic, queue_id)
            {
                return Ok(());
            }
            match self.holds.take_one(ticket).and_then(|taken| self.look(taken)) {
                Some(again) => held = again,
                None => return Ok(()),
            }
        }
        self.finish_held(held);
        Ok(())
    }

    /// Looks after the held pulls of a queue that got messages with these tags.
    pub(crate) fn wake_pulls(&self, topic: &str, queue_id: i32, max_offset: i64, tag_codes: &[i64]) {
        for held in self.holds.take(topic, queue_id, max_offset, tag_codes) {
            if let Some(still_waiting) = self.look(held) {
                self.keep_or_finish(still_waiting);
            }
        }
    }

    pub(crate) fn keep_or_finish(&self, held: Held) {
        if let Err(without_room) = self.keep(held) {
            self.finish_held(*without_room);
        }
    }

    /// Runs a held pull again. One that found nothing it wants up to the end of the queue comes back, to be held on
    /// from there; any other is answered.
    fn look(&self, held: Held) -> Option<Held> {
        if let Some(elsewhere) = self.redirect(&held.pull) {
            post_pull(&held, response_code::PULL_OFFSET_MOVED, elsewhere);
            return None;
        }
        match self.get_within(&held.pull, &held.peer, false) {
            Some(got) => self.weigh(held, got),
            None => {
                if let Err(without_room) = self.pace(held) {
                    self.finish_paced(*without_room);
                }
                None
            }
        }
    }

    /// The same for a pull that waited for its group's limit; it comes back where its turn has come too early.
    pub(crate) fn look_in_turn(&self, held: Held) -> Option<Held> {
        if let Some(elsewhere) = self.redirect(&held.pull) {
            post_pull(&held, response_code::PULL_OFFSET_MOVED, elsewhere);
            return None;
        }
        let Some(got) = self.get_within(&held.pull, &held.peer, true) else {
            return Some(held);
        };
        if let Some(still_waiting) = self.weigh(held, got) {
            self.keep_or_finish(still_waiting);
        }
        None
    }

    /// Lets a pull whose function has to decide stand in line; any other comes back, to be held on, or is answered.
    fn weigh(&self, held: Held, got: Got) -> Option<Held> {
        if !is_unjudged(&held.pull, &got) {
            return self.wait_on_or_answer(held, got);
        }
        if let Err(without_room) = self.line_up(held) {
            self.answer_held(*without_room, got);
        }
        None
    }

    /// Gives a pull back that is to be held on from where it found nothing; any other is answered.
    pub(crate) fn wait_on_or_answer(&self, mut held: Held, got: Got) -> Option<Held> {
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
        if got.status == GetStatus::NoMatch {
            held.pull.queue_offset = got.next_offset;
            held.advanced = true;
        }
        Some(held)
    }

    /// Runs a held pull for the last time and answers whatever it finds.
    pub(crate) fn finish_held(&self, held: Held) {
        match self.redirect(&held.pull) {
            Some(elsewhere) => post_pull(&held, response_code::PULL_OFFSET_MOVED, elsewhere),
            None => {
                let got = self.get_within(&held.pull, &held.peer, false);
                let got = got.unwrap_or_else(|| self.not_yet(&held.pull));
                self.answer_held(held, got);
            }
        }
    }

    /// Answers a pull whose time ran out while it waited for its group's limit.
    pub(crate) fn finish_paced(&self, held: Held) {
        match self.redirect(&held.pull) {
            Some(elsewhere) => post_pull(&held, response_code::PULL_OFFSET_MOVED, elsewhere),
            None => {
                let got = self.not_yet(&held.pull);
                self.answer_held(held, got);
            }
        }
    }

    fn answer_held(&self, held: Held, got: Got) {
        let code = match pull_code(&got, held.pull.queue_offset) {
            // There were messages, only none it wanted: the client goes on behind them.
            response_code::PULL_NOT_FOUND if held.advanced => response_code::PULL_RETRY_IMMEDIATELY,
            code => code,
        };
        post_pull(&held, code, got);
    }

    /// The filter that the pull itself carries.
    fn carried_filter(&self, header: &PullHeader<'_>, again: bool) -> Result<Filter, Denial> {
        let expression = header.subscription.as_deref().unwrap_or_default();
        let expression_type = header.expression_type.as_deref().unwrap_or_default();
        if is_tags(expression_type) {
            return Ok(tags_filter(expression));
        }
        let known = match expression_type {
            SQL92 => self.expressions.find(expression),
            FUNCTION => self.expressions.find(&format!("{FUNCTION_PREFIX}{expression}")),
            _ => None,
        };
        if let Some(filter) = known {
            return Ok(filter);
        }
        if again {
            let remark = "the expression of this pull could not be kept in mind; try again".to_owned();
            return Err(Denial::Refused(response_code::SUBSCRIPTION_PARSE_FAILED, remark));
        }
        Err(Denial::UnknownExpression)
    }
}

/// Answers a pull from outside its connection's own pass.
pub(crate) fn post_pull(held: &Held, code: i32, got: Got) {
    let mut answers = Answers::default();
    answer_pull(&held.pull, &held.peer, code, got, &mut answers);
    let _gone = held.peer.post(answers);
}

fn answer_pull(pull: &Pull, peer: &Arc<Peer>, code: i32, got: Got, answers: &mut Answers) {
    peer.counts.messages_out.add(got.count as u64);
    peer.counts.bytes_out.add(got.bytes as u64);
    let fill = |frame: &mut FrameEncoder<'_>| {
        frame.field_i64("suggestWhichBrokerId", pull.suggested_broker_id);
        frame.field_i64("nextBeginOffset", got.next_offset);
        frame.field_i64("minOffset", got.min_offset);
        frame.field_i64("maxOffset", got.max_offset);
    };
    answers.add_with_body(pull.encoding, pull.opaque, code, None, fill, got.slices);
}

/// What the store found, in the words of the protocol.
fn pull_code(got: &Got, queue_offset: i64) -> i32 {
    match got.status {
        GetStatus::Found => response_code::SUCCESS,
        GetStatus::NoMatch => response_code::PULL_RETRY_IMMEDIATELY,
        GetStatus::NoQueue | GetStatus::EmptyQueue if queue_offset == 0 => response_code::PULL_NOT_FOUND,
        GetStatus::AtEnd => response_code::PULL_NOT_FOUND,
        GetStatus::NoQueue | GetStatus::EmptyQueue | GetStatus::PastEnd | GetStatus::BeforeStart => {
            response_code::PULL_OFFSET_MOVED
        }
    }
}

fn tags_filter(expression: &str) -> Filter {
    let expression = expression.trim();
    if expression.is_empty() || expression == "*" {
        return Filter::All;
    }
    let tags = expression.split("||").map(str::trim).filter(|tag| !tag.is_empty());
    let codes: Vec<i64> = tags.map(tag_code).collect();
    if codes.is_empty() { Filter::All } else { Filter::Tags(codes) }
}

/// The filter that the group's heartbeats told.
fn standing_filter(group: &Group, header: &PullHeader<'_>, again: bool) -> Result<Filter, Denial> {
    if group.broadcasting && !group.broadcast_enabled {
        let remark = format!("group[{}] may not consume in broadcast mode", group.name);
        return Err(Denial::Refused(response_code::NO_PERMISSION, remark));
    }
    let Some(subscription) =
        group.subscriptions.iter().find(|subscription| subscription.topic == header.topic)
    else {
        let remark = format!(
            "group[{}] has no subscription to topic[{}]; send a heartbeat first",
            group.name, header.topic
        );
        return Err(Denial::Refused(response_code::SUBSCRIPTION_NOT_EXIST, remark));
    };
    if subscription.version < header.subscription_version {
        let expression_type = header.expression_type.as_deref().unwrap_or_default();
        if !is_tags(expression_type) || !is_tags(&subscription.expression_type) {
            // Nobody but the broker applies an expression: with none, or with an old one, the client would be given
            // what it does not want or lose what it does.
            if !again {
                return Err(Denial::UnknownExpression);
            }
            let remark = format!(
                "the subscription of group[{}] to topic[{}] is newer than its last heartbeat; try again after the next",
                group.name, header.topic
            );
            return Err(Denial::Refused(response_code::SUBSCRIPTION_NOT_LATEST, remark));
        }
        // The client has changed its tags, or only rebalanced, and its heartbeat is still to come. It sorts out by
        // itself what it does not want, so it gets everything rather than an error that would stop it till then.
        return Ok(Filter::All);
    }
    if let Some((code, remark)) = &subscription.refusal {
        return Err(Denial::Refused(*code, remark.clone()));
    }
    Ok(subscription.filter.clone())
}

fn is_tags(expression_type: &str) -> bool {
    expression_type.is_empty() || expression_type == "TAG"
}
