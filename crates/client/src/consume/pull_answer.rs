//! One pull: how it is asked, and what its answer says.

use bytes::Bytes;
use metaq_wire::properties::find;
use metaq_wire::{Record, WireError};

use crate::net::request::{Reply, Request};

const PULL_MESSAGE: i32 = 11;
const SUCCESS: i32 = 0;
const NOT_FOUND: i32 = 19;
const RETRY_IMMEDIATELY: i32 = 20;
const OFFSET_MOVED: i32 = 21;

const FLAG_SUSPEND: i32 = 2;
const FLAG_SUBSCRIPTION: i32 = 4;
/// `system_flag` bit of a record.
const COMPRESSED: i32 = 1;
const TAGS: &str = "TAGS";

/// What is wanted of a queue's topic; the same for every pull of it.
#[derive(Debug, Clone, Default)]
pub struct PullWanted {
    pub group: String,
    pub topic: String,
    pub queue_id: i32,
    /// The filter as the broker is told it.
    pub expression: String,
    pub expression_type: String,
    pub version: i64,
    /// Brokers compare hashes of tags; these are compared themselves. None lets everything through.
    pub tags: Vec<String>,
    pub hold_ms: i64,
}

impl PullWanted {
    pub(crate) fn request(&self, queue_offset: i64, count_max: usize, bytes_max: usize) -> Request {
        let suspend = if self.hold_ms > 0 { FLAG_SUSPEND } else { 0 };
        let bound = |number: usize| i64::from(i32::try_from(number).unwrap_or(i32::MAX));
        Request::new(PULL_MESSAGE)
            .field("consumerGroup", self.group.clone())
            .field("topic", self.topic.clone())
            .number("queueId", i64::from(self.queue_id))
            .number("queueOffset", queue_offset)
            .number("maxMsgNums", bound(count_max))
            .number("sysFlag", i64::from(suspend | FLAG_SUBSCRIPTION))
            .number("commitOffset", 0)
            .number("suspendTimeoutMillis", self.hold_ms)
            .field("subscription", self.expression.clone())
            .number("subVersion", self.version)
            .field("expressionType", self.expression_type.clone())
            .number("maxMsgBytes", bound(bytes_max))
    }

    fn wants(&self, record: &Record<'_>) -> bool {
        self.tags.is_empty()
            || find(record.properties, TAGS)
                .is_some_and(|tag| self.tags.iter().any(|wanted| *wanted == String::from_utf8_lossy(tag)))
    }
}

/// Records of one answer, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Records {
    pub body: Bytes,
    /// Where those begin that are wanted; a whole record stands at each.
    pub places: Vec<u32>,
    /// Of which bodies are compressed; in the order of `places`, and empty where none is.
    pub compressed: Vec<bool>,
}

/// What an answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Perhaps no records at all: none were there, or none were wanted.
    Records {
        records: Records,
        next_offset: i64,
        suggested_broker_id: i64,
    },
    /// The queue does not reach to where we asked.
    Moved {
        next_offset: i64,
    },
    Refused {
        code: i32,
        remark: String,
    },
    /// Going on would skip what cannot be read, silently.
    Malformed(String),
}

impl Answer {
    /// It brought nothing and leads nowhere else.
    pub(crate) fn is_idle(&self, from_offset: i64) -> bool {
        matches!(self, Answer::Records { records, next_offset, .. }
            if records.places.is_empty() && *next_offset == from_offset)
    }

    /// `from_offset` is what was asked for: a broker that answers with older ones is not believed.
    pub(crate) fn read(reply: &Reply, wanted: &PullWanted, from_offset: i64) -> Answer {
        if !matches!(reply.code, SUCCESS | NOT_FOUND | RETRY_IMMEDIATELY | OFFSET_MOVED) {
            let remark = reply.remark.clone().unwrap_or_default();
            return Answer::Refused { code: reply.code, remark };
        }
        let field =
            |name: &str| -> Option<i64> { reply.header().ok()?.field(name).ok()??.trim().parse().ok() };
        let Some(next_offset) = field("nextBeginOffset") else {
            return Answer::Malformed("the answer to a pull has no nextBeginOffset".to_owned());
        };
        if reply.code == OFFSET_MOVED {
            return Answer::Moved { next_offset };
        }
        let body = if reply.code == SUCCESS { reply.body.clone() } else { Bytes::new() };
        match places(&body, wanted, from_offset) {
            Ok((places, compressed)) => Answer::Records {
                records: Records { body, places, compressed },
                next_offset,
                suggested_broker_id: field("suggestWhichBrokerId").unwrap_or_default(),
            },
            Err(error) => Answer::Malformed(format!("the broker sent a malformed message: {error}")),
        }
    }
}

/// Where the wanted records begin, and which are compressed; every record is checked whole, wanted or not.
fn places(body: &Bytes, wanted: &PullWanted, from_offset: i64) -> Result<(Vec<u32>, Vec<bool>), WireError> {
    let (mut places, mut compressed) = (Vec::new(), Vec::new());
    let mut at = 0;
    while let Some(rest) = body.get(at..).filter(|rest| !rest.is_empty()) {
        let record = Record::decode(rest)?;
        if record.queue_offset >= from_offset && wanted.wants(&record) {
            if record.system_flag & COMPRESSED != 0 {
                compressed.resize(places.len(), false);
                compressed.push(true);
            }
            places.push(u32::try_from(at).map_err(|_| WireError::BadRecord("lies too far behind"))?);
        }
        // A record says at least how long its header is, so this ends.
        at += record.size.max(1);
    }
    Ok((places, compressed))
}
