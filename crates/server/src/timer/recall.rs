//! Recalls of waiting messages: the handle that a sender gets, and the record of a recall.
//!
//! A recall is a record in the queue of waiting messages, with the time of the message that it recalls. So it survives a
//! kill and is stored again in time like any other. If the time is near, the recall is also noted in memory, because the
//! message may be due before its recall is read from the queue.

use std::collections::HashMap;
use std::net::SocketAddr;

use foldhash::fast::RandomState;
use metaq_store::{StoreError, TIMER_TOPIC};
use metaq_wire::properties::push;
use metaq_wire::{NewRecord, Record, body_crc};
use parking_lot::Mutex;

use crate::ServerError;
use crate::timer::delivery::{Timers, Waiting};
use crate::timer::signature::sign;

/// A recall for a time nearer than this is also noted in memory.
const NEAR_MS: i64 = 60_000;
/// A recall is remembered this long after its time, for a message that is read late.
const KEPT_MS: i64 = 10_000;
/// A new recall is remembered at least this long: until then, the log of timers knows it.
const FRESH_MS: i64 = 10_000;
/// Above this number, those that are older are forgotten.
const FRESH_MAX: usize = 65_536;
const RECALL_TAG: &str = "_RECALL_TAG_";
const RECALL_BODY: &[u8] = b"0";

/// A recall that Python has checked.
pub struct Recall {
    pub topic: String,
    pub unique_key: String,
    pub due_ms: i64,
    pub producer_group: String,
    pub born_host: SocketAddr,
}

/// The result of a recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecallOutcome {
    /// It is stored as safely as an acknowledged message.
    Stored,
    /// The time of the message has come.
    TooLate,
    /// The message was recalled before; nothing was stored.
    RecalledBefore,
}

#[derive(Default)]
struct Near {
    /// Everything due up to here may have been delivered.
    taken_until_ms: i64,
    /// The physical offset of the recall, by hash of the key and due time.
    recalls: HashMap<(u64, i64), i64, RandomState>,
    /// The same for recalls of any time that were stored just now, with the moment when that was.
    fresh: HashMap<(u64, i64), (i64, i64), RandomState>,
}

impl Near {
    fn keep_fresh(&mut self, key: (u64, i64), physical_offset: i64, now_ms: i64) {
        if self.fresh.len() >= FRESH_MAX {
            self.fresh.retain(|_, (_, stored_ms)| now_ms - *stored_ms < FRESH_MS);
            if self.fresh.len() >= FRESH_MAX {
                self.fresh.clear();
            }
        }
        self.fresh.insert(key, (physical_offset, now_ms));
    }
}

/// The recalls for times that are near.
#[derive(Default)]
pub struct Recalls {
    near: Mutex<Near>,
}

impl Recalls {
    /// Refuses recalls of messages that are due by then.
    pub(crate) fn take_until(&self, now_ms: i64) {
        self.near.lock().taken_until_ms = now_ms;
    }

    pub(crate) fn note(&self, key_hash: u64, due_ms: i64, physical_offset: i64) {
        self.near.lock().recalls.insert((key_hash, due_ms), physical_offset);
    }

    pub(crate) fn find(&self, key_hash: u64, due_ms: i64) -> Option<i64> {
        self.near.lock().recalls.get(&(key_hash, due_ms)).copied()
    }

    pub(crate) fn forget_before(&self, now_ms: i64) {
        let mut near = self.near.lock();
        if !near.recalls.is_empty() {
            near.recalls.retain(|(_, due_ms), _| *due_ms >= now_ms - KEPT_MS);
        }
    }
}

