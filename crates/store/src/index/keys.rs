//! The keys under which records are indexed.

use metaq_wire::{Record, layout, properties};

use crate::index::file::{key_hash, topic_hash};

/// A key of a record, as the index stores it.
pub(super) struct IndexedKey {
    pub(super) hash: i32,
    pub(super) physical_offset: i64,
    pub(super) store_timestamp_ms: i64,
}

/// The keys of a stretch of the log.
#[derive(Default)]
pub(super) struct Found {
    pub(super) keys: Vec<IndexedKey>,
    /// The topic of the last record and the hash of `topic#`, which neighbouring records mostly share.
    topic: Vec<u8>,
    topic_hash: Option<i32>,
}

impl Found {
    #[inline]
    pub(super) fn add(&mut self, record: &Record<'_>) {
        if record.system_flag & layout::TRANSACTION_MASK == layout::TRANSACTION_ROLLBACK {
            return;
        }
        if self.topic != record.topic {
            self.topic_hash = std::str::from_utf8(record.topic).ok().map(topic_hash);
            self.topic.clear();
            self.topic.extend_from_slice(record.topic);
        }
        let Some(topic_hash) = self.topic_hash else { return };
        self.keys.extend(keys(record).map(|key| IndexedKey {
            hash: key_hash(topic_hash, key),
            physical_offset: record.physical_offset,
            store_timestamp_ms: record.store_timestamp_ms,
        }));
    }
}

/// The keys under which a record is indexed.
pub(super) fn keys<'a>(record: &Record<'a>) -> impl Iterator<Item = &'a str> {
    let [unique_key, keys] = properties::find_many(record.properties, ["UNIQ_KEY", "KEYS"]);
    let text =
        |value: Option<&'a [u8]>| value.and_then(|value| std::str::from_utf8(value).ok()).unwrap_or_default();
    let unique_key = Some(text(unique_key)).filter(|key| !key.is_empty());
    unique_key.into_iter().chain(text(keys).split(' ').filter(|key| !key.is_empty()))
}
