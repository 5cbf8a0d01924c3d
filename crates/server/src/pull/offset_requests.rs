//! The small requests about one queue: committed offsets (14, 15), its ends (30, 31) and search by time (29).

use std::sync::Arc;

use metaq_store::Store;
use metaq_wire::QueueHeader;

use crate::codes::{request_code, response_code};
use crate::net::answers::Answers;
use crate::net::route::{Ask, Outcome, Refusal};
use crate::policy::{Group, Policy, Topic};
use crate::pull::admit::{closed_group, closed_topic};
use crate::pull::offsets::{CommitFault, Committer, Offsets};
use crate::pull::signs_of_life::SignsOfLife;
use crate::pull::visible_end::VisibleEnd;

/// The remark if a reset of the group is open: on a commit that was ignored, as Apache's brokers write it, and on the
/// offset that the group was reset to.
const PREVIOUSLY_RESET: &str = "Offset has been previously reset";

/// Answers the small requests about one queue.
pub struct OffsetRequests {
    store: Arc<Store>,
    policy: Arc<Policy>,
    offsets: Arc<Offsets>,
    visible_end: Arc<VisibleEnd>,
    signs: Arc<SignsOfLife>,
    is_replica: bool,
    stands_in: bool,
}

impl OffsetRequests {
    pub fn new(
        store: Arc<Store>,
        policy: Arc<Policy>,
        offsets: Arc<Offsets>,
        visible_end: Arc<VisibleEnd>,
        signs: Arc<SignsOfLife>,
        is_replica: bool,
        stands_in: bool,
    ) -> Self {
        OffsetRequests { store, policy, offsets, visible_end, signs, is_replica, stands_in }
    }

    pub fn handle(&self, ask: &Ask<'_>, answers: &mut Answers) -> Outcome {
        let header = match QueueHeader::scan(ask.header) {
            Ok(header) => header,
            Err(error) => return ask.refuse(answers, response_code::SYSTEM_ERROR, &error.to_string()),
        };
        match ask.header.code {
            request_code::QUERY_CONSUMER_OFFSET => self.query_committed(ask, &header, answers),
            request_code::UPDATE_CONSUMER_OFFSET => self.update_committed(ask, &header, answers),
            request_code::SEARCH_OFFSET_BY_TIMESTAMP => {
                let timestamp_ms = header.timestamp_ms.unwrap_or(0);
                // Each step of the search may read from the disk.
                answers.note_costly();
                let found =
                    self.store.search_offset(&header.topic, header.queue_id, timestamp_ms, header.upper);
                ask.offset(answers, found)
            }
            request_code::GET_MAX_OFFSET => {
                ask.offset(answers, self.store.max_offset(&header.topic, header.queue_id))
            }
            _ => ask.offset(answers, self.store.min_offset(&header.topic, header.queue_id)),
        }
    }

    fn query_committed(&self, ask: &Ask<'_>, header: &QueueHeader<'_>, answers: &mut Answers) -> Outcome {
        let group = header.consumer_group.as_deref().unwrap_or_default();
        if let Some((committed_offset, is_reset)) =
            self.offsets.read(group, &header.topic, header.queue_id, ask.peer.id)
        {
            let remark = if is_reset { PREVIOUSLY_RESET } else { "" };
            return ask.offset_with(answers, committed_offset, remark);
        }
        // A new group reads a young queue from its start, so that it misses nothing: not even a message that arrives
        // between this question and the next one, which would be about the end of the queue.
        if header.zero_if_not_found != Some(false) && self.begins_here(&header.topic, header.queue_id) {
            return ask.offset(answers, 0);
        }
        let remark = format!(
            "group[{group}] has committed no offset of topic[{}] queue {}",
            header.topic, header.queue_id
        );
        ask.refuse(answers, response_code::QUERY_NOT_FOUND, &remark)
    }

    /// Whether a new group is to read all of the queue: nothing was ever written to it, or its first message is still in
    /// memory.
    fn begins_here(&self, topic: &str, queue_id: i32) -> bool {
        if self.store.min_offset(topic, queue_id) != 0 {
            return false;
        }
        if self.store.max_offset(topic, queue_id) > 0 {
            return self.store.in_memory(topic, queue_id, 0);
        }
        let policy = self.policy.read();
        policy
            .topic(topic)
            .is_some_and(|topic| (0..topic.read_queues.max(topic.write_queues)).contains(&queue_id))
    }