impl Timers {
    /// Stores a recall, as safely as an acknowledged message, unless it comes too late or a second time.
    pub fn recall(&self, recall: &Recall) -> Result<RecallOutcome, ServerError> {
        let mut properties = Vec::with_capacity(256);
        let now_ms = self.store.clock().now_ms();
        let (due_text, now_text) = (recall.due_ms.to_string(), now_ms.to_string());
        for (name, value) in [
            ("TAGS", RECALL_TAG),
            ("TIMER_DEL_UNIQKEY", &format!("{}+{}", recall.topic, recall.unique_key)),
            ("UNIQ_KEY", &recall.unique_key),
            ("TIMER_DELIVER_MS", &due_text),
            ("BORN_TIMESTAMP", &now_text),
            ("PGROUP", &recall.producer_group),
            ("TIMER_OUT_MS", &due_text),
            ("REAL_TOPIC", &recall.topic),
            ("REAL_QID", "0"),
        ] {
            if !value.is_empty() {
                push(&mut properties, name, value);
            }
        }
        let record = NewRecord {
            topic: TIMER_TOPIC.as_bytes(),
            queue_id: 0,
            flag: 0,
            system_flag: 0,
            born_timestamp_ms: now_ms,
            born_host: recall.born_host,
            store_host: self.store_host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: RECALL_BODY,
            body_crc: body_crc(RECALL_BODY),
            properties: [&properties, &[], &[]],
        };
        let key_hash = key_hash(recall.topic.as_bytes(), recall.unique_key.as_bytes());
        if self.was_recalled(recall, key_hash) {
            return Ok(RecallOutcome::RecalledBefore);
        }
        // Under the lock, so that a delivery either comes before the recall or finds it.
        let appended = {
            let mut near = self.recalls.near.lock();
            if recall.due_ms <= now_ms.max(near.taken_until_ms) {
                return Ok(RecallOutcome::TooLate);
            }
            let known =
                near.fresh.get(&(key_hash, recall.due_ms)).map(|(physical_offset, _)| *physical_offset);
            if known.is_some_and(|physical_offset| self.is_recall_of(physical_offset, recall)) {
                return Ok(RecallOutcome::RecalledBefore);
            }
            let appended = self.store.append(&record).map_err(ServerError::Store)?;
            near.keep_fresh((key_hash, recall.due_ms), appended.physical_offset, now_ms);
            if recall.due_ms - now_ms < NEAR_MS {
                near.recalls.insert((key_hash, recall.due_ms), appended.physical_offset);
            }
            appended
        };
        self.store.dispatch();
        if !self.store.wait_confirmed(appended.end_offset, self.flush_timeout) {
            return Err(ServerError::NotFlushed);
        }
        Ok(RecallOutcome::Stored)
    }

    /// Whether a recall of the same message waits that the log of timers knows.
    fn was_recalled(&self, recall: &Recall, key_hash: u64) -> bool {
        if self.recalls.find(key_hash, recall.due_ms).is_some_and(|known| self.is_recall_of(known, recall)) {
            return true;
        }
        let Some(outline) = self.outline.lock().clone() else { return false };
        let known = outline.recalls(key_hash, recall.due_ms);
        known.into_iter().any(|physical_offset| self.is_recall_of(physical_offset, recall))
    }

    /// Whether the record there recalls the same message. Another key may have the same hash.
    fn is_recall_of(&self, physical_offset: i64, recall: &Recall) -> bool {
        let Some(stored) = self.store.appended_record_at(physical_offset) else {
            return false;
        };
        let Ok(record) = Record::decode(&stored) else { return false };
        Waiting::of(&record).is_some_and(|waiting| waiting.is_recall && waiting.due_ms == recall.due_ms)
            && record.property("REAL_TOPIC") == Some(recall.topic.as_bytes())
            && recalled_key(&record) == Some(recall.unique_key.as_bytes())
    }

    /// Whether a recall was stored for this message.
    pub(crate) fn is_recalled(
        &self,
        message: &Record<'_>,
        key_hash: u64,
        due_ms: i64,
    ) -> Result<bool, StoreError> {
        let Some(physical_offset) = self.recalls.find(key_hash, due_ms) else {
            return Ok(false);
        };
        if let Some(damaged) = self.store.awaits_repair(physical_offset) {
            return Err(damaged);
        }
        Ok(self.recalls_message(physical_offset, message, due_ms))
    }

