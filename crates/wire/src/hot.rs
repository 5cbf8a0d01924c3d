//! The headers of the requests that never cross to Python, scanned in one pass over the fields.

use std::borrow::Cow;

use crate::error::WireError;
use crate::header::Header;

/// SEND_MESSAGE (10) with long field names; its V2 (310) and SEND_BATCH_MESSAGE (320) with one-letter ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendHeader<'a> {
    pub producer_group: Cow<'a, str>,
    pub topic: Cow<'a, str>,
    pub default_topic: Cow<'a, str>,
    pub default_topic_queues: i32,
    pub queue_id: i32,
    pub system_flag: i32,
    pub born_timestamp_ms: i64,
    pub flag: i32,
    /// As stored: `name 0x01 value 0x02` repeated.
    pub properties: Cow<'a, str>,
    pub reconsume_times: i32,
    pub unit_mode: bool,
    pub batch: bool,
    pub max_reconsume_times: Option<i32>,
}

impl<'a> SendHeader<'a> {
    /// Only the topic is required: some clients leave out the rest and rely on zeroes.
    pub fn scan(header: &Header<'a>) -> Result<SendHeader<'a>, WireError> {
        let mut send = SendHeader::default();
        for (name, value) in header.raw_fields() {
            let name = name.octets();
            let letter = match &*name {
                [letter] => *letter,
                long => short_name(long),
            };
            match letter {
                b'a' => send.producer_group = value.text(),
                b'b' => send.topic = value.text(),
                b'c' => send.default_topic = value.text(),
                b'd' => send.default_topic_queues = value.i32("defaultTopicQueueNums")?,
                b'e' => send.queue_id = value.i32("queueId")?,
                b'f' => send.system_flag = value.i32("sysFlag")?,
                b'g' => send.born_timestamp_ms = value.i64("bornTimestamp")?,
                b'h' => send.flag = value.i32("flag")?,
                b'i' => send.properties = value.text(),
                b'j' => send.reconsume_times = value.i32("reconsumeTimes")?,
                b'k' => send.unit_mode = value.boolean(),
                b'l' => send.max_reconsume_times = Some(value.i32("maxReconsumeTimes")?),
                b'm' => send.batch = value.boolean(),
                _ => {}
            }
        }
        if send.topic.is_empty() {
            return Err(WireError::MissingField("topic"));
        }
        Ok(send)
    }
}

/// The letter that stands for a long name in the V2 header, 0 for a name that send does not know.
fn short_name(name: &[u8]) -> u8 {
    match name {
        b"producerGroup" => b'a',
        b"topic" => b'b',
        b"defaultTopic" => b'c',
        b"defaultTopicQueueNums" => b'd',
        b"queueId" => b'e',
        b"sysFlag" => b'f',
        b"bornTimestamp" => b'g',
        b"flag" => b'h',
        b"properties" => b'i',
        b"reconsumeTimes" => b'j',
        b"unitMode" => b'k',
        b"maxReconsumeTimes" => b'l',
        b"batch" => b'm',
        _ => 0,
    }
}

/// PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullHeader<'a> {
    pub consumer_group: Cow<'a, str>,
    pub topic: Cow<'a, str>,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub count_max: i32,
    pub system_flag: i32,
    pub commit_offset: i64,
    pub suspend_timeout_ms: i64,
    pub subscription: Option<Cow<'a, str>>,
    pub subscription_version: i64,
    pub expression_type: Option<Cow<'a, str>>,
    pub bytes_max: Option<i32>,
}

