//! Copies of stored messages: under another topic, after a delay, with other properties.

use std::cmp::Reverse;
use std::net::SocketAddr;

use metaq_store::{Appended, SCHEDULE_TOPIC, Store, StoreError};
use metaq_wire::properties::{entries, iterate, push_bytes};
use metaq_wire::{CHECKSUM_NAME, NewRecord, Record};

use crate::ServerError;
use crate::send::handler::Sender;
use crate::send::rewrite::DEAD_LETTER_PREFIX;
use crate::send::validate::PROPERTIES_BYTES_MAX;

/// How many properties of the original a copy lacks, because they found no room.
const LEFT_OUT: &str = "METAQ_LEFT_OUT";
/// The longest such property: a record has fewer properties than bytes of them, so five digits are enough.
const LEFT_OUT_BYTES: usize = LEFT_OUT.len() + 1 + 5 + 1;

/// The parts in which a copy differs from its record.
pub struct Copy<'a> {
    pub topic: &'a str,
    pub queue_id: i32,
    pub reconsume_times: i32,
    /// The whole property string of the copy.
    pub properties: &'a [u8],
}

/// The record as stored, but with an empty body and without a checksum of the whole: enough to list a message.
pub(crate) fn without_body(record: &Record<'_>) -> Vec<u8> {
    let head = NewRecord {
        topic: record.topic,
        queue_id: record.queue_id,
        flag: record.flag,
        system_flag: record.system_flag,
        born_timestamp_ms: record.born_timestamp_ms,
        born_host: record.born_host,
        store_host: record.store_host,
        reconsume_times: record.reconsume_times,
        prepared_transaction_offset: record.prepared_transaction_offset,
        body: &[],
        body_crc: 0,
        properties: [record.properties, &[], &[]],
    };
    // It is no longer than the record, so it fits its length fields.
    head.encode(record.queue_offset, record.physical_offset, record.store_timestamp_ms).unwrap_or_default()
}

/// A copy that Python asks for.
pub struct Resend {
    pub physical_offset: i64,
    pub topic: String,
    pub queue_id: i32,
    pub reconsume_times: i32,
    /// 0 stands for no delay.
    pub delay_level: i64,
    pub drop: Vec<String>,
    pub set: Vec<(String, String)>,
    /// Properties with these names are the last that may be left out if there are too many bytes of them.
    pub system_names: Vec<String>,
}

impl Sender {
    /// Stores a copy, as safely as an acknowledged message, and returns its physical offset.
    pub fn resend(&self, resend: &Resend) -> Result<i64, ServerError> {
        let Some(stored) = self.store.queued_record_at(resend.physical_offset) else {
            return Err(ServerError::NoRecord(resend.physical_offset));
        };
        let record = Record::decode(&stored).map_err(ServerError::Frame)?;
        let drop: Vec<&str> = resend.drop.iter().map(String::as_str).collect();
        let mut set: Vec<(&str, &str)> =
            resend.set.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let (level_text, queue_text) = (resend.delay_level.to_string(), resend.queue_id.to_string());
        let level = self.delay_levels.level(resend.delay_level);
        let (topic, queue_id) = match level {
            None => (resend.topic.as_str(), resend.queue_id),
            Some(level) => {
                set.extend([
                    ("DELAY", level_text.as_str()),
                    ("REAL_TOPIC", &resend.topic),
                    ("REAL_QID", &queue_text),
                ]);
                (SCHEDULE_TOPIC, level as i32 - 1)
            }
        };
        let properties = changed_properties(record.properties, &drop, &set);
        let properties = fitted(properties, &set, &resend.system_names);
        let copy = Copy { topic, queue_id, reconsume_times: resend.reconsume_times, properties: &properties };
        let appended = copy.append(&record, &self.store, self.store_host).map_err(ServerError::Store)?;
        if resend.topic.starts_with(DEAD_LETTER_PREFIX) {
            let topic = record.property("RETRY_TOPIC").unwrap_or(record.topic);
            self.count_dead_letter(&resend.topic, std::str::from_utf8(topic).unwrap_or_default());
        }
        self.store.dispatch();
        if !self.store.wait_confirmed(appended.end_offset, self.flush_timeout) {
            return Err(ServerError::NotFlushed);
        }
        Ok(appended.physical_offset)
    }
}

impl Copy<'_> {
    /// Appends the copy. The caller dispatches it and waits for its confirmation if it must.
    pub fn append(
        &self,
        record: &Record<'_>,
        store: &Store,
        store_host: SocketAddr,
    ) -> Result<Appended, StoreError> {
        store.append(&NewRecord {
            topic: self.topic.as_bytes(),
            queue_id: self.queue_id,
            flag: record.flag,
            system_flag: record.system_flag,
            born_timestamp_ms: record.born_timestamp_ms,
            born_host: record.born_host,
            store_host,
            reconsume_times: self.reconsume_times,
            prepared_transaction_offset: record.prepared_transaction_offset,
            body: record.body,
            body_crc: record.body_crc,
            properties: [self.properties, &[], &[]],
        })
    }
}

/// The properties without `drop`, and with `set` added or replaced. The checksum of another record is left out too.
pub fn changed_properties(properties: &[u8], drop: &[&str], set: &[(&str, &str)]) -> Vec<u8> {
    let mut changed = Vec::with_capacity(properties.len() + 64);
    for (name, value) in iterate(properties) {
        let is_dropped = name == CHECKSUM_NAME.as_bytes() || drop.iter().any(|drop| drop.as_bytes() == name);
        let is_set = set.iter().any(|(set, _)| set.as_bytes() == name);
        if !is_dropped && !is_set {
            push_bytes(&mut changed, name, value);
        }
    }
    for (name, value) in set {
        push_bytes(&mut changed, name.as_bytes(), value.as_bytes());
    }
    changed
}

