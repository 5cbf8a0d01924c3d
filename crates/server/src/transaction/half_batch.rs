//! Half messages that hold many messages: checked when they arrive, and taken apart when they are committed.
//!
//! The body is that of SEND_BATCH_MESSAGE, and the property `METAQ_HALF_BATCH` is the number of messages. Without this, a
//! driver that decides about millions of messages at once, like Spark's sink, would need two requests and an open
//! transaction for each of them.

use std::borrow::Cow;
use std::collections::HashSet;

use foldhash::fast::RandomState;
use metaq_store::{SCHEDULE_TOPIC, StoreError, TIMER_TOPIC};
use metaq_wire::properties::push_bytes;
use metaq_wire::{NewRecord, Record, SendHeader, batch_records, body_crc, layout};

use crate::codes::response_code;
use crate::net::route::Refusal;
use crate::send::keys::Keys;
use crate::send::properties::{self, Marks};
use crate::send::rewrite;
use crate::send::validate::{BATCH_MESSAGES_MAX, PROPERTIES_BYTES_MAX};
use crate::transaction::Transactions;
use crate::transaction::half::destination;

pub(crate) const HALF_BATCH: &str = "METAQ_HALF_BATCH";
/// Bytes of the properties that the broker adds to a message that waits for its time, without its topic's name.
const WAIT_PROPERTIES_BYTES: usize = 192;

/// One of the messages inside, and the queue that it goes to.
struct Part<'a> {
    topic: &'a str,
    queue_id: i32,
    flag: i32,
    body: &'a [u8],
    own: Cow<'a, [u8]>,
    added: &'a [u8],
    more: Vec<u8>,
}

/// A commit that failed after it had stored some messages.
pub(crate) struct PartialCommit {
    pub stored: usize,
    pub error: StoreError,
}

impl Transactions {
    /// Checks that each message inside can be stored later: a commit must not fail because of one of them. Returns their
    /// keys.
    pub fn check_half_batch(
        &self,
        header: &SendHeader<'_>,
        count: &[u8],
        body: &[u8],
    ) -> Result<Keys, Refusal> {
        let illegal =
            |remark: &str| Refusal::new(response_code::MESSAGE_ILLEGAL, format!("{HALF_BATCH}: {remark}"));
        if header.topic.starts_with('%') {
            return Err(illegal("no batch may go to a retry topic or to dead letters"));
        }
        let mut found = 0_usize;
        let mut index_keys = Keys::default();
        let mut unique_keys: HashSet<&[u8], RandomState> = HashSet::default();
        for part in batch_records(body) {
            let part = part.map_err(|error| illegal(&error.to_string()))?;
            let marks = properties::scan(part.properties);
            if marks.transactional || marks.requested_time.recalls.is_some() {
                return Err(illegal("a message inside is itself half of a transaction, or recalls another"));
            }
            let Some(key) = marks.unique_key else {
                return Err(illegal("a message inside has no UNIQ_KEY"));
            };
            // After a kill, the keys in the log tell which messages a commit had stored.
            if !unique_keys.insert(key) {
                return Err(illegal("two messages inside have the same UNIQ_KEY"));
            }
            let bytes = part.properties.len() + part.body.len();
            index_keys.add(&marks, bytes, self.settings.message_keys_max)?;
            self.due_times.due_ms(&marks)?;
            let size = part.properties.len() + self.added.len() + header.topic.len() + WAIT_PROPERTIES_BYTES;
            if size > PROPERTIES_BYTES_MAX {
                return Err(illegal("the properties of a message inside are too long"));
            }
            found += 1;
        }
        let told = std::str::from_utf8(count).ok().and_then(|count| count.trim().parse::<usize>().ok());
        if found == 0 || found > BATCH_MESSAGES_MAX || told != Some(found) {
            return Err(illegal(&format!("it holds {found} messages; the limit is {BATCH_MESSAGES_MAX}")));
        }
        index_keys.check_batch(self.settings.message_keys_max)?;
        Ok(index_keys)
    }

