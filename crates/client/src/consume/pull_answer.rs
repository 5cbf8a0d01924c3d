//! One pull: its request, and what the answer says.

use bytes::Bytes;

use crate::consume::records::{Records, has_wanted_tag};
use crate::net::request::{Reply, Request};

const PULL_MESSAGE: i32 = 11;
const SUCCESS: i32 = 0;
const NOT_FOUND: i32 = 19;
const RETRY_IMMEDIATELY: i32 = 20;
const OFFSET_MOVED: i32 = 21;

const FLAG_SUSPEND: i32 = 2;
const FLAG_SUBSCRIPTION: i32 = 4;
/// MetaQ's own: resets of the group do not concern the pull. Other brokers ignore the bit.
const FLAG_FIXED_RANGE: i32 = 1 << 16;

/// The remark of an answer that moves a consumer because its group was reset.
const OFFSET_RESET: &str = "OFFSET_RESET";

/// The parameters that all pulls of a queue share.
#[derive(Debug, Clone, Default)]
pub struct PullQuery {
    pub group: String,
    pub topic: String,
    pub queue_id: i32,
    /// The filter, as it is sent to the broker.
    pub expression: String,
    pub expression_type: String,
    pub version: i64,
    /// The tags that the client compares itself, because brokers compare only hashes. An empty list accepts all.
    pub tags: Vec<String>,
    pub hold_ms: i64,
    /// The pulls belong to a range that was fixed before.
    pub is_fixed_range: bool,
}

impl PullQuery {
    pub(crate) fn request(&self, queue_offset: i64, count_max: usize, bytes_max: usize) -> Request {
        let suspend = if self.hold_ms > 0 { FLAG_SUSPEND } else { 0 };
        let fixed = if self.is_fixed_range { FLAG_FIXED_RANGE } else { 0 };
        let bound = |number: usize| i64::from(i32::try_from(number).unwrap_or(i32::MAX));
        Request::new(PULL_MESSAGE)
            .field("consumerGroup", self.group.clone())
            .field("topic", self.topic.clone())
            .number("queueId", i64::from(self.queue_id))
            .number("queueOffset", queue_offset)
            .number("maxMsgNums", bound(count_max))
            .number("sysFlag", i64::from(suspend | fixed | FLAG_SUBSCRIPTION))
            .number("commitOffset", 0)
            .number("suspendTimeoutMillis", self.hold_ms)
            .field("subscription", self.expression.clone())
            .number("subVersion", self.version)
            .field("expressionType", self.expression_type.clone())
            .number("maxMsgBytes", bound(bytes_max))
    }
}

/// The answer to a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// There may be no records: none were stored, or none matched.
    Records {
        records: Records,
        next_offset: i64,
        suggested_broker_id: i64,
    },
    /// The queue begins or ends elsewhere; it goes on at `next_offset`.
    Moved {
        next_offset: i64,
    },
    /// The group was reset: what was pulled before no longer counts, and it goes on at `next_offset`.
    Reset {
        next_offset: i64,
    },
    Refused {
        code: i32,
        remark: String,
    },
    /// The answer cannot be read. Going on would skip messages silently.
    Malformed(String),
}

impl Answer {
    /// Whether it brought no records and no other offset.
    pub(crate) fn is_idle(&self, from_offset: i64) -> bool {
        matches!(self, Answer::Records { records, next_offset, .. }
            if records.positions.is_empty() && *next_offset == from_offset)
    }

    /// `from_offset` is what was asked for. Older records, which some brokers return, are dropped.
    pub(crate) fn read(reply: &Reply, query: &PullQuery, from_offset: i64) -> Answer {
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
            return match reply.remark.as_deref() {
                Some(OFFSET_RESET) => Answer::Reset { next_offset },
                _ => Answer::Moved { next_offset },
            };
        }
        let body = if reply.code == SUCCESS { reply.body.clone() } else { Bytes::new() };
        match Records::find(body, from_offset, |record| has_wanted_tag(record, &query.tags)) {
            Ok(records) => Answer::Records {
                records,
                next_offset,
                suggested_broker_id: field("suggestWhichBrokerId").unwrap_or_default(),
            },
            Err(error) => Answer::Malformed(format!("the broker sent a malformed message: {error}")),
        }
    }
}
