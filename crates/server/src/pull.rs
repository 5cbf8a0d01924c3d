//! PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): slices of the log to a consumer, or a wait until there are some.

use std::sync::Arc;
use std::time::{Duration, Instant};

use metaq_store::{Filter, GetStatus, Got};
use metaq_wire::{Encoding, FrameEncoder, PullHeader, tag_code};

use crate::broker::Broker;
use crate::code;
use crate::hold::Held;
use crate::peer::Peer;
use crate::policy::{Group, PERMISSION_READ, Snapshot};
use crate::route::{Ask, Outcome};
use crate::sink::Sink;

const FLAG_COMMIT: i32 = 1;
const FLAG_SUSPEND: i32 = 2;
const FLAG_SUBSCRIPTION: i32 = 4;
/// The longest a client may have its pull held, whatever it asks for.
const SUSPEND_MS_MAX: u64 = 5 * 60 * 1000;

type Refusal = (i32, String);

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
    pub(crate) fn handle_pull(&self, ask: &Ask<'_>, sink: &mut Sink) -> Outcome {
        let header = match PullHeader::scan(ask.header) {
            Ok(header) => header,
            Err(error) => return ask.refuse(sink, code::SYSTEM_ERROR, &error.to_string()),
        };
        let policy = self.policy.read();
        let Some(group) = policy.group(&header.consumer_group) else {
            if ask.again {
                let remark = format!(
                    "group[{}] does not exist; create it or let its consumers send a heartbeat",
                    header.consumer_group
                );
                return ask.refuse(sink, code::SUBSCRIPTION_GROUP_NOT_EXIST, &remark);
            }
            return Outcome::Cross;
        };
        let pull = match self.admit_pull(&policy, group, &header, ask) {
            Ok(pull) => pull,
            Err((code, remark)) => return ask.refuse(sink, code, &remark),
        };
        if let Some(elsewhere) = self.redirect(&pull) {
            answer_pull(&pull, ask.peer, code::PULL_OFFSET_MOVED, elsewhere, sink);
            return Outcome::Done;
        }
        if header.system_flag & FLAG_COMMIT != 0 && header.commit_offset >= 0 {
            self.offsets.commit(&header.consumer_group, &header.topic, header.queue_id, header.commit_offset);
        }
        let got = self.get(&pull);
        let code = response_code(&got, pull.queue_offset);
        if code == code::PULL_NOT_FOUND
            && header.system_flag & FLAG_SUSPEND != 0
            && header.suspend_timeout_ms > 0
        {
            return self.hold(ask, pull, header.suspend_timeout_ms as u64, sink);
        }
        answer_pull(&pull, ask.peer, code, got, sink);
        Outcome::Done
    }

    fn admit_pull(
        &self,
        policy: &Snapshot,
        group: &Group,
        header: &PullHeader<'_>,
        ask: &Ask<'_>,
    ) -> Result<Pull, Refusal> {
        if policy.permission & PERMISSION_READ == 0 {
            let remark = format!(
                "broker[{}] does not serve messages: its permission is {}",
                self.settings.name, policy.permission
            );
            return Err((code::NO_PERMISSION, remark));
        }
        if !group.consume_enabled {
            return Err((code::NO_PERMISSION, format!("group[{}] is not allowed to consume", group.name)));
        }
        let Some(topic) = policy.topic(&header.topic) else {
            return Err((
                code::TOPIC_NOT_EXIST,
                format!("topic[{}] does not exist; create it first", header.topic),
            ));
        };
        if topic.permission & PERMISSION_READ == 0 {
            let remark =
                format!("topic[{}] is not readable: its permission is {}", topic.name, topic.permission);
            return Err((code::NO_PERMISSION, remark));
        }
        if group.forbidden_topics.contains(&topic.name) {
            let remark = format!("group[{}] is forbidden to consume topic[{}]", group.name, topic.name);
            return Err((code::NO_PERMISSION, remark));
        }
        if header.queue_id < 0 || header.queue_id >= topic.read_queues {
            let remark = format!(
                "queue {} is outside topic[{}], which has {} queues to read",
                header.queue_id, topic.name, topic.read_queues
            );
            return Err((code::INVALID_PARAMETER, remark));
        }
        let filter = if header.system_flag & FLAG_SUBSCRIPTION != 0 {
            expression_filter(header)?
        } else {
            standing_filter(group, header)?
        };
        let bytes_max =
            header.bytes_max.filter(|bytes| *bytes > 0).map_or(usize::MAX, |bytes| bytes as usize);
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

    fn get(&self, pull: &Pull) -> Got {
        self.store.get(
            &pull.topic,
            pull.queue_id,
            pull.queue_offset,
            pull.count_max,
            pull.bytes_max,
            &pull.filter,
        )
    }

    /// Lets the pull wait for a message. Whatever arrived between the look and the registration is seen by a
    /// second look, so that no wake-up is missed.
    fn hold(&self, ask: &Ask<'_>, pull: Pull, suspend_ms: u64, sink: &mut Sink) -> Outcome {
        let wait_ms = if self.settings.long_polling {
            suspend_ms.min(SUSPEND_MS_MAX)
        } else {
            self.settings.short_polling_ms
        };
        let (group, topic) = (pull.group.clone(), pull.topic.clone());
        let (queue_id, queue_offset) = (pull.queue_id, pull.queue_offset);
        let held = Held {
            peer: Arc::clone(ask.peer),
            deadline: Instant::now() + Duration::from_millis(wait_ms),
            pull,
        };
        if let Err(held) = self.holds.add(held) {
            let remark =
                format!("[OVERLOAD] {} pulls are held already; try again later", self.settings.hold_max);
            sink.answer(held.pull.encoding, held.pull.opaque, code::SYSTEM_BUSY, &remark, &[]);
            return Outcome::Done;
        }
        ask.peer.counts.held.add(1);
        if self.store.max_offset(&topic, queue_id) > queue_offset
            || self.offsets.awaits_reset(&group, &topic, queue_id)
        {
            self.wake_pulls(&topic, queue_id, i64::MAX, &[]);
        }
        Outcome::Done
    }

    /// Answers the held pulls of a queue that got messages; `tag_codes` empty stands for any tag.
    pub(crate) fn wake_pulls(&self, topic: &str, queue_id: i32, max_offset: i64, tag_codes: &[i64]) {
        for held in self.holds.take(topic, queue_id, max_offset, tag_codes) {
            self.finish_held(held);
        }
    }

    /// Runs a held pull once more and answers whatever it finds.
    pub(crate) fn finish_held(&self, held: Held) {
        let (code, got) = match self.redirect(&held.pull) {
            Some(elsewhere) => (code::PULL_OFFSET_MOVED, elsewhere),
            None => {
                let got = self.get(&held.pull);
                (response_code(&got, held.pull.queue_offset), got)
            }
        };
        let mut sink = Sink::default();
        answer_pull(&held.pull, &held.peer, code, got, &mut sink);
        let _gone = held.peer.post(sink.into_parcel());
    }
}

