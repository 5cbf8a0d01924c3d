//! The few properties that decide how a message is stored, found in one pass.

use metaq_wire::properties::{entries, iterate};

use crate::timer::due_time::RequestedTime;

/// The properties of a message that decide how it is stored.
#[derive(Default)]
pub struct Marks<'a> {
    pub unique_key: Option<&'a [u8]>,
    /// The sender does not wait for flush or replicas (`WAIT=false`).
    pub no_wait: bool,
    /// The delay level that the sender asks for; 0 for none.
    pub delay_level: i64,
    /// It is the half message of a transaction.
    pub transactional: bool,
    /// The seconds for which its producer asks not to be checked.
    pub immunity: Option<&'a [u8]>,
    pub names_producer_group: bool,
    /// The number of messages that a half message holds, if it holds many.
    pub half_batch: Option<&'a [u8]>,
    /// The moment of delivery that the sender asks for.
    pub requested_time: RequestedTime<'a>,
    /// It has the properties that the broker would add, because it is sent on.
    pub already_added: bool,
    /// A pop handle, which must not be stored.
    pub pop_check: bool,
    /// It has properties that only the broker may set, on copies of half messages.
    pub copy_notes: bool,
    /// It has the checksum of another record, which it was copied from.
    pub old_checksum: bool,
    /// It has a number of checks, which only the broker counts.
    pub check_times: bool,
    /// From 0 on.
    pub priority: Option<i32>,
    /// Its messages of one key keep their order.
    pub is_ordered: bool,
    /// It is delayed or ordered.
    pub has_other_kind: bool,
    /// The keys under which it can be found, with spaces between them.
    pub keys: Option<&'a [u8]>,
}

impl Marks<'_> {
    /// Whether its priority counts. A delayed, ordered or transactional message has its queue for a reason.
    pub fn has_priority(&self) -> bool {
        self.priority.is_some()
            && !self.has_other_kind
            && !self.transactional
            && !self.requested_time.is_asked()
    }

    /// The queue for its priority; None if it has none.
    pub fn priority_queue(&self, write_queues: i32) -> Option<i32> {
        let priority = self.priority.filter(|_| self.has_priority())?;
        Some(priority.min(write_queues - 1).max(0))
    }
}

pub fn scan(properties: &[u8]) -> Marks<'_> {
    let mut marks = Marks::default();
    for (name, value) in iterate(properties) {
        match name {
            b"UNIQ_KEY" => marks.unique_key = Some(value),
            b"KEYS" => marks.keys = Some(value),
            b"WAIT" => marks.no_wait = value == b"false",
            b"CLUSTER" => marks.already_added = true,
            b"POP_CK" => marks.pop_check = true,
            b"METAQ_HALF_BEFORE" | b"METAQ_HALF_FIRST" | b"TRAN_PREPARED_QUEUE_OFFSET" => {
                marks.copy_notes = true;
            }
            b"__CRC32#" => marks.old_checksum = true,
            b"TRANSACTION_CHECK_TIMES" => marks.check_times = true,
            b"TRAN_MSG" => marks.transactional = value.eq_ignore_ascii_case(b"true"),
            b"CHECK_IMMUNITY_TIME_IN_SECONDS" => marks.immunity = Some(value),
            b"PGROUP" => marks.names_producer_group = true,
            b"METAQ_HALF_BATCH" => marks.half_batch = Some(value),
            b"DELAY" => {
                marks.delay_level = number(value);
                marks.has_other_kind = true;
            }
            b"__SHARDINGKEY" => {
                marks.is_ordered = true;
                marks.has_other_kind = true;
            }
            b"_SYS_MSG_PRIORITY_" => marks.priority = priority(value),
            b"TIMER_DELAY_SEC" => marks.requested_time.delay_s = Some(value),
            b"TIMER_DELAY_MS" => marks.requested_time.delay_ms = Some(value),
            b"TIMER_DELIVER_MS" => marks.requested_time.deliver_ms = Some(value),
            b"TIMER_OUT_MS" => marks.requested_time.has_waited = true,
            b"TIMER_DEL_UNIQKEY" => marks.requested_time.recalls = Some(value),
            _ => {}
        }
    }
    marks
}

