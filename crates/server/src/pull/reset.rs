//! Resets of a group's offset while its consumers run: the answer to their next pull sends them to the new offset.

use metaq_store::{GetStatus, Got};

use crate::pull::Puller;
use crate::pull::handler::Pull;

impl Puller {
    /// Resets the group's offset, and answers its held pulls at once, so that the consumer learns of it.
    pub fn reset_offset(&self, group: &str, topic: &str, queue_id: i32, queue_offset: i64) {
        self.offsets.reset(group, topic, queue_id, queue_offset);
        self.wake(topic, queue_id, i64::MAX, &[]);
        for held in self.flow.paced.take_queue(group, topic, queue_id) {
            self.finish_paced(held);
        }
    }

    /// The answer that sends a consumer to its new offset; None if its pull is to be served.
    pub(super) fn redirect(&self, pull: &Pull) -> Option<Got> {
        let next_offset =
            self.offsets.follow_reset(&pull.group, &pull.topic, pull.queue_id, pull.queue_offset)?;
        Some(Got {
            status: GetStatus::PastEnd,
            next_offset,
            min_offset: self.store.min_offset(&pull.topic, pull.queue_id),
            max_offset: self.store.max_offset(&pull.topic, pull.queue_id),
            slices: Vec::new(),
            count: 0,
            bytes: 0,
            examined_bytes: 0,
        })
    }
}