fn answer_pull(pull: &Pull, peer: &Arc<Peer>, code: i32, got: Got, sink: &mut Sink) {
    peer.counts.messages_out.add(got.count as u64);
    peer.counts.bytes_out.add(got.bytes as u64);
    let fill = |frame: &mut FrameEncoder<'_>| {
        frame.field_i64("suggestWhichBrokerId", pull.suggested_broker_id);
        frame.field_i64("nextBeginOffset", got.next_offset);
        frame.field_i64("minOffset", got.min_offset);
        frame.field_i64("maxOffset", got.max_offset);
    };
    sink.respond(pull.encoding, pull.opaque, code, None, fill, got.slices);
}

/// What the store found, in the words of the protocol.
fn response_code(got: &Got, queue_offset: i64) -> i32 {
    match got.status {
        GetStatus::Found => code::SUCCESS,
        GetStatus::NoMatch => code::PULL_RETRY_IMMEDIATELY,
        GetStatus::NoQueue | GetStatus::EmptyQueue if queue_offset == 0 => code::PULL_NOT_FOUND,
        GetStatus::AtEnd => code::PULL_NOT_FOUND,
        GetStatus::NoQueue | GetStatus::EmptyQueue | GetStatus::PastEnd | GetStatus::BeforeStart => {
            code::PULL_OFFSET_MOVED
        }
    }
}

/// The filter that the pull itself carries.
fn expression_filter(header: &PullHeader<'_>) -> Result<Filter, Refusal> {
    check_expression_type(header.expression_type.as_deref().unwrap_or("TAG"))?;
    let expression = header.subscription.as_deref().unwrap_or("*").trim();
    if expression.is_empty() || expression == "*" {
        return Ok(Filter::All);
    }
    let tags = expression.split("||").map(str::trim).filter(|tag| !tag.is_empty());
    let codes: Vec<i64> = tags.map(tag_code).collect();
    Ok(if codes.is_empty() { Filter::All } else { Filter::Tags(codes) })
}

/// The filter that the group's heartbeats told.
fn standing_filter(group: &Group, header: &PullHeader<'_>) -> Result<Filter, Refusal> {
    if group.broadcasting && !group.broadcast_enabled {
        return Err((
            code::NO_PERMISSION,
            format!("group[{}] may not consume in broadcast mode", group.name),
        ));
    }
    let Some(subscription) =
        group.subscriptions.iter().find(|subscription| subscription.topic == header.topic)
    else {
        let remark = format!(
            "group[{}] has no subscription to topic[{}]; send a heartbeat first",
            group.name, header.topic
        );
        return Err((code::SUBSCRIPTION_NOT_EXIST, remark));
    };
    check_expression_type(&subscription.expression_type)?;
    if subscription.version < header.subscription_version {
        // The client has changed its tags, or only rebalanced, and its heartbeat is still to come. It sorts out by
        // itself what it does not want, so it gets everything rather than an error that would stop it till then.
        return Ok(Filter::All);
    }
    Ok(subscription.filter.clone())
}

fn check_expression_type(expression_type: &str) -> Result<(), Refusal> {
    if expression_type.is_empty() || expression_type == "TAG" {
        return Ok(());
    }
    let remark = format!(
        "the broker does not support consumer to filter message by {expression_type}; subscribe by tags"
    );
    Err((code::SYSTEM_ERROR, remark))
}