    /// Takes a commit while there is no master.
    fn keep(
        &self,
        ask: &Ask<'_>,
        group: &str,
        topic: &str,
        queue_id: i32,
        committed_offset: i64,
        answers: &mut Answers,
    ) -> Outcome {
        let has_room = self.offsets.keep(group, topic, queue_id, committed_offset);
        if !self.stands_in {
            return unsafe_commit(ask, "this broker is a replica and knows no master now", answers);
        }
        if !has_room {
            let remark =
                "there are as many committed offsets as there may be; ask the operator of the broker";
            return ask.refuse(answers, response_code::SYSTEM_BUSY, remark);
        }
        ask.done(answers)
    }

    fn update_committed(&self, ask: &Ask<'_>, header: &QueueHeader<'_>, answers: &mut Answers) -> Outcome {
        let group = header.consumer_group.as_deref().unwrap_or_default();
        let policy = self.policy.read();
        let Some(topic) = policy.topic(&header.topic) else {
            let remark = format!("topic[{}] does not exist", header.topic);
            return ask.refuse(answers, response_code::TOPIC_NOT_EXIST, &remark);
        };
        let Some(rules) = policy.group(group) else {
            let remark = format!("group[{group}] does not exist; a heartbeat of its consumers creates it");
            return ask.refuse(answers, response_code::SUBSCRIPTION_GROUP_NOT_EXIST, &remark);
        };
        let queue_id = header.queue_id;
        let Some(committed_offset) = header.commit_offset.filter(|offset| *offset >= 0 && queue_id >= 0)
        else {
            let remark = "queueId and commitOffset must be given and not negative";
            return ask.refuse(answers, response_code::INVALID_PARAMETER, remark);
        };
        if let Some(refusal) = outside(topic, rules, queue_id) {
            return ask.refuse_with(answers, &refusal);
        }
        self.signs.note(group, &header.topic, queue_id);
        if self.is_replica {
            return self.keep(ask, group, &header.topic, queue_id, committed_offset, answers);
        }
        let end = || self.visible_end.check(&header.topic, queue_id, committed_offset);
        let by = Committer { peer: ask.peer.id, network: ask.peer.network };
        match self.offsets.commit_within(group, &header.topic, queue_id, committed_offset, by, end) {
            Ok(true) => match self.store.check_followed() {
                Ok(()) => ask.done(answers),
                Err(error) => unsafe_commit(ask, &error.to_string(), answers),
            },
            Ok(false) => ask.done_with(answers, PREVIOUSLY_RESET),
            Err(CommitFault::Full(full)) => {
                ask.refuse(answers, response_code::SYSTEM_BUSY, &full.to_string())
            }
            Err(CommitFault::Beyond(end)) => {
                let remark = format!(
                    "offset {committed_offset} is beyond the end of queue {queue_id} of topic[{}], which is {end}",
                    header.topic
                );
                ask.refuse(answers, response_code::INVALID_PARAMETER, &remark)
            }
        }
    }
}

/// Refuses a commit that is kept, but may be lost: clients commit again, and that does no harm.
fn unsafe_commit(ask: &Ask<'_>, reason: &str, answers: &mut Answers) -> Outcome {
    let remark = format!("[REPLICAS] this offset may be lost, so commit it again later: {reason}");
    ask.refuse(answers, response_code::SERVICE_NOT_AVAILABLE, &remark)
}

/// Why no client may commit an offset of that queue; None if one may.
fn outside(topic: &Topic, group: &Group, queue_id: i32) -> Option<Refusal> {
    if !group.client_usable {
        return Some(closed_group(&group.name));
    }
    if !topic.client_readable {
        return Some(closed_topic(&topic.name));
    }
    let queues = topic.read_queues.max(topic.write_queues);
    (queue_id >= queues).then(|| {
        let remark = format!("queue {queue_id} is outside topic[{}], which has {queues} queues", topic.name);
        Refusal::new(response_code::INVALID_PARAMETER, remark)
    })
}
