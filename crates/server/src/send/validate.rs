//! Which messages may be stored, and which are refused.

use metaq_wire::{BatchRecord, NewRecord, SendHeader, batch_records};

use crate::codes::response_code;
use crate::net::route::Refusal;
use crate::policy::{PERMISSION_WRITE, Topic};
use crate::send::properties::Marks;
use crate::send::rewrite::RETRY_PREFIX;

/// Longest property string of a stored message: its length is a signed 16-bit number on disk.
pub(crate) const PROPERTIES_BYTES_MAX: usize = i16::MAX as usize;
const PRODUCER_GROUP_BYTES_MAX: usize = 255;
/// Messages of one batch; the sum of their sizes is limited besides.
pub(crate) const BATCH_MESSAGES_MAX: usize = 32_768;

/// Checks that the broker and the topic take messages, and that the topic has the queue.
pub fn topic(
    broker_name: &str,
    permission: u8,
    topic: &Topic,
    header: &SendHeader<'_>,
) -> Result<(), Refusal> {
    if permission & PERMISSION_WRITE == 0 {
        let remark =
            format!("broker[{broker_name}] does not accept messages: its permission is {permission}");
        return Err(Refusal::new(response_code::NO_PERMISSION, remark));
    }
    if !topic.client_writable {
        let remark = format!("topic[{}] is a system topic: clients may not send to it", topic.name);
        return Err(Refusal::new(response_code::NO_PERMISSION, remark));
    }
    if topic.permission & PERMISSION_WRITE == 0 {
        let remark = format!("topic[{}] is not writable: its permission is {}", topic.name, topic.permission);
        return Err(Refusal::new(response_code::NO_PERMISSION, remark));
    }
    producer_group(&header.producer_group)?;
    let queues = topic.write_queues.max(topic.read_queues);
    if header.queue_id >= queues {
        let remark =
            format!("queue {} is outside topic[{}], which has {queues} queues", header.queue_id, topic.name);
        return Err(Refusal::new(response_code::INVALID_PARAMETER, remark));
    }
    Ok(())
}

/// Checks the name against the rule that clients follow themselves.
fn producer_group(group: &str) -> Result<(), Refusal> {
    let is_sound = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'%' | b'|' | b'_' | b'-');
    if group.is_empty() || group.len() > PRODUCER_GROUP_BYTES_MAX || !group.bytes().all(is_sound) {
        let remark = format!(
            "the producer group must have 1 to {PRODUCER_GROUP_BYTES_MAX} letters, digits or any of % | _ -"
        );
        return Err(Refusal::new(response_code::MESSAGE_ILLEGAL, remark));
    }
    Ok(())
}

pub fn body_size(size: usize, limit: usize) -> Result<(), Refusal> {
    if size > limit {
        let remark = format!(
            "the message body has {size} bytes; this broker accepts at most {limit} (message_size_bytes_max)"
        );
        return Err(Refusal::new(response_code::MESSAGE_ILLEGAL, remark));
    }
    Ok(())
}

/// Checks the sender's own properties before anything goes through them.
pub fn own_properties_size(size: usize) -> Result<(), Refusal> {
    if size > PROPERTIES_BYTES_MAX {
        return Err(too_long(size, PROPERTIES_BYTES_MAX));
    }
    Ok(())
}

#[cold]
fn too_long(size: usize, limit: usize) -> Refusal {
    let remark = format!("the message's properties have {size} bytes; at most {limit} can be stored");
    Refusal::new(response_code::MESSAGE_ILLEGAL, remark)
}

/// Checks that the properties leave `reserved_bytes` for those that the broker adds later.
pub fn properties_size(record: &NewRecord<'_>, reserved_bytes: usize) -> Result<(), Refusal> {
    let size: usize = record.properties.iter().map(|part| part.len()).sum();
    let limit = PROPERTIES_BYTES_MAX - reserved_bytes;
    if size > limit {
        return Err(too_long(size, limit));
    }
    Ok(())
}

/// The messages of a batch, where all of it can be read.
pub fn batch<'a>(header: &SendHeader<'_>, body: &'a [u8]) -> Result<Vec<BatchRecord<'a>>, Refusal> {
    let illegal = |remark: String| Refusal::new(response_code::MESSAGE_ILLEGAL, remark);
    if header.topic.starts_with(RETRY_PREFIX) {
        return Err(illegal("a batch may not go to a retry topic: send its messages one by one".to_owned()));
    }
    let mut parts = Vec::with_capacity(64);
    for part in batch_records(body) {
        let part = part.map_err(|error| illegal(error.to_string()))?;
        if parts.len() == BATCH_MESSAGES_MAX {
            return Err(illegal(format!("a batch holds at most {BATCH_MESSAGES_MAX} messages")));
        }
        parts.push(part);
    }
    if parts.is_empty() {
        return Err(illegal("the batch holds no message".to_owned()));
    }
    Ok(parts)
}

/// Checks that a message of a batch is stored where the batch is.
pub fn batch_part(marks: &Marks<'_>) -> Result<(), Refusal> {
    if marks.delay_level > 0 || marks.transactional || marks.requested_time.is_asked() {
        let remark = "a batch may not be delayed or part of a transaction: send its messages one by one";
        return Err(Refusal::new(response_code::MESSAGE_ILLEGAL, remark));
    }
    Ok(())
}