/// The properties that fit into a record. A copy has a few more than its original, and if one could not be stored, its
/// consumer would get the same message for ever. So others are left out, longest first: those of its sender, then those
/// with a name of the system, which senders may set as well, and never those in `set`.
fn fitted(properties: Vec<u8>, set: &[(&str, &str)], system_names: &[String]) -> Vec<u8> {
    if properties.len() <= PROPERTIES_BYTES_MAX {
        return properties;
    }
    let is_set = |name: &[u8]| set.iter().any(|(set, _)| set.as_bytes() == name);
    let is_system = |name: &[u8]| system_names.iter().any(|system| system.as_bytes() == name);
    let (marks, all): (Vec<_>, Vec<_>) =
        entries(&properties).partition(|entry| entry.name == LEFT_OUT.as_bytes());
    let mut droppable: Vec<usize> = (0..all.len()).filter(|at| !is_set(all[*at].name)).collect();
    droppable.sort_by_cached_key(|at| (is_system(all[*at].name), Reverse(all[*at].span.len())));

    let mut bytes: usize = LEFT_OUT_BYTES + all.iter().map(|entry| entry.span.len()).sum::<usize>();
    let mut is_left_out = vec![false; all.len()];
    let mut left_out = 0;
    for at in droppable {
        if bytes <= PROPERTIES_BYTES_MAX {
            break;
        }
        bytes -= all[at].span.len();
        is_left_out[at] = true;
        left_out += 1;
    }
    let mut kept = Vec::with_capacity(bytes);
    for (entry, _) in all.iter().zip(&is_left_out).filter(|(_, is_left_out)| !**is_left_out) {
        push_bytes(&mut kept, entry.name, entry.value);
    }
    // An earlier copy may have left out some already; but its sender may have written anything there.
    let before = marks.last().and_then(|mark| std::str::from_utf8(mark.value).ok()?.parse::<u16>().ok());
    let count = left_out + usize::from(before.unwrap_or(0));
    push_bytes(&mut kept, LEFT_OUT.as_bytes(), count.min(99_999).to_string().as_bytes());
    kept
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn properties_of(pairs: &[(&str, usize)]) -> Vec<u8> {
        let mut properties = Vec::new();
        for (name, bytes) in pairs {
            push_bytes(&mut properties, name.as_bytes(), &vec![b'x'; *bytes]);
        }
        properties
    }

    fn names(properties: &[u8]) -> Vec<String> {
        iterate(properties).map(|(name, _)| String::from_utf8(name.to_vec()).unwrap()).collect()
    }

    #[test]
    fn properties_that_fit_stay_as_they_are() {
        let exactly = properties_of(&[("A", PROPERTIES_BYTES_MAX - 3)]);
        assert_eq!(exactly.len(), PROPERTIES_BYTES_MAX);
        assert_eq!(fitted(exactly.clone(), &[], &[]), exactly);
    }

    #[test]
    fn the_longest_of_the_sender_are_left_out_first() {
        let given = properties_of(&[
            ("B", 5_000),
            ("KEYS", 12_000),
            ("A", 9_000),
            ("C", 4_000),
            ("RETRY_TOPIC", 3_000),
        ]);
        let system = ["KEYS".to_owned(), "RETRY_TOPIC".to_owned()];
        let kept = fitted(given, &[("RETRY_TOPIC", "")], &system);
        assert_eq!(names(&kept), ["B", "KEYS", "C", "RETRY_TOPIC", LEFT_OUT]);
        assert!(kept.ends_with(b"METAQ_LEFT_OUT\x011\x02"));

        let again = [kept, properties_of(&[("DLQ", 20_000)])].concat();
        let kept = fitted(again, &[("RETRY_TOPIC", ""), ("DLQ", "")], &system);
        assert_eq!(names(&kept), ["RETRY_TOPIC", "DLQ", LEFT_OUT], "then those with the system's names");
        assert!(kept.ends_with(b"METAQ_LEFT_OUT\x014\x02"), "all copies count");
    }

    #[test]
    fn whatever_a_sender_wrote_the_copy_fits() {
        let set = [("RETRY_TOPIC", "orders")];
        let short = b"a\x01b\x02".repeat(PROPERTIES_BYTES_MAX / 4);
        let mark = properties_of(&[(LEFT_OUT, 32_000)]);
        for given in [short, mark, properties_of(&[("TAGS", 32_764)])] {
            let kept = fitted(changed_properties(&given, &[], &set), &set, &["TAGS".to_owned()]);
            assert!(kept.len() <= PROPERTIES_BYTES_MAX, "{}", kept.len());
            assert_eq!(metaq_wire::properties::find(&kept, "RETRY_TOPIC"), Some(&b"orders"[..]));
        }
    }

    #[test]
    fn properties_are_dropped_replaced_and_added() {
        let given = b"A\x011\x02__CRC32#\x010000000000\x02B\x012\x02C\x013";
        let changed = changed_properties(given, &["A"], &[("B", "x"), ("D", "4")]);
        assert_eq!(changed, b"C\x013\x02B\x01x\x02D\x014\x02");
    }
}
