//! Copies of stored messages: under another topic, after a delay, with other properties.

use std::net::SocketAddr;

use metaq_store::{Appended, SCHEDULE_TOPIC, Store, StoreError};
use metaq_wire::properties::{iterate, push_bytes};
use metaq_wire::{NewRecord, Record};

use crate::ServerError;
use crate::send::handler::Sender;
use crate::send::rewrite::DEAD_LETTER_PREFIX;

/// The parts in which a copy differs from its record.
pub struct Copy<'a> {
    pub topic: &'a str,
    pub queue_id: i32,
    pub reconsume_times: i32,
    /// The whole property string of the copy.
    pub properties: &'a [u8],
}

/// The record as stored, but with an empty body: enough to list a message.
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
    let mut bytes = vec![0; head.size()];
    head.write(&mut bytes, record.queue_offset, record.physical_offset, record.store_timestamp_ms);
    bytes
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

/// The properties without `drop`, and with `set` added or replaced.
pub fn changed_properties(properties: &[u8], drop: &[&str], set: &[(&str, &str)]) -> Vec<u8> {
    let mut changed = Vec::with_capacity(properties.len() + 64);
    for (name, value) in iterate(properties) {
        let is_dropped = drop.iter().any(|drop| drop.as_bytes() == name);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_dropped_replaced_and_added() {
        let changed = changed_properties(b"A\x011\x02B\x012\x02C\x013", &["A"], &[("B", "x"), ("D", "4")]);
        assert_eq!(changed, b"C\x013\x02B\x01x\x02D\x014\x02");
    }
}