    /// Whether the record there is a recall of this message, which is due at this time.
    pub(super) fn recalls_message(&self, physical_offset: i64, message: &Record<'_>, due_ms: i64) -> bool {
        let Some(stored) = self.store.appended_record_at(physical_offset) else {
            return false;
        };
        let Ok(recall) = Record::decode(&stored) else { return false };
        let is_then =
            Waiting::of(&recall).is_some_and(|waiting| waiting.is_recall && waiting.due_ms == due_ms);
        // Another key may have the same hash.
        let topic = message.property("REAL_TOPIC");
        is_then
            && topic.is_some()
            && topic == recall.property("REAL_TOPIC")
            && recalled_key(&recall) == message.property("UNIQ_KEY")
    }
}

/// The unique key that a recall names: after `topic+`, or alone as older clients write it.
pub(crate) fn recalled_key<'a>(recall: &Record<'a>) -> Option<&'a [u8]> {
    let named = recall.property("TIMER_DEL_UNIQKEY")?;
    let topic = recall.property("REAL_TOPIC")?;
    Some(named.strip_prefix(topic).and_then(|rest| rest.strip_prefix(b"+")).unwrap_or(named))
}

/// FNV-1a, which is on the disk and must not change. A collision costs no more than one look at a record.
pub(crate) fn key_hash(topic: &[u8], unique_key: &[u8]) -> u64 {
    let bytes = topic.iter().chain(b"+").chain(unique_key);
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

/// The handle by which a sender recalls its message: url-safe base64 of `v1 topic broker time key signature`. Java's client
/// reads the first five words, and ignores what follows.
pub(crate) fn encode_handle(
    recall_key: &[u8],
    topic: &str,
    broker: &str,
    due_ms: i64,
    unique_key: &str,
) -> String {
    let plain = format!("v1 {topic} {broker} {due_ms} {unique_key}");
    let signature = url_safe(&sign(recall_key, plain.as_bytes()));
    url_safe(format!("{plain} {signature}").as_bytes())
}

/// URL-safe base64 with padding.
fn url_safe(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut handle = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            handle.push(if digit <= chunk.len() { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    handle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_url_safe_and_padded() {
        assert_eq!(url_safe(b"v1 t b 5 K"), "djEgdCBiIDUgSw==");
        assert_eq!(url_safe(b"v1 t b 5 KL"), "djEgdCBiIDUgS0w=");
        assert_eq!(url_safe(b"v1 t b 5 K?~"), "djEgdCBiIDUgSz9-");
    }

    #[test]
    fn a_handle_is_signed_by_its_key() {
        let handle = |key: &[u8], due_ms| encode_handle(key, "t", "b", due_ms, "K");
        let plain = "v1 t b 5 K";
        let expected = url_safe(format!("{plain} {}", url_safe(&sign(b"key", plain.as_bytes()))).as_bytes());
        assert_eq!(handle(b"key", 5), expected);
        assert_ne!(handle(b"other", 5), expected);
        assert_ne!(handle(b"key", 6)[20..], expected[20..], "every word is signed");
    }

    #[test]
    fn recalls_are_forgotten_some_time_after_theirs() {
        let recalls = Recalls::default();
        recalls.note(1, 1_000, 77);
        recalls.forget_before(1_000 + KEPT_MS);
        assert_eq!(
            (recalls.find(1, 1_000), recalls.find(1, 1_001), recalls.find(2, 1_000)),
            (Some(77), None, None)
        );
        recalls.forget_before(1_001 + KEPT_MS);
        assert_eq!(recalls.find(1, 1_000), None);
    }

    #[test]
    fn keys_are_hashed_with_their_topic() {
        // FNV-1a of "a+b", by the definition of that hash.
        assert_eq!(key_hash(b"a", b"b"), 0xE62E_9B19_0474_C8C5);
        assert_ne!(key_hash(b"a", b"k"), key_hash(b"b", b"k"));
    }
}