/// The number in a property; 0 if it is not a number.
fn number(value: &[u8]) -> i64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The priority in a property; None unless it is a number from 0 on.
fn priority(value: &[u8]) -> Option<i32> {
    std::str::from_utf8(value).ok()?.parse().ok().filter(|priority| *priority >= 0)
}

/// The properties without the entries of these names, in one pass whatever their number.
pub fn without(properties: &[u8], names: &[&str]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(properties.len());
    let mut from = 0;
    for entry in entries(properties) {
        if names.iter().any(|name| name.as_bytes() == entry.name) {
            kept.extend_from_slice(properties.get(from..entry.span.start).unwrap_or_default());
            from = entry.span.end;
        }
    }
    kept.extend_from_slice(properties.get(from..).unwrap_or_default());
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_wherever_they_stand() {
        let marks = scan(b"TAGS\x01a\x02UNIQ_KEY\x01K1\x02WAIT\x01false\x02");
        assert_eq!(marks.unique_key, Some(&b"K1"[..]));
        assert!(marks.no_wait && !marks.already_added && !marks.requested_time.is_asked());
        assert_eq!(scan(b"DELAY\x013").delay_level, 3);
        assert_eq!(scan(b"DELAY\x01soon").delay_level, 0);
        let requested = scan(b"TIMER_DELAY_SEC\x013\x02TIMER_DELIVER_MS\x0199").requested_time;
        assert_eq!(
            (requested.delay_s, requested.delay_ms, requested.deliver_ms),
            (Some(&b"3"[..]), None, Some(&b"99"[..]))
        );
        assert!(scan(b"broken\x02\x02\x01x").unique_key.is_none());
    }

    #[test]
    fn a_priority_chooses_among_the_queues_of_a_message_of_no_other_kind() {
        let queue = |properties: &[u8]| scan(properties).priority_queue(4);
        assert_eq!(queue(b"_SYS_MSG_PRIORITY_\x010"), Some(0));
        assert_eq!(queue(b"TAGS\x01a\x02_SYS_MSG_PRIORITY_\x013\x02"), Some(3));
        assert_eq!(queue(b"_SYS_MSG_PRIORITY_\x012147483647"), Some(3));
        for none in ["-1", "", "high", "1.5", "2147483648"] {
            assert_eq!(queue(format!("_SYS_MSG_PRIORITY_\u{1}{none}\u{2}").as_bytes()), None, "{none}");
        }
        for other in ["TRAN_MSG\u{1}true", "DELAY\u{1}3", "DELAY\u{1}soon", "__SHARDINGKEY\u{1}k"] {
            let both = format!("_SYS_MSG_PRIORITY_\u{1}2\u{2}{other}\u{2}");
            assert_eq!(queue(both.as_bytes()), None, "{other}");
        }
        assert_eq!(queue(b"_SYS_MSG_PRIORITY_\x012\x02TRAN_MSG\x01false"), Some(2));
        assert_eq!(scan(b"_SYS_MSG_PRIORITY_\x012").priority_queue(0), Some(0));
        assert_eq!(queue(b"_SYS_MSG_PRIORITY_\x012\x02TIMER_DELAY_MS\x015000"), None);
    }

    #[test]
    fn a_property_is_taken_out_whole() {
        let given = b"A\x011\x02POP_CK\x01x y\x02B\x012\x02POP_CK\x01z";
        let kept = without(given, &["POP_CK"]);
        assert_eq!(kept, b"A\x011\x02B\x012\x02");
        assert_eq!(without(given, &["B", "POP_CK", "A"]), b"");
        assert_eq!(without(b"\x02A\x011\x02broken\x02A\x01", &["A"]), b"\x02broken\x02A\x01");
        assert_eq!(without(given, &["none"]), given);
    }
}
