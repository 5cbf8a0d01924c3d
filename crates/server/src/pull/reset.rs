//! Resets of a group's offset while its consumers run: the answers to their pulls send them to the new offset.

use crate::codes::response_code;
use crate::net::answers::Answers;
use crate::net::output::Body;
use crate::net::peer::Peer;
use crate::pull::Puller;
use crate::pull::answer::MASTER_ID;
use crate::pull::handler::Pull;
use crate::pull::held_pulls::Held;
use crate::pull::offsets::ResetStep;

/// The remark of an answer that moves a consumer because its group was reset, as Apache's brokers write it. Without it,
/// the queue begins or ends elsewhere, and messages that were pulled before are still to be consumed.
const OFFSET_RESET: &str = "OFFSET_RESET";

impl Puller {
    /// Resets the group's offset, and answers its held pulls at once, so that the consumer learns of it.
    pub fn reset_offset(&self, group: &str, topic: &str, queue_id: i32, queue_offset: i64) {
        self.offsets.reset(group, topic, queue_id, queue_offset);
        self.wake(topic, queue_id, i64::MAX, &[]);
        for held in self.flow.paced.take_queue(group, topic, queue_id) {
            self.finish_paced(held);
        }
    }

    /// Applies an open reset to a pull. Pulls of a fixed range are always served.
    pub(super) fn reset_step(&self, pull: &Pull, peer: &Peer) -> ResetStep {
        if pull.is_fixed_range {
            return ResetStep::None;
        }
        self.offsets.follow_reset(&pull.group, &pull.topic, pull.queue_id, pull.queue_offset, peer.id)
    }

    /// Answers a held pull if its consumer must continue at another offset; returns it if it is to be served.
    pub(super) fn redirect(&self, held: Held) -> Option<Held> {
        let ResetStep::Redirect(queue_offset) = self.reset_step(&held.pull, &held.peer) else {
            return Some(held);
        };
        let mut answers = Answers::default();
        self.add_redirect(&held.pull, queue_offset, &mut answers);
        let _gone = held.peer.post(answers);
        None
    }

    /// Adds the answer that sends a consumer to its new offset.
    pub(super) fn add_redirect(&self, pull: &Pull, queue_offset: i64, answers: &mut Answers) {
        let min_offset = self.store.min_offset(&pull.topic, pull.queue_id);
        let max_offset = self.store.max_offset(&pull.topic, pull.queue_id);
        answers.add_with_body(
            pull.encoding,
            pull.opaque,
            response_code::PULL_OFFSET_MOVED,
            Some(OFFSET_RESET),
            |frame| {
                frame.field_i64("suggestWhichBrokerId", MASTER_ID);
                frame.field_i64("nextBeginOffset", queue_offset);
                frame.field_i64("minOffset", min_offset);
                frame.field_i64("maxOffset", max_offset);
            },
            Body::Mapped(Vec::new()),
        );
    }
}
