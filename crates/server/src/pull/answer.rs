//! The answer to a pull: the records that the store found, where to go on, and which broker of the group to ask.
//!
//! A consumer that is far behind reads records that are no longer in memory, and would slow down the master's other
//! clients. It is sent to a replica until it has caught up.

use std::sync::Arc;

use metaq_store::{GetStatus, Got};
use metaq_wire::{FrameEncoder, layout};

use crate::codes::response_code;
use crate::metrics::latency::Exchange;
use crate::metrics::traffic::Delivered;
use crate::net::answers::Answers;
use crate::net::output::Body;
use crate::net::peer::Peer;
use crate::pull::Puller;
use crate::pull::handler::Pull;
use crate::pull::held_pulls::Held;

pub(super) const MASTER_ID: i64 = 0;
/// The remark of an answer to a pull that stands in front of a damaged record. Clients wait as at the end of a queue.
const DAMAGED: &str = "[DAMAGED] the record at this offset is damaged: it is served once it is repaired";

impl Puller {
    /// Answers a held pull, from any thread.
    pub(super) fn post_answer(&self, held: &Held, code: i32, got: Got) {
        let mut answers = Answers::default();
        self.add_answer(&held.pull, &held.peer, code, got, &mut answers);
        let request_code = held.pull.request_code;
        let exchange = Exchange { request_code, response_code: code, is_long_polling: true };
        self.latencies.record(exchange, held.since.elapsed().as_millis() as u64);
        let _gone = held.peer.post(answers);
    }

    pub(super) fn add_answer(
        &self,
        pull: &Pull,
        peer: &Arc<Peer>,
        code: i32,
        got: Got,
        answers: &mut Answers,
    ) {
        peer.counts.messages_out.add(got.count as u64);
        peer.counts.bytes_out.add(got.bytes as u64);
        if got.count > 0 {
            match &pull.delivered {
                Some(delivered) => hand_out(delivered, pull, &got),
                None => self.hand_out_first(pull, &got),
            }
        }
        let suggested_broker_id = self.recent_bytes.map_or(MASTER_ID, |recent_bytes| {
            let is_old = self.is_old(pull, &got, recent_bytes);
            match (is_old, self.is_replica) {
                (true, true) => self.settings.own_broker_id.unwrap_or(pull.slow_broker_id),
                (true, false) => pull.slow_broker_id,
                (false, true) => MASTER_ID,
                (false, false) => pull.broker_id,
            }
        });
        let is_damaged = got.status == GetStatus::Damaged;
        // The other nodes of the group have the record.
        let suggested_broker_id = match (is_damaged, self.is_replica) {
            (true, true) => MASTER_ID,
            (true, false) => pull.slow_broker_id,
            (false, _) => suggested_broker_id,
        };
        let remark = is_damaged.then_some(DAMAGED);
        let fill = |frame: &mut FrameEncoder<'_>| {
            frame.field_i64("suggestWhichBrokerId", suggested_broker_id);
            frame.field_i64("nextBeginOffset", got.next_offset);
            frame.field_i64("minOffset", got.min_offset);
            frame.field_i64("maxOffset", got.max_offset);
        };
        answers.add_with_body(pull.encoding, pull.opaque, code, remark, fill, Body::Mapped(got.slices));
    }

    /// Begins to count what the group gets of the topic.
    #[cold]
    fn hand_out_first(&self, pull: &Pull, got: &Got) {
        let policy = self.policy.read();
        let delivered =
            policy.group(&pull.group).and_then(|group| group.traffic.of(&group.name, &pull.topic));
        if let Some(delivered) = delivered {
            hand_out(&delivered, pull, got);
        }
    }

    /// Whether the pull has come to records that are no longer expected in memory.
    fn is_old(&self, pull: &Pull, got: &Got, recent_bytes: i64) -> bool {
        let first =
            got.slices.first().and_then(|slice| slice.get(layout::at::PHYSICAL_OFFSET..)?.first_chunk());
        let physical_offset = match first {
            Some(bytes) => Some(i64::from_be_bytes(*bytes)),
            // The filter wanted none of them: the last one that it saw counts.
            None if got.status == GetStatus::NoMatch && got.next_offset > pull.queue_offset => {
                let entries = self.store.queue_entries(&pull.topic, pull.queue_id, got.next_offset - 1, 1);
                entries.first().map(|entry| entry.physical_offset)
            }
            None => None,
        };
        physical_offset.is_some_and(|oldest| self.store.end_offset() - oldest > recent_bytes)
    }
}

fn hand_out(delivered: &Delivered, pull: &Pull, got: &Got) {
    delivered.hand_out(pull.queue_id, got.next_offset, got.count as u64, got.bytes as u64);
}

/// The response code for what the store found.
pub(super) fn pull_code(got: &Got, queue_offset: i64) -> i32 {
    match got.status {
        GetStatus::Found => response_code::SUCCESS,
        GetStatus::NoMatch => response_code::PULL_RETRY_IMMEDIATELY,
        GetStatus::NoQueue | GetStatus::EmptyQueue if queue_offset == 0 => response_code::PULL_NOT_FOUND,
        GetStatus::AtEnd | GetStatus::Damaged => response_code::PULL_NOT_FOUND,
        GetStatus::NoQueue | GetStatus::EmptyQueue | GetStatus::PastEnd | GetStatus::BeforeStart => {
            response_code::PULL_OFFSET_MOVED
        }
    }
}