    /// Stores the messages inside, except those that are done by their number and unique key. Returns the end of the last
    /// one, 0 if all were done.
    pub(super) fn append_half_batch(
        &self,
        half: &Record<'_>,
        is_done: impl Fn(usize, &[u8]) -> bool,
    ) -> Result<i64, PartialCommit> {
        let partial = |stored| move |error| PartialCommit { stored, error };
        let parts = self.parts(half, is_done).map_err(partial(0))?;
        let (mut stored, mut end_offset) = (0, 0);
        // Usually there is one run, which is stored whole or not at all.
        for run in parts.chunk_by(|one, next| (one.topic, one.queue_id) == (next.topic, next.queue_id)) {
            let records: Vec<_> = run.iter().map(|part| self.committed(half, part)).collect();
            end_offset = self.store.append_batch(&records).map_err(partial(stored))?.end_offset;
            stored += run.len();
        }
        Ok(end_offset)
    }

    fn parts<'a>(
        &'a self,
        half: &Record<'a>,
        is_done: impl Fn(usize, &[u8]) -> bool,
    ) -> Result<Vec<Part<'a>>, StoreError> {
        let Some((topic, queue_id)) = destination(half) else {
            return Err(StoreError::BadTopic("a half message without REAL_TOPIC and REAL_QID".to_string()));
        };
        let mut parts = Vec::new();
        for (number, part) in batch_records(half.body).enumerate() {
            let part = part.map_err(StoreError::BadRecord)?;
            let marks = properties::scan(part.properties);
            if is_done(number, marks.unique_key.unwrap_or_default()) {
                continue;
            }
            let (stored_topic, stored_queue, more) = self.commit_destination(topic, queue_id, &marks);
            let own = rewrite::without_old_checksum(part.properties, &marks);
            let added = self.added.behind(&own, &marks);
            let (flag, body) = (part.flag, part.body);
            parts.push(Part { topic: stored_topic, queue_id: stored_queue, flag, body, own, added, more });
        }
        Ok(parts)
    }

    /// The topic and queue of a committed message, its own or those where it waits for its time, and the properties that it
    /// needs there. A delay begins with the commit.
    pub(super) fn commit_destination<'a>(
        &self,
        topic: &'a str,
        queue_id: i32,
        marks: &Marks<'_>,
    ) -> (&'a str, i32, Vec<u8>) {
        let level = self.delay_levels.level(marks.delay_level);
        // A wrong time was refused when the half message arrived.
        let requested = Some(marks.requested_time).filter(|_| marks.delay_level <= 0);
        let due_ms =
            requested.and_then(|requested| requested.due_ms(self.store.clock().now_ms(), i64::MAX).ok()?);
        let (stored_topic, stored_queue) = match (level, due_ms) {
            (Some(level), _) => (SCHEDULE_TOPIC, level as i32 - 1),
            (None, Some(_)) => (TIMER_TOPIC, 0),
            (None, None) => return (topic, queue_id, Vec::new()),
        };
        let mut more = vec![2];
        push_bytes(&mut more, b"REAL_TOPIC", topic.as_bytes());
        push_bytes(&mut more, b"REAL_QID", queue_id.to_string().as_bytes());
        if let Some(due_ms) = due_ms {
            push_bytes(&mut more, b"TIMER_OUT_MS", due_ms.to_string().as_bytes());
        }
        (stored_topic, stored_queue, more)
    }

    fn committed<'a>(&self, half: &Record<'_>, part: &'a Part<'_>) -> NewRecord<'a> {
        NewRecord {
            topic: part.topic.as_bytes(),
            queue_id: part.queue_id,
            flag: part.flag,
            system_flag: layout::TRANSACTION_COMMIT,
            born_timestamp_ms: half.born_timestamp_ms,
            born_host: half.born_host,
            store_host: self.store_host,
            reconsume_times: 0,
            prepared_transaction_offset: half.physical_offset,
            body: part.body,
            body_crc: body_crc(part.body),
            properties: [&part.own, part.added, &part.more],
        }
    }
}
