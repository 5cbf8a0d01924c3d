//! The protocol's numbers: request codes that the data plane knows, and response codes that it answers with.
//!
//! `python/metaq/protocol` declares every command; `tests/unit/protocol/test_registry.py` proves that both sides agree on
//! which ones are hot.

/// Requests that the data plane answers, at once or when Python hands them back.
pub mod request_code {
    pub const SEND_MESSAGE: i32 = 10;
    pub const PULL_MESSAGE: i32 = 11;
    pub const QUERY_CONSUMER_OFFSET: i32 = 14;
    pub const UPDATE_CONSUMER_OFFSET: i32 = 15;
    pub const SEARCH_OFFSET_BY_TIMESTAMP: i32 = 29;
    pub const GET_MAX_OFFSET: i32 = 30;
    pub const GET_MIN_OFFSET: i32 = 31;
    pub const END_TRANSACTION: i32 = 37;
    pub const SEND_MESSAGE_V2: i32 = 310;
    pub const SEND_BATCH_MESSAGE: i32 = 320;
    pub const SEND_REPLY_MESSAGE: i32 = 324;
    pub const SEND_REPLY_MESSAGE_V2: i32 = 325;
    pub const LITE_PULL_MESSAGE: i32 = 361;
}

pub mod response_code {
    pub const SUCCESS: i32 = 0;
    pub const SYSTEM_ERROR: i32 = 1;
    pub const SYSTEM_BUSY: i32 = 2;
    pub const FLUSH_DISK_TIMEOUT: i32 = 10;
    pub const FLUSH_SLAVE_TIMEOUT: i32 = 12;
    pub const MESSAGE_ILLEGAL: i32 = 13;
    pub const SERVICE_NOT_AVAILABLE: i32 = 14;
    pub const NO_PERMISSION: i32 = 16;
    pub const TOPIC_NOT_EXIST: i32 = 17;
    pub const PULL_NOT_FOUND: i32 = 19;
    pub const PULL_RETRY_IMMEDIATELY: i32 = 20;
    pub const PULL_OFFSET_MOVED: i32 = 21;
    pub const QUERY_NOT_FOUND: i32 = 22;
    pub const SUBSCRIPTION_PARSE_FAILED: i32 = 23;
    pub const SUBSCRIPTION_NOT_EXIST: i32 = 24;
    pub const SUBSCRIPTION_NOT_LATEST: i32 = 25;
    pub const SUBSCRIPTION_GROUP_NOT_EXIST: i32 = 26;
    pub const INVALID_PARAMETER: i32 = 29;
    pub const TRANSACTION_STATE_UNKNOWN: i32 = 202;
    pub const ILLEGAL_OPERATION: i32 = 604;
}

/// The room that answers a hot request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HotRequest {
    Send,
    Pull,
    Offsets,
    EndTransaction,
}

macro_rules! hot_requests {
    ($($room:ident: $($name:ident)|+;)+) => {
        /// Requests that a broker's data plane answers without Python.
        pub const HOT_CODES: &[i32] = &[$($(request_code::$name),+),+];

        /// The room that answers this code; None for a code that crosses to Python.
        #[inline]
        pub fn hot_request(code: i32) -> Option<HotRequest> {
            match code {
                $($(request_code::$name)|+ => Some(HotRequest::$room),)+
                _ => None,
            }
        }
    };
}

hot_requests! {
    Send: SEND_MESSAGE | SEND_MESSAGE_V2 | SEND_BATCH_MESSAGE;
    Pull: PULL_MESSAGE | LITE_PULL_MESSAGE;
    Offsets: QUERY_CONSUMER_OFFSET | UPDATE_CONSUMER_OFFSET | SEARCH_OFFSET_BY_TIMESTAMP | GET_MAX_OFFSET | GET_MIN_OFFSET;
    EndTransaction: END_TRANSACTION;
}

/// Whether a request that Python hands back is stored as a message: a reply that its requester has got already.
pub fn is_reply(code: i32) -> bool {
    matches!(code, request_code::SEND_REPLY_MESSAGE | request_code::SEND_REPLY_MESSAGE_V2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hot_code_has_a_room_and_no_other_does() {
        let hot: Vec<i32> = (-1..4_000).filter(|code| hot_request(*code).is_some()).collect();
        let mut listed = HOT_CODES.to_vec();
        listed.sort_unstable();
        assert_eq!(hot, listed);
        assert!(hot_request(request_code::SEND_REPLY_MESSAGE).is_none(), "Python sees it first");
    }
}
