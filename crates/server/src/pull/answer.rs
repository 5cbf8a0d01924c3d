//! The answer to a pull: the records that the store found, and where to go on.

use std::sync::Arc;

use metaq_store::{GetStatus, Got};
use metaq_wire::FrameEncoder;

use crate::codes::response_code;
use crate::net::answers::Answers;
use crate::net::peer::Peer;
use crate::pull::handler::Pull;
use crate::pull::held_pulls::Held;

/// Answers a held pull, from any thread.
pub(super) fn post_answer(held: &Held, code: i32, got: Got) {
    let mut answers = Answers::default();
    add_answer(&held.pull, &held.peer, code, got, &mut answers);
    let _gone = held.peer.post(answers);
}

pub(super) fn add_answer(pull: &Pull, peer: &Arc<Peer>, code: i32, got: Got, answers: &mut Answers) {
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

/// The response code for what the store found.
pub(super) fn pull_code(got: &Got, queue_offset: i64) -> i32 {
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