impl<'a> PullHeader<'a> {
    /// The fields that say where to read are required: a default of zero would deliver a queue again from its start.
    pub fn scan(header: &Header<'a>) -> Result<PullHeader<'a>, WireError> {
        let mut pull = PullHeader::default();
        let (mut queue_id, mut queue_offset) = (None, None);
        for (name, value) in header.raw_fields() {
            match &*name.octets() {
                b"consumerGroup" => pull.consumer_group = value.text(),
                b"topic" => pull.topic = value.text(),
                b"queueId" => queue_id = Some(value.i32("queueId")?),
                b"queueOffset" => queue_offset = Some(value.i64("queueOffset")?),
                b"maxMsgNums" => pull.count_max = value.i32("maxMsgNums")?,
                b"sysFlag" => pull.system_flag = value.i32("sysFlag")?,
                b"commitOffset" => pull.commit_offset = value.i64("commitOffset")?,
                b"suspendTimeoutMillis" => pull.suspend_timeout_ms = value.i64("suspendTimeoutMillis")?,
                b"subscription" => pull.subscription = Some(value.text()),
                b"subVersion" => pull.subscription_version = value.i64("subVersion")?,
                b"expressionType" => pull.expression_type = Some(value.text()),
                b"maxMsgBytes" => pull.bytes_max = Some(value.i32("maxMsgBytes")?),
                _ => {}
            }
        }
        pull.queue_id = queue_id.ok_or(WireError::MissingField("queueId"))?;
        pull.queue_offset = queue_offset.ok_or(WireError::MissingField("queueOffset"))?;
        require(&pull.consumer_group, "consumerGroup")?;
        require(&pull.topic, "topic")?;
        Ok(pull)
    }
}

/// The requests about one queue: QUERY_CONSUMER_OFFSET (14), UPDATE_CONSUMER_OFFSET (15),
/// SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX_OFFSET (30), GET_MIN_OFFSET (31).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueHeader<'a> {
    pub consumer_group: Option<Cow<'a, str>>,
    pub topic: Cow<'a, str>,
    pub queue_id: i32,
    pub commit_offset: Option<i64>,
    pub timestamp_ms: Option<i64>,
    /// `boundaryType` is UPPER: the last offset at or before the time, not the first at or after it.
    pub upper: bool,
    pub zero_if_not_found: Option<bool>,
}

impl<'a> QueueHeader<'a> {
    /// Topic and queue are required. The caller checks which of the other fields its request code needs.
    pub fn scan(header: &Header<'a>) -> Result<QueueHeader<'a>, WireError> {
        let mut queue = QueueHeader::default();
        let mut queue_id = None;
        for (name, value) in header.raw_fields() {
            match &*name.octets() {
                b"consumerGroup" => queue.consumer_group = Some(value.text()),
                b"topic" => queue.topic = value.text(),
                b"queueId" => queue_id = Some(value.i32("queueId")?),
                b"commitOffset" => queue.commit_offset = Some(value.i64("commitOffset")?),
                b"timestamp" => queue.timestamp_ms = Some(value.i64("timestamp")?),
                b"boundaryType" => queue.upper = value.octets().eq_ignore_ascii_case(b"UPPER"),
                b"setZeroIfNotFound" => queue.zero_if_not_found = Some(value.boolean()),
                _ => {}
            }
        }
        queue.queue_id = queue_id.ok_or(WireError::MissingField("queueId"))?;
        require(&queue.topic, "topic")?;
        Ok(queue)
    }
}

/// END_TRANSACTION (37).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndTransactionHeader<'a> {
    pub producer_group: Cow<'a, str>,
    /// The offset of the half message in its queue: `tranStateTableOffset`.
    pub queue_offset: i64,
    pub commit_log_offset: i64,
    /// The transaction bits of a system flag: 8 commit, 12 roll back, 0 not known yet.
    pub commit_or_rollback: i32,
    /// The producer answers a check of the broker.
    pub from_check: bool,
}

impl<'a> EndTransactionHeader<'a> {
    pub fn scan(header: &Header<'a>) -> Result<EndTransactionHeader<'a>, WireError> {
        let mut end = EndTransactionHeader::default();
        let (mut queue_offset, mut commit_log_offset, mut commit_or_rollback) = (None, None, None);
        for (name, value) in header.raw_fields() {
            match &*name.octets() {
                b"producerGroup" => end.producer_group = value.text(),
                b"tranStateTableOffset" => queue_offset = Some(value.i64("tranStateTableOffset")?),
                b"commitLogOffset" => commit_log_offset = Some(value.i64("commitLogOffset")?),
                b"commitOrRollback" => commit_or_rollback = Some(value.i32("commitOrRollback")?),
                b"fromTransactionCheck" => end.from_check = value.boolean(),
                _ => {}
            }
        }
        end.queue_offset = queue_offset.ok_or(WireError::MissingField("tranStateTableOffset"))?;
        end.commit_log_offset = commit_log_offset.ok_or(WireError::MissingField("commitLogOffset"))?;
        end.commit_or_rollback = commit_or_rollback.ok_or(WireError::MissingField("commitOrRollback"))?;
        require(&end.producer_group, "producerGroup")?;
        Ok(end)
    }
}

fn require(text: &str, name: &'static str) -> Result<(), WireError> {
    if text.is_empty() { Err(WireError::MissingField(name)) } else { Ok(()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
